"""CPU time of every thread, read about every 10 ms from /proc: what is left to know of scheduling where nothing reports switches.

`schedstat` gives nanoseconds on a core and in the run queue; a kernel without it (gVisor, CONFIG_SCHED_INFO off) has
`stat`, whose CPU time counts in clock ticks, mostly 10 ms. The clock of another process's thread
(clock_gettime with its id) is refused by Linux: EINVAL, as tried on 6.18.
"""

import os
import time

import numpy as np

from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.recorder import Rows
from pytrace_ebpf.record.scheduling.scheduling import Scheduling
from pytrace_ebpf.trace.schema import CPUTIME

INTERVAL_S = 0.01
_COST_LIMIT = 50  # a sample of many threads is followed by a pause this many times as long: 2 % of a core
_LONGEST_S = 0.05
_DTYPES = {column.name: np.dtype(column.type) for column in CPUTIME.columns}
NS_PER_TICK = 10**9 // os.sysconf("SC_CLK_TCK")


class CpuTime(Scheduling):
    """Samples of the threads of some processes, each of which began under this recording; fills the `cputime` table."""

    name = "cputime"

    def __init__(self, why_no_switches: str, processes: Processes, interval_s: float = INTERVAL_S) -> None:
        """`why_no_switches`: the sentence with which perf refused. `processes`: the living ones among them are sampled, as they are found."""
        self.interval_s = interval_s
        self._processes = processes
        self._pids: set[int] = set()
        self._threads: set[tuple[int, int]] = set()
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._next_s = 0.0
        self._read = _schedstat if queue_time_is_known() else _stat
        self.why = f"{why_no_switches}; CPU time is sampled instead, so times on a core are estimates"

    def add(self, pid: int) -> None:
        """Sample every thread of `pid` from now on, until it has ended; the first time at once."""
        if pid not in self._pids:
            self._pids.add(pid)
            self._sample(pid)

    def sample(self) -> None:
        """Take a sample of every thread if it is time for one."""
        now_s, spent_s = time.monotonic(), time.thread_time()
        if now_s < self._next_s:
            return
        ended = {pid for pid in self._pids if not self._sample(pid)}
        self._pids -= ended
        self._threads -= {thread for thread in self._threads if thread[0] in ended} if ended else set()
        pause_s = _COST_LIMIT * (time.thread_time() - spent_s)
        self._next_s = now_s + min(max(self.interval_s, pause_s), max(self.interval_s, _LONGEST_S))

    def _sample(self, pid: int) -> bool:
        """Rows of one process now; False: it has ended."""
        folder = f"/proc/{pid}/task"
        try:
            tids = os.listdir(folder)  # noqa: PTH208 - a hundred times a second; Path objects cost more than the reading
        except OSError:
            return False
        for tid in tids:
            try:
                on_cpu, queued = self._read(f"{folder}/{tid}")
            except (OSError, ValueError, IndexError):  # it ended just now: its last sample stays
                continue
            now, thread = time.monotonic_ns(), (pid, int(tid))
            spent = on_cpu + max(queued, 0)
            if thread not in self._threads:
                self._threads.add(thread)
                # It began no later than this, and after the last look: what is launched is sampled before it is a program.
                self._rows.append((now - spent, *thread, 0, min(queued, 0)))
            self._rows.append((now, *thread, on_cpu, queued))
        return True

    def observe(self, drained: Rows) -> None:
        """Nothing reports what begins and ends: sample the children that were found."""
        for pid in self._processes.living:
            self.add(pid)

    def drain(self) -> Rows:
        """Rows of `cputime` since the last call; a queue time that nobody measured is -1 (null in the table)."""
        self.sample()
        rows, self._rows = self._rows, []
        table = np.array(rows, np.int64).reshape(-1, len(_DTYPES))
        return {"cputime": [{name: table[:, i].astype(dtype) for i, (name, dtype) in enumerate(_DTYPES.items())}]}


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1024)
    finally:
        os.close(fd)


def _schedstat(folder: str) -> tuple[int, int]:
    on_cpu, queued, _ = _read(f"{folder}/schedstat").split()
    return int(on_cpu), int(queued)


def _stat(folder: str) -> tuple[int, int]:
    fields = _read(f"{folder}/stat").rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) * NS_PER_TICK, -1


def queue_time_is_known() -> bool:
    """Without CONFIG_SCHED_INFO schedstat is three zeros, which cannot be true of the calling thread."""
    try:
        return _schedstat("/proc/thread-self")[0] > 0
    except (OSError, ValueError):
        return False
