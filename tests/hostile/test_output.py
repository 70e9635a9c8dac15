"""The trace directory under attack: links, other people's folders, and what is swapped while it is written."""

import os
import pwd
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.record.flight.conditions import Condition, Flight
from pytrace_ebpf.record.flight.recorder import FlightRecorder
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.output.directory import Output
from pytrace_ebpf.record.rights.user import as_caller
from tests.conftest import PATIENCE_S
from tests.hostile import PYTHON, USER, as_user, needs_root

pytestmark = needs_root
SUDO = {"SUDO_UID": str(pwd.getpwnam("nobody").pw_uid), "SUDO_GID": str(pwd.getpwnam("nobody").pw_gid)}
NOBODY = pwd.getpwnam("nobody").pw_uid


def record(output: Path, program: str = "pass", *args: object, env: Mapping[str, str] = {}) -> "subprocess.Popen[str]":
    """A recording as root that needs no eBPF: what writes is the same."""
    words = [sys.executable, "-m", "pytrace_ebpf", "run", "--rootless", "-q", "-o", str(output), "--", PYTHON, "-c", program]
    return subprocess.Popen(
        [*words, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env={**os.environ, **env}
    )


def refused(output: Path, env: Mapping[str, str] = {}) -> str:
    """Record there, which must be refused as a usage error; returns the sentence."""
    process = record(output, env=env)
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 2 and said.count("\n") == 1, said
    return said


@pytest.fixture
def home(public_path: Path) -> Path:
    """A directory of the user's."""
    home = public_path / "home"
    home.mkdir()
    os.chown(home, USER, USER)
    return home


@pytest.fixture
def private(public_path: Path) -> Iterator[Path]:
    """A directory of root's that must stay as it is."""
    private = public_path / "private"
    private.mkdir(mode=0o700)
    yield private
    assert list(private.iterdir()) == [] and stat.S_IMODE(private.stat().st_mode) == 0o700


def test_an_empty_folder_of_somebody_else_is_not_taken(home: Path) -> None:
    as_user("import os, sys; os.mkdir(sys.argv[1], 0o777)", home / "trace")
    assert "belongs to somebody else" in refused(home / "trace")
    assert list((home / "trace").iterdir()) == []


def test_a_link_is_not_followed(home: Path, private: Path) -> None:
    as_user("import os, sys; os.symlink(sys.argv[1], sys.argv[2])", private, home / "trace")
    assert "is a link" in refused(home / "trace")


def test_somebody_elses_link_on_the_way_is_not_followed_but_roots_is(home: Path, private: Path, public_path: Path) -> None:
    as_user("import os, sys; os.symlink(sys.argv[1], sys.argv[2])", private, home / "traces")
    assert "somebody else's link" in refused(home / "traces" / "trace")
    (public_path / "there").mkdir()
    (public_path / "here").symlink_to("there")
    Output(public_path / "here" / "trace").close()
    assert (public_path / "there" / "trace").is_dir()


def test_a_hard_link_in_it_is_not_written_through(home: Path, public_path: Path) -> None:
    victim = public_path / "victim"
    victim.write_text("precious")
    (home / "trace").mkdir(mode=0o700)
    os.link(victim, home / "trace" / "manifest.json")
    assert "not empty" in refused(home / "trace")
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("planted", ["link", "folder"])
def test_what_takes_the_place_of_a_flight_recorders_directory_is_refused(home: Path, private: Path, planted: str) -> None:
    """It was free when the recording began, and is wanted when something has happened."""
    flight = Flight((Condition("snap", "snap"),), 0, 0, 5)
    facts = {"target": {"pid": 1, "command": "", "executable": "", "python_version": None}, "sources": []}
    recorder = FlightRecorder(Options(home / "trace", flight=flight), ["test"], facts)
    assert list(home.iterdir()) == []
    making = {"link": "os.symlink(sys.argv[2], sys.argv[1])", "folder": "os.mkdir(sys.argv[1], 0o777)"}[planted]
    as_user(f"import os, sys; {making}", home / "trace", private)
    recorder.snap(recorder.start_ns)
    recorder.cut(facts)
    (said,) = recorder.take_said()
    assert ("is a link" if planted == "link" else "belongs to somebody else") in said and recorder.failed
    (home / "trace").unlink() if planted == "link" else (home / "trace").rmdir()
    recorder.snap(recorder.start_ns)
    recorder.finish(facts, recorder.start_ns)
    assert pytrace_ebpf.open(home / "trace").manifest["trigger"]["condition"] == "snap" and recorder.traces == [home / "trace"]


@pytest.mark.parametrize("kind", ["fifo", "file"])
def test_what_is_no_folder_is_refused_at_once(home: Path, kind: str) -> None:
    as_user("import os, sys; os.mkfifo(sys.argv[1]) if sys.argv[2] == 'fifo' else open(sys.argv[1], 'w')", home / "trace", kind)
    refused(home / "trace")


def test_a_folder_bound_over_ones_own_is_judged_by_what_it_is(home: Path, public_path: Path) -> None:
    as_user("import os, sys; os.mkdir(sys.argv[1])", home / "bound")
    (public_path / "trace").mkdir()
    subprocess.run(["mount", "--bind", home / "bound", public_path / "trace"], check=True)
    try:
        assert "belongs to somebody else" in refused(public_path / "trace")
    finally:
        subprocess.run(["umount", public_path / "trace"], check=True)


def test_under_sudo_a_link_gives_the_user_none_of_roots_rights(public_path: Path, private: Path) -> None:
    home = public_path / "nobody"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    (home / "own").symlink_to(private)
    os.lchown(home / "own", NOBODY, NOBODY)
    assert "Permission denied" in refused(home / "own" / "trace", SUDO)
    assert "Permission denied" in refused(public_path / "trace", SUDO)


_SWAP = """
import os, sys
path, decoy = sys.argv[1:]
os.rename(path, path + "-moved")
os.symlink(decoy, path)
"""


def test_a_directory_that_is_swapped_while_it_is_written_leads_nowhere(home: Path, private: Path) -> None:
    process = record(home / "trace", "print('ready', flush=True); input(); import json")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    as_user(_SWAP, home / "trace", private)
    said = process.communicate("\n", timeout=PATIENCE_S)[1]
    assert process.returncode == 0, said
    trace = pytrace_ebpf.open(home / "trace-moved")
    assert trace.manifest["state"] == "complete" and len(trace.events())


# The traced program is the attacker: under sudo the trace is its user's.
_ATTACK = """
import os, shutil, sys
trace, victim, private = sys.argv[1:]
os.symlink(victim, f"{trace}/manifest.json.new")
for folder in os.listdir(trace):
    if os.path.isdir(f"{trace}/{folder}"):
        os.rename(f"{trace}/{folder}", f"{trace}/{folder}-moved")
        os.symlink(private, f"{trace}/{folder}")
"""


def test_under_sudo_links_in_the_trace_lead_nowhere(public_path: Path, private: Path) -> None:
    home, victim = public_path / "nobody", public_path / "victim"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    victim.write_text("precious")
    victim.chmod(0o600)
    process = record(home / "trace", _ATTACK, home / "trace", victim, private, env=SUDO)
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0 and said.count("\n") == 1 and "could not be written any further" in said, said
    assert victim.read_text() == "precious" and victim.stat().st_uid == 0


def test_after_sigkill_all_files_belong_to_the_user_who_called_sudo(public_path: Path) -> None:
    home = public_path / "nobody"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    process = record(home / "traces" / "trace", "print('ready', flush=True); input()", env=SUDO)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    found = [home / "traces", *(home / "traces").rglob("*")]
    assert home / "traces" / "trace" / "manifest.json" in found
    assert {path.stat().st_uid for path in found} == {NOBODY}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o700, 0o600}


def test_a_name_that_is_taken_is_not_used_where_another_will_do(public_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(public_path)
    monkeypatch.setattr("time.strftime", lambda form: form.replace("%", ""))
    (public_path / "pytrace-Ymd-HMS").symlink_to("/nowhere")
    for name in ("pytrace-Ymd-HMS-2", "pytrace-Ymd-HMS-3"):
        output = Output(None)
        output.close()
        assert output.path.name == name and (public_path / name).is_dir()


def test_what_is_abandoned_is_removed_and_nothing_in_its_place(public_path: Path) -> None:
    output = Output(public_path / "trace")
    output.make_folder("events")
    output.replace("manifest.json", b"{}")
    (public_path / "trace").rename(public_path / "moved")
    (public_path / "trace" / "events").mkdir(parents=True)
    (public_path / "trace" / "manifest.json").write_text("another's")
    output.abandon(("events",), ("manifest.json",))
    output.close()
    assert list((public_path / "moved").iterdir()) == []
    assert (public_path / "trace" / "manifest.json").read_text() == "another's" and (public_path / "trace" / "events").is_dir()


def test_a_directory_swapped_before_it_is_opened_is_refused(public_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = os.mkdir

    def swapped(name: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        made(name, mode, dir_fd=dir_fd)
        os.rename(name, f"{name}-moved", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        made(name, mode, dir_fd=dir_fd)
        os.chown(name, USER, USER, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", swapped)
    with pytest.raises(UsageError, match="belongs to somebody else"):
        Output(public_path / "trace")


def test_only_the_thread_that_writes_takes_the_users_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    def rights() -> list[str]:
        status = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/status").read_text()
        return [line for line in status.splitlines() if line.startswith(("Uid", "Gid", "Groups", "CapEff"))]

    monkeypatch.setenv("SUDO_UID", SUDO["SUDO_UID"])
    before, elsewhere, told, go = rights(), list[str](), threading.Event(), threading.Event()

    def other() -> None:
        told.set()
        go.wait()
        elsewhere.extend(rights())

    thread = threading.Thread(target=other)
    thread.start()
    told.wait()
    with as_caller():
        within = rights()
        go.set()
        thread.join()
    assert elsewhere == rights() == before
    uid, _, groups, capabilities = within
    assert uid.split()[1:] == ["0", "0", "0", str(NOBODY)] and "0" not in groups.split()[1:]
    assert int(capabilities.split()[1], 16) == 0
