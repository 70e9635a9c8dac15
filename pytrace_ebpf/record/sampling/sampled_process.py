"""What is known of a process while it is sampled, for samples.py."""

from dataclasses import dataclass, field
from typing import NamedTuple

from pytrace_ebpf.record.cpython.running_tasks import RunningTasks
from pytrace_ebpf.record.process.target import Target
from pytrace_ebpf.trace.states import SYSCALL_UNKNOWN

NO_WAIT = (SYSCALL_UNKNOWN, 0, 0)
_NO_OPCODE = 0xFFFF  # events.h


class Away(NamedTuple):
    """A thread that has been off the core for long: since when (ns), its stack, and syscall, pad and resource of struct sample_event."""

    since: int
    stack: int
    wait: tuple[int, int, int] = NO_WAIT

    def event(self, now: int, pid: int, tid: int, program: int, state: int) -> tuple[int, ...]:
        """A struct sample_event of it: as if it came back to a core now."""
        return now, pid << 32 | tid, self.stack, now - self.since, 0, 0, _NO_OPCODE, program, 0, state, *self.wait


@dataclass
class Sampled:
    """A sampled process; `off_cpu`: its threads that have been off the core for long, by thread id."""

    target: Target
    number: int
    holder: int  # address; 0 while it has no GIL
    since_ns: int
    tasks: RunningTasks | None  # None: it has none, as far as is known
    user: int = 0
    off_cpu: dict[int, Away] = field(default_factory=dict)
