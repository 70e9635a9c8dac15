"""What the configuration lets users ask for: [requests]. Root may ask for everything; others for nothing, as long as it does not name them."""

import grp
import pwd
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from pytrace_ebpf.daemon.api.peer import Peer
from pytrace_ebpf.errors import TargetError, UsageError
from pytrace_ebpf.trace.declared import STREAMS

EVERYBODY = "*"
# What is of no harm to others: it is about the process that is asked for, and what it takes of the host is bounded by the user's own limits.
USERS_OPTIONS = (
    "duration", "output", "quiet", "source", "sample", "switches", "budget", "no-follow", "include", "exclude", "max-depth", "max-size", "request",
    *(name.replace("_", "-") for stream in STREAMS if stream.users for name in stream.options),
)  # fmt: skip


@dataclass(frozen=True)
class Permission:
    """The table [requests] of the configuration.

    users                 who may trace processes of his own: names, ids, "@group", or "*" for everybody
    longest_s             how long a user's recording may last
    at_once, in_all       requests of one user, and of all users together, that are served at a time
    options               of `request`, those that users may give
    within_ptrace_scope   kernel.yama.ptrace_scope holds for them: where it is not 0, root alone may trace
    """

    users: tuple[str, ...] = ()
    longest_s: float = 60.0
    at_once: int = 2
    in_all: int = 8
    options: tuple[str, ...] = USERS_OPTIONS
    within_ptrace_scope: bool = True

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "Permission":
        """From the configuration's table. Raises UsageError, one sentence."""
        known = {field.name: field.default for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in table.items():
            if name not in known:
                raise UsageError(f"[requests] has no {name}; there are {', '.join(known)}")
            values[name] = _valid(name, value, known[name])
        if unknown := set(values.get("options", ())) - set(USERS_OPTIONS):
            raise UsageError(f"[requests] options: users cannot be given {', '.join(sorted(unknown))}; there are {', '.join(USERS_OPTIONS)}")
        return cls(**values)

    def require(self, peer: Peer) -> None:
        """Raise TargetError where this user may ask for no trace."""
        if peer.uid and not any(_is_among(peer, word) for word in self.users):
            raise TargetError(
                "the daemon's configuration lets root alone ask for traces; it can name you in [requests] users, or: sudo pytrace-ebpf attach"
                if not self.users
                else "the daemon's configuration does not name you among those who may ask for traces ([requests] users)"
            )


def _is_among(peer: Peer, word: str) -> bool:
    if word == EVERYBODY:
        return True
    with suppress(KeyError, ValueError):
        if word.startswith("@"):
            return (int(word[1:]) if word[1:].isdecimal() else grp.getgrnam(word[1:]).gr_gid) in (peer.gid, *peer.groups)
        return (int(word) if word.isdecimal() else pwd.getpwnam(word).pw_uid) == peer.uid
    return False


def _valid(name: str, value: Any, default: object) -> object:
    if isinstance(default, tuple):
        if isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(each, str) for each in value):
            return tuple(value)
        raise UsageError(f"[requests] {name} is a list of texts, which {value!r} is not")
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        raise UsageError(f"[requests] {name} is true or false, which {value!r} is not")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 1e6 or (isinstance(default, int) and value != int(value)):
        raise UsageError(f"[requests] {name} is a number from 1, which {value!r} is not")
    return type(default)(value)  # type: ignore[call-arg] # int or float
