"""What is said at the daemon's socket, and who may ask for what."""

import argparse
import grp
import os
import pwd
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytrace_ebpf.cli import main
from pytrace_ebpf.cli.request import add_arguments
from pytrace_ebpf.daemon.api import protocol
from pytrace_ebpf.daemon.api.listener import Listener
from pytrace_ebpf.daemon.api.peer import Peer, Presence
from pytrace_ebpf.daemon.api.permission import USERS_OPTIONS, Permission
from pytrace_ebpf.errors import HostError, PytraceError, TargetError, UsageError
from pytrace_ebpf.record.rights import capabilities
from pytrace_ebpf.workers import daemon_recorder
from tests.conftest import REPOSITORY
from tests.daemon_api import Service

# Options of `request` that users are not given: what they hold or take is the host's.
ROOTS_OPTIONS = {"ring-mib", "retain"}
WITHOUT_EFFECT = {"pid", "socket", "help"}
NOT_OF_REQUEST = {"trigger", "after", "every", "traces", "from-call", "for"}


@pytest.fixture
def pair() -> Iterator[tuple[protocol.Lines, socket.socket]]:
    ours, theirs = socket.socketpair()
    lines = protocol.Lines(ours, 1000)
    with theirs:
        yield lines, theirs
    lines.close()


def test_lines_come_in_any_pieces_with_their_descriptor(pair: tuple[protocol.Lines, socket.socket]) -> None:
    lines, theirs = pair
    folder = os.open("/", os.O_PATH)
    socket.send_fds(theirs, [b'{"a"'], [folder] * 3)
    os.close(folder)
    with pytest.raises(TimeoutError):
        lines.receive(0.01)
    theirs.send(b': 1}\n{"b": 2}\n{"c')
    assert [lines.receive(1), lines.receive(1)] == [{"a": 1}, {"b": 2}]
    (only,) = lines.take_descriptors()
    assert os.path.samestat(os.fstat(only), Path("/").stat()) and lines.take_descriptors() == []
    os.close(only)
    theirs.shutdown(socket.SHUT_WR)
    assert lines.receive(1) is None


def test_a_descriptor_for_which_there_is_no_room_is_noticed(pair: tuple[protocol.Lines, socket.socket]) -> None:
    lines, theirs = pair
    socket.send_fds(theirs, [b"{}\n"], [theirs.fileno()])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert lines.receive(1) == {}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert lines.lacks_room and lines.take_descriptors() == []


@pytest.mark.parametrize("content", [b"x" * 1001 + b"\n", b"x" * 5000, b"[]\n", b"\n", b"{\n", b"\xff\n", b"[" * 900 + b"\n", b"1" * 900 + b"\n"])
def test_what_is_no_object_of_some_size_is_refused(pair: tuple[protocol.Lines, socket.socket], content: bytes) -> None:
    lines, theirs = pair
    theirs.send(content)
    with pytest.raises(protocol.Malformed):
        lines.receive(1)


def test_who_does_not_read_is_sent_no_half_lines(pair: tuple[protocol.Lines, socket.socket]) -> None:
    lines, theirs = pair
    said = {"say": "x" * 100_000}
    while protocol.send(lines.connection, said, 0):
        pass
    theirs.settimeout(10)
    content = b""
    while more := theirs.recv(1 << 20):
        content += more
    assert all(line[-3:] == b'x"}' for line in content.split(b"\n")[:-1])


@pytest.mark.parametrize("error", [UsageError("a"), TargetError("b"), HostError("c")])
def test_an_error_arrives_as_itself(error: PytraceError) -> None:
    arrived = protocol.refused(protocol.refusal(error))
    assert type(arrived) is type(error) and str(arrived) == str(error)


def test_any_other_answer_than_a_result_is_an_error() -> None:
    assert protocol.refused({"code": 0}) is None
    assert {type(protocol.refused(answer)) for answer in ({"code": 1}, {"code": "x"}, {"code": None}, {"code": []}, {})} == {HostError}


def test_the_other_side_is_who_the_kernel_says_and_seen_to_end(pair: tuple[protocol.Lines, socket.socket]) -> None:
    lines, _ = pair
    assert Peer.of(lines.connection) == Peer(os.getpid(), os.geteuid(), os.getegid(), tuple(os.getgroups()))
    presence = Presence(lines.connection)
    assert not presence.is_gone
    presence.close()


SOMEBODY = pwd.getpwall()[-1]
PEER = Peer(1, SOMEBODY.pw_uid, SOMEBODY.pw_gid, (4242,))
GROUP = grp.getgrgid(SOMEBODY.pw_gid).gr_name


@pytest.mark.parametrize("word", ["*", SOMEBODY.pw_name, str(SOMEBODY.pw_uid), f"@{GROUP}", "@4242"])
def test_users_are_named_in_any_way(word: str) -> None:
    Permission(users=("nobody-else", word)).require(PEER)


@pytest.mark.parametrize(
    "users", [(), ("nobody-else",), ("@nobody-else",), ("@",), ("",), (GROUP + "x",), ("4242",), (f"@{SOMEBODY.pw_name}-x",), ("0",)]
)
def test_who_is_not_named_may_not(users: tuple[str, ...]) -> None:
    with pytest.raises(TargetError):
        Permission(users=users).require(PEER)
    Permission(users=users).require(Peer(1, 0, 0, ()))


def test_the_configuration_says_what_users_may() -> None:
    table = {"users": ["*"], "longest_s": 10, "at_once": 1, "in_all": 3, "options": ["duration"], "within_ptrace_scope": False}
    assert Permission.of(table) == Permission(("*",), 10.0, 1, 3, ("duration",), False) and Permission.of({}) == Permission()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"user": []}, "has no user; there are users, longest_s"),
        ({"users": "me"}, "a list of texts"),
        ({"users": [1]}, "a list of texts"),
        ({"longest_s": "60"}, "a number from 1"),
        ({"longest_s": True}, "a number from 1"),
        ({"at_once": 1.5}, "a number from 1"),
        ({"in_all": 0}, "a number from 1"),
        ({"within_ptrace_scope": 1}, "true or false"),
        ({"options": ["ring-mib"]}, "users cannot be given ring-mib"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(table: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        Permission.of(table)
    assert "\n" not in str(raised.value)


def test_each_option_is_users_or_roots() -> None:
    """A new one has to be decided about."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = {max(action.option_strings, key=len).removeprefix("--") for action in parser._actions}
    assert options == set(USERS_OPTIONS) | ROOTS_OPTIONS | WITHOUT_EFFECT | NOT_OF_REQUEST


def request(*words: str, user: bool = True) -> daemon_recorder.Request:
    limits = {"longest_s": 60.0, "options": USERS_OPTIONS} if user else {}
    connection, other = socket.socketpair()
    other.close()
    message = {"id": 1, "pid": 7, "words": ["request", "--pid", "7", *words], **limits}
    return daemon_recorder.Request(message, [connection.detach(), os.open("/", os.O_PATH)])


@pytest.mark.parametrize("words", [("--ring-mib", "64"), ("--retain", "10s"), ("--duration", "61"), ("--trigger", "snap"), ("--redact", "x")])
def test_users_are_refused_what_is_roots(words: tuple[str, ...]) -> None:
    asked = request(*words)
    with pytest.raises(UsageError):
        asked.read()
    asked.close()


def test_who_asks_for_the_same_shares_a_recording_whatever_its_place_and_length() -> None:
    asked = [request(), request("--duration", "9", "-o", "x", "-q"), request("--sample"), request("--include", "a"), request("--include", "a")]
    for each in asked:
        each.read()
        assert each.args.no_follow
    assert [each.agrees_with(asked[0]) for each in asked] == [True, True, False, False, False] and asked[3].agrees_with(asked[4])
    roots = request("--ring-mib", "64", "--duration", "1h", user=False)
    roots.read()
    assert not roots.args.no_follow
    for each in (*asked, roots):
        assert each.has_enough()  # nobody is there
        each.close()


@pytest.mark.parametrize("words", [["request", "--pid", "8"], ["doctor"], ["request", "--help"], ["--version"], [], ["request"]])
def test_words_that_are_no_such_request_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    asked = request()
    asked.message["words"] = words
    with pytest.raises(UsageError):
        asked.read()
    asked.close()


def test_where_no_daemon_runs_a_sentence_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["request", "--pid", "7", "--socket", str(tmp_path / "none"), "-o", str(tmp_path / "trace")]
    assert main.main(words) == 4 and not (tmp_path / "trace").exists()
    said = capsys.readouterr().err
    assert said.startswith("pytrace-ebpf: no daemon runs at") and "sudo pytrace-ebpf attach --pid 7" in said and said.count("\n") == 1


def test_the_unit_leaves_the_daemon_the_capabilities_that_it_keeps() -> None:
    unit = (REPOSITORY / "scripts" / "daemon" / "pytrace-ebpf.service").read_text()
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#"))
    assert {f"CAP_{name}" for name in capabilities.LOADING} <= set(settings["CapabilityBoundingSet"].split())
    assert settings["RuntimeDirectory"] == Path(protocol.SOCKET).parent.name and settings["RuntimeDirectoryMode"] == "0755"
    assert settings["NoNewPrivileges"] == "yes" and settings["ProtectSystem"] == "strict"


@pytest.mark.skipif(os.geteuid() != 0, reason="the socket's folder is to be ours alone")
def test_a_socket_that_was_removed_is_made_again_and_nothing_else_is_removed(tmp_path: Path) -> None:
    place = tmp_path / "run" / "daemon.sock"
    listener = Listener(place, Permission(), Service(), ["false"])
    try:
        listener.open()
        place.unlink()
        assert not listener.is_open
        listener.open()
        assert listener.is_open
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(place))
        place.unlink()
        place.write_text("precious")
        with pytest.raises(HostError, match="something else is there; remove it"):
            listener.open()
    finally:
        listener.close()
    assert place.read_text() == "precious"
