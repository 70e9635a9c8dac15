"""What each traced program used of the cores, and what tracing took of that: its calls at their price in it, or what all of its code is slowed by; never more than it used."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from pytrace_ebpf.record.cost.measured import Price, Timed
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.record.source_selection.price import passed_ns
from pytrace_ebpf.record.source_selection.sources import Sources

_CPU_CLOCK = 2  # CPUCLOCK_SCHED of a process: clock ids of include/linux/posix-timers.h
_UNPRICED_NS = 5_000  # more than a call costs: the program used no less where the price is known only later
_MOST = 1000  # processes whose sums are held apart


@dataclass
class Spent:
    """Sums over processes, CPU time."""

    seconds: float = 0.0
    used_ns: float = 0.0  # by the programs, with what tracing took
    calls: float = 0.0
    calls_ns: float = 0.0  # of it what calls took
    spent_ns: float = 0.0  # and what tracing took in all
    least_ns: float = 0.0  # and what was surely not tracing
    code_ns: float = 0.0  # of spent_ns, by how much Python's code was slower between events

    def add(self, other: "Spent") -> None:
        """Another span of time."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class _Sum:
    """Of one process and source."""

    source: str
    events: int = 0
    passed: int = 0  # events that were looked at and not written
    used_ns: float = 0.0
    slowed_ns: float = 0.0  # of that, by what no single call is charged for

    def calls_ns(self, price: Price) -> float:
        return min(self.used_ns, self.events / 2 * price.of_call)

    def code_ns(self, price: Price) -> float:
        return min(self.used_ns, (self.events + self.passed) * price.of_code)

    def spent_ns(self, price: Price) -> float:
        events_ns = self.events / 2 * price.of_call + self.passed * passed_ns(price.of_loop)
        return min(self.used_ns, max(events_ns + self.code_ns(price), self.slowed_ns))


@dataclass
class _Process:
    seen_ns: int | None  # of CPU time, when it was looked at last; None: it has ended
    looked_ns: int
    slowdown: float = 1.0
    events: int = 0  # since then
    passed: int = 0  # likewise
    lately: _Sum = field(default_factory=lambda: _Sum(""))
    whole: _Sum = field(default_factory=lambda: _Sum(""))


@dataclass(frozen=True)
class Lately:
    """One process, at the last look."""

    pid: int
    source: str
    seconds: float
    cores: float  # that tracing took
    share: float  # of what the program used

    def after(self, before: "Lately | None") -> "Lately":
        """The same of this time and the one `before` it, of the same process."""
        if before is None:
            return self
        spent_s, spent_before_s = self.cores * self.seconds, before.cores * before.seconds
        seconds, spent_s, used_s = self.seconds + before.seconds, spent_s + spent_before_s, spent_s / self.share + spent_before_s / before.share
        return Lately(self.pid, self.source, seconds, spent_s / seconds, spent_s / used_s)


class Accounts:
    """Of all processes of a recording, from look to look."""

    def __init__(self, recording: Recording, sources: Sources) -> None:
        self._recording, self._sources = recording, sources
        self._processes: dict[int, _Process] = {}
        self._closed = Spent()  # of processes that are not held apart any more
        self._passed: dict[int, int] = {}
        self._timed: dict[int, Timed] = {}
        self._dropped: dict[int, int] = {}  # events for which there was no room, by process
        self._seconds = 0.0
        self._approached = 0, _Process(None, 0)

    def __len__(self) -> int:
        return len(self._processes)

    def approach(self, pid: int) -> None:
        """It is going to be added; what it used before does not count then."""
        self._approached = pid, _Process(_cpu_ns(pid), time.monotonic_ns())

    @property
    def approached_s(self) -> float:
        """When the last one was."""
        return self._approached[1].looked_ns / 1e9

    def add(self, pid: int) -> None:
        """After approach()."""
        if self._approached[0] == pid:
            self._processes.setdefault(pid, self._approached[1])

    def count(self, batches: Iterable[Columns]) -> None:
        """Columns of `events`."""
        for batch in batches:
            pids = batch["pid"]
            if len(pids) and pids[0] == pids[-1] and (pids == pids[0]).all():  # nearly always
                self._of(int(pids[0])).events += len(pids)
            elif len(pids):
                for pid, count in zip(*np.unique(pids, return_counts=True), strict=True):
                    self._of(int(pid)).events += int(count)

    def _of(self, pid: int) -> _Process:
        if pid not in self._processes:  # it was started while it was recorded: all that it used counts
            self._processes[pid] = _Process(0, time.monotonic_ns())
        return self._processes[pid]

    def roughly_ns(self) -> float:
        """What was spent since the last look, as far as calls take it."""
        calls_ns = sum(
            process.events / 2 * self._price(pid, process.whole.source).of_call for pid, process in self._processes.items() if process.events
        )
        return calls_ns + sum(count * passed_ns(self._price(pid, self._of(pid).whole.source).of_loop) for pid, count in self._passed_now())

    def look(self, seconds: float) -> Spent:
        """What happened since the last look, so many seconds ago."""
        spent = Spent(seconds)
        for pid in self._recording.processes.living:
            self._of(pid)
        for pid, dropped in self._sources.dropped().items():  # such an event costs its program as much
            self._of(pid).events += max(0, dropped - self._dropped.get(pid, 0))
            self._dropped[pid] = dropped
        for pid, count in self._passed_now():
            self._of(pid).passed += count
        self._passed, self._timed = self._sources.passed(), self._sources.timed()
        now_ns = time.monotonic_ns()  # not before any of them was listed
        for pid, process in self._processes.items():
            self._look(pid, process, now_ns)
            lately, price = process.lately, self._price(pid, process.lately.source)
            spent.add(_of_sum(lately, price, _LEAST_OWN if process.slowdown == 1 else min(_LEAST_OWN, 1 / process.slowdown)))
        self._seconds += seconds
        self._close_ended()
        return spent

    def _passed_now(self) -> Iterator[tuple[int, int]]:
        """How many events passed in each process since the last look."""
        for pid, count in self._sources.passed().items():
            if count > self._passed.get(pid, 0):
                yield pid, count - self._passed.get(pid, 0)

    def _look(self, pid: int, process: _Process, now_ns: int) -> None:
        source = self._recording.source_of(pid) or process.whole.source or self._recording.source_at_end(pid)
        if process.whole.source and source != process.whole.source:
            self._close(pid, process)
        process.whole.source = source
        cpu_ns = _cpu_ns(pid) if process.seen_ns is not None else None
        lately = _Sum(source, process.events, process.passed)
        if cpu_ns is not None and process.seen_ns is not None:
            lately.used_ns = max(0, cpu_ns - process.seen_ns)
        else:  # it has ended, and nobody can say any more what it used; its last events may come after that was seen
            price = self._price(pid, source)
            calls_ns = lately.events / 2 * (price.of_call or _UNPRICED_NS) + lately.passed * passed_ns(price.of_loop)
            lately.used_ns = calls_ns if process.seen_ns is None else min(now_ns - process.looked_ns, calls_ns)
        slowdown = self._sources.slowdown(pid)
        lately.slowed_ns = lately.used_ns * (1 - 1 / max(slowdown, process.slowdown))
        process.seen_ns, process.looked_ns, process.slowdown, process.events, process.passed = cpu_ns, now_ns, slowdown, 0, 0
        process.lately = lately
        process.whole.events += lately.events
        process.whole.passed += lately.passed
        process.whole.used_ns += lately.used_ns
        process.whole.slowed_ns += lately.slowed_ns

    def lately(self, seconds: float) -> Iterator[Lately]:
        """Each process with recorded calls, at the last look, which was of so many seconds."""
        for pid, process in self._processes.items():
            sum_ = process.lately
            if sum_.source and sum_.used_ns:
                spent_ns = sum_.spent_ns(self._price(pid, sum_.source))
                yield Lately(pid, sum_.source, seconds, spent_ns / 1e9 / seconds, spent_ns / sum_.used_ns)

    def whole(self) -> Spent:
        """All of it until the last look, at the price that is known by now."""
        whole = Spent(self._seconds)
        whole.add(self._closed)
        for pid, process in self._processes.items():
            whole.add(_of_sum(process.whole, self._price(pid, process.whole.source), _LEAST_OWN))
        return whole

    @property
    def timed(self) -> int:
        """Events that were timed in the programs, as far as that is known."""
        return sum(timed.events for timed in self._timed.values())

    def _price(self, pid: int, source: str) -> Price:
        """By what was timed in the process until now, where it was recorded by one source only and that timed enough; else that of a small loop."""
        loop = self._sources.price(source) or 0.0
        return self._timed.get(pid, Timed()).price(self._sources.parts(source), loop)

    def _close(self, pid: int, process: _Process) -> None:
        self._closed.add(_of_sum(process.whole, self._price(pid, process.whole.source), _LEAST_OWN))
        process.whole = _Sum("")

    def _close_ended(self) -> None:
        """A service may start any number of processes."""
        ended = [pid for pid, process in self._processes.items() if process.seen_ns is None]
        for pid in ended[: max(0, len(ended) - _MOST)]:
            self._close(pid, self._processes.pop(pid))
            self._dropped.pop(pid, None)


_LEAST_OWN = 0.1  # of a program's CPU time: never less is counted as its own, whatever its calls are reckoned to cost


def _of_sum(sum_: _Sum, price: Price, least: float) -> Spent:
    return Spent(0.0, sum_.used_ns, sum_.events / 2, sum_.calls_ns(price), sum_.spent_ns(price), least * sum_.used_ns, sum_.code_ns(price))


def _cpu_ns(pid: int) -> int | None:
    """CPU time of all threads of a process; None where it has ended."""
    try:
        return time.clock_gettime_ns(~pid << 3 | _CPU_CLOCK)
    except OSError:
        return None
