"""The recorder of function events: a source for each process, made when the first process needs it."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.choice.barred import barred, filtered, too_small
from pytrace_ebpf.record.choice.choice import Choice, Seen, choose, truthful
from pytrace_ebpf.record.choice.foresight import Foreseen, foresee
from pytrace_ebpf.record.choice.price import expected_ns
from pytrace_ebpf.record.cpython import encodable
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.parsing import confined
from pytrace_ebpf.record.process.target import Target, its_own_doing
from pytrace_ebpf.record.recorder import Recorder, Rows
from pytrace_ebpf.record.sampling import source as sampled
from pytrace_ebpf.record.source import CallSource, Recording
from pytrace_ebpf.trace.schema import LOSS_CLASSES

if TYPE_CHECKING:  # slow to import, and usually only one of them is used
    from pytrace_ebpf.record.agent.calls import AgentCalls
    from pytrace_ebpf.record.usdt.calls import UsdtCalls

# A tick costs as much as 30,000 events. When one tick finds a thirty-second of an arena, the next one comes soon.
_INTERVAL_S, _BUSY_INTERVAL_S = 0.1, 0.01
_BUSY_SHARE, _ARENA_BYTES = 32, {"events": 16, "observed": 192, "allocations": 48}  # of a row of the table
_BEGINNING_S = 2


class Sources(Recorder):
    """Chooses a source for each process; to the session all sources are this one recorder."""

    def __init__(self, options: Options, recording: Recording) -> None:
        self._options, self._recording, self._launches = options, recording, False
        self._bounded = options.budget is not None
        self._made: dict[str, CallSource] = {}
        self._makers: dict[str, Callable[[], CallSource]] = {
            "agent": self._make_agent, "usdt": self._make_usdt, sampled.NAME: lambda: sampled.NoCalls(recording),
        }  # fmt: skip
        self._seen: Seen | None = None  # of the first process
        self._planned: dict[int, tuple[Target, CallSource, str, Foreseen | None]] = {}
        self._held: dict[int, tuple[Target, CallSource, str]] = {}
        self._began_s, self._busy = 0.0, False
        self.ns_per_call = 0.0  # expected cost of a call in the first process, ns; 0 where it was not measured

    def launches(self) -> Mapping[str, str]:
        """Prepare for a program that is about to be launched; returns the variables for its environment. Raises HostError."""
        self._launches, self._began_s = True, time.monotonic()
        if self._options.source in ("usdt", sampled.NAME):
            return {}
        agent = self._made["agent"] = self._make_agent()
        return agent.environment

    @property
    def remark(self) -> str:
        """What a person should know of the programs that are started; "" for nothing."""
        return "".join(source.remark(0) for source in self)

    def plan(self, target: Target) -> tuple[Choice, Seen]:
        """Look at a running process for some tenths of a second, choose a source for it and prepare that; add() attaches then. Raises TargetError."""
        with its_own_doing(target.pid):
            return self._plan(target)

    def _plan(self, target: Target) -> tuple[Choice, Seen]:
        wish = self._options.source
        with ThreadPoolExecutor(1) as beside:  # what will be needed in any case is loaded while the process is measured
            preparing = beside.submit(self._source(wish, target).prepare, target) if wish == "usdt" and truthful(target)[0] else None
            seen = self._look(target, wish)
            self._seen = self._seen or seen
            choice = choose(target, wish, launched=False, seen=seen, bounded=self._bounded)
            source = self._source(choice.source, target)
            if preparing:
                preparing.result()
            else:
                source.prepare(target)
        if remark := source.remark(target.pid):
            choice = replace(choice, why=f"{choice.why}; {remark}")
        self._planned[target.pid] = target, source, choice.why, seen.foreseen
        return choice, seen

    def _look(self, target: Target, wish: str) -> Seen:
        if wish == sampled.NAME:
            return Seen()
        return replace(self._look_for_all(target, wish), too_small=too_small(target, self._options.memory))

    def _look_for_all(self, target: Target, wish: str) -> Seen:
        if wish == "agent":
            return Seen(barred=filtered(target.pid))
        if truthful(target)[0]:
            unencodable = encodable.unencodable(target) or encodable.unencodable_path(target)
            return Seen(unencodable, None if unencodable else foresee(target, self._count), barred(target))
        confined.searcher.dismiss()  # it may have been started for this process
        return Seen(barred=barred(target))

    def plan_held(self, target: Target) -> None:
        """Choose a source for a program that stands at its first instruction and prepare that; add() begins with it then. Raises TargetError."""
        source, why = self.choose(target)
        with its_own_doing(target.pid):
            source.prepare(target)
        self._held[target.pid] = target, source, why

    def add(self, pid: int) -> None:
        """Record the calls of a process for which there is a plan. Raises TargetError."""
        if held := self._held.pop(pid, None):
            target, source, why = held
            with its_own_doing(pid):
                source.begin(target)
            self._recording.declare(pid, source.name, why)
        elif planned := self._planned.pop(pid, None):
            target, source, why, foreseen = planned
            self._recording.declare(pid, source.name, why, asdict(foreseen) if foreseen else None)
            with its_own_doing(pid):
                source.attach(target)

    def reset(self, pid: int, tid: int, ts: int) -> None:
        """What each source knew of the program before is gone."""
        for source in self:
            source.reset(pid, tid, ts)

    def choose(self, target: Target, executed: bool = False) -> tuple[CallSource, str]:
        """(source, why) for a process that has just begun, as a copy of its creator or, `executed`, as another program.

        Too young to be measured: the measurement of the first process holds for it. Raises TargetError.
        """
        if self._options.source == sampled.NAME:
            return self._make(sampled.NAME), choose(target, sampled.NAME, self._launches).why
        keep_out = filtered(target.pid) if executed and not self._launches else ""
        self._seen = self._seen or Seen()
        if not self._seen.unencodable and self._options.source != "agent" and truthful(target)[0]:
            self._seen = replace(self._seen, unencodable=encodable.unencodable_path(target))
        choice = choose(target, self._options.source, self._launches, replace(self._seen, barred=keep_out), self._bounded)
        return self._source(choice.source, target), choice.why

    def _source(self, name: str, target: Target) -> CallSource:
        self.ns_per_call = self.ns_per_call or expected_ns(name, target.python_version) or 0.0
        return self._make(name)

    def _make(self, name: str) -> CallSource:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def _count(self, target: Target, seconds: float) -> float:
        from pytrace_ebpf.record.usdt.calls import UsdtCalls

        usdt = self._make("usdt")
        if not isinstance(usdt, UsdtCalls):
            raise TypeError
        return usdt.calls_per_s(target, seconds)

    def __iter__(self) -> Iterator[CallSource]:
        return iter(list(self._made.values()))

    @property
    def interval_s(self) -> float:  # type: ignore[override]
        """A process that has just begun is inspected first, while it surely exists."""
        begins = not self._recording.chosen and time.monotonic() - self._began_s < _BEGINNING_S
        if begins or self._busy:
            return _BUSY_INTERVAL_S
        return Recorder.interval_s if self._options.source == sampled.NAME else _INTERVAL_S

    def drain(self) -> Rows:
        """The rows of all sources."""
        rows = self._taken([source.drain() for source in self])
        filled = sum(len(batch["ts"]) * size for table, size in _ARENA_BYTES.items() for batch in rows.get(table, ()))
        self._busy = filled * _BUSY_SHARE > min([self._options.arena_bytes, *(source.arena_bytes for source in self)])
        return rows

    def cut(self) -> Rows:
        """Rows from between two drains, such as the open frames of a process that was attached to."""
        return self._taken([source.cut() for source in self])

    def _taken(self, parts: list[Rows]) -> Rows:
        """These and what waits, by table."""
        rows: Rows = {}
        for part in (*parts, self._recording.take()):
            for table, batches in part.items():
                rows.setdefault(table, []).extend(batches)
        return rows

    @property
    def passed(self) -> int:
        """How many events the hooks in the traced programs saw and did not write."""
        return sum(source.passed for source in self)

    @property
    def by_function(self) -> bool:
        """Whether it costs less to record no calls of a function."""
        return any(source.by_function for source in self)

    @property
    def slowdown(self) -> float:
        """Factor by which the traced programs' code is slowed apart from the cost per call."""
        return max((source.slowdown for source in self), default=1.0)

    def leave_out(self, func_ids: frozenset[int]) -> bool:
        """Leave out the calls of exactly these functions from now on; whether that holds in every process by now."""
        return sum(not source.leave_out(func_ids) for source in self) == 0  # a list, not a generator: all of them must be called

    def losses(self) -> np.ndarray:
        """Cumulative counts per loss class, int64."""
        total = np.zeros(len(LOSS_CLASSES), np.int64)
        for source in self:
            total += source.losses()
        return total

    def facts(self) -> dict[str, Any]:
        """The manifest's `sources`."""
        return {"sources": list(self._recording.chosen)}

    def missing(self) -> tuple[str, ...]:
        """Why some processes have no calls."""
        return tuple(dict.fromkeys(each["why"] for each in self._recording.chosen if each["source"] is None))

    def stop(self) -> None:
        """Record nothing from now on."""
        for source in self:
            source.stop()

    def leave(self) -> int:
        """Leave every process as it was; returns as Recorder.leave()."""
        return max((source.leave() for source in self), default=0)

    def cost(self) -> dict[str, Any]:
        """Keys of the manifest's `cost`, for the source of the first process that has one: a program may be started by a shell script."""
        first = next((each["source"] for each in self._recording.chosen if each["source"]), None)
        source = self._made.get(first or "")
        ns_per_call = source.cost_per_call() if source else None
        return {
            "source": first,
            "ns_per_call": ns_per_call,
            "ns_per_line": source.cost_per_line(ns_per_call) if source else None,
            "waited_ns": sum(each.waited_ns for each in self),
        }

    def close(self) -> None:
        """Let go of everything, whatever happened."""
        for source in self:
            source.close()

    def _make_agent(self) -> "AgentCalls":
        from pytrace_ebpf.record.agent.calls import AgentCalls

        options = self._options
        return AgentCalls(
            self._recording, options.arena_bytes, options.filters, options.follow, self._launches, options.observed, options.memory, self._bounded
        )

    def _make_usdt(self) -> "UsdtCalls":
        from pytrace_ebpf.record.usdt.calls import UsdtCalls

        if self._options.filters.max_depth:
            raise TargetError("--max-depth is the agent's; use --source agent, or leave it out")
        if self._options.filters.c_calls:
            raise TargetError("--c-calls is the agent's; use --source agent, or leave it out")
        if self._options.filters.lines:
            raise TargetError("--lines exact is the agent's; use --source agent, or --sample, whose lines cost less")
        if self._options.filters.opcodes:
            raise TargetError(
                "--opcodes exact is the agent's; use --source agent, or --sample, which shows where the time of instructions goes for less"
            )
        options = self._options
        return UsdtCalls(self._recording, options.call_ring_pages, options.filters, options.follow, options.observed)
