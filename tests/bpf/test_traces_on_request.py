"""`pytrace-ebpf request`: a user without rights has own processes traced by the daemon, and nobody else's."""

import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.daemon.api.listener import Listener
from pytrace_ebpf.daemon.api.permission import Permission
from pytrace_ebpf.record.rights import capabilities
from pytrace_ebpf.trace.reader import Trace
from tests.bpf.conftest import COMMAND, lost, wait_until
from tests.conftest import PATIENCE_S, without_rights
from tests.daemon_api import PROGRAM, Client, Open, Program, Service, opened
from tests.hostile import PYTHON, USER

LONG = ("--duration", "900")


@pytest.fixture
def daemon(public_path: Path) -> Iterator[Open]:
    with opened(public_path, Permission(users=(str(USER),), longest_s=900)) as found:
        yield found


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def start(*args: object, **more: object) -> Program:
        started.append(Program(*args, **more))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def trace(daemon: Open) -> Iterator[Callable[..., Client]]:
    started: list[Client] = []

    def ask(*args: object, **more: object) -> Client:
        started.append(Client(daemon, *args, **more))  # type: ignore[arg-type]
        return started[-1]

    yield ask
    for each in started:
        each.close()


def works(client: Client) -> int:
    """How many calls of work() its trace has, which is whole."""
    found = pytrace_ebpf.open(client.trace)
    assert found.manifest["state"] == "complete" and not lost(found)
    calls = found.calls().merge(found.functions()[["func_id", "name"]], on="func_id")
    assert (calls["wall_ns"] == calls[["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"]].sum(axis=1)).all()
    return int((calls["name"] == "work").sum())


def held(pid: int) -> set[int]:
    """The sets of capabilities that a process has, those left out that are to be empty and are."""
    fields = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    assert int(fields["CapInh"], 16) == int(fields["CapAmb"], 16) == 0
    return {int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")}


def statuses(found: Trace, name: str) -> list[str]:
    calls = found.calls().merge(found.functions()[["func_id", "name"]], on="func_id")
    return list(calls.loc[calls["name"] == name, "status"])


def test_who_asks_has_the_trace_and_whoever_asks_for_the_same_shares_its_probes(
    daemon: Open, program: Callable[..., Program], trace: Callable[..., Client]
) -> None:
    target = program()
    first = trace(target.pid, "first", "--source", "usdt", *LONG)
    assert "by usdt" in first.begun()
    target.turn()
    (recorder,) = daemon.api.recordings()
    second = trace(target.pid, "second", "--source", "usdt", "--duration", "800")
    assert "joined the recording" in second.begun()
    target.turn()
    assert "trace in" in second.stop() and works(second) == 1000
    target.turn()
    assert daemon.api.recordings() == [recorder]
    first.stop()
    assert works(first) == 3000
    assert statuses(pytrace_ebpf.open(second.trace), "main") == ["open_at_start"]  # named, although it began before the trace did
    for client in (first, second):
        opened = pytrace_ebpf.open(client.trace)
        assert not len(opened.neighbours()) and set(opened.processes()["pid"]) == {target.pid}, "of others there are numbers alone"
        assert str(client.trace) in opened.manifest["argv"], "each has what it asked for itself"
        for path in (client.trace, *client.trace.rglob("*")):
            found = path.lstat()
            assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (USER, USER, 0o700 if path.is_dir() else 0o600), path
    wait_until(lambda: daemon.api.recordings() == [])


def test_a_killed_client_ends_the_recording_and_the_trace_is_whole(
    daemon: Open, program: Callable[..., Program], trace: Callable[..., Client]
) -> None:
    target = program()
    client = trace(target.pid, "trace", "--source", "agent", *LONG)
    client.begun()
    target.turn()
    client.process.kill()
    wait_until(lambda: daemon.api.recordings() == [])
    assert works(client) == 1000
    target.turn()


def test_what_records_has_few_capabilities_and_a_daemon_that_ends_has_traces_finished(
    daemon: Open, program: Callable[..., Program], trace: Callable[..., Client]
) -> None:
    """Also requests that cannot share a recording: each has one."""
    target = program()
    clients = [trace(target.pid, "sampled", "--sample", *LONG), trace(target.pid, "called", "--source", "agent", *LONG)]
    for client in clients:
        client.begun()
    recorders = daemon.api.recordings()
    assert len(recorders) == 2
    for pid in recorders:
        assert held(pid) == {capabilities.bits(capabilities.RECORDING)}
    target.turn()
    daemon.api.close()
    assert [client.ended()[0] for client in clients] == [0, 0]
    assert works(clients[1]) == 1000


UNDUMPABLE = f"import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n{PROGRAM}"
SEVERAL = f"import os; os.setresgid({USER}, {USER}, {USER}); os.setresuid({USER}, {USER}, 0)\n{PROGRAM}"
NAMESPACE = ("unshare", "--user", "--map-root-user", PYTHON)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"user": 0, "group": 0}, "is another user's"),
        ({"group": 0}, "acts for several users or groups"),
        ({"text": SEVERAL, "user": 0, "group": 0}, "acts for several users or groups"),
        ({"text": UNDUMPABLE}, "may not be debugged by its own user"),
        ({"words": NAMESPACE}, "in another user namespace"),
    ],
    ids=["root's", "group", "setuid", "undumpable", "namespace"],
)
def test_what_one_could_not_debug_is_refused(
    daemon: Open, program: Callable[..., Program], trace: Callable[..., Client], how: dict[str, object], said: str
) -> None:
    target = program(**how)
    client = trace(target.pid, "trace")
    code, sentence = client.ended()
    assert code == 3 and said in sentence.splitlines()[-1] and not client.trace.exists()
    target.turn()


def test_a_process_that_becomes_anothers_is_let_go_of(
    daemon: Open, program: Callable[..., Program], trace: Callable[..., Client], public_path: Path
) -> None:
    """It calls a set-user-id program of root's while it is recorded."""
    setuid = public_path / "setuid"
    subprocess.run(["cp", PYTHON, setuid], check=True)
    setuid.chmod(0o4755)
    said = f"import os; print('done', flush=True); sys.stdin.readline(); os.execv({str(setuid)!r}, ['x', '-c', 'import time; time.sleep(60)'])"
    target = program(PROGRAM.replace('print("done", flush=True)', said))
    client = trace(target.pid, "trace", "--source", "usdt", *LONG)
    client.begun()
    target.turn()
    assert target.process.stdin
    target.process.stdin.write("\n")
    code, sentence = client.ended()
    assert code == 0 and "the recording ended early" in sentence and works(client) == 1000
    assert Path(f"/proc/{target.pid}").exists() and len(pytrace_ebpf.open(client.trace).manifest["sources"]) == 1


def test_root_traces_every_process_and_options_of_roots_are_refused_to_others(
    daemon: Open, program: Callable[..., Program], trace: Callable[..., Client]
) -> None:
    target = program()
    client = trace(target.pid, "roots", "--source", "agent", "--ring-mib", "16", "--duration", "1", root=True)
    assert client.ended()[0] == 0 and client.trace.stat().st_uid == os.geteuid()
    mounts = 'mount -t tmpfs none "$0" && "$@" && [ -f "$0/own/manifest.json" ]'  # where the daemon sees nothing of it
    client = trace(target.pid, "own", "--sample", "--duration", "1", root=True, within=("unshare", "-m", "sh", "-c", mounts, str(daemon.home)))
    assert client.ended()[0] == 0 and not client.trace.exists()
    for option, said in ((("--ring-mib", "16"), "--ring-mib"), (("--retain", "10s"), "--retain"), (("--duration", "901"), "900 s at most")):
        code, sentence = trace(target.pid, "users", *option).ended()
        assert code == 2 and said in sentence


def test_ctrl_c_twice_ends_the_client_at_once(daemon: Open, program: Callable[..., Program], trace: Callable[..., Client]) -> None:
    target = program()
    client = trace(target.pid, "trace", "--source", "agent", *LONG)
    client.begun()
    os.kill(daemon.api.recordings()[0], signal.SIGSTOP)
    client.process.send_signal(signal.SIGINT)
    wait_until(lambda: "SigCgt" in Path(f"/proc/{client.process.pid}/status").read_text())
    while client.process.poll() is None:
        client.process.send_signal(signal.SIGINT)
    os.kill(daemon.api.recordings()[0], signal.SIGCONT)
    assert client.process.returncode == -signal.SIGINT
    wait_until(lambda: daemon.api.recordings() == [])


ITSELF = """
import sys
import pytrace_ebpf

def work():
    pass

with pytrace_ebpf.recording(sys.argv[1], ["--daemon", "--socket", sys.argv[2]]) as own:
    for _ in range(1000):
        work()
work()
"""


def test_a_process_of_a_user_has_itself_recorded_by_the_daemon(daemon: Open) -> None:
    directory = daemon.home / "trace"
    subprocess.run(without_rights(USER, "-c", ITSELF, str(directory), str(daemon.socket)), cwd="/", check=True, timeout=PATIENCE_S)
    found = pytrace_ebpf.open(directory)
    calls = found.calls().merge(found.functions()[["func_id", "name"]], on="func_id")
    assert not lost(found) and 1000 <= (calls["name"] == "work").sum() <= 1001 and directory.stat().st_uid == USER


def test_the_daemon_itself_has_a_door(public_path: Path, program: Callable[..., Program]) -> None:
    (public_path / "home").mkdir()
    os.chown(public_path / "home", USER, USER)
    places = "".join(f"{name} = '{public_path / name}'\n" for name in ("directory", "recordings", "run_directory"))
    configuration = public_path / "daemon.toml"
    configuration.write_text(f"{places}otherwise = 'ignore'\n[requests]\nusers = [{str(USER)!r}]\n")
    where = Open(Listener(Path(), Permission(), Service(), ()), public_path / "run_directory" / "daemon.sock", public_path / "home", Service())
    words = [*COMMAND, "daemon", "--config", str(configuration)]
    with subprocess.Popen(words, umask=0o077) as daemon:
        try:
            wait_until(where.socket.exists)
            assert held(daemon.pid) == {capabilities.bits(capabilities.LOADING)}
            client = Client(where, program().pid, "trace", "--sample", "--duration", "1")
            assert client.ended()[0] == 0 and client.trace.stat().st_uid == USER
            subprocess.run([*words, "stop"], check=True)
            assert daemon.wait() == 0 and not where.socket.exists()
        finally:
            daemon.kill()
