"""How a flight recorder is asked to write what it holds: by SIGUSR2, or at a socket by `pytrace-ebpf snap`.

The socket has an abstract name (unix(7)), so it leaves nothing behind and needs no directory. Its name is no secret and anybody can take one
like it: each side looks at whose process the other one is, as the kernel reports it.
"""

import argparse
import os
import secrets
import signal
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pytrace_ebpf.record.rights.user import caller_id

if TYPE_CHECKING:
    from pytrace_ebpf.record.session import Session

_NAME = "pytrace-ebpf/snap/"
_WAITING, _AT_ONCE = 16, 64
_PATIENCE_S, _MOMENT_S = 10.0, 0.05
_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7)
_PLEASE, _NOTED = b"snap\n", b"noted\n"


@contextmanager
def snap_requests(args: argparse.Namespace) -> Iterator[Callable[["Session"], bool]]:
    """While the block runs, with --trigger, requests are noted; yields what passes them on to a session, and returns False."""
    noted: list[int] = []
    if not args.trigger:
        yield lambda _: False
        return
    before = signal.signal(signal.SIGUSR2, lambda *_: noted.append(time.monotonic_ns()))
    try:
        with _listening() as listener:

            def pass_on(session: "Session") -> bool:
                if _asked(listener):
                    noted.append(time.monotonic_ns())
                if noted:
                    session.snap(noted[0])
                    noted.clear()
                return False

            yield pass_on
    finally:
        signal.signal(signal.SIGUSR2, before)


@contextmanager
def _listening() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as listener:
        listener.bind(f"\0{_NAME}{os.getpid()}-{secrets.token_hex(8)}")
        listener.listen(_WAITING)
        yield listener


def _asked(listener: socket.socket) -> bool:
    """Whether root, this user or who called sudo asked."""
    asked = False
    for _ in range(_AT_ONCE):
        try:
            connection, _ = listener.accept()
        except OSError:
            break
        with connection, suppress(OSError):
            connection.settimeout(_MOMENT_S)
            if _peer(connection)[1] in (0, os.geteuid(), caller_id()) and connection.recv(len(_PLEASE)) == _PLEASE:
                asked = True
                connection.send(_NOTED)
    return asked


def names() -> list[str]:
    """Names of sockets at which flight recorders listen, or somebody who says so, in this network namespace."""
    words = (line.split(" ")[-1] for line in Path("/proc/net/unix").read_text(errors="replace").splitlines())
    return sorted({word for word in words if word.startswith(f"@{_NAME}")})


def ask(name: str, wanted: Collection[int] = ()) -> tuple[int, bool] | None:
    """Ask the flight recorder at this socket for a trace: its process, and whether it noted that.

    None where it is none of this user's or root's, of which only the latter refuse, or none of the processes that are `wanted`.
    """
    with suppress(OSError, ValueError), _connected(name) as connection:
        pid, uid = _peer(connection)
        if uid in (0, os.geteuid()) and name.startswith(f"@{_NAME}{pid}-") and (not wanted or pid in wanted):
            with suppress(OSError):
                connection.send(_PLEASE)
                return pid, connection.recv(len(_NOTED)) == _NOTED
            return pid, False
    return None


@contextmanager
def _connected(name: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE_S)
        connection.connect(f"\0{name[1:]}")
        yield connection


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Process and user of the other side."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid
