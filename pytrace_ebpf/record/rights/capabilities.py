"""The capabilities that recording needs (capabilities(7)): all others are given up, for good and for what is started, too."""

from collections.abc import Iterable
from pathlib import Path

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.libc import libc
from pytrace_ebpf.record.rights import thread_rights

_DROP, _AMBIENT, _CLEAR_ALL, _LAST = 24, 47, 4, 63  # PR_CAPBSET_DROP, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL
NUMBERS = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7, "SETPCAP": 8, "IPC_LOCK": 14,
    "SYS_CHROOT": 18, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "SYS_NICE": 23, "SYS_RESOURCE": 24, "SYSLOG": 34, "PERFMON": 38, "BPF": 39,
}  # fmt: skip
LOADING = tuple(NUMBERS)
RECORDING = tuple(NUMBERS)


def keep(names: Iterable[str]) -> None:
    """Keep these, as far as they are there, in this thread and what it starts from now on. Raises HostError where others cannot be given up.

    Other threads that run keep theirs: call it before there are any.
    """
    wanted = sum(1 << NUMBERS[name] for name in names)
    try:
        for capability in range(_LAST + 1):
            if not wanted >> capability & 1:
                libc.prctl(_DROP, capability, 0, 0, 0)  # EINVAL beyond the last one that the kernel knows
        libc.prctl(_AMBIENT, _CLEAR_ALL, 0, 0, 0)
        thread_rights.limit((wanted & 0xFFFFFFFF, wanted >> 32))
    except OSError as error:
        raise HostError(f"capabilities that are not needed cannot be given up ({error.strerror})") from error


def present(field: str = "CapPrm") -> int:
    """This thread's, as bits; `field` of /proc/PID/status."""
    lines = Path("/proc/thread-self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1], 16)
