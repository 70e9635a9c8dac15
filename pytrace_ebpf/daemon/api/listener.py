"""The daemon's socket: connections are accepted, bounded and read, and requests are judged and answered.

A connection has a thread of its own, which waits. There are at most so many for one user and in all, a request has a limit in size and in time, and what a
client sends is parsed as JSON and no further: what a trace is to be is read by the process that records it.
"""

import itertools
import os
import socket
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeGuard

from pytrace_ebpf.daemon.api import protocol
from pytrace_ebpf.daemon.api.peer import Peer
from pytrace_ebpf.daemon.api.permission import Permission
from pytrace_ebpf.daemon.api.recordings import Recordings
from pytrace_ebpf.daemon.service import Service
from pytrace_ebpf.errors import HostError, PytraceError, TargetError, UsageError

_WAITING = 1024  # connections that the kernel keeps for us; a user who floods the socket fills this, too, for as long as it takes to turn them away
_OF_ONE, _OF_USERS, _OF_ROOT = 8, 64, 32  # connections at a time
_REQUEST_S, _ANSWER_S = 5.0, 5.0
_MOST_WORDS, _MOST_OUTPUT = 1000, 4096  # of a command line; characters of a path


class Listener:
    """A socket, from open() to close(). `permission` may be replaced meanwhile."""

    def __init__(self, path: Path, permission: Permission, service: Service, command: Sequence[str]) -> None:
        """`command`: words that start a process that records (workers/daemon_recorder.py)."""
        self.permission = permission
        self._path, self._service = path, service
        self._recordings = Recordings(command)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._connections: Counter[int] = Counter()  # by user
        self._asked: Counter[int] = Counter()  # traces that are being recorded, by user
        self._listener: socket.socket | None = None
        self._at: tuple[int, int] | None = None  # which file the socket is

    def open(self) -> None:
        """Listen, also once more where the socket was removed.

        Raises HostError where another daemon does, others could put a socket of theirs in its place, or something else is there.
        """
        self._make_folder()
        if _file_of(self._path) and not stat.S_ISSOCK(self._path.lstat().st_mode):
            raise HostError(f"the daemon cannot listen at {self._path}: something else is there; remove it")
        with suppress(OSError), socket.socket(socket.AF_UNIX) as other:
            other.settimeout(_ANSWER_S)
            other.connect(str(self._path))
            raise HostError(f"a daemon listens at {self._path} already; pytrace-ebpf daemon status asks it how it is")
        try:
            listener = _listening(self._path)
        except OSError as error:
            raise HostError(f"the daemon cannot listen at {self._path} ({error.strerror or error})") from error
        before, self._listener, self._at = self._listener, listener, _file_of(self._path)
        if before is not None:
            _hang_up(before)
        threading.Thread(target=self._accept, args=(listener,), name="api", daemon=True).start()

    @property
    def is_open(self) -> bool:
        """Whether it listens, where its socket still is."""
        return self._listener is not None and self._at == _file_of(self._path)

    def _make_folder(self) -> None:
        folder = self._path.parent
        try:
            folder.mkdir(mode=0o755, exist_ok=True)
            found = folder.lstat()
        except OSError as error:
            raise HostError(f"the daemon cannot make {folder} ({error.strerror})") from error
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise HostError(f"others can change {folder}, where the daemon is to listen: remove it")
        folder.chmod(0o755)  # whatever the umask made of it

    def end(self) -> None:
        """Listen no more, and have what is being recorded finished."""
        listener, self._listener, is_open = self._listener, None, self.is_open
        if listener is not None:
            if is_open:
                self._path.unlink(missing_ok=True)
            _hang_up(listener)
        self._recordings.end()

    def close(self) -> None:
        """end(), and wait for that."""
        self.end()
        self._recordings.close()

    def recordings(self) -> list[int]:
        """The processes that record for those who asked."""
        return self._recordings.pids()

    # -- connections ---------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError:
                if listener.fileno() < 0 or listener is not self._listener:
                    return
                threading.Event().wait(0.1)  # no descriptors are left: some will be closed
                continue
            try:
                peer = Peer.of(connection)
            except OSError:
                connection.close()
                continue
            if self._enters(peer):
                threading.Thread(target=self._see_to, args=(connection, peer), name="connection", daemon=True).start()
            else:
                protocol.send(connection, protocol.refusal(HostError("the daemon serves as many connections as it takes; try again later")), 0)
                protocol.hang_up(connection)

    def _enters(self, peer: Peer) -> bool:
        """Whether there is room for one more connection; each that entered leaves by _leave()."""
        with self._lock:
            if peer.uid == 0:
                free = self._connections[0] < _OF_ROOT
            else:
                free = self._connections[peer.uid] < _OF_ONE and self._connections.total() - self._connections[0] < _OF_USERS
            self._connections[peer.uid] += free
            return free

    def _see_to(self, connection: socket.socket, peer: Peer) -> None:
        lines = protocol.Lines(connection, protocol.MOST_REQUEST)
        try:
            answer = self._answer(lines, peer)
        except PytraceError as error:
            answer = protocol.refusal(error)
        except protocol.Malformed as error:
            answer = protocol.refusal(UsageError(str(error)))
        except TimeoutError:
            answer = protocol.refusal(UsageError(f"no request came in {_REQUEST_S:g} s"))
        except OSError:  # it is gone
            answer = None
        finally:
            with self._lock:
                self._connections[peer.uid] -= 1
                self._connections += Counter()  # forgets users without any
        if answer is not None:
            protocol.send(connection, answer, _ANSWER_S)
        lines.close()

    def _answer(self, lines: protocol.Lines, peer: Peer) -> dict[str, Any] | None:
        """The last answer, None where it has been given or nobody is there."""
        request = lines.receive(_REQUEST_S)
        if request is None:
            return None
        asked: dict[str, Callable[[], Any]] = {"status": self._service.status, "reload": self._service.reload, "stop": self._service.stop}
        what = request.get("do")
        if what == "trace":
            return self._trace(request, lines, peer)
        if not isinstance(what, str) or what not in asked:
            raise UsageError(f"the daemon does trace, {', '.join(asked)}, and nothing else")
        if peer.uid:
            raise TargetError(f"only root may ask the daemon for {what}; use sudo")
        _refuse_others(request, ())
        result = asked[what]()
        return {"code": 0, "result": result}

    # -- traces --------------------------------------------------------------------

    def _trace(self, request: dict[str, Any], lines: protocol.Lines, peer: Peer) -> dict[str, Any] | None:
        permission = self.permission
        permission.require(peer)
        pid, words, output, caller = _checked(request, peer)
        descriptors = lines.take_descriptors()
        try:
            if lines.lacks_room:
                raise HostError("the daemon can open no more files just now; try again later")
            if len(descriptors) != 1:
                raise UsageError("a trace is asked for with the descriptor of the directory that it is to be written to")
            limits = {} if peer.uid == 0 else {"longest_s": permission.longest_s, "options": permission.options}
            message = {
                "id": next(self._numbers), "pid": pid, "words": words, "output": output, "caller": caller,
                "peer": (peer.uid, peer.gid, peer.groups), "within_ptrace_scope": permission.within_ptrace_scope, **limits,
            }  # fmt: skip
            with self._counted(peer, permission):
                seconds = None if peer.uid == 0 else permission.longest_s
                answered = self._recordings.serve(
                    (pid, peer.uid, peer.gid, peer.groups, caller), message, [lines.connection.fileno(), *descriptors], seconds
                )
        finally:
            for number in descriptors:
                os.close(number)
        if answered:
            return None
        return protocol.refusal(
            HostError("the process that recorded ended before its time; what was recorded until then is in the trace's directory")
        )

    @contextmanager
    def _counted(self, peer: Peer, permission: Permission) -> Iterator[None]:
        with self._lock:
            others = self._asked.total() - self._asked[0]
            if peer.uid and (self._asked[peer.uid] >= permission.at_once or others >= permission.in_all):
                whose = "you" if self._asked[peer.uid] >= permission.at_once else "all users"
                raise TargetError(f"the daemon records as much at once for {whose} as its configuration lets it; try again when that has ended")
            self._asked[peer.uid] += 1
        try:
            yield
        finally:
            with self._lock:
                self._asked[peer.uid] -= 1


def _file_of(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        found = path.lstat()
        return found.st_dev, found.st_ino
    return None


def _listening(path: Path) -> socket.socket:
    """A socket there that everybody may connect to. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o666)  # who may ask for what is judged by who asks
        listener.listen(_WAITING)
    except OSError:
        listener.close()
        raise
    return listener


def _hang_up(listener: socket.socket) -> None:
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


_Caller = tuple[int, int, tuple[int, ...]] | None
_OF_TRACES, _MOST_NAME = ("pid", "words", "output", "caller"), 40


def _checked(request: dict[str, Any], peer: Peer) -> tuple[int, list[str], str, _Caller]:
    """Process, words, the directory's name, and with whose rights it is written. Raises UsageError."""
    _refuse_others(request, _OF_TRACES)
    pid, words, output, caller = (request.get(name) for name in _OF_TRACES)
    if not _is_number(pid) or not pid:
        raise UsageError("a trace is asked for of a process, by its number")
    if not isinstance(words, list) or len(words) > _MOST_WORDS or not all(map(_is_text, words)):
        raise UsageError(f"the options of a trace are a list of at most {_MOST_WORDS} texts, of UTF-8 and without control characters")
    if not _is_text(output) or len(output) > _MOST_OUTPUT:
        raise UsageError(f"the name of a trace is a text of at most {_MOST_OUTPUT:,} characters, of UTF-8 and without control characters")
    return pid, words, output, _caller(caller, peer)


def _refuse_others(request: dict[str, Any], known: Sequence[str]) -> None:
    """Raise UsageError for a field that would have no effect."""
    if others := sorted(set(request) - {"do", *known}):
        raise UsageError(f"a request for {request['do']} has nothing of the name {others[0][:_MOST_NAME]!r}; is the daemon of another version?")


def _caller(given: object, peer: Peer) -> _Caller:
    """Whose the trace is to be: root may name who called sudo, others are it themselves."""
    if peer.uid and given is not None:
        raise UsageError("whose a trace is to be is not yours to say: it is who asks, as the kernel reports it")
    if peer.uid:
        return peer.uid, peer.gid, peer.groups
    if given is None:
        return None
    if isinstance(given, list) and len(given) == 3 and isinstance(given[2], list) and all(map(_is_number, (*given[:2], *given[2]))):
        return given[0], given[1], tuple(given[2])
    raise UsageError("who is to own the trace is given as a user, a group and a list of groups")


def _is_text(value: object) -> TypeGuard[str]:
    """None that could end a line or a word of what is made of it."""
    return isinstance(value, str) and not any(character < " " or "\ud800" <= character <= "\udfff" for character in value)


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
