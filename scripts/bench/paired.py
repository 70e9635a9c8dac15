"""By how much sampling slows a program, in pairs of short slices of the same process: one that is sampled beside one that is not.

The kernel half of `attach --sample HZ` is loaded by this process, for each slice anew and before it begins, so that between the two slices of a pair nothing
differs but whether it runs: the timers of the cores, the stacks that they and the switches read, and the scheduling events beside them. What user space
takes is another process's time, which sample.py measures. Which slice comes first is drawn for each pair.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from pytrace_ebpf.record.cpython.functions import Functions
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.process.target import inspect
from pytrace_ebpf.record.sampling.samples import Samples
from pytrace_ebpf.record.sampling.source import NAME
from pytrace_ebpf.record.scheduling.sched import Lives
from pytrace_ebpf.record.source import Recording

SETTLED_S = 0.05  # recorders that want to be drained more often still read files, or names
MOST_SETTLING_S = 10.0
WARMING_S = 0.3  # of each slice, that do not count: what loading programs left behind in caches
LEAST_PAIRS = 5
OF_A_MEDIAN = math.sqrt(math.pi / 2)  # its standard error, against that of a mean of normal values
OF_A_DEVIATION = 1.4826  # the standard deviation of normal values, against their median absolute one
Rates = tuple[float, float]  # work per second of CPU time, and of wall time


@contextmanager
def sampled(pid: int, hz: int) -> Iterator[None]:
    """Sample a process meanwhile; what it has mapped has been read by then."""
    recording = Recording(Functions(), Processes())
    scheduling = Lives(recording.processes, follow=False)
    try:
        samples = Samples(recording, hz, follow=False, states=True)
        try:
            recording.processes.add_python(inspect(pid), NAME, time.monotonic_ns())
            for recorder in (scheduling, samples):
                recorder.add(pid)
            end_s = time.monotonic() + MOST_SETTLING_S
            samples.drain()
            while samples.interval_s < SETTLED_S and time.monotonic() < end_s:
                time.sleep(samples.interval_s)
                samples.drain()
            yield
        finally:
            samples.close()
    finally:
        scheduling.close()


def slowdown(pid: int, work: Callable[[float], Rates], hz: int, pairs: int, seconds: float, most_s: float) -> list[Rates]:
    """The ratios of each pair, of CPU time and of wall time: how many times as much the same work takes while sampled. Fewer pairs where they take too long."""
    ratios, end_s = list[Rates](), time.monotonic() + most_s
    while len(ratios) < LEAST_PAIRS or (len(ratios) < pairs and time.monotonic() < end_s):
        rates: dict[bool, Rates] = {}
        for on in random.sample((False, True), 2):
            with sampled(pid, hz) if on else nullcontext():
                work(WARMING_S)
                rates[on] = work(seconds)
        ratios.append((rates[False][0] / rates[True][0], rates[False][1] / rates[True][1]))
    return ratios


def median(ratios: Sequence[float]) -> tuple[float, float]:
    """And one standard error of it."""
    middle = statistics.median(ratios)
    deviation = OF_A_DEVIATION * statistics.median(abs(ratio - middle) for ratio in ratios)
    return middle, OF_A_MEDIAN * deviation / math.sqrt(len(ratios))
