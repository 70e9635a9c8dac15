"""Who is at the other side of a connection, as the kernel reports it (unix(7)): of the moment of connecting, whoever that became since."""

import os
import select
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

_CREDENTIALS = struct.Struct("3i")  # struct ucred
_PEERGROUPS, _PEERPIDFD = 59, 77  # asm-generic/socket.h; the latter since Linux 6.5
_MOST_GROUPS = 256  # what Python's getsockopt has room for


@dataclass(frozen=True)
class Peer:
    """The process that connected, and the rights that it had."""

    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...]

    @classmethod
    def of(cls, connection: socket.socket) -> "Peer":
        """Raises OSError."""
        pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        raw = b""
        with suppress(OSError):  # more of them than that: then it is served with the rights of none
            raw = connection.getsockopt(socket.SOL_SOCKET, _PEERGROUPS, 4 * _MOST_GROUPS)
        return cls(pid, uid, gid, struct.unpack(f"{len(raw) // 4}I", raw))


class Presence:
    """Whether the process that connected still lives; close() lets go of it.

    Somebody else may hold its side of the connection, so that the end of the connection is not enough.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._pidfd: int | None = None
        with suppress(OSError):  # before Linux 6.5; or it has ended, and the connection tells
            self._pidfd = connection.getsockopt(socket.SOL_SOCKET, _PEERPIDFD)
            os.set_inheritable(self._pidfd, False)

    @property
    def is_gone(self) -> bool:
        """Whether it has ended, as far as this kernel tells."""
        return self._pidfd is not None and readable(self._pidfd)

    def close(self) -> None:
        """Let go of it."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def readable(descriptor: int) -> bool:
    """Whether a read of it would not wait, as there is something, or its end. Of any number, which select() is not."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
