"""The daemon's socket under attack: by users who send rubbish or nothing, take all its places, and ask for what is not theirs."""

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf.daemon.api import listener, protocol
from pytrace_ebpf.daemon.api.listener import Listener
from pytrace_ebpf.daemon.api.permission import Permission
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.record.rights import requester
from tests.bpf.conftest import wait_until
from tests.conftest import PATIENCE_S, without_rights
from tests.daemon_api import CONNECTS, Client, Open, Program, Service, last_answer, opened
from tests.hostile import USER, as_user, needs_root

pytestmark = needs_root
ENDS = (sys.executable, "-c", "")  # a process in the place of one that records, which ends at once


@pytest.fixture
def daemon(public_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    monkeypatch.setattr(listener, "_REQUEST_S", 1.0)
    with opened(public_path, Permission(users=("*",)), ENDS) as found:
        yield found


def asked(where: Open, request: dict[str, Any]) -> dict[str, Any]:
    """What root is answered."""
    lines = protocol.Lines(socket.socket(socket.AF_UNIX), protocol.MOST_ANSWER)
    lines.connection.connect(str(where.socket))
    protocol.send(lines.connection, request, 10)
    answer = lines.receive(PATIENCE_S)
    lines.close()
    assert answer is not None
    return answer


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


RUBBISH = {
    "no text": (b"\xff\xfe\0\n", "one line with a JSON object"),
    "no object": (b"[1]\n", "one line with a JSON object"),
    "deep": (b"[" * 60000 + b"\n", "one line with a JSON object"),
    "huge number": (b'{"do": 1' + b"0" * 60000 + b"}\n", "one line with a JSON object"),
    "too long": (b"x" * 70000, "at most 65,536 bytes"),
    "unknown": (b'{"do": "sudo"}\n', "does trace, status, reload, stop, and nothing else"),
    "no word": (b'{"do": ["trace"]}\n', "does trace, status, reload, stop, and nothing else"),
    "unfinished": (b'{"do": ', "no request came in 1 s"),
    "none": (b"", "no request came in 1 s"),
    "no process": (b'{"do": "trace", "pid": true, "words": [], "output": ""}\n', "of a process, by its number"),
    "no words": (b'{"do": "trace", "pid": 1, "words": "x", "output": ""}\n', "a list of at most 1000 texts"),
    "a line in a word": (b'{"do": "trace", "pid": 1, "words": ["a\\nlibrary=/x"], "output": ""}\n', "without control characters"),
    "half a character": (b'{"do": "trace", "pid": 1, "words": ["\\ud800"], "output": ""}\n', "of UTF-8"),
    "no directory": (b'{"do": "trace", "pid": 1, "words": [], "output": ""}\n', "with the descriptor of the directory"),
}


def test_rubbish_is_answered_with_one_sentence(daemon: Open, public_path: Path) -> None:
    before = descriptors()
    file = public_path / "rubbish"
    for content, said in RUBBISH.values():
        file.write_bytes(content)
        answer = last_answer(
            as_user(f"{CONNECTS}\nprint(json.dumps(ask(connected(), open(sys.argv[2], 'rb').read().decode('latin-1'))))", daemon.socket, file)
        )
        if content.isascii():  # as_user's program sends text
            assert answer["code"] == 2 and said in answer["say"], (content[:40], answer)
    wait_until(lambda: descriptors() == before)
    assert asked(daemon, {"do": "status"}) == {"code": 0, "result": {"sampled": 3}}


def test_a_user_cannot_take_the_places_of_others(daemon: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 connections of one user that say nothing: eight wait, and are ended; root is served meanwhile, and another user."""
    monkeypatch.setattr(listener, "_REQUEST_S", 60.0)
    program = f"{CONNECTS}\nheld = [connected() for _ in range(300)]\nprint('ready', flush=True)\ninput()\nprint(json.dumps([last(each) for each in held[8:]]))"
    words = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", sys.executable, "-I", "-c", program, str(daemon.socket)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as flood:
        assert flood.stdin and flood.stdout and flood.stdout.readline() == "ready\n"
        assert asked(daemon, {"do": "status"})["code"] == 0
        wait_until(lambda: sum(name.startswith("connection") for name in threads()) == 8)
        flood.stdin.write("\n")
        flood.stdin.flush()
        turned_away = json.loads(flood.stdout.readline())
    assert len(turned_away) == 292 and {answer["code"] for answer in turned_away} == {4}
    wait_until(lambda: not any(name.startswith("connection") for name in threads()))


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_only_root_asks_how_it_is_and_has_it_end(daemon: Open) -> None:
    program = f"{CONNECTS}\nprint(json.dumps([ask(connected(), json.dumps({{'do': what}}) + '\\n') for what in ('status', 'reload', 'stop')]))"
    assert {answer["code"] for answer in last_answer(as_user(program, daemon.socket))} == {3} and daemon.service.asked == []
    assert [asked(daemon, {"do": what})["code"] for what in ("status", "reload", "stop")] == [0, 0, 0]
    assert daemon.service.asked == ["status", "reload", "stop"]


def test_who_is_not_named_asks_in_vain_and_a_recording_that_ends_at_once_is_reported(daemon: Open) -> None:
    program = f"{CONNECTS}\nprint(json.dumps(trace(os.open(sys.argv[3], os.O_RDONLY))))"
    answer = last_answer(as_user(program, daemon.socket, 1, daemon.home))
    assert answer["code"] == 4 and "ended before its time" in answer["say"]
    daemon.api.permission = Permission()
    answer = last_answer(as_user(program, daemon.socket, 1, daemon.home))
    assert answer["code"] == 3 and "lets root alone ask" in answer["say"]


# -- what really records -------------------------------------------------------------


@pytest.fixture
def recording(public_path: Path) -> Iterator[Open]:
    with opened(public_path, Permission(users=("*",))) as found:
        yield found


@pytest.fixture
def target() -> Iterator[Program]:
    program = Program()
    yield program
    program.close()


# Directories that are not the user's to write to, as descriptors; the daemon must write to none.
DIRECTORIES = {
    "root's": "os.open(sys.argv[3], os.O_PATH)",
    "root's, readable": "os.open('/etc', os.O_RDONLY)",
    "everybody's": "os.open('/tmp', os.O_RDONLY)",
    "a file": "os.open(sys.argv[4] + '/file', os.O_RDWR | os.O_CREAT)",
    "full": "[os.mkdir(sys.argv[4] + '/full'), os.mkdir(sys.argv[4] + '/full/x'), os.open(sys.argv[4] + '/full', os.O_RDONLY)][-1]",
    "removed": "[os.mkdir(sys.argv[4] + '/gone'), os.open(sys.argv[4] + '/gone', os.O_RDONLY), os.rmdir(sys.argv[4] + '/gone')][1]",
    "unwritable": "[os.mkdir(sys.argv[4] + '/shut'), os.open(sys.argv[4] + '/shut', os.O_PATH), os.chmod(sys.argv[4] + '/shut', 0)][1]",
}


def test_nothing_is_written_where_the_user_could_not(recording: Open, target: Program, public_path: Path) -> None:
    private = public_path / "private"
    private.mkdir(mode=0o700)
    lines = "\n".join(f"print(json.dumps(trace({opens})))" for opens in DIRECTORIES.values())
    said = as_user(f"{CONNECTS}\n{lines}", recording.socket, target.pid, private, recording.home)
    answers = [json.loads(line) for line in said.splitlines()]
    assert [answer["code"] for answer in answers] == [2] * len(DIRECTORIES), answers
    assert all("cannot write to trace" in answer["say"] or "give another folder" in answer["say"] for answer in answers)
    assert list(private.iterdir()) == [] and stat.S_IMODE(private.stat().st_mode) == 0o700


def test_who_joins_with_such_a_directory_harms_no_recording(recording: Open, target: Program) -> None:
    client = Client(recording, target.pid, "trace", "--source", "agent", "--duration", "50")
    try:
        client.begun()
        words = "words=['request', '--pid', sys.argv[2], '--source', 'agent']"
        said = as_user(f"{CONNECTS}\nprint(json.dumps(trace(os.open('/etc', os.O_RDONLY), {words})))", recording.socket, target.pid)
        assert last_answer(said)["code"] == 2 and len(recording.api.recordings()) == 1
        target.turn()
        client.stop()
        assert pytrace_ebpf.open(client.trace).manifest["events"]["call"] >= 2000
    finally:
        client.close()


def test_a_user_is_nobody_else_and_gives_only_options_of_users(recording: Open, target: Program) -> None:
    """Who names an owner of the trace, or another directory than the one that he handed over, is refused; the words are read by the daemon, whatever the client made of them."""
    program = f"""{CONNECTS}
def words(*more):
    return {{"words": ["request", "--pid", sys.argv[2], "--duration", "1", *more]}}
def made(name):
    os.mkdir(sys.argv[3] + "/" + name)
    return os.open(sys.argv[3] + "/" + name, os.O_RDONLY)
for at, more in enumerate([words("--ring-mib", "1024"), words("--trigger", "snap"), words("--help"), {{"words": ["doctor"]}}, {{"words": ["request", "--pid", "1"]}}]):
    print(json.dumps(trace(made(str(at)), **more)["code"]))
print(json.dumps(trace(made("forged"), caller=[0, 0, [0]], **words("--source", "agent"))["code"]))
print(json.dumps(trace(made("itself"), caller=[os.getuid(), os.getgid(), []], **words("--source", "agent"))["code"]))
print(json.dumps(trace(made("elsewhere"), **words("--source", "agent", "--output", "/etc/trace"))["code"]))
print(json.dumps(trace(made("more"), as_root=True, **words("--source", "agent"))["code"]))
print(json.dumps(trace(made("own"), **words("--source", "agent", "--output", "./trace"))["code"]))
"""
    assert as_user(program, recording.socket, target.pid, recording.home).split() == ["2"] * 9 + ["0"]
    assert not Path("/etc/trace").exists()
    assert {path.stat().st_uid for path in (recording.home / "own").rglob("*")} == {USER}


def test_who_reads_no_answer_harms_nobody_and_ends_in_time(recording: Open, target: Program) -> None:
    program = f"""{CONNECTS}
os.mkdir(sys.argv[3] + "/trace")
connection = connected()
connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
request = {{"do": "trace", "pid": int(sys.argv[2]), "words": ["request", "--pid", sys.argv[2], "--duration", "1", "--source", "agent"], "output": "t"}}
socket.send_fds(connection, [json.dumps(request).encode() + b"\\n"], [os.open(sys.argv[3] + "/trace", os.O_RDONLY)])
print("ready", flush=True)
input()
"""
    words = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", sys.executable, "-I", "-c", program]
    with subprocess.Popen(
        [*words, str(recording.socket), str(target.pid), str(recording.home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
    ) as silent:
        assert silent.stdout and silent.stdout.readline() == "ready\n"
        wait_until(lambda: (recording.home / "trace" / "manifest.json").exists())
        wait_until(lambda: recording.api.recordings() == [])
        assert json.loads((recording.home / "trace" / "manifest.json").read_text())["state"] == "complete"
        silent.kill()


def test_what_yama_reserves_is_roots_unless_the_configuration_says_otherwise(target: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requester, "ptrace_scope", lambda: 1)
    pinned = Pinned(target.pid)
    assert "kernel.yama.ptrace_scope is 1" in str(requester.why_not(pinned, requester.Requester(USER, USER, ())))
    assert requester.why_not(pinned, requester.Requester(USER, USER, (), within_ptrace_scope=False)) is None
    assert "another user's" in str(requester.why_not(pinned, requester.Requester(USER + 1, USER + 1, (), within_ptrace_scope=False)))


# -- the socket's place --------------------------------------------------------------


@pytest.mark.parametrize("how", ["another's", "writable", "link"])
def test_a_place_that_others_can_change_is_refused(public_path: Path, how: str) -> None:
    folder = public_path / "run"
    if how == "link":
        folder.symlink_to("/tmp")
    else:
        folder.mkdir()
        folder.chmod(0o777 if how == "writable" else 0o755)
        os.chown(folder, USER if how == "another's" else 0, 0)
    with pytest.raises(HostError, match="others can change"):
        Listener(folder / "daemon.sock", Permission(), Service(), ENDS).open()


def test_what_is_left_of_a_killed_daemon_is_replaced_and_a_living_one_is_not(daemon: Open) -> None:
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o666 and stat.S_IMODE(daemon.socket.parent.stat().st_mode) == 0o755
    with pytest.raises(HostError, match="already"):
        Listener(daemon.socket, Permission(), Service(), ENDS).open()
    left = daemon.socket.with_name("left.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))
    second = Listener(left, Permission(), Service(), ENDS)
    second.open()
    second.close()
    assert not left.exists()


def test_who_poses_as_the_daemon_is_sent_nothing(public_path: Path) -> None:
    home = public_path / "home"
    home.mkdir()
    os.chown(home, USER, USER)
    poses = "import socket, sys\nwith socket.socket(socket.AF_UNIX) as s:\n s.bind(sys.argv[1]); s.listen(); print('ready', flush=True); print(s.accept()[0].recv(9), flush=True)"
    with subprocess.Popen(without_rights(USER, "-c", poses, str(home / "sock")), stdout=subprocess.PIPE, text=True, cwd="/") as posing:
        assert posing.stdout and posing.stdout.readline() == "ready\n"
        words = [sys.executable, "-m", "pytrace_ebpf", "request", "--socket", str(home / "sock"), "--pid", "1", "-o", str(public_path / "trace")]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
        assert ended.returncode == 4 and "neither root nor you" in ended.stderr and ended.stderr.count("\n") == 1
        assert posing.stdout.readline() == "b''\n" and not (public_path / "trace").exists()
