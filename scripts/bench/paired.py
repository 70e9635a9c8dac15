"""By how much sampling slows a program, in many pairs of short slices of the same process: one that is sampled beside one that is not.

The kernel half of `attach --sample HZ` is loaded once, by this process. For each slice its programs are attached anew or detached, which takes a
millisecond, so that between the two slices of a pair nothing differs but whether they run: at the timers of the cores, at each switch, and where a thread
comes back to a core. Between two slices what they reported is taken in. What user space takes is another process's time, which sample.py measures. Which
slice comes first is drawn for each pair. Two slices of a second differ by some percent for other reasons, more than one recording costs: so several recordings,
each with programs, maps and timers of its own, are attached at once, and what they cost together is divided by their number.
"""

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest.mock import patch

from pytrace_ebpf.record.cpython.functions import Functions
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.kernel.system_calls import RAW_TRACEPOINT, open_raw_tracepoint
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.process.target import inspect
from pytrace_ebpf.record.sampling import samples
from pytrace_ebpf.record.sampling.clocks import Clocks, Returns
from pytrace_ebpf.record.sampling.sampling_source import NAME
from pytrace_ebpf.record.scheduling.sched import Lives
from pytrace_ebpf.record.source import Recording

SETTLED_S = 0.05  # recorders that want to be drained more often still read files, or names
MOST_SETTLING_S = 10.0
WARMING_S = 0.03  # of each slice, that do not count: what attaching programs left behind in caches
LEAST_PAIRS = 5
SWITCH = "sched_switch"
OTHERS = ("sched_process_fork", "sched_process_exit", "sched_process_exec")  # which no slice of these programs comes to
OF_A_MEDIAN = math.sqrt(math.pi / 2)  # its standard error, against that of a mean of normal values
OF_A_DEVIATION = 1.4826  # the standard deviation of normal values, against their median absolute one
Rates = tuple[float, float]  # work per second of CPU time, and of wall time


class Switched(samples.Samples):
    """Samples whose programs run only after on(), until off()."""

    def __init__(self, recording: Recording, hz: int) -> None:
        with patch.object(samples, "Programs", partial(Programs, only=OTHERS)):
            super().__init__(recording, hz, follow=False, states=True)
        self._switch: list[int] = []
        self.off()

    def on(self) -> None:
        """Attach them."""
        self._switch.append(open_raw_tracepoint(SWITCH, self._programs.program(f"tracepoint_{SWITCH}", RAW_TRACEPOINT)))
        self._returns = Returns(lambda kind: self._load("back", kind, "steps_back"))
        self._clocks = Clocks(self._load("sample", samples.system_calls.PERF_EVENT, "steps"), self._period_ns)

    def off(self) -> None:
        """Detach them."""
        self._clocks.close()
        self._returns.close()
        while self._switch:
            os.close(self._switch.pop())


@contextmanager
def switched(pid: int, hz: int) -> Iterator[Switched]:
    """Of a process; what it has mapped has been read by then."""
    recording = Recording(Functions(), Processes())
    lives = Lives(recording.processes, follow=False)
    try:
        sampling = Switched(recording, hz)
        try:
            recording.processes.add_python(inspect(pid), NAME, time.monotonic_ns())
            lives.add(pid)
            sampling.add(pid)
            end_s = time.monotonic() + MOST_SETTLING_S
            while time.monotonic() < end_s:
                sampling.drain()
                if sampling.interval_s >= SETTLED_S:
                    break
                time.sleep(sampling.interval_s)
            yield sampling
        finally:
            sampling.off()
            sampling.close()
    finally:
        lives.close()


def slowdown(pid: int, work: Callable[[float], Rates], hz: int, pairs: int, seconds: float, most_s: float, copies: int = 1) -> list[Rates]:
    """The ratios of each pair, of CPU time and of wall time: how many times as much the same work takes while sampled. Fewer pairs where they take too long.

    `copies`: so many recordings at once; a ratio is that of one of them.
    """
    ratios, end_s = list[Rates](), time.monotonic() + most_s
    with ExitStack() as stack:
        recordings = [stack.enter_context(switched(pid, hz)) for _ in range(copies)]
        while len(ratios) < LEAST_PAIRS or (len(ratios) < pairs and time.monotonic() < end_s):
            rates: dict[bool, Rates] = {}
            for on in random.sample((False, True), 2):
                for sampling in recordings if on else ():
                    sampling.on()
                work(WARMING_S)
                rates[on] = work(seconds)
                for sampling in recordings:
                    sampling.off()
                    sampling.drain()
            for sampling in recordings:
                sampling.cut()
            by_cpu, by_wall = (1 + (plain / sampled - 1) / copies for plain, sampled in zip(rates[False], rates[True], strict=True))
            ratios.append((by_cpu, by_wall))
    return ratios


def median(ratios: Sequence[float]) -> tuple[float, float]:
    """And one standard error of it."""
    middle = statistics.median(ratios)
    deviation = OF_A_DEVIATION * statistics.median(abs(ratio - middle) for ratio in ratios)
    return middle, OF_A_MEDIAN * deviation / math.sqrt(len(ratios))
