"""What a source of function events is to the recording."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from pytrace_ebpf.record.functions import Functions
from pytrace_ebpf.record.processes import Processes
from pytrace_ebpf.record.tables import Columns
from pytrace_ebpf.record.target import Target


@dataclass(frozen=True)
class Recording:
    """What a source writes to: the tables of functions and processes, and `emit`, which takes columns of `events`."""

    functions: Functions
    processes: Processes
    emit: Callable[[Columns], None]
    chosen: list[dict[str, Any]] = field(default_factory=list)  # the manifest's `sources`

    def declare(self, pid: int, source: str | None, why: str) -> None:
        """Keep for the manifest which source a process is traced by, None for none, and why: the last word counts."""
        if source is None:
            self.processes.lose_source(pid)
        kept = [each for each in self.chosen if each["pid"] != pid or (source and each["source"])]
        self.chosen[:] = [*kept, {"pid": pid, "source": source, "why": why}]


class CallSource(Protocol):
    """A source of function events; from `emit` on nothing knows which one it was."""

    name: str

    @property
    def waited_ns(self) -> int:
        """How long the traced programs were held up until this process had read what they wrote."""

    def prepare(self, target: Target) -> None:
        """Do what takes its time before the recording of `target` begins. Raises TargetError."""

    def begin(self, target: Target) -> None:
        """Record a program that stands at its first instruction. Raises TargetError."""

    def attach(self, target: Target) -> None:
        """Record a process in the middle of its work, the frames that are open first. Raises TargetError."""

    def reset(self, pid: int, tid: int, ts: int) -> None:
        """Thread `tid` called exec at `ts`: its process is another program since, and that thread its only one."""

    def drain(self) -> None:
        """Emit the events since the last call."""

    def losses(self) -> np.ndarray:
        """Cumulative counts per loss class, int64."""

    def detach(self, pids: set[int]) -> None:
        """Let go of processes that ended."""

    def stop(self) -> None:
        """Record nothing from now on; what was recorded can still be drained."""

    def leave(self) -> None:
        """Leave every process as it was."""

    def cost_per_call(self) -> float | None:
        """Nanoseconds that a call and its return cost the target, measured on this machine; None where it cannot be."""

    def close(self) -> None:
        """Let go of everything, whatever happened."""
