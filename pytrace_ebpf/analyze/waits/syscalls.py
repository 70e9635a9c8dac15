"""Names of system calls, from the `system-calls` package where it is installed; else the number."""

from functools import cache

_ARCHES = {"aarch64": "arm64", "x86_64": "x86_64", "riscv64": "riscv64", "ppc64le": "powerpc64", "s390x": "s390x"}


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
