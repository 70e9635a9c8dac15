"""Function events from CPython's USDT probes, by BPF; nothing enters the process."""

import time
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.cost.budget import EVERYTHING
from pytrace_ebpf.record.cost.measured import Measured
from pytrace_ebpf.record.cpython import frames, opening, qualnames
from pytrace_ebpf.record.cpython.functions import Code, ProbeIds, names_of_code
from pytrace_ebpf.record.cpython.lookups import Lookups
from pytrace_ebpf.record.cpython.qualnames import Qualify
from pytrace_ebpf.record.filters import NOTHING, Filters, Observed
from pytrace_ebpf.record.output import tables
from pytrace_ebpf.record.process.target import Target
from pytrace_ebpf.record.recorder import Rows
from pytrace_ebpf.record.source import CallSource, Recording, Undrained
from pytrace_ebpf.record.source_selection import price
from pytrace_ebpf.record.source_selection.calibrate import FibChild
from pytrace_ebpf.record.usdt.call_sites import CallSites
from pytrace_ebpf.record.usdt.held import Held
from pytrace_ebpf.record.usdt.objects import Objects
from pytrace_ebpf.record.usdt.probes import Plan, UsdtProbes, plan
from pytrace_ebpf.trace.schema import LOSS_CLASSES, CallKind

_PRICING_PAGES, _PRICING_ROUNDS = 1024, 3  # room for the calls of one measurement: where there is none a call costs less
_NAMES_S = 1.0  # at the end, for names of functions
_MOST_INTERPRETERS = 16  # each has rings of its own, 84 MiB


@dataclass
class _Loaded:
    target: Target  # the first process of this interpreter
    probes: UsdtProbes
    ids: ProbeIds
    objects: Objects
    sites: CallSites
    held: Held


class UsdtCalls(CallSource):
    """The programs of every interpreter that was met, each on any number of its processes."""

    name = "usdt"
    by_function = False

    def __init__(self, recording: Recording, ring_pages: int, filters: Filters, follow: bool, observed: Observed = NOTHING) -> None:
        self._recording, self._ring_pages, self._filters, self._follow, self._observed = recording, ring_pages, filters, follow, observed
        self._undrained = Undrained()
        self._wanted: list[bool] = []  # by func_id
        self._loaded: dict[Plan, _Loaded] = {}
        self._innermost = opening.Innermost()
        self._qualnames: dict[int, Qualify] = {}
        self._unread_frames = 0
        self._paused: dict[int, Target] = {}  # processes whose probes are removed for a while
        self._let_go: set[int] = set()  # processes that another source records now: what is still in the rings of them is not wanted

    def prepare(self, target: Target) -> None:
        """Compile and load the programs for the target's interpreter."""
        self._load(target)

    def calls_per_s(self, target: Target, seconds: float) -> float:
        """Calls a second of a process that is not recorded yet, counted for so long by its probes. Raises TargetError."""
        loaded = self._load(target)
        target.process.check()
        return loaded.probes.count(target.pid, target.binary_file.path, seconds)

    def begin(self, target: Target) -> None:
        """Record a program that stands at its first instruction."""
        loaded = self._load(target)
        start_ns = time.monotonic_ns()
        self._attach(target, loaded)
        loaded.probes.open(target.pid)
        loaded.probes.record(True)
        self._recording.processes.add_python(target, self.name, start_ns)

    def attach(self, target: Target) -> None:
        """Attach to a process in the middle of its work, and learn the frames that are open."""
        loaded = self._load(target)
        if target.pid in loaded.probes.attached:  # exec of the same interpreter: its probes are on it already
            self._recording.processes.add_python(target, self.name, time.monotonic_ns())
            return
        self._drain(loaded)
        loaded.probes.record(True)
        self._attach(target, loaded)
        start_ns = time.monotonic_ns()
        loaded.probes.record(True, target.pid)
        walk_ns = time.monotonic_ns()
        loaded.probes.open(target.pid)
        stacks = frames.open_frames(target)
        loaded.probes.record(True)
        time.sleep(0.002)  # a probe that saw that it is to walk may still be walking
        walked, recorded = loaded.probes.walked(), loaded.probes.drain_calls(np.copy)
        self._introduce(loaded)
        mine = recorded["pid_tgid"] >> np.uint64(32) == target.pid
        of_target = recorded[mine]
        opened = opening.Opening(target, start_ns, walk_ns, walked, opening.still_open(stacks, walked, of_target, walk_ns))
        self._innermost.expect(opened)
        self._sort(loaded, tables.call_columns(recorded[~mine]))
        self._open(loaded, opened, of_target)
        self._recording.processes.add_python(target, self.name, start_ns)

    def reset(self, pid: int, tid: int, ts: int) -> None:
        """Let `tid` be walked again."""
        for loaded in self._loaded.values():
            loaded.probes.forget_walk(tid)

    def drain(self) -> Rows:
        """What is in the rings."""
        for loaded in list(self._loaded.values()):
            self._drain(loaded)
        return self._undrained.take()

    def leave_out(self, func_ids: frozenset[int]) -> bool:
        """Remove all probes while EVERYTHING is left out. Single functions are not: their probe hits would cost as much as before."""
        if EVERYTHING in func_ids:
            self._pause()
        else:
            self._resume()
        return not func_ids - {EVERYTHING}

    def slowdown(self, pid: int) -> float:
        """Of its code by what is not counted as calls."""
        on = [price.slowdown(loaded.target.python_version) for loaded in self._loaded.values() if pid in loaded.probes.attached]
        return max(on, default=1.0)

    @property
    def first(self) -> Target | None:
        """Of the first interpreter that was met."""
        return next((loaded.target for loaded in self._loaded.values()), None)

    def let_go(self, pid: int) -> Rows:
        """Record a process no more, which another source does now. Returns the rows until then, of all processes."""
        for loaded in self._loaded.values():
            loaded.ids.give_up(pid)
            self._drain(loaded)
            if pid in loaded.held:  # for names that its creator's functions wait for
                loaded.ids.give_up()
                self._drain(loaded)
            loaded.probes.detach(pid)
        self._let_go.add(pid)
        return self._undrained.take()

    def _pause(self) -> None:
        """Remove the probes for a while. All open calls end, and are reported as open when the probes are back."""
        processes = self._recording.processes
        for loaded in self._loaded.values():
            pids = set(loaded.probes.attached)
            loaded.probes.record(False)  # they go one by one: a call's end without its beginning, or the other way round, is of no use
            loaded.probes.detach_now()
            self._drain(loaded)
            threads = [(pid, tid) for pid, tid in processes.threads if pid in pids]
            for _, tid in threads:
                loaded.probes.forget_walk(tid)
            self._undrained.reset(threads, time.monotonic_ns())
            self._paused |= {pid: processes.targets[pid] for pid in pids & processes.targets.keys()}

    def _resume(self) -> None:
        paused, self._paused = self._paused, {}
        for target in paused.values():
            with suppress(TargetError):  # it has ended, or is another program: others look after it
                self.attach(target)

    def losses(self) -> np.ndarray:
        """Of all programs; frames that could not be read count as stack_depth."""
        total = np.zeros(len(LOSS_CLASSES), np.int64)
        for loaded in self._loaded.values():
            total += loaded.probes.losses()
        total[LOSS_CLASSES.index("stack_depth")] += self._unread_frames
        return total

    def detach(self, pids: set[int]) -> None:
        """Remove the probes from these processes; the kernel attaches no other ones meanwhile."""
        for pid in pids:
            self._paused.pop(pid, None)
            for loaded in self._loaded.values():
                loaded.probes.detach(pid)

    def stop(self) -> None:
        """Switch the programs off."""
        self._paused.clear()
        for loaded in self._loaded.values():
            loaded.probes.record(False)

    def leave(self) -> int:
        """Begin to remove every probe, and wait a moment for the names of functions; after that plain ones have to do."""
        for loaded in self._loaded.values():
            loaded.probes.detach_all()
        self._recording.processes.readings.finish(_NAMES_S)
        for loaded in self._loaded.values():
            loaded.ids.give_up()
        return 0

    @property
    def owed_ns(self) -> int | None:
        """Of calls that wait for the names of their functions."""
        return min((since for loaded in self._loaded.values() if (since := loaded.ids.since_ns) is not None), default=None)

    def cost_per_call(self) -> Measured | None:
        """In a process of the first interpreter that was met, without probes and with programs of its own on them: its calls are none of the recording."""
        planned, loaded = next(iter(self._loaded.items()), (None, None))
        if planned is None or loaded is None:
            return None
        try:
            with closing(UsdtProbes(planned, _PRICING_PAGES, self._follow)) as probes, FibChild(loaded.target) as child:
                alone, recorded = list[float](), list[float]()
                for _ in range(_PRICING_ROUNDS):
                    alone.append(child.ns_per_call())
                    probes.attach(child.pid, loaded.target.binary_file.path)
                    probes.record(True)
                    recorded.append(child.ns_per_call())
                    probes.detach_now()
                    probes.drain_calls(np.copy)
                return Measured(min(alone), min(recorded))
        except (TargetError, HostError, OSError):
            return None

    def close(self) -> None:
        """Remove every probe and unload the programs."""
        for loaded in self._loaded.values():
            loaded.probes.close()

    def _load(self, target: Target) -> _Loaded:
        if target.layout is None:
            raise TargetError(f"the structures of this Python in process {target.pid} are not known")
        try:
            planned = plan(target.binary, target.layout)
        except ValueError as error:
            raise TargetError(f"the probes in {target.binary_name} of process {target.pid} cannot be used: {error}") from None
        if planned not in self._loaded:
            if len(self._loaded) == _MOST_INTERPRETERS:
                raise TargetError(
                    f"process {target.pid} runs one interpreter more than the {_MOST_INTERPRETERS} whose probes a recording can have; trace it by itself"
                )
            probes = UsdtProbes(planned, self._ring_pages, self._follow, self._observed.args)
            objects = Objects(self._observed, probes.decide, target.layout.code_qualname is None, self._recording.processes.mains)
            ids = ProbeIds(self._recording.functions, self._lookups)
            self._loaded[planned] = _Loaded(target, probes, ids, objects, CallSites(target.layout.version, ids), Held(ids.pending))
        return self._loaded[planned]

    def _lookups(self, pid: int) -> Lookups[Code]:
        processes = self._recording.processes
        names = names_of_code(partial(processes.read_codes, pid), lambda: self._qualnames.get(pid, qualnames.unknown))
        return Lookups(processes.readings, self._recording.functions.user(pid), names)

    def _attach(self, target: Target, loaded: _Loaded) -> None:
        target.process.check()
        self._recording.processes.mains.add(target.command)
        self._let_go.discard(target.pid)
        loaded.probes.attach(target.pid, target.binary_file.path)
        self._qualnames[target.pid] = qualnames.for_process(target.process, target.library)

    def _open(self, loaded: _Loaded, opened: opening.Opening, recorded: np.ndarray) -> None:
        """Take in what a process recorded while it was opened, behind its open frames, once these have names."""
        stacks, calls, unread = opening.join(opened, recorded)
        self._unread_frames += unread
        frames_open = opening.OpenCalls(opened, stacks, loaded.ids)
        waits_for = loaded.ids.pending.intersection(np.unique(calls["func"]).tolist())

        def emit() -> None:
            calls["func"] = loaded.ids.func_ids(calls["func"]).view(np.uint32)
            self._emit(loaded, tables.call_columns(np.concatenate([frames_open.records(calls.dtype), calls])))

        loaded.held.hold(opened.target.pid, lambda: frames_open.are_named() and waits_for.isdisjoint(loaded.ids.pending), emit, len(calls))
        loaded.ids.take()
        loaded.held.release()

    def _introduce(self, loaded: _Loaded) -> None:
        read = loaded.probes.drain_objects() if self._observed else None
        sites, introduced = loaded.probes.drain_sites(), loaded.probes.drain_functions()
        loaded.ids.introduce(introduced)
        if loaded.held.is_full:
            loaded.ids.give_up()
            loaded.ids.take()
        loaded.held.release()
        for rows in sites:
            loaded.sites.introduce(rows)
        if read is not None:
            loaded.objects.introduce(introduced)
            self._observe(loaded, read)

    def _observe(self, loaded: _Loaded, read: np.ndarray) -> None:
        def emit(columns: tables.Columns, ids: np.ndarray) -> None:
            wanted = self._wanted_functions()[loaded.ids.func_ids(ids)] if self._filters else None
            self._undrained.add(columns if wanted is None else tables.where(columns, wanted), "observed")

        loaded.held.sort(*loaded.objects.columns(read), emit)

    def _drain(self, loaded: _Loaded) -> None:
        calls = loaded.probes.drain_calls(tables.call_columns)
        self._introduce(loaded)
        self._sort(loaded, calls)

    def _sort(self, loaded: _Loaded, calls: tables.Columns) -> None:
        """Take in calls, of which some have to wait for the names of their functions."""
        if (calls["kind"] == CallKind.OPEN).any():  # of a process that is not being opened
            calls = tables.where(calls, calls["kind"] != CallKind.OPEN)

        def emit(calls: tables.Columns, ids: np.ndarray) -> None:
            self._emit(loaded, {**calls, "func_id": loaded.ids.func_ids(ids)})

        loaded.held.sort(calls, calls["func_id"].view(np.uint32), emit)

    def _emit(self, loaded: _Loaded, calls: tables.Columns) -> None:
        calls, wanted = self._innermost.drop_entered(calls), None
        if self._let_go:
            calls = tables.where(calls, ~np.isin(calls["pid"], list(self._let_go)))
        if self._filters:
            wanted = self._wanted_functions()
            calls = tables.where(calls, wanted[calls["func_id"]])
        calls["line"] = loaded.sites.lines(calls["kind"], calls["line"], wanted)
        self._undrained.add(calls)

    def _wanted_functions(self) -> np.ndarray:
        """Of which functions calls are recorded, by func_id."""
        places, mains = self._recording.functions.places, self._recording.processes.mains
        self._wanted += [place is None or self._filters.wants(*place, mains.have(place[0])) for place in places[len(self._wanted) :]]
        return np.array([*self._wanted, True])  # the last for UNKNOWN, which is -1
