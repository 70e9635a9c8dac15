"""What is said of a wait that takes long, and what of memory is read, and of files probed, where a user's program may serve them."""

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record import waiting
from pytrace_ebpf.record.kernel import file_status, page_servers, registering
from pytrace_ebpf.record.process.memory import Memory, MemoryFault, Numbered
from pytrace_ebpf.record.process.watched import Watched, kept

PAGE = mmap.PAGESIZE


@pytest.fixture(autouse=True)
def nobody_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody stood in the way."""
    monkeypatch.setattr(page_servers, "disconnected", page_servers._Disconnected())
    monkeypatch.setattr(registering, "_patience", registering._Patience())
    monkeypatch.setattr(waiting, "hurry", lambda seconds: None)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said, at once and not after a while."""
    found: list[str] = []
    monkeypatch.setattr(waiting, "_say", found.append)
    monkeypatch.setattr(waiting, "LONG_S", 0.0)
    monkeypatch.setattr(waiting, "_FREE_S", 0.0)
    return found


def test_a_wait_that_takes_long_is_said_once(said: list[str]) -> None:
    with waiting.on("the moon"):
        waiting._look()
        waiting._look()
    waiting._look()
    assert said == ["waiting for the moon"]


def test_a_wait_that_is_over_is_not_said(said: list[str]) -> None:
    with waiting.on("the moon"):
        pass
    waiting._look()
    assert said == []


def test_who_is_quiet_hears_of_what_was_done_alone(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_quiet", True)
    asked = []
    with waiting.On("the moon", lambda tid, seconds: asked.append(tid) or ["it was pulled down"]):
        waiting._look()
    assert set(asked) == {threading.get_native_id()}
    assert set(said) == {"it was pulled down"}


def test_waits_of_several_threads_and_within_each_other_are_apart(said: list[str]) -> None:
    both, over = threading.Barrier(2), threading.Barrier(2)

    def other() -> None:
        with waiting.on("the sun"):
            both.wait()
            over.wait()

    thread = threading.Thread(target=other)
    thread.start()
    with waiting.on("the moon"), waiting.on("the stars"):
        both.wait()
        waiting._look()
        over.wait()
    thread.join()
    assert set(said) == {"waiting for the sun", "waiting for the moon", "waiting for the stars"}


@pytest.fixture
def files() -> Iterator[tuple[int, int]]:
    """This process's memory, and what of it is there."""
    memory, pagemap = os.open("/proc/self/mem", os.O_RDWR), os.open("/proc/self/pagemap", os.O_RDONLY)
    yield memory, pagemap
    os.close(memory)
    os.close(pagemap)


@pytest.fixture
def room() -> Iterator[tuple[mmap.mmap, int]]:
    """Two pages of which the first alone was touched, and where they are."""
    memory = mmap.mmap(-1, 2 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:4] = b"here"
    view = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(view)
    del view
    yield memory, address


def test_a_page_is_read_that_is_there_or_that_the_kernel_brings_in(files: tuple[int, int], room: tuple[mmap.mmap, int]) -> None:
    _, address = room
    memory = Memory(os.getpid(), Numbered(files[0]), Numbered(files[1]))
    assert memory.read(address, 4) == b"here"
    with pytest.raises(MemoryFault, match="not in memory"):
        memory.read(address + PAGE - 2, 4)
    assert Memory(os.getpid(), Numbered(files[0]), Numbered(files[1]), [(address, address + 2 * PAGE)]).read(address + PAGE - 2, 4) == bytes(4)


def test_what_came_into_the_map_since_is_looked_up(files: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Watched(os.getpid(), Numbered(files[0]), Numbered(files[1]), lambda: Path("/proc/self/maps").read_bytes())
    memory.kept()
    new = mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    monkeypatch.setattr("pytrace_ebpf.record.process.watched._YOUNG_S", 0.0)
    address = next(int(line.split("-")[0], 16) for line in Path("/proc/self/maps").read_text().splitlines()[::-1] if "00:00 0 \n" in line + "\n")
    assert len(memory.read(address, 8)) == 8
    new.close()


def test_of_a_map_what_a_users_program_serves_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = (
        b"1000-2000 r--p 0 00:2a 5 /of/a/user\n2000-3000 rw-p 0 00:00 0 \n3000-5000 rw-p 0 fe:01 7 /of/the/host\n9000-a000 rw-p 0 00:2b 5 /of/root\n"
    )
    monkeypatch.setattr(page_servers, "of_users", lambda: {0x2A})
    assert kept(maps) == [(0x2000, 0x5000), (0x9000, 0xA000)]


def test_memory_is_read_while_no_probes_are_placed(files: tuple[int, int], room: tuple[mmap.mmap, int]) -> None:
    memory = Watched(os.getpid(), Numbered(files[0]), Numbered(files[1]), lambda: Path("/proc/self/maps").read_bytes())
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(memory.read(room[1], 4)))
    with registering.pages.alone():
        thread.start()
        thread.join(0.2)
        assert not got
    thread.join()
    assert got == [b"here"]
    with registering.pages:
        assert memory.read(room[1], 4) == b"here", "who reads keeps no other one from it"


def test_probes_are_placed_once_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = threading.Event()

    def place() -> None:
        with registering.removing():
            placed.set()

    thread = threading.Thread(target=place)
    with registering.pages:
        thread.start()
        assert not placed.wait(0.2)
    thread.join()
    assert placed.is_set()


def test_what_takes_long_now_is_known_while_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LONG_S", 0.0)
    with waiting.on("the moon"):
        assert waiting.now() == ["waiting for the moon, for 0 s"]
    assert waiting.now() == []


def test_no_probes_are_placed_on_a_file_that_a_users_program_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "library.so"
    file.write_bytes(b"")
    device = file.stat().st_dev
    monkeypatch.setattr(page_servers, "of_users", lambda: {os.major(device) << 20 | os.minor(device)})
    with pytest.raises(TargetError, match="FUSE"), registering.placing(str(file), 1, []):
        pytest.fail("they would be")


def test_who_holds_a_memory_map_is_waited_for_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    monkeypatch.setattr(page_servers, "who_holds", lambda: page_servers.Stuck(os.getpid(), os.getpid(), True))
    monkeypatch.setattr(registering, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(registering, "_LOOK_S", 0.6)
    with pytest.raises(HostError, match=f"process {os.getpid()} of user .* holds its memory map"), registering.placing(str(tmp_path), 1, []):
        pytest.fail("they would be")
    assert any("holds its memory map" in sentence for sentence in said)


def test_nothing_is_aborted_for_a_wait_that_is_for_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_servers, "waiting", lambda: {7: 4001000})
    monkeypatch.setattr(page_servers, "_abort", lambda connection: pytest.fail("it is"))
    monkeypatch.setattr(page_servers, "_stack", lambda pid, tid: b"[<0>] do_nanosleep+0x1/0x2\n")
    free = page_servers.Freeing(os.getpid())
    assert [free(1, seconds) for seconds in (0.5, 1.0, 10.0)] == [[], [], []]


def test_what_serves_nothing_in_two_looks_is_aborted_where_one_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    aborted: list[int] = []
    monkeypatch.setattr(page_servers, "waiting", lambda: {7: 4001000, 8: 4001000})
    monkeypatch.setattr(page_servers, "_abort", lambda connection: not aborted.append(connection))
    monkeypatch.setattr(page_servers, "_stack", lambda pid, tid: b"[<0>] request_wait_answer+0x1/0x2\n")
    monkeypatch.setattr(page_servers, "_mounted", lambda pid: {8: "/of/the/target"} if pid == 42 else {7: "/of/another"})
    free = page_servers.Freeing(42)
    assert free(1, 0.5) == []
    (sentence,) = free(1, 0.75)
    assert aborted == [8]
    assert "/of/the/target" in sentence


def test_status_is_that_of_stat(tmp_path: Path) -> None:
    for path in ("/proc/self/exe", "/", "/proc/self/ns/mnt", str(tmp_path)):
        expected, found = Path(path).stat(), file_status.status(path)
        assert found == tuple(getattr(expected, name) for name in found._fields)
    with pytest.raises(FileNotFoundError):
        file_status.status(str(tmp_path / "none"))


def test_of_a_file_that_is_hidden_the_device_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user's file system that root may not look into."""
    real = file_status._statx
    monkeypatch.setattr(file_status, "_statx", lambda path, at, wanted, buffer: real(path, at, wanted, buffer) if not wanted else errno.EACCES)
    assert file_status.status(str(tmp_path)).st_dev == tmp_path.stat().st_dev


def test_pages_that_get_probes_are_brought_in_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    file = tmp_path / "file"
    file.write_bytes(bytes(4 * PAGE))
    pread = os.pread
    monkeypatch.setattr(registering, "os", SimpleNamespace(pread=lambda fd, size, at: read.append(at) or pread(fd, size, at)))
    registering._bring_in(str(file), [1, 5, 3 * PAGE + 7])
    assert sorted(read) == [0, 3 * PAGE]


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Those of users that do not answer, with the users: a thread waits for its turn at the lock of a memory map; who is aborted is gone."""
    found: dict[int, int] = {}
    monkeypatch.setattr(page_servers, "waiting", lambda: dict(found))
    monkeypatch.setattr(page_servers, "_stack", lambda pid, tid: b"rwsem_down_write_slowpath")
    monkeypatch.setattr(page_servers, "_abort", lambda connection: found.pop(connection, None) is not None)
    monkeypatch.setattr(page_servers, "_mounted", lambda pid: {pid: f"/of/{pid}"})
    monkeypatch.setattr(page_servers, "stuck", lambda: [page_servers.Stuck(connection, connection, True) for connection in found])
    return found


def test_who_stands_in_the_way_is_disconnected_in_the_second_look_and_at_once_when_he_comes_again(connections: dict[int, int]) -> None:
    free = page_servers.Freeing(1)
    connections.update({7: 4001000})
    assert free(5, 0.6) == [] and connections
    (said,) = free(5, 0.8)
    assert "/of/7" in said and "user 4001000" in said and not connections
    connections.update({8: 4001000, 9: 4001000, 10: 4001001})
    assert free(5, 0.9) == [] and set(connections) == {10}  # which was said, and another user is looked at twice
    (said,) = free(5, 1.0)
    assert "user 4001001" in said and not connections


@pytest.mark.parametrize(
    "innermost", ["__access_remote_vm+0x52/0x460\n[<0>] proc_pid_cmdline_read+0x1/0x2", "m_start+0x5f/0x130\n[<0>] seq_read_iter+0x1/0x2"]
)
def test_a_kernel_that_leaves_out_what_waits_for_a_lock_says_who_takes_it(
    innermost: str, connections: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_servers, "_stack", lambda pid, tid: f"[<0>] {innermost}\n".encode())
    connections.update({7: 4001000})
    free = page_servers.Freeing(1)
    assert free(5, 0.6) == [] and connections
    assert free(5, 0.8) and not connections


def test_where_users_take_turns_everybody_who_holds_a_lock_is_disconnected(connections: dict[int, int]) -> None:
    free = page_servers.Freeing(1)
    connections.update({7: 4001000})
    free(5, 0.6), free(5, 0.8)
    connections.update({8: 4001001, 9: 4001002})
    assert len(free(5, 2.0)) == 2 and not connections
    connections.update({11: 4001003})
    assert len(free(6, 0.02)) == 1 and not connections


def test_patience_is_for_all_probes_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, held = tmp_path / "library.so", [True]
    file.write_bytes(b"")
    monkeypatch.setattr(registering, "_LOOK_S", 0.01)
    monkeypatch.setattr(registering, "_PATIENCE_S", 0.035)
    # Each time he lets go just before nobody waits for him any more.
    monkeypatch.setattr(page_servers, "who_holds", lambda: page_servers.Stuck(1, 1, True) if held.pop() else held.extend((False, True, True)))
    with pytest.raises(HostError, match="process 1 of user root holds its memory map"):
        for _ in range(5):
            held[:] = [False, True, True]
            with registering.placing(str(file), 1, []):
                pass
