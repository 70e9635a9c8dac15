"""The scheduling that an ordinary user can have: perf's context switches, or samples of CPU time where perf refuses."""

from typing import Any

import numpy as np

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.recorder import Recorder, Rows
from pytrace_ebpf.record.scheduling.cputime import INTERVAL_S, CpuTime
from pytrace_ebpf.record.scheduling.perf_switches import PerfSwitches
from pytrace_ebpf.record.scheduling.scheduling import Scheduling

_SELDOM_S = 0.5
_RUNNING = "perf reports context switches of programs from their start alone"


class Rootless(Recorder):
    """The one of the two that this host permits, known when the first process is added."""

    def __init__(self, processes: Processes, running: bool = False, seldom: bool = False) -> None:
        """`running`: the processes run already, which perf could follow only by an event for each thread and core. `seldom`: CPU time is needed for sums alone."""
        self._processes, self._interval_s = processes, _SELDOM_S if seldom else INTERVAL_S
        self._source: Scheduling = CpuTime(_RUNNING, processes, self._interval_s) if running else PerfSwitches()

    @property
    def interval_s(self) -> float:  # type: ignore[override]
        """How long its source can wait to be drained."""
        return self._source.interval_s

    def add(self, pid: int) -> None:
        """Record a process that has one thread and no child yet."""
        try:
            self._source.add(pid)
        except HostError as error:
            self._source = CpuTime(str(error), self._processes, self._interval_s)
            self._source.add(pid)

    def drain(self) -> Rows:
        """Rows of `sched`, or of `cputime`."""
        return self._source.drain()

    def observe(self, drained: Rows) -> None:
        """What its source learns from it."""
        self._source.observe(drained)

    def losses(self) -> np.ndarray:
        """Cumulative counts per loss class, int64."""
        return self._source.losses()

    def metadata(self) -> dict[str, Any]:
        """The manifest's `scheduling`."""
        return self._source.metadata()

    def close(self) -> None:
        """Stop recording."""
        self._source.close()
