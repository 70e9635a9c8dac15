"""What recording knows of each processor, as data: a file for each. Reading a trace asks for that of the machine that recorded it.

The C has the same room in probes/processors/.
"""

import platform
from collections.abc import Mapping
from functools import cache
from typing import Any

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.processors import aarch64, x86_64
from pytrace_ebpf.processors.processor import NO_CALL, Processor

PROCESSORS: Mapping[str, Processor] = {each.machine: each for each in (x86_64.PROCESSOR, aarch64.PROCESSOR)}
NAMES = " or ".join(each.name for each in PROCESSORS.values())

_FUTEX = x86_64.PROCESSOR.call("futex")


def of(machine: str) -> Processor | None:
    """That of a machine as `uname -m` names it; None where nothing is known of it."""
    return PROCESSORS.get(machine)


def of_trace(machine: str) -> Processor:
    """That of the machine that a trace was recorded on, as its manifest names it: x86-64's where it does not say, or nothing is known of it."""
    return PROCESSORS.get(machine, x86_64.PROCESSOR)


@cache
def here() -> Processor:
    """This machine's. Where nothing is known of it nothing can be recorded (record/kernel/host.py says so), and this is x86-64's."""
    return PROCESSORS.get(platform.machine(), x86_64.PROCESSOR)


def require(what: str) -> None:
    """Raise HostError, one sentence, for what does not work on this machine's processor yet."""
    if why := here().lacks.get(what):
        raise HostError(f"on {here().name} there is no {what} yet: {why}")


def engines_numbers(calls: Any, machine: str) -> Any:
    """Numbers of system calls, an array, as the library that rebuilds calls takes them: a futex is 202, as on x86-64, and what is 202 elsewhere is no call."""
    processor = of_trace(machine)
    if processor is x86_64.PROCESSOR:
        return calls
    futex, changed = processor.call("futex"), calls.copy()
    changed[calls == _FUTEX] = NO_CALL - 1  # NO_CALL is schema.SYSCALL_UNKNOWN there
    changed[calls == futex] = _FUTEX
    return changed
