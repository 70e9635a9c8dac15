"""The capabilities that recording needs (capabilities(7)): all others are given up, for good and for what is started, too."""

from collections.abc import Collection

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.libc import libc
from pytrace_ebpf.record.rights import thread_rights

_READ, _DROP, _AMBIENT, _CLEAR_ALL, _LAST = 23, 24, 47, 4, 63  # PR_CAPBSET_READ and _DROP, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL
NUMBERS = {
    "DAC_OVERRIDE": 1, "KILL": 5, "SETGID": 6, "SETUID": 7, "SETPCAP": 8, "SYS_CHROOT": 18, "SYS_PTRACE": 19, "SYS_ADMIN": 21,
    "PERFMON": 38, "BPF": 39,
}  # fmt: skip
# Each of these was taken away by itself, and something failed: probes (SYS_ADMIN, which covers BPF and PERFMON),
# looking into processes (SYS_PTRACE, DAC_OVERRIDE), processes with fewer rights (SETUID, SETGID, SETPCAP, SYS_CHROOT) and ending those (KILL).
LOADING = ("DAC_OVERRIDE", "KILL", "SETGID", "SETUID", "SETPCAP", "SYS_CHROOT", "SYS_PTRACE", "SYS_ADMIN")
_INSTEAD = ("PERFMON", "BPF")  # of SYS_ADMIN, in a container that was not given that
RECORDING = ("DAC_OVERRIDE", "KILL", "SETGID", "SETUID", "SYS_PTRACE")  # where nothing new is to be attached to


def keep(names: Collection[str]) -> None:
    """Keep these, as far as they are there, in this thread and what it starts from now on. Raises HostError where others cannot be given up.

    Other threads that run keep theirs: call it before there are any.
    """
    instead = "SYS_ADMIN" in names and libc.prctl(_READ, NUMBERS["SYS_ADMIN"], 0, 0, 0) == 0
    wanted = bits((*names, *_INSTEAD) if instead else names)
    try:
        for capability in range(_LAST + 1):
            if not wanted >> capability & 1:
                libc.prctl(_DROP, capability, 0, 0, 0)  # EINVAL beyond the last one that the kernel knows
        libc.prctl(_AMBIENT, _CLEAR_ALL, 0, 0, 0)
        thread_rights.limit((wanted & 0xFFFFFFFF, wanted >> 32))
    except OSError as error:
        raise HostError(f"capabilities that are not needed cannot be given up ({error.strerror})") from error


def bits(names: Collection[str]) -> int:
    """As /proc/PID/status has them."""
    return sum(1 << NUMBERS[name] for name in names)
