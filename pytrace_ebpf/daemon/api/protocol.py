"""What is said at the daemon's socket: one JSON object a line. A request of one line, then answers, the last of which has `code`.

    {"do": "trace", "pid": 12, "words": [...], "output": "trace"}   with the descriptor of the trace's directory (SCM_RIGHTS)
    {"do": "status"}   {"do": "reload"}   {"do": "stop"}

    {"begun": [[12, "agent: ...", ""]], "said": [...]}   it records: the fields of record.process.targets.Begun, and sentences
    {"waiting": "a sentence"}                            what it waits for takes long, or was ended
    {"progress": {"seconds": 1.0, ...}}                  every second, fields of record.session.Status
    {"code": 0, "result": {...}}, {"code": 3, "say": "a sentence"}   the end, with the exit code of errors.py

While a trace is recorded the other side may send one more line, {"do": "end"}: finish it now. Closing the socket does so, too.
"""

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytrace_ebpf.errors import HostError, PytraceError, TargetError, UsageError

SOCKET = "/run/pytrace-ebpf/daemon.sock"
MOST_REQUEST, MOST_ANSWER = 64 << 10, 1 << 20  # bytes of a line
MOST_DESCRIPTORS = 1
END = {"do": "end"}
_CHUNK, _LINE_S = 4096, 0.05
_ERRORS: dict[int, type[PytraceError]] = {each.exit_code: each for each in (UsageError, TargetError, HostError)}


def connect(connection: socket.socket, path: Path, seconds: float) -> None:
    """Connect to the daemon, also where others stand in line. Raises OSError."""
    deadline = time.monotonic() + seconds
    while True:
        connection.settimeout(seconds)
        try:
            connection.connect(str(path))
            return
        except BlockingIOError:  # the line is full (unix(7))
            if time.monotonic() >= deadline:
                raise
            time.sleep(_LINE_S)


class Malformed(Exception):  # noqa: N818 - the usual term
    """What came is no request; the text says why."""


class Lines:
    """One side of a connection: lines that were received, each with the descriptors that came by then. Closed by close()."""

    def __init__(self, connection: socket.socket, most: int) -> None:
        """`most`: bytes that a line may have."""
        self.connection, self._most = connection, most
        self._left = bytearray()
        self._descriptors: list[int] = []
        self.lacks_room = False  # for descriptors that came

    def receive(self, seconds: float | None) -> dict[str, Any] | None:
        """The next object; None at the end of the connection. The whole line has so many seconds; None: any.

        Raises TimeoutError, Malformed (no object, too long), OSError.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while b"\n" not in self._left:
            if len(self._left) > self._most:
                raise Malformed(f"a request has at most {self._most:,} bytes")
            if not self._receive_more(deadline):
                return None
        line, _, rest = self._left.partition(b"\n")
        self._left = rest
        return _object(bytes(line), self._most)

    def _receive_more(self, deadline: float | None) -> bool:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        self.connection.settimeout(left)
        content, descriptors, flags, _ = socket.recv_fds(self.connection, _CHUNK, MOST_DESCRIPTORS)  # the kernel closes more than these
        self.lacks_room |= bool(flags & socket.MSG_CTRUNC) and not descriptors
        for number in descriptors[max(MOST_DESCRIPTORS - len(self._descriptors), 0) :]:
            os.close(number)
        self._descriptors += descriptors[: max(MOST_DESCRIPTORS - len(self._descriptors), 0)]
        self._left += content
        return bool(content)

    def take_descriptors(self) -> list[int]:
        """Those that came so far; the caller closes them."""
        taken, self._descriptors = self._descriptors, []
        return taken

    def close(self) -> None:
        """Close the connection, and descriptors that nobody took."""
        for number in self.take_descriptors():
            os.close(number)
        hang_up(self.connection)


def hang_up(connection: socket.socket) -> None:
    """Close it so that the other side still gets what it was sent: of what comes in some is taken, or the kernel would reset the connection."""
    with suppress(OSError):
        connection.settimeout(0)
        for _ in range(2 * MOST_REQUEST // _CHUNK):
            if not connection.recv(_CHUNK):
                break
    connection.close()


def send(connection: socket.socket, said: Mapping[str, Any], seconds: float | None, descriptors: Sequence[int] = ()) -> bool:
    """Send an object within so many seconds; whether it was sent. Who does not read it in that time, or is gone, does without.

    Where part of a line could not be sent the connection is shut down: what came next would be taken for its end.
    """
    content = json.dumps(said).encode() + b"\n"
    sent = 0
    try:
        connection.settimeout(seconds)
        sent = socket.send_fds(connection, [content], list(descriptors))
        deadline = None if seconds is None else time.monotonic() + seconds
        while sent < len(content):
            if deadline is not None:
                connection.settimeout(max(deadline - time.monotonic(), 0.001))
            sent += connection.send(content[sent:])
    except OSError:
        if sent:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        return False
    return True


def refusal(error: PytraceError) -> dict[str, Any]:
    """The last answer where there is no result."""
    return {"code": error.exit_code, "say": str(error)}


def refused(answer: Mapping[str, Any]) -> PytraceError | None:
    """The error that a last answer is, None where it is a result."""
    code = answer.get("code")
    if code == 0:
        return None
    return _ERRORS.get(code if isinstance(code, int) else -1, HostError)(str(answer.get("say", "the daemon gave no reason")))


def _object(line: bytes, most: int) -> dict[str, Any]:
    if len(line) > most:
        raise Malformed(f"a request has at most {most:,} bytes")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Malformed("a request is one line with a JSON object")
    return found
