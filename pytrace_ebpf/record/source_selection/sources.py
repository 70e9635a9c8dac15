"""The recorder of function events: a source for each process, made when the first process needs it."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.cost.measured import Measured, Timed
from pytrace_ebpf.record.cost.prices import Prices
from pytrace_ebpf.record.cpython import encodable
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.process.target import Target, its_own_doing
from pytrace_ebpf.record.recorder import Recorder, Rows
from pytrace_ebpf.record.sampling import sampling_source as sampled
from pytrace_ebpf.record.source import CallSource, Recording, Undrained
from pytrace_ebpf.record.source_selection.changing import change
from pytrace_ebpf.record.source_selection.cost_estimate import CostEstimate, estimate_cost
from pytrace_ebpf.record.source_selection.families import Families
from pytrace_ebpf.record.source_selection.injection_checks import cannot_inject, filtered, too_small
from pytrace_ebpf.record.source_selection.price import passed_ns
from pytrace_ebpf.record.source_selection.selection import Choice, Seen, agent_serves, choose, truthful
from pytrace_ebpf.trace.sampled import SAMPLES_ALONE
from pytrace_ebpf.trace.schema import LOSS_CLASSES

if TYPE_CHECKING:  # slow to import, and usually only one of them is used
    from pytrace_ebpf.record.agent.calls import AgentCalls
    from pytrace_ebpf.record.usdt.calls import UsdtCalls

# A tick costs as much as 30,000 events. When one tick finds a thirty-second of an arena, the next one comes soon.
_INTERVAL_S, _BUSY_INTERVAL_S = 0.1, 0.01
_BUSY_SHARE = 32
_ARENA_BYTES = {"events": 16, "observed": 192, "client_calls": 192, "trace_contexts": 192, "allocations": 48}  # of a row of the table
_BEGINNING_S = 2
_PRICE_S = 0.5  # within which the price of a call is measured as a rule


class Sources(Recorder):
    """Chooses a source for each process; to the session all sources are this one recorder."""

    def __init__(self, options: Options, recording: Recording) -> None:
        self._options, self._recording, self._launches = options, recording, False
        self._bounded = options.budget is not None
        self._alone = options.filters.agents_alone if options.source == "auto" else ""
        self._made: dict[str, CallSource] = {}
        self._makers: dict[str, Callable[[], CallSource]] = {
            "agent": self._make_agent, "usdt": self._make_usdt, SAMPLES_ALONE: lambda: sampled.NoCalls(recording),
        }  # fmt: skip
        self._seen: Seen | None = None  # of the first process
        self._families, self._looked = Families(), dict[tuple[int, str], Seen]()  # by process
        self._prices, self._beside = Prices(), ThreadPoolExecutor(1, "price")
        self._measuring: dict[str, Future[None]] = {}  # by source
        self._dear: dict[int, tuple[int, float]] = {}  # processes to change, with the one for which, and the share of a core that it took
        self.unchangeable: set[int] = set()  # processes that must go on with probes, however dear
        self._planned: dict[int, tuple[Target, CallSource, str, CostEstimate | None]] = {}
        self._held: dict[int, tuple[Target, CallSource, str]] = {}
        self._began_s, self._busy = 0.0, False
        self.undrained = Undrained()  # of what happened to processes, beside what their sources recorded
        self.drained: list[Columns] = []  # events, of the last drain()

    def launches(self) -> Mapping[str, str]:
        """Prepare for a program that is about to be launched; returns the variables for its environment. Raises HostError."""
        self._launches, self._began_s = True, time.monotonic()
        if self._options.source == "usdt" or self._options.samples_alone:
            return {}
        agent = self._made["agent"] = self._make_agent()
        return agent.environment

    @property
    def remark(self) -> str:
        """What a person should know of the programs that are started; "" for nothing."""
        return "".join(source.remark(0) for source in self)

    def survey(self, targets: Sequence[Target]) -> None:
        """Look at processes that are going to be traced together, before a source is chosen for any of them: the busiest of a family decides for all."""
        self._families.join((target.pid, target.ppid) for target in targets)
        for target in targets:
            try:
                with its_own_doing(target.pid):
                    self._looked[target.process.key] = self._look(target, self._options.source)
            except TargetError:
                continue  # plan() says why

    def plan(self, target: Target) -> tuple[Choice, Seen]:
        """Look at a running process for some tenths of a second, choose a source for it and prepare that; add() attaches then. Raises TargetError."""
        with its_own_doing(target.pid):
            return self._plan(target)

    def _plan(self, target: Target) -> tuple[Choice, Seen]:
        wish = self._options.source
        with ThreadPoolExecutor(1) as beside:  # what will be needed in any case is loaded while the process is measured
            preparing = beside.submit(self._make(wish).prepare, target) if wish == "usdt" and truthful(target)[0] else None
            seen = self._looked.pop(target.process.key, None) or self._look(target, wish)
            seen = replace(seen, estimate=self._families.busiest(target.pid) or seen.estimate)
            self._seen = self._seen or seen
            choice = choose(target, wish, launched=False, seen=seen, bounded=self._bounded, alone=self._alone)
            source = self._make(choice.source)
            if preparing:
                preparing.result()
            else:
                source.prepare(target)
            self._learn_price(choice.source, target)
        if remark := source.remark(target.pid):
            choice = replace(choice, why=f"{choice.why}; {remark}")
        self._planned[target.pid] = target, source, choice.why, seen.estimate
        return choice, seen

    def _look(self, target: Target, wish: str) -> Seen:
        if wish == SAMPLES_ALONE:
            return Seen()
        return replace(self._look_for_all(target, wish), too_small=too_small(target, bool(self._options.value_of("memory"))))

    def _look_for_all(self, target: Target, wish: str) -> Seen:
        if wish == "agent":
            return Seen(cannot_inject=filtered(target.pid))
        if truthful(target)[0] and not self._alone:
            unencodable = encodable.unencodable(target) or encodable.unencodable_path(target)
            estimate = None if unencodable else estimate_cost(target, self._count, self.price("usdt", target))
            if estimate:
                self._families.note(estimate)
            return Seen(unencodable, estimate, cannot_inject(target))
        sandbox.searcher.dismiss()  # it may have been started for this process
        return Seen(cannot_inject=cannot_inject(target))

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
            target, source, why, estimate = planned
            self._recording.declare(pid, source.name, why, asdict(estimate) if estimate else None)
            with its_own_doing(pid):
                source.attach(target)

    def reset(self, pid: int, tid: int, ts: int) -> None:
        """What each source knew of the program before is gone."""
        for source in self:
            source.reset(pid, tid, ts)

    def choose(self, target: Target, executed: bool = False) -> tuple[CallSource, str]:
        """(source, why) for a process that has just begun, as a copy of its creator or, `executed`, as another program.

        Too young to be measured: the measurement of the busiest of its family holds for it. Raises TargetError.
        """
        if self._options.samples_alone:
            return self._make(SAMPLES_ALONE), choose(target, SAMPLES_ALONE, self._launches).why
        keep_out = filtered(target.pid) if executed and not self._launches else ""
        self._seen = self._seen or Seen()
        if not self._seen.unencodable and self._options.source != "agent" and truthful(target)[0]:
            self._seen = replace(self._seen, unencodable=encodable.unencodable_path(target))
        self._families.join([(target.pid, target.ppid)])
        seen = replace(self._seen, cannot_inject=keep_out, estimate=self._families.busiest(target.pid))
        choice = choose(target, self._options.source, self._launches, seen, self._bounded, self._alone)
        return self._make(choice.source), choice.why

    def _make(self, name: str) -> CallSource:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def _count(self, target: Target, seconds: float) -> float:
        return self._usdt().calls_per_s(target, seconds)

    def _usdt(self) -> "UsdtCalls":
        from pytrace_ebpf.record.usdt.calls import UsdtCalls

        usdt = self._make("usdt")
        if not isinstance(usdt, UsdtCalls):
            raise TypeError
        return usdt

    def __iter__(self) -> Iterator[CallSource]:
        return iter(list(self._made.values()))

    @property
    def interval_s(self) -> float:  # type: ignore[override]
        """A process that has just begun is inspected first, while it surely exists."""
        begins = not self._recording.chosen and time.monotonic() - self._began_s < _BEGINNING_S
        if begins or self._busy:
            return _BUSY_INTERVAL_S
        return Recorder.interval_s if self._options.samples_alone else _INTERVAL_S

    def drain(self) -> Rows:
        """The rows of all sources."""
        rows = self._taken([source.drain() for source in self])
        filled = sum(len(batch["ts"]) * size for table, size in _ARENA_BYTES.items() for batch in rows.get(table, ()))
        self.drained = rows.get("events", [])
        self._busy = filled * _BUSY_SHARE > min([self._options.arena_bytes, *(source.arena_bytes for source in self)])
        return rows

    def cut(self) -> Rows:
        """Rows from between two drains, such as the open frames of a process that was attached to."""
        return self._taken([source.cut() for source in self])

    def _taken(self, parts: list[Rows]) -> Rows:
        """These and what waits, by table."""
        rows: Rows = {}
        for part in (*parts, self.undrained.take()):
            for table, batches in part.items():
                rows.setdefault(table, []).extend(batches)
        return rows

    def passed(self) -> dict[int, int]:
        """How many events the hooks in the traced programs saw and did not write, by process, as far as that is still known of those that ended."""
        return {pid: count for source in self for pid, count in source.passed().items()}

    def timed(self) -> dict[int, Timed]:
        """What was measured in place of what they cost, by process, as far as that is still known of those that ended."""
        return {pid: timed for source in self for pid, timed in source.timed().items()}

    @property
    def ns_per_left_call(self) -> float:
        """What a call that is left out costs its program all the same, at most."""
        return max((source.passed_per_left_call * passed_ns(self.price(name)) for name, source in self._made.items()), default=0.0)

    @property
    def by_function(self) -> bool:
        """Whether it costs less to record no calls of a function."""
        return any(source.by_function for source in self)

    def dropped(self) -> dict[int, int]:
        """How many events of each process found no room, as far as that is known of single ones."""
        return {pid: count for source in self for pid, count in source.dropped().items()}

    def slowdown(self, pid: int) -> float:
        """Factor by which a traced program's code is slowed apart from the cost per call."""
        return max((source.slowdown(pid) for source in self), default=1.0)

    def price(self, name: str, target: Target | None = None) -> float | None:
        """Nanoseconds that a call costs by a source: measured on this host, expected until it is, None where neither is known."""
        source = self._made.get(name)
        return self._prices.price(name, (source and source.first) or target)

    def parts(self, name: str) -> Measured | None:
        """What that price was measured as; None until it is."""
        return self._prices.measured(name)

    def measure(self) -> None:
        """Begin to measure the price of each source that has a process, beside the recording."""
        for name, source in list(self._made.items()):
            if name != SAMPLES_ALONE and name not in self._measuring and source.first is not None:
                self._measuring[name] = self._beside.submit(self._measure, source, source.first)

    def measured(self) -> None:
        """Wait until the price of each source that has a process is known: measured in this recording as far as that has begun, or else before."""
        if not all(self._is_known(name) for name in list(self._made)):
            self.measure()
        for measuring in self._measuring.values():
            measuring.result()

    def _learn_price(self, name: str, target: Target) -> None:
        """Before it is named, where it was never measured here: by the agent that is a matter of a tenth of a second."""
        if name == "agent" and not self._is_known(name, target):
            self.measure()
            wait([future for of, future in self._measuring.items() if of == name], _PRICE_S)

    def _is_known(self, name: str, target: Target | None = None) -> bool:
        self.price(name, target)  # which may have been kept
        return self._prices.is_measured(name)

    def is_priced(self, name: str) -> bool:
        """Whether the price of a source is as well known as it can be."""
        measuring = self._measuring.get(name)
        return self._prices.is_measured(name) or (measuring is not None and measuring.done())

    def _measure(self, source: CallSource, first: Target) -> None:
        if (measured := source.cost_per_call()) is not None:
            self._prices.learn(source.name, first, measured)

    # -- changed while it records ----------------------------------------------------

    def estimate(self, pid: int) -> float | None:
        """Cores that the probes were expected to take in a process, or in the busiest of its family; None where that was not looked at."""
        busiest = self._families.busiest(pid)
        return busiest.share if busiest else None

    def too_dear(self, pid: int, share: float) -> None:
        """The probes take this share of a core in a process, by measurement: more than was expected. Its family changes to the agent as soon as may be."""
        before = self._families.busiest(pid)
        self._families.note(CostEstimate(pid, share, None, share) if before is None else replace(before, pid=pid, share=max(share, before.share)))
        if self._options.source == "auto":
            self._dear |= {other: (pid, share) for other in self._families.of(pid) if self._recording.source_of(other) == "usdt"}

    def change(self) -> list[str]:
        """Have the processes whose probes are too dear recorded by the agent from now on; what there is to say of it."""
        dear, self._dear, said = self._dear, {}, list[str]()
        for pid, (busiest, share) in dear.items():
            target = self._recording.processes.targets.get(pid)
            if target is None:
                continue
            why = (
                f"the probes took {share * 100:,.0f} % of a core" + (f" in process {busiest}" if busiest != pid else "") + ", more than was expected"
            )
            keep = cannot_inject(target) or ("" if agent_serves(target)[0] else agent_serves(target)[1])
            if not keep:
                try:
                    with its_own_doing(pid):
                        self.undrained.extend(change(target, self._usdt(), self._make("agent")))
                except (TargetError, HostError) as error:
                    keep = str(error)
            if keep:
                self.unchangeable.add(pid)
                said.append(f"{why}, and process {pid} cannot be traced by the agent instead: {keep}")
            else:
                self._recording.declare(pid, "agent", why)
                said.append(f"process {pid} is traced by agent from now on: {why}")
        return said

    @property
    def boundable(self) -> bool:
        """Whether calls can be left out of every process: not without a GIL, nor of interpreters beside the main one, which would go on."""
        rows = self._recording.processes
        return not any(target.free_threaded for target in rows.targets.values()) and all(
            (rows.processes[pid]["interpreters"] or 0) <= 1 for pid in rows.living
        )

    def leave_out(self, func_ids: frozenset[int]) -> bool:
        """Leave out the calls of exactly these functions from now on; whether that holds in every process by now."""
        return sum(not source.leave_out(func_ids) for source in self) == 0  # a list, not a generator: all of them must be called

    def losses(self) -> np.ndarray:
        """Cumulative counts per loss class, int64."""
        total = np.zeros(len(LOSS_CLASSES), np.int64)
        for source in self:
            total += source.losses()
        return total

    @property
    def owed_ns(self) -> int | None:
        """The longest owed."""
        return min((source.owed_ns for source in self if source.owed_ns is not None), default=None)

    def metadata(self) -> dict[str, Any]:
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
        self.measured()
        measured = first is not None and self._prices.is_measured(first)
        ns_per_call = self.price(first) if first and measured else None
        return {
            "source": first,
            "ns_per_call": ns_per_call,
            "ns_per_line": source.cost_per_line(ns_per_call) if source else None,
            "waited_ns": sum(each.waited_ns for each in self),
        }

    def close(self) -> None:
        """Let go of everything, whatever happened."""
        self._beside.shutdown(cancel_futures=True)
        for source in self:
            source.close()

    def _make_agent(self) -> "AgentCalls":
        from pytrace_ebpf.record.agent.calls import AgentCalls

        options = self._options
        observed, memory, clients = options.observed, bool(options.value_of("memory")), options.value_of("clients")
        return AgentCalls(
            self._recording, options.arena_bytes, options.filters, options.follow, self._launches, observed, memory, self._bounded, clients
        )

    def _make_usdt(self) -> "UsdtCalls":
        from pytrace_ebpf.record.usdt.calls import UsdtCalls

        if alone := self._options.filters.agents_alone:
            raise TargetError(f"{alone} is the agent's; use --source agent, or leave it out")
        options = self._options
        return UsdtCalls(self._recording, options.call_ring_pages, options.filters, options.follow, options.observed)
