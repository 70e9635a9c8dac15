"""Becomes a program with lowered rights: run by itself, with Python's own library alone, as `drop_privileges.py JSON EXECUTABLE-FD WORD...`.

The JSON says whose rights (unprivileged.Rights). Nothing of the tracer's reaches the program but its three standard
files: it has a session of its own without a terminal, no environment but what is given, and cannot gain rights.
Any failure ends it with 127 before the program runs.
"""

import ctypes
import json
import os
import resource
import sys

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP = 1, 38, 24
_CAPABILITY_VERSION_3, _LAST_CAPABILITY = 0x20080522, 63
_SIGKILL = 9
_libc = ctypes.CDLL(None, use_errno=True)


def become(rights: dict, executable: int, words: list) -> None:  # type: ignore[type-arg] # of json
    """Never returns. Raises OSError where some of the rights cannot be taken on."""
    os.setsid()
    if os.sched_getscheduler(0) == os.SCHED_RR:  # which the tracer took for itself
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    if rights["namespaces"]:
        _check(_libc.setns(rights["process"], rights["namespaces"]))
    if rights["root"] >= 0:
        os.fchdir(rights["root"])
        os.chroot(".")
    os.chdir("/")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (rights["cpu_s"], rights["cpu_s"]))
    if os.geteuid() == 0:
        for capability in range(_LAST_CAPABILITY + 1):
            if not rights["bounding"] >> capability & 1:
                _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # EINVAL beyond the last one that the kernel knows
        os.setgroups(rights["groups"])
        os.setresgid(*[rights["gid"]] * 3)
        os.setresuid(*[rights["uid"]] * 3)
        _limit_capabilities(rights["permitted"])
    elif (os.getuid(), os.geteuid()) != (rights["uid"], rights["uid"]):
        raise PermissionError
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check(_libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0))
    os.closerange(3, executable)
    os.closerange(executable + 1, 1 << 20)
    os.set_inheritable(executable, False)
    os.execve(executable, words, rights["environment"])


def _limit_capabilities(permitted: int) -> None:
    """Root's: those of `permitted` that this process has, which exec cannot add to without new privileges; another user has none by now."""
    header, ours = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    _check(_libc.capget(header, ours))
    if os.geteuid():
        permitted = 0
    low, high = permitted & ours[1], permitted >> 32 & ours[4]
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)  # effective, permitted, inheritable
    _check(_libc.capset(header, data))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    try:
        become(json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    except OSError:
        os._exit(127)
