"""Who called sudo, or asked the daemon: programs run as that user, and what is written is written with that user's rights alone."""

import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytrace_ebpf.record.kernel import memory_map
from pytrace_ebpf.record.process import stat as process_stat
from pytrace_ebpf.record.rights import thread_rights

_SUDO = ("sudo", "sudo-rs")
_MOST_BETWEEN = 8  # processes between sudo and this one: a monitor of sudo's own, env, a script


@dataclass(frozen=True)
class Caller:
    """With whose rights over files this process writes."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    described: str  # for sentences


_served: Caller | None = None


def serve(caller: Caller) -> None:
    """Write with the rights of `caller` from now on: of a process of the daemon's, which nobody called by sudo."""
    global _served
    _served = caller


def caller() -> Caller | None:
    """Who asked the daemon or called sudo; None where this user writes with its own rights."""
    if _served is not None:
        return _served
    user = invoking_user()
    return user and Caller(user.pw_uid, user.pw_gid, tuple(os.getgrouplist(user.pw_name, user.pw_gid)), f"{user.pw_name}, who called sudo")


def invoking_user() -> pwd.struct_passwd | None:
    """Who called sudo, where somebody did: the program runs as that user, not as root by accident."""
    uid = os.environ.get("SUDO_UID")
    if os.geteuid() != 0 or not uid or uid == "0":
        return None
    try:
        return pwd.getpwuid(int(uid))
    except (KeyError, ValueError):
        return None


def callers_environment() -> dict[str, str] | None:
    """The variables that sudo was called with, of which it hands on few; None where nobody called sudo, or they cannot be had.

    They are for the program alone, which has the caller's rights: nothing of root's may depend on them. The kernel keeps
    what a process was started with (proc(5), /proc/PID/environ), and only root reads that of sudo.
    """
    if invoking_user() is None:
        return None
    pid = os.getppid()
    with suppress(OSError, ValueError):
        for _ in range(_MOST_BETWEEN):
            folder = Path(f"/proc/{pid}")
            program = (folder / "exe").stat()
            if (folder / "exe").readlink().name in _SUDO and program.st_uid == 0 and program.st_mode & stat.S_ISUID:
                pairs = (pair.partition(b"=") for pair in memory_map.read(pid, "environ").split(b"\0") if b"=" in pair)
                return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name}
            pid = int(process_stat.fields((folder / "stat").read_bytes())[process_stat.PARENT])
    return None


def become_caller() -> None:
    """Give this thread, for good, the rights over files that the caller has; nothing where there is none.

    Nothing of root's is left: neither its groups nor the capabilities that pass over permissions, quotas and
    what a file system keeps for root. Raises OSError.
    """
    if (asked := caller()) is not None:
        thread_rights.take(asked.uid, asked.gid, asked.groups, (0, 0))


@contextmanager
def as_caller() -> Iterator[None]:
    """As become_caller(), for as long as the block runs. Raises OSError."""
    if caller() is None:
        yield
        return
    (uid, gid), groups, effective = thread_rights.present(), os.getgroups(), thread_rights.effective()
    try:
        become_caller()
        yield
    finally:
        thread_rights.set_effective(effective)  # without it no group may be taken
        thread_rights.take(uid, gid, groups, effective)


def caller_ids() -> dict[str, Any]:
    """What subprocess.Popen has to be given for a process with just the caller's rights; nothing where there is none."""
    asked = caller()
    return {} if asked is None else {"user": asked.uid, "group": asked.gid, "extra_groups": list(asked.groups)}


def caller_id() -> int:
    """The user who owns what is written within as_caller()."""
    asked = caller()
    return os.geteuid() if asked is None else asked.uid
