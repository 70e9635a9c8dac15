"""The rights over files that one thread has: given up, and taken back, without touching those of the other threads."""

import ctypes
import os
from collections.abc import Sequence

from pytrace_ebpf import processors
from pytrace_ebpf.record.libc import libc

# By the raw system call only the calling thread changes: the C library's functions change all threads.
_CAPGET, _CAPSET, _SETGROUPS, _SETFSUID, _SETFSGID = map(processors.here().call, ("capget", "capset", "setgroups", "setfsuid", "setfsgid"))
_CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
_UNCHANGED = -1  # answers with the present id

Capabilities = tuple[int, int]  # the lower 32 and the upper ones


def take(uid: int, gid: int, groups: Sequence[int], capabilities: Capabilities) -> None:
    """Give this thread a user's rights over files and, as far as it may have them, these effective capabilities. Raises OSError."""
    array = (ctypes.c_uint * max(len(groups), 1))(*groups)
    _call(_SETGROUPS, len(groups), array)
    libc.syscall(_SETFSGID, gid)
    libc.syscall(_SETFSUID, uid)
    if present() != (uid, gid):  # neither call reports failure
        raise PermissionError(1, f"cannot take the rights of user {uid}")
    set_effective(capabilities)


def present() -> tuple[int, int]:
    """The user and the group whose rights over files this thread has."""
    return int(libc.syscall(_SETFSUID, _UNCHANGED)), int(libc.syscall(_SETFSGID, _UNCHANGED))


def effective() -> Capabilities:
    """This thread's effective capabilities."""
    sets = _capabilities()
    return sets[0], sets[3]


def set_effective(wanted: Capabilities) -> None:
    """Have these capabilities in effect, as far as they are permitted, and no others. Raises OSError."""
    sets = _capabilities()
    sets[0], sets[3] = wanted[0] & sets[1], wanted[1] & sets[4]
    _call(_CAPSET, (ctypes.c_uint * 2)(_CAPABILITY_VERSION_3, 0), sets)


def limit(wanted: Capabilities) -> None:
    """Have these capabilities, as far as they are permitted, and no others ever more in this thread. Raises OSError."""
    sets = _capabilities()
    for low, mask in ((0, wanted[0]), (3, wanted[1])):
        sets[low], sets[low + 1], sets[low + 2] = sets[low + 1] & mask, sets[low + 1] & mask, 0
    _call(_CAPSET, (ctypes.c_uint * 2)(_CAPABILITY_VERSION_3, 0), sets)


def _capabilities() -> "ctypes.Array[ctypes.c_uint]":
    sets = (ctypes.c_uint * 6)()  # effective, permitted, inheritable; twice
    _call(_CAPGET, (ctypes.c_uint * 2)(_CAPABILITY_VERSION_3, 0), sets)
    return sets


def _call(number: int, *arguments: object) -> None:
    if libc.syscall(number, *arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
