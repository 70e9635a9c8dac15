"""The capabilities that recording needs (capabilities(7)): all others are given up, for good and for what is started, too."""

from collections.abc import Iterable

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.libc import libc
from pytrace_ebpf.record.rights import thread_rights

_DROP, _AMBIENT, _CLEAR_ALL, _LAST = 24, 47, 4, 63  # PR_CAPBSET_DROP, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL
NUMBERS = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7, "SETPCAP": 8, "SYS_CHROOT": 18, "SYS_PTRACE": 19, "SYS_ADMIN": 21,
}  # fmt: skip
# Each of these was taken away by itself, and something failed: probes (SYS_ADMIN, which covers BPF and PERFMON), the agent's directories (CHOWN, FOWNER),
# looking into processes (SYS_PTRACE, DAC_OVERRIDE), processes with fewer rights (SETUID, SETGID, SETPCAP, SYS_CHROOT) and ending those (KILL).
LOADING = tuple(NUMBERS)
RECORDING = ("DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID", "SYS_PTRACE")  # where nothing new is to be attached to


def keep(names: Iterable[str]) -> None:
    """Keep these, as far as they are there, in this thread and what it starts from now on. Raises HostError where others cannot be given up.

    Other threads that run keep theirs: call it before there are any.
    """
    wanted = bits(names)
    try:
        for capability in range(_LAST + 1):
            if not wanted >> capability & 1:
                libc.prctl(_DROP, capability, 0, 0, 0)  # EINVAL beyond the last one that the kernel knows
        libc.prctl(_AMBIENT, _CLEAR_ALL, 0, 0, 0)
        thread_rights.limit((wanted & 0xFFFFFFFF, wanted >> 32))
    except OSError as error:
        raise HostError(f"capabilities that are not needed cannot be given up ({error.strerror})") from error


def bits(names: Iterable[str]) -> int:
    """As /proc/PID/status has them."""
    return sum(1 << NUMBERS[name] for name in names)
