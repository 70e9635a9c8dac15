"""Names of system calls, from the `system-calls` package where it is installed, else the number; and which of them wait for what."""

from functools import cache

from pytrace_ebpf.trace.schema import WAIT_KINDS

_ARCHES = {"aarch64": "arm64", "x86_64": "x86_64", "riscv64": "riscv64", "ppc64le": "powerpc64", "s390x": "s390x"}

_CALLS = {
    "lock": "futex futex_wait futex_waitv futex_requeue",
    "sleep": "nanosleep clock_nanosleep",
    "io-read": "read pread64 readv preadv preadv2 readahead getdents getdents64",
    "io-write": "write pwrite64 writev pwritev pwritev2 fsync fdatasync sync syncfs sync_file_range msync",
    "net": "recvfrom recvmsg recvmmsg sendto sendmsg sendmmsg accept accept4 connect recv send",
    "poll": "poll ppoll select pselect6 _newselect epoll_wait epoll_pwait epoll_pwait2",
    "wait-child": "wait4 waitid waitpid",
}
KIND_OF = {name: WAIT_KINDS.index(kind) for kind, names in _CALLS.items() for name in names.split()}
"""Places in WAIT_KINDS by name."""
SLEEPS_ON_NOTHING = ("poll", "ppoll", "select", "pselect6", "_newselect")
"""Where their first argument is 0 they have no descriptors to look at and only let time pass: time.sleep before 3.11."""


@cache
def name(number: int, machine: str) -> str:
    """Name of system call `number` on `machine` (as `uname -m` says); "" for -1, "syscall N" where no name is known."""
    if number < 0:
        return ""
    try:
        import system_calls  # optional: a trace can be read without it
    except ImportError:
        return f"syscall {number}"
    try:
        return str(system_calls.syscalls().get_name(number, _ARCHES.get(machine, machine)))
    except Exception:  # the package raises several classes for "no such architecture or number"
        return f"syscall {number}"
