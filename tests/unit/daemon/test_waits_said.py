"""Whatever waits says for what: the daemon in its log and its status, trace and top in a line."""

import json
import socket
import threading
from pathlib import Path

import pytest

from pytrace_ebpf.cli import request, top
from pytrace_ebpf.daemon.api import protocol
from pytrace_ebpf.daemon.configuration import Configuration
from pytrace_ebpf.daemon.daemon import Daemon
from pytrace_ebpf.daemon.lock import Lock, Running
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record import waiting
from pytrace_ebpf.workers import daemon_recorder
from tests.conftest import PATIENCE_S

CLANG = "waiting for clang, which compiles samples.c"
FREED = "the file system of user joe does not answer; it was disconnected"


def test_the_daemon_says_it_once_a_minute_and_its_status_while_it_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    daemon = Daemon(lambda: Configuration(run_directory=tmp_path), [], said.append, [])
    monkeypatch.setattr(Daemon, "status", lambda self: {"waiting": waiting.now()})
    monkeypatch.setattr(waiting, "LONG_S", 0.0)
    lock = Lock(tmp_path)
    daemon._say_what_waits(lock, CLANG)
    with pytest.raises(HostError):  # before it samples it has no status
        Running(tmp_path).status()
    daemon._session = object()  # type: ignore[assignment]
    with waiting.on("clang, which compiles samples.c"):
        daemon._say_what_waits(lock, CLANG)
        assert Running(tmp_path).status()["waiting"] == [f"{CLANG}, for 0 s"]
    daemon._say_what_waits(lock, FREED)
    assert Running(tmp_path).status()["waiting"] == [] and said == [CLANG, FREED]
    lock.close()


@pytest.mark.parametrize(("quiet", "printed"), [(False, [CLANG, FREED]), (True, [FREED])])
def test_trace_prints_what_the_daemon_says_of_it(quiet: bool, printed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    answers = [{"waiting": CLANG}, {"begun": [], "said": []}, {"waiting": FREED}, {"code": 0}]
    assert list(request._told(iter(answers), quiet)) == [answers[1], answers[3]]
    assert capsys.readouterr().err.splitlines() == printed


def test_the_process_that_records_says_it_to_all_who_asked_and_what_was_done_to_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair()
    control, other = socket.socketpair()
    with ours, control, other:
        request = daemon_recorder.Request({"id": 1, "pid": 1, "words": []}, [theirs.detach(), 0])
        made = daemon_recorder.Serving(control)
        made._requests.append(request)
        for sentence in (CLANG, FREED):
            made._say_what_waits(sentence)
        lines = protocol.Lines(ours, protocol.MOST_ANSWER)
        assert [lines.receive(PATIENCE_S) for _ in range(2)] == [{"waiting": CLANG}, {"waiting": FREED}]
        request._presence.close()
        request.connection.close()
    assert capsys.readouterr().err.splitlines() == [FREED]


def test_top_prints_it_until_the_view_begins(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        threading.Thread(
            target=lambda: theirs.sendall("".join(json.dumps(each) + "\n" for each in ({"said": CLANG}, {"ended": "it cannot", "code": 4})).encode())
        ).start()
        with pytest.raises(HostError, match="it cannot"):
            top._watch(ours)
    assert capsys.readouterr().err.splitlines() == [CLANG]
