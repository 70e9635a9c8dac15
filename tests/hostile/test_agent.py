"""The agent's files, in the hands of the user who is traced and of others, against the tracer as root."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf import processors
from pytrace_ebpf.record.agent.arena import CHUNK_TABLE, CHUNKS_START, FUNCTIONS_START, WRITING
from pytrace_ebpf.record.agent.directory import AgentDirectory
from pytrace_ebpf.record.process.namespaces import Ids, Shared
from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.trace.reader import Trace
from tests.bpf.conftest import COMMAND, Recorder, has_agent, lost, wait_until
from tests.conftest import PATIENCE_S, links_of
from tests.unit.agent_pythons import built
from tests.unit.record.agent.test_arena_forged import chunk, event, function, header

NOBODY, ANOTHER = 65534, 65533
PYTHON = "/usr/bin/python3.11"
pytestmark = [built, pytest.mark.bpf, pytest.mark.skipif(os.geteuid() != 0, reason="the tracer is root here, and its targets are not")]

STEPS_AT_LEAST = 1000
# Calls step() until there is a line of input, then so often, and says so.
STEPS = f"""
import select, sys, time
def step(): return 1
def work():
    while not select.select([0], [], [], 0.001)[0]:
        step()
    sys.stdin.readline()
    return sum(step() for _ in range({STEPS_AT_LEAST}))
print("ready", flush=True)
steps = work()
print(steps, flush=True)
"""
# Writes a forged arena, given on stdin, for itself, maps it, and changes it by commands on stdin.
FORGES = """
import json, mmap, os, sys
folder, size, parts = json.loads(sys.stdin.readline())
name = f"{folder}/{os.getpid()}.0.arena"
file = os.open(name + ".new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
os.ftruncate(file, size)
for offset, content in parts:
    os.pwrite(file, bytes.fromhex(content), offset)
os.pwrite(file, os.getpid().to_bytes(4, "little"), 8)
memory = mmap.mmap(file, min(size, 4096))
os.rename(name + ".new", name)
print("ready", flush=True)
for line in sys.stdin:
    for offset, content in json.loads(line):
        os.pwrite(file, bytes.fromhex(content), offset) if content else os.ftruncate(file, offset)
    print("done", flush=True)
"""


class Process:
    """A Python of some user's, ready."""

    def __init__(self, source: str, *words: str, user: int = NOBODY, first: str = "") -> None:
        self.process = subprocess.Popen(
            [*words, PYTHON, "-I", "-S", "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            user=user, group=user, extra_groups=[], bufsize=1,
        )  # fmt: skip
        if first:
            self.ask(first, "ready")
        else:
            assert self.said() == "ready"

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, line: str, answer: str | None = None) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        said = self.said()
        assert answer in (None, said)
        return said

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def begin(*args: Any, **options: Any) -> Process:
        started.append(Process(*args, **options))
        return started[-1]

    yield begin
    for each in started:
        each.close()


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Callable[..., Recorder]]:
    recorders: list[Recorder] = []

    def attach(process: Process) -> Recorder:
        recorders.append(Recorder(process.pid, tmp_path / f"trace{len(recorders)}", "--source", "agent"))
        return recorders[-1]

    yield attach
    for each in recorders:
        each.close()


_made: list[Path] = []


def keepers_of(tracer: int) -> list[int]:
    """The processes of a tracer's that make and open the agent's files."""
    children = [path.parent for path in Path("/proc").glob("[0-9]*/comm") if reads(path) == "pytrace-keeper\n"]
    return [int(child.name) for child in children if f"\nPPid:\t{tracer}\n" in reads(child / "status")]


def reads(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""


def directories(recorder: Recorder) -> tuple[Path, Path]:
    """(the session's, the one for arenas) of a tracer."""
    (keeper,) = keepers_of(recorder.process.pid)
    links = links_of(Path(f"/proc/{keeper}/fd"))
    found = sorted({Path(link) for link in links if re.search(r"/pytrace-ebpf-[0-9a-f]{8}(.arenas)?$", link)}, key=lambda path: path.suffix)
    _made.extend(found)
    session, arenas = found
    return session, arenas


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """However the tracer ended, nothing is left of its directories once the next command has been started."""
    _made.clear()
    yield
    subprocess.run([*COMMAND, "info", "nowhere"], stderr=subprocess.DEVNULL)
    assert not [path for path in _made if path.exists()]


def as_user(script: str, *words: str, user: int = NOBODY) -> str:
    """Run a shell script as a user; what it says on both outputs."""
    done = subprocess.run(
        ["sh", "-c", script, "sh", *words], user=user, group=user, extra_groups=[], capture_output=True, text=True, timeout=PATIENCE_S
    )
    return done.stdout + done.stderr


def assert_recorded(recorder: Recorder, process: Process) -> Trace:
    """The recording ends well and has every call of the process from when it began."""
    trace = pytrace_ebpf.open(recorder.finish())
    calls = trace.calls(columns=["func_id", "pid"]).merge(trace.functions(), on="func_id")
    assert ((calls["name"] == "step") & (calls["pid"] == process.pid)).sum() >= STEPS_AT_LEAST
    assert not lost(trace).keys() - {"thread_map"}  # of forged threads
    return trace


def assert_goes_on(recorder: Recorder, process: Process) -> Trace:
    assert recorder.process.poll() is None
    process.ask("", str(STEPS_AT_LEAST))
    return assert_recorded(recorder, process)


def test_what_a_process_executes_and_writes_is_its_users_and_nobody_elses(start: Callable[..., Process], traced: Callable[..., Recorder]) -> None:
    process = start(STEPS)
    recorder = traced(process)
    session, arenas = directories(recorder)
    assert {path.name for path in session.iterdir()} == {"agent.so", "options", "begin.py", "lock"}
    for path in (session, *session.iterdir()):
        assert (path.stat().st_uid, path.stat().st_mode & 0o222 & ~0o200) == (NOBODY, 0)
    assert (arenas.stat().st_uid, arenas.stat().st_mode & 0o777) == (NOBODY, 0o700)
    content = {path: path.read_bytes() for path in session.iterdir()}
    as_user(
        'cd "$1"; for f in agent.so options begin.py lock; do echo x > $f; rm -f $f; mv $f y; chmod 777 $f; touch -d 1980-01-01 $f; done; '
        'cp /bin/true x; cd ..; mv "$1" x; mkdir -p "$1"; rmdir "$1"; rm -rf "$1"',
        str(session), user=ANOTHER,
    )  # fmt: skip
    assert {path: path.read_bytes() for path in session.iterdir()} == content
    assert "Permission denied" in as_user('ls "$1"; cat "$1"/*; echo x > "$1"/x', str(arenas), user=ANOTHER)
    assert_goes_on(recorder, process)


def test_what_makes_and_opens_the_files_has_its_users_rights_and_no_others(start: Callable[..., Process], traced: Callable[..., Recorder]) -> None:
    process = start(STEPS)
    recorder = traced(process)
    (keeper,) = keepers_of(recorder.process.pid)
    said = dict(line.split(":", 1) for line in Path(f"/proc/{keeper}/status").read_text().splitlines())
    assert said["Uid"].split() == said["Gid"].split() == [str(NOBODY)] * 4
    assert (said["Groups"].split(), said["NoNewPrivs"].strip()) == ([], "1")
    assert {int(said[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Amb")} == {0}
    assert "Permission denied" in as_user("cat /proc/$1/environ; ls /proc/$1/fd", str(keeper))  # its user cannot debug it
    assert not [link for link in links_of(Path(f"/proc/{recorder.process.pid}/fd")) if re.search("pytrace-ebpf-[0-9a-f]{8}$|.arenas$", link)]
    assert_goes_on(recorder, process)


def test_whoever_ends_what_opens_the_files_ends_the_recording_of_that_user_alone(
    start: Callable[..., Process], traced: Callable[..., Recorder]
) -> None:
    process = start(STEPS)
    recorder = traced(process)
    _, arenas = directories(recorder)
    as_user("kill -STOP $1; kill -CONT $1; kill -TERM $1; kill -KILL $1", str(keepers_of(recorder.process.pid)[0]))
    wait_until(lambda: not has_agent(process.pid))
    assert not arenas.exists()
    process.ask("", str(STEPS_AT_LEAST))
    (source,) = pytrace_ebpf.open(recorder.finish()).manifest["sources"]
    assert "ended, so the calls of its programs are recorded no further" in source["why"]


def test_whoever_stops_what_opens_the_files_holds_up_nobody(start: Callable[..., Process], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytrace_ebpf.record.agent.keeper_client._PATIENCE_S", 1.0)
    directory = AgentDirectory([("arena_bytes", 1 << 20)], Pinned(start(STEPS).pid))
    assert list(directory.arenas()) == []
    as_user("kill -STOP $1", str(directory.keeper))
    looks = 0
    while directory.is_kept:  # until it is given up
        began = time.monotonic()
        assert list(directory.arenas()) == []
        looks += time.monotonic() - began < 0.5
    assert looks > 2
    directory.remove()


def test_what_stands_in_an_arenas_place_is_not_opened(start: Callable[..., Process], traced: Callable[..., Recorder], tmp_path: Path) -> None:
    secret = Path(tempfile.mkstemp(prefix="secret-")[1])
    secret.write_text("of root's")
    process = start(STEPS)
    recorder = traced(process)
    _, arenas = directories(recorder)
    said = as_user(
        'cd "$1"; n=$2; mkdir $n.1.arena; mkfifo $n.2.arena; ln -s /dev/zero $n.3.arena; ln -s nowhere $n.4.arena; ln -s "$3" $n.5.arena; '
        'truncate -s 200T $n.6.arena 2>/dev/null || truncate -s 1T $n.6.arena; truncate -s 70M $n.7.arena; ln $n.7.arena other; : > $n.8.arena; '
        'echo x > 1.1.arena; ln -s "$3" failure; ln -s / $n.9.arena; for i in $(seq 300); do : > x$i; : > $i.0.arena; done; ls | wc -l',
        str(arenas), str(process.pid), str(secret),
    )  # fmt: skip
    assert int(said.split()[-1]) > 600
    # On a place of its own, so that nothing has to be undone: what was mounted over a name is not gone through.
    subprocess.run(["mount", "--bind", secret, arenas / "1.1.arena"], check=True)
    try:
        time.sleep(0.5)  # several ticks of the tracer, which prints nothing to wait for
        assert secret.read_text() == "of root's"
    finally:  # what is mounted on cannot be removed
        subprocess.run(["umount", arenas / "1.1.arena"], check=False, stderr=subprocess.DEVNULL)
    assert_goes_on(recorder, process)
    assert secret.read_text() == "of root's"
    secret.unlink()


def as_hex(*parts: tuple[int, bytes]) -> list[tuple[int, str]]:
    return [(offset, content.hex()) for offset, content in parts]


LIE = function(1 << 31), function(1, b"x" * 24), function(1, size=0)
WRITTEN = CHUNK_TABLE, chunk(WRITING, 1)
FORGERIES = {
    "chunks of nothing": [(0, header(chunk_bytes=0))],
    "a function with a forged id": [(0, header(functions_end=FUNCTIONS_START + 40)), (FUNCTIONS_START, LIE[0]), WRITTEN],
    "names without an end": [(0, header(functions_end=FUNCTIONS_START + 40)), (FUNCTIONS_START, LIE[1]), WRITTEN],
    "a function without size": [(0, header(functions_end=FUNCTIONS_START + 40)), (FUNCTIONS_START, LIE[2]), WRITTEN],
    "more events than there is room": [(0, header()), (CHUNK_TABLE, chunk(WRITING, 1 << 40))],
    "an unknown kind": [(0, header()), (CHUNK_TABLE, chunk(WRITING, 1)), (CHUNKS_START, event(what=7 << 52))],
}
SIZE = CHUNKS_START + 3 * 4096


def test_a_forged_arena_does_not_end_the_recording_of_others(start: Callable[..., Process], traced: Callable[..., Recorder]) -> None:
    process = start(STEPS)
    recorder = traced(process)
    _, arenas = directories(recorder)
    forgers = [start(FORGES, first=json.dumps((str(arenas), SIZE, as_hex(*parts)))) for parts in FORGERIES.values()]
    # These are cut when the tracer reads them already: what is gone would be a SIGBUS in a map.
    cut = [start(FORGES, first=json.dumps((str(arenas), SIZE, as_hex((0, header()), (CHUNK_TABLE, chunk(WRITING, 3)))))) for _ in range(3)]
    wait_until(lambda: not list(arenas.glob("*.arena")))  # it has them
    for forger, left in zip(cut, (0, 8, CHUNK_TABLE), strict=True):
        forger.ask(json.dumps([(left, "")]), "done")
    trace = assert_goes_on(recorder, process)
    sources = {each["pid"]: each for each in trace.manifest["sources"]}
    assert sources[process.pid]["source"] == "agent", sources[process.pid]
    for forger in cut:
        assert sources[forger.pid]["source"] is None
        assert "cut off" in sources[forger.pid]["why"]
    assert not any(sources[forger.pid]["source"] for forger in forgers if forger.pid in sources)


def test_forged_threads_processes_and_times_are_not_believed(start: Callable[..., Process], traced: Callable[..., Recorder]) -> None:
    process, other = start(STEPS), start(STEPS, user=ANOTHER)
    recorder = traced(process)
    _, arenas = directories(recorder)
    future = event((1 << 47) - 1)
    forgery = as_hex(
        (0, header(chunks=3, clock=0, dropped=2**64 - 1, started=2**64 - 1)),
        *((CHUNK_TABLE + 64 * n, chunk(WRITING, 2, n, tid)) for n, tid in enumerate((other.pid, process.pid, os.getpid()))),
        *((CHUNKS_START + 4096 * n, future * 2) for n in range(3)),
    )
    forger = start(FORGES, first=json.dumps((str(arenas), SIZE, forgery)))
    wait_until(lambda: not list(arenas.glob("*.arena")))
    trace = pytrace_ebpf.open(recorder.stop())
    calls = trace.calls()
    assert not (calls["pid"] == forger.pid).any()
    assert set(calls["tid"]) == {process.pid}
    assert calls["end_ns"].max() <= trace.manifest["end_ns"]
    assert lost(trace)["thread_map"] == 6


def test_an_arena_belongs_to_the_process_that_maps_it(start: Callable[..., Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, his = start(STEPS), start(STEPS, user=ANOTHER)
    path = tmp_path / "arenas" / "1.0.arena"
    path.parent.mkdir()
    path.write_bytes(bytes(4096))
    os.chown(path, NOBODY, NOBODY)
    with path.open("rb") as file:
        shared = Shared.of("/arenas/1.0.arena", file.fileno())
    assert Ids.of(his.pid, shared, {his.pid: ANOTHER}) is None
    assert Ids.of(os.getpid(), shared, {}) is None
    found = Ids.of(mine.pid, shared, {mine.pid: NOBODY})  # the program after exec has no arena yet
    assert found is not None and found.pid == mine.pid
    monkeypatch.setattr("pytrace_ebpf.record.process.namespaces._maps", lambda pid: "")  # as of a process that nobody may look into
    assert Ids.of(mine.pid, shared, {}) is None


def test_a_directory_that_is_swapped_leads_nowhere(start: Callable[..., Process], traced: Callable[..., Recorder]) -> None:
    process = start(STEPS)
    recorder = traced(process)
    _, arenas = directories(recorder)
    with tempfile.TemporaryDirectory(prefix="precious-") as precious:
        kept = Path(precious) / f"{process.pid}.9.arena"
        kept.write_bytes(b"of root's")
        as_user('cd "$(dirname "$1")"; mv "$1" swapped-away; ln -s "$2" "$1"', str(arenas), precious)
        assert arenas.is_symlink()
        assert_goes_on(recorder, process)
        assert kept.read_bytes() == b"of root's"
    as_user('cd "$(dirname "$1")"; rm "$1"; rm -r swapped-away', str(arenas))


LOCKS = """
import fcntl, os, struct, sys
path = sys.stdin.readline().strip()
file = os.open(path, os.O_RDONLY)
fcntl.flock(file, fcntl.LOCK_EX)
folder = os.open(os.path.dirname(path), os.O_RDONLY)
fcntl.flock(folder, fcntl.LOCK_EX)
print("ready", flush=True)
F_OFD_SETLKW = 38
fcntl.fcntl(file, F_OFD_SETLKW, struct.pack("@hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0))  # as soon as the tracer has ended
print("locked", flush=True)
sys.stdin.read()
"""


def test_nobody_keeps_the_agent_by_holding_the_lock(start: Callable[..., Process], traced: Callable[..., Recorder]) -> None:
    process = start(STEPS)
    recorder = traced(process)
    session, arenas = directories(recorder)
    other = start(LOCKS, user=ANOTHER, first=str(session / "lock"))
    recorder.process.send_signal(signal.SIGKILL)
    recorder.process.wait()
    assert other.said() == "locked"
    wait_until(lambda: not has_agent(process.pid))
    assert not arenas.exists() and not session.exists()


def test_recording_goes_on_when_a_process_changes_its_user(start: Callable[..., Process], traced: Callable[..., Recorder]) -> None:
    change = """work(); import os; os.setgid(65534); os.setuid(65534)
def other(): return step()
for _ in range(100): other()
print('changed', flush=True); steps = work()"""
    process = start(STEPS.replace("steps = work()", change), user=0)
    recorder = traced(process)
    process.ask("", "changed")
    process.ask("")
    calls = assert_recorded(recorder, process).calls(columns=["func_id"])
    trace = pytrace_ebpf.open(recorder.directory)
    assert (calls.merge(trace.functions(), on="func_id")["name"] == "other").sum() == 100


OWN_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/shm; exec "$@"', "sh")


def namespaces() -> dict[str, tuple[str, ...]]:
    """What to begin a program with, that it is in the tracer's user namespace or, where users may have such, in one of its own."""
    tried = subprocess.run([*OWN_NAMESPACE, "true"], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True)
    return {"the tracer's": (), **({"its own": OWN_NAMESPACE} if tried.returncode == 0 else {})}


NAMESPACES = namespaces() if os.geteuid() == 0 else {"the tracer's": ()}


@pytest.mark.parametrize("words", NAMESPACES.values(), ids=NAMESPACES)
def test_what_a_process_executes_is_its_own_as_it_sees_it(
    words: tuple[str, ...], start: Callable[..., Process], traced: Callable[..., Recorder]
) -> None:
    process = start(STEPS, *words)
    recorder = traced(process)
    session, _ = directories(recorder)
    for path in (session, session / "agent.so"):
        assert Path(f"/proc/{process.pid}/root{path}").stat().st_uid == NOBODY
    assert_goes_on(recorder, process)


def test_a_process_that_acts_for_several_users_is_refused(start: Callable[..., Process], tmp_path: Path) -> None:
    process = start(STEPS.replace('print("ready"', 'import os; os.setresuid(65534, 65534, 0); print("ready"'), user=0)
    refused(process, tmp_path, "acts for several users")


def refused(process: Process, tmp_path: Path, sentence: str) -> None:
    words = [*COMMAND, "attach", "--pid", str(process.pid), "--source", "agent", "-o", str(tmp_path / "trace"), "--duration", "1"]
    tracer = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert tracer.returncode == 3, tracer.stderr
    assert sentence in tracer.stderr
    assert not has_agent(process.pid)
    process.ask("", str(STEPS_AT_LEAST))
    assert process.process.wait() == 0


SPAWNS = f"""
import subprocess, sys
child = [{PYTHON!r}, "-I", "-S", "-c", "import time\\ndef step(): pass\\nend = time.monotonic() + 0.5\\nwhile time.monotonic() < end: step()"]
print(subprocess.Popen(child, user={NOBODY}, group={NOBODY}, extra_groups=[]).wait(), flush=True)
"""


def test_a_child_of_another_user_is_reported(tmp_path: Path) -> None:
    words = [*COMMAND, "run", "-q", "--source", "agent", "-o", str(tmp_path / "trace"), "--", PYTHON, "-c", SPAWNS]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stdout) == (0, "0\n"), ended.stderr
    sources = pytrace_ebpf.open(tmp_path / "trace").manifest["sources"]
    assert sorted(str(each["source"]) for each in sources) == ["None", "agent"]
    assert "runs as another user" in next(each["why"] for each in sources if each["source"] is None)


# Installs a filter that kills for these calls, or for all others.
FILTER = """
import ctypes, struct, sys
def confine(numbers, listed, others):
    code = [(0x20, 0, 0, 0)]
    for at, number in enumerate(numbers):
        code.append((0x15, len(numbers) - at, 0, number))
    code += [(0x06, 0, 0, others), (0x06, 0, 0, listed)]
    text = b"".join(struct.pack("<HBBI", *each) for each in code)
    kept = ctypes.create_string_buffer(text, len(text))
    program = struct.pack("<HxxxxxxQ", len(code), ctypes.addressof(kept))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.create_string_buffer(program), 0, 0) == 0
KILL, ALLOW = 0x80000000, 0x7FFF0000
"""
ENDS = STEPS + "sys.exit(7)\n"


def confined(how: str) -> str:
    return FILTER + ENDS.replace('print("ready"', f'{how}; print("ready"')


def test_a_filter_that_kills_for_rare_calls_does_no_harm(start: Callable[..., Process], traced: Callable[..., Recorder]) -> None:
    ftruncate, flock = 77, 73
    process = start(confined(f"confine([{ftruncate}, {flock}], KILL, ALLOW)"))
    recorder = traced(process)
    trace = assert_goes_on(recorder, process)
    assert process.process.wait() == 7
    (source,) = trace.manifest["sources"]
    assert "seccomp filter" in source["why"]


def test_the_agent_makes_only_system_calls_that_are_checked(start: Callable[..., Process], traced: Callable[..., Recorder]) -> None:
    from pytrace_ebpf.record.agent.inject import seccomp

    numbers = sorted({processors.here().call(call.name) for call in (*seccomp.CALLS, *seccomp._NEW)})
    its_own = [23, 270, 1, 0, 12, 231, 202, 11, 60]  # select, write, read, brk, exit_group, ...
    process = start(confined(f"confine({sorted({*numbers, *its_own})}, ALLOW, KILL)"))
    recorder = traced(process)
    assert_goes_on(recorder, process)
    assert process.process.wait() == 7


@pytest.mark.parametrize("number, name", [(257, "openat"), (9, "mmap"), (435, "clone3")])
def test_a_filter_that_would_end_the_program_is_reported(number: int, name: str, start: Callable[..., Process], tmp_path: Path) -> None:
    process = start(confined(f"confine([{number}], KILL, ALLOW)").replace("sys.exit(7)", "import os; os._exit(0)"))
    refused(process, tmp_path, f"seccomp filter that ends the program for the call {name}")
