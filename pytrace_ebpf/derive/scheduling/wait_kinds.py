"""What a thread waits for, by the state and the system call in which it left its core."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.derive.scheduling import syscalls
from pytrace_ebpf.derive.scheduling.switches import GIL, OFF, RUNQ
from pytrace_ebpf.trace.schema import OBJECT_LOCK, PAUSED, SYSCALL_UNKNOWN, WAIT_KINDS, SchedKind

_STOPPED = 0x0C  # by a signal or a debugger, whatever the call (bits of the task's state, as sched_switch reports them)
_UNINTERRUPTIBLE = 0x02
_GIL, _PREEMPTED, _PAGE_FAULT, _SLEEP, _OTHER = (WAIT_KINDS.index(kind) for kind in ("gil", "preempted", "page-fault", "sleep", "other"))
_LOCK, _STOP_THE_WORLD, _OBJECT_LOCK = (WAIT_KINDS.index(kind) for kind in ("lock", "stop-the-world", "object-lock"))


def kinds(rows: npt.NDArray[Any], machine: str) -> npt.NDArray[np.int8]:
    """Places in WAIT_KINDS of the waits that `rows` began.

    Needs the fields kind, state, syscall, address (as in schema.SCHED) and `to` (switches.RUNQ ...); `machine` as `uname -m` says.
    """
    numbers, inverse = np.unique(rows["syscall"], return_inverse=True)
    called = [syscalls.name(int(number), machine) for number in numbers]
    out = np.array([syscalls.KIND_OF.get(name, _OTHER) for name in called], np.int8)[inverse]
    timed = np.array([name in syscalls.SLEEPS_ON_NOTHING for name in called], bool)[inverse]
    out[timed & (rows["address"] == 0)] = _SLEEP
    lock = out == _LOCK
    out[lock & (rows["address"] == PAUSED)] = _STOP_THE_WORLD
    out[lock & (rows["address"] & 15 == OBJECT_LOCK)] = _OBJECT_LOCK
    # From user code only a page fault blocks, and that uninterruptibly.
    out[(rows["syscall"] == -1) & ((rows["state"] & _UNINTERRUPTIBLE) != 0)] = _PAGE_FAULT
    out[(rows["state"] & _STOPPED) != 0] = _OTHER
    out[rows["to"] == GIL] = _GIL
    out[rows["to"] == OFF] = _OTHER
    was_running = (rows["kind"] == SchedKind.OUT) | (rows["kind"] == SchedKind.SNAPSHOT)
    queued = rows["to"] == RUNQ
    out[queued] = np.where(was_running, _PREEMPTED, _OTHER)[queued]
    return out


def names(numbers: npt.NDArray[np.int32], machine: str) -> npt.NDArray[np.object_]:
    """Names of system calls by number; None for -1 and SYSCALL_UNKNOWN."""
    unique, inverse = np.unique(numbers, return_inverse=True)
    found = [None if number in (-1, SYSCALL_UNKNOWN) else syscalls.name(int(number), machine) for number in unique]
    return np.array(found, object)[inverse]
