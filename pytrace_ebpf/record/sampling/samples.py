"""Sampled Python stacks, read by samples.c from outside: nothing is put into the process."""

import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from pytrace_ebpf import processors
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.cpython import qualnames
from pytrace_ebpf.record.cpython.layout import Layout
from pytrace_ebpf.record.cpython.lines import read_lines
from pytrace_ebpf.record.cpython.running_tasks import RunningTasks, find_running_tasks
from pytrace_ebpf.record.kernel import system_calls
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.kernel.btf import KernelTypes
from pytrace_ebpf.record.kernel.map import possible_cpus
from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.parsing.sandbox import native_parsers
from pytrace_ebpf.record.process.opened import Descriptors
from pytrace_ebpf.record.process.readings import Readings
from pytrace_ebpf.record.process.shares import user_of
from pytrace_ebpf.record.process.target import Target, living_threads
from pytrace_ebpf.record.recorder import Recorder, Rows
from pytrace_ebpf.record.sampling import fields, off_cpu, turns
from pytrace_ebpf.record.sampling.clocks import Clocks, Returns
from pytrace_ebpf.record.sampling.layouts import described
from pytrace_ebpf.record.sampling.native import NativeCode
from pytrace_ebpf.record.sampling.rows import columns
from pytrace_ebpf.record.sampling.sampled_process import Away, Sampled
from pytrace_ebpf.record.sampling.sampling_source import serves
from pytrace_ebpf.record.sampling.stacks import FIRST_STACK, Program, Tree
from pytrace_ebpf.record.sampling.stays import Stays
from pytrace_ebpf.record.sampling.tasks import TaskNames
from pytrace_ebpf.record.scheduling import resources
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.trace.schema import LOSS_CLASSES

_RINGS = {"samples": 1 << 20, "stacks": 8 << 20, "tasks": 1 << 20, "resources": 1 << 20, "paths": 1 << 20}
# Code discarded before its name was read stays unnamed, so the rings are read often while that happens, while a program begins, and while much comes at all.
_INTERVAL_S, _CALM_S, _BEGINS, _MUCH = 0.25, 1.0, 20, 4000  # new code objects a time; a quarter of the stacks that the ring holds
_HASTE_S = 0.02  # while files are being read without which native frames are not known
_SETTLING_NS = 10_000_000  # younger samples go to the next segment, together with their stacks
# Where processes are of several users: for an answer; how long a sample may wait for its stack to be learned; for all that waits, at the end, and for what
# ends then.
_IN_TURN_S, _PATIENT_NS, _LAST_S, _LEAN_LAST_S, _ENDS_S = 3.0, 10 * 10**9, 10.0, 0.3, 0.3
_NO_FRAMES, _TORN = 0, 1  # events.h
DRAWN = 2  # of the manifest's sampling.states: each part of an interval off the core is drawn by its own length
_NATIVES = 2  # NATIVE of samples.c: a step
_LASTING_NS = 10**9  # a thread that has been off the core for less comes back soon, and is sampled then
# Threads that wait for long are looked at before they come back: one that waits until its program ends is sampled when no name can be read any more.
_FIRST_LOOK_NS, _LOOK_NS = 10**9, 5 * 10**9
_OFF_PERIODS = 8  # of a service of some threads there are then half as many samples off the core as on it; to read them costs it more than 0.1 %
NO_FRAMES, UNREAD = -1, -2  # of `samples.stack_id`


class Samples(Recorder):
    """Runs the programs of samples.c on a timer of every core, for the processes in their map."""

    interval_s = _INTERVAL_S

    def __init__(self, recording: Recording, hz: float, follow: bool, lasting: bool = False, states: bool = False, lean: bool = False) -> None:
        """`lasting`: threads that stay away are sampled in every segment. `states`: samples are to say what these wait for, where the kernel lets.

        Raises HostError if the kernel cannot do it.
        """
        self._last_s = _LEAN_LAST_S if lean else _LAST_S
        self._recording, self._period_ns, self._lasting = recording, round(1e9 / hz), lasting
        kernel = KernelTypes()
        run_delay = kernel.offset("sched_info", "run_delay")  # None: without CONFIG_SCHED_INFO
        self._states = states and run_delay is not None
        most = max(self._period_ns, _LASTING_NS)  # what lasts is always sampled
        self._off_period_ns = min(_OFF_PERIODS * self._period_ns, most) if self._states else self._period_ns
        settings = {
            "period": self._period_ns,
            "off_period": self._off_period_ns,
            **fields.fields(kernel),
            "follow": follow,
            "states": self._states,
            "task_run_delay": kernel.require("task_struct", "sched_info") + (run_delay or 0),
            "shared": recording.shares is not None,
            **{f"{ring}_room": size for ring, size in _RINGS.items()},
            **resources.settings(kernel),
        }
        kernel.keep()
        self._programs = Programs("samples.c", settings, {**_RINGS, "comings": max(possible_cpus()) + 1})
        self._event, self._frame = self._programs.dtype("sample_event"), self._programs.dtype("stack_event")["frames"].base
        self._samples = self._programs.ring("samples", self._event)
        self._stacks = self._programs.ring("stacks", self._programs.dtype("stack_event"))
        self._processes = self._programs.map("processes")
        self._tasks, self._resources = TaskNames(self._programs), resources.Resources(self._programs)
        self._names, self._files = Readings(recording.shares, "names"), Readings(recording.shares, "files", native_parsers)
        self._native = NativeCode(self._programs, recording.functions, self._files)
        self._tasks_of: dict[int, RunningTasks] = {}  # by number, as they were found beside this
        self._layouts: dict[Layout, int] = {}
        self._sampled: dict[int, Sampled] = {}  # by pid
        self._known: dict[int, Program] = {}  # by number
        self._numbers = 0
        self._waiting: list[np.ndarray] = []
        self._drained_ns, self._next_stack = 0, 0
        self._look_ns, self._next_look_ns = _FIRST_LOOK_NS, time.monotonic_ns() + _FIRST_LOOK_NS
        self._stopped, self._stays = False, Stays(self._programs, self._states)
        self._apart = self._new = self._gone = self._unlearned = 0
        self._chance = np.random.default_rng()
        self._refused: tuple[str, ...] = ()
        self._returns = Returns(lambda kind: self._load("back", kind, "steps_back"), kernel)
        self._clocks = Clocks(self._load("sample", system_calls.PERF_EVENT, "steps"), self._period_ns)

    def _load(self, first: str, kind: int, steps: str) -> int:
        """The descriptor of a program, whose next steps are loaded too. Without the one for native frames samples have none."""
        suffix = steps.removeprefix("steps")
        self._programs.load(kind, first, *(name + suffix for name in ("natives", "step", "finish")))
        for place, name in enumerate(("step", "finish")):
            self._programs.map(steps).set(place, self._programs.program(name + suffix, kind))
        try:
            processors.require("native frames")
            self._programs.map(steps).set(_NATIVES, self._programs.program("natives" + suffix, kind))
        except HostError as error:
            self._refused = (f"native frames are not sampled: {error}",)
        return self._programs.program(first, kind)

    # -- which processes are sampled --------------------------------------------------------------

    def add(self, pid: int) -> None:
        """Sample all Python processes of the recording from now on."""
        self._look()

    def reset(self, pid: int, tid: int, ts: int) -> None:
        """The process runs another program now."""
        self._forget(pid)

    def _look(self) -> None:
        targets = self._recording.processes.targets
        for pid in [pid for pid, each in self._sampled.items() if targets.get(pid) is not each.target]:
            self._forget(pid)
        shares, is_full = self._recording.shares, self._recording.functions.is_full
        crowded = turns.crowded(self._known[each.number] for each in self._sampled.values()) if shares else None
        for pid, target in list(targets.items()):
            sampled = self._sampled.get(pid)
            program = self._known[sampled.number] if sampled else None
            if sampled is None or program is None or program is crowded or turns.is_to_begin_anew(program, shares, is_full):
                self._begin(target)
            elif not sampled.holder:
                self._describe(target, sampled.number)

    def _begin(self, target: Target) -> None:
        """Sample a process under a new number, so that all its stacks are reported (again)."""
        if not serves(target)[0] or target.layout is None:
            return
        self._numbers += 1
        unit, qualify = target.layout.position_unit, qualnames.for_process(target.process, target.library)
        nested = target.layout.version < (3, 11)
        user = user_of(target.pid) if self._recording.shares else 0
        read = partial(read_lines, target, within_s=_IN_TURN_S) if self._names.beside else partial(read_lines, target)
        self._known[self._numbers] = Program(self._recording.functions, read, qualify, unit, self._native, nested, user)
        creator, tasks = self._sampled.get(target.ppid), None
        if creator and creator.target.binary_file is target.binary_file:  # Target.forked
            self._known[self._numbers].copy(self._known[creator.number])
            tasks = creator.tasks
        self._native.begin(self._numbers, target, user)
        self._describe(target, self._numbers, tasks)
        self.interval_s = _HASTE_S

    def _describe(self, target: Target, number: int, tasks: RunningTasks | None = None) -> None:
        """Pass the addresses of the process's structures to the kernel half. A program that has just started has no GIL yet."""
        layout, (gil, gil_end) = target.layout, target.gil_range()
        if layout is None or target.runtime is None:
            return
        holder = gil + layout.gil_holder if gil else 0
        code_type = target.binary.symbol("PyCode_Type")
        where = target.runtime + layout.runtime_main_interpreter, holder, code_type + target.bias if code_type else 0
        before = self._sampled.get(target.pid)
        since_ns, tasks = (before.since_ns, tasks or before.tasks) if before else (time.monotonic_ns(), tasks)
        program = self._known[number]
        tasks = tasks or self._tasks_of.pop(number, None)
        if tasks is None and program.may_have_tasks:
            program.may_have_tasks = False
            self._names.do(program.user, partial(self._find_tasks, target, number))
            tasks = self._tasks_of.pop(number, None)  # where it was found at once
        self._sampled[target.pid] = Sampled(target, number, holder, since_ns, tasks, program.user)
        of_tasks = (tasks.layout, tasks.current) if tasks else (layout, 0)
        with suppress(OSError):  # the map is full
            self._processes.set(target.pid, (*where, of_tasks[1], since_ns, gil, gil_end, self._layout(of_tasks[0]), number, program.user, 0))
            self._programs.map("census").set(0, time.monotonic_ns())

    def _find_tasks(self, target: Target, number: int) -> None:
        if found := find_running_tasks(target):
            self._tasks_of[number] = found

    def _layout(self, layout: Layout) -> int:
        if layout not in self._layouts:
            number = len(self._layouts)
            self._programs.map("layouts").set(number, described(layout))
            self._layouts[layout] = number
        return self._layouts[layout]

    def _forget(self, pid: int) -> None:
        if self._sampled.pop(pid, None) is not None:
            self._processes.delete(pid)

    # -- the samples ------------------------------------------------------------

    def drain(self) -> Rows:
        """Rows of `resources`; samples are kept until the segment is closed, and written together with their stacks."""
        self._look()
        unread = self._native.look({pid: (each.number, each.target, each.user) for pid, each in self._sampled.items()})
        self._drained_ns = time.monotonic_ns()
        if (not self._lasting or self._names.beside) and self._drained_ns >= self._next_look_ns:
            self._look_ns = min(2 * self._look_ns, _FIRST_LOOK_NS if self._lasting else _LOOK_NS)
            self._next_look_ns = self._drained_ns + self._look_ns
            for pid, each in list(self._sampled.items()):
                self._names.do(each.user, partial(self._look_away, pid, each, self._drained_ns, _LASTING_NS))
        if self._recording.shares:
            for user in [user for user, _ in self._programs.map("taken").items()]:
                self._programs.map("taken").delete(user)
        samples = self._samples.drain(np.copy)  # before the stacks and names, so that those of all these samples have been reported
        self._tasks.drain()
        reported = self._stacks.drain(np.copy)
        self._new = self._gone = 0
        for number in np.unique(reported["program"]).tolist():
            if number in self._known:
                self._learn(self._known[number], reported[reported["program"] == number])
        for each in list(self._sampled.values()):
            if each.tasks is None and (self._known[each.number].may_have_tasks or each.number in self._tasks_of):
                self._describe(each.target, each.number)
        often = self._gone or self._new > _BEGINS or len(reported) > _MUCH
        self.interval_s = _HASTE_S if unread else _INTERVAL_S if often else min(2 * self.interval_s, _CALM_S)
        if len(samples):
            self._waiting.append(samples)
        return {"resources": self._resources.drain()}

    def _learn(self, program: Program, reported: np.ndarray) -> None:
        """Take in what was reported of a program, so much at a time that others get their turn."""
        if not self._names.beside:
            self._learn_part(program, reported)
            return
        for count, part in turns.parts(reported):
            if self._names.do(program.user, partial(self._learn_part, program, part)):
                program.asked += 1
            else:
                program.stale, self._unlearned = True, self._unlearned + count

    def _learn_part(self, program: Program, reported: np.ndarray) -> None:
        new, gone = program.learn(reported)
        self._new, self._gone = self._new + new, self._gone + gone
        program.learned += 1

    def cut(self) -> Rows:
        """Rows of `samples`, and of `stacks` those that they refer to."""
        if self._lasting and not self._stopped and not self._returns.why_not:
            until_ns = self._drained_ns - _SETTLING_NS - 1
            self._waiting += [self._still_away(pid, each, until_ns, _LASTING_NS) for pid, each in self._sampled.items()]
        if not self._waiting:
            return {}
        if self._stopped:
            self._names.finish(self._last_s)
            self._end_readings()
        samples = np.concatenate(self._waiting)
        stacks, first, which, counts = np.unique(samples["stack"], return_index=True, return_inverse=True, return_counts=True)
        keys = list(zip(samples["program"][first].tolist(), stacks.tolist(), strict=True))
        late = np.zeros(len(samples), bool)
        if not self._stopped:
            late = samples["ts"] >= self._drained_ns - _SETTLING_NS
            learning = np.array([self._is_learning(*key) for key in keys], bool)
            late |= learning[which] & (samples["ts"] >= self._drained_ns - _PATIENT_NS)
        self._waiting = [samples[late]] if late.any() else []
        kept = np.zeros(len(keys), bool)
        kept[which[~late]] = True
        taken = kept.copy()
        samples, which = samples[~late], which[~late]
        tree = Tree(self._next_stack)
        numbers = np.full(len(keys), UNREAD, np.int64)
        for place in self._in_turn(keys, np.flatnonzero(kept).tolist(), tree):
            numbers[place] = self._number(tree, *keys[place])
            kept[place] = False
        self._unlearned += int(np.count_nonzero(kept))  # for whose stacks there was no room
        apart = [program in self._known and stack in self._known[program].apart for program, stack in keys]
        self._apart += int(counts[np.array(apart, bool) & taken].sum())
        self._next_stack = tree.next
        self._let_go()
        tasks = self._tasks.of(samples["task"])
        self._tasks.let_go(np.concatenate([each["task"] for each in self._waiting] or [samples["task"][:0]]))
        rows = {"samples": [columns(samples, numbers[which] if len(which) else numbers, tasks)], "stacks": [tree.rows()]}
        functions = self._recording.functions
        functions.forget()
        return rows | (functions.cut() if self._names.beside else {})  # those of these stacks that came while the others were taken

    def _is_learning(self, program: int, stack: int) -> bool:
        known = self._known.get(program)
        return stack >= FIRST_STACK and known is not None and known.learning and stack not in known.stacks

    def _in_turn(self, keys: list[tuple[int, int]], places: list[int], tree: Tree) -> Iterable[int]:
        if not self._names.beside:
            return places
        users = [known.user if (known := self._known.get(keys[place][0])) else 0 for place in places]
        return turns.in_turn(places, users, lambda: tree.next)

    def _number(self, tree: Tree, program: int, stack: int) -> int:
        if stack < FIRST_STACK:
            return UNREAD if stack == _TORN else NO_FRAMES
        places = self._known[program].stacks.get(stack) if program in self._known else None
        return UNREAD if places is None else tree.number(places)

    def _let_go(self) -> None:
        """Forget programs that are no longer sampled and of which no sample is left to write."""
        if not self._waiting:
            living = {each.number for each in self._sampled.values()}
            for number in self._known.keys() - living:
                self._native.forget(number)
                self._known.pop(number).close()
                self._tasks_of.pop(number, None)

    def losses(self) -> np.ndarray:
        """Cumulative counts per loss class, int64."""
        lost = self._programs.losses()
        lost[LOSS_CLASSES.index("sample_native")] += self._apart
        lost[LOSS_CLASSES.index("sample_ring")] += self._unlearned
        return lost

    def missing(self) -> tuple[str, ...]:
        """Why there are no stacks of threads off the core, or no native frames, where there are none."""
        return (*((self._returns.why_not,) if self._returns.why_not else ()), *self._refused)

    @property
    def states_known(self) -> bool:
        """Whether samples say what threads off the core wait for, so that nobody has to record scheduling for them."""
        return self._states and not self._returns.why_not

    def metadata(self) -> dict[str, Any]:
        """The manifest's `sampling`; `off_core`: 1 = threads off the core are sampled too; `states`: 2 = samples say what these waited for."""
        states = {"states": DRAWN, "off_period_ns": self._off_period_ns} if self.states_known else {}
        return {"sampling": {"period_ns": self._period_ns, "off_core": int(not self._returns.why_not), **states}}

    def cost(self) -> dict[str, Any]:
        """CPU time spent in the programs."""
        return {"sampling_ns": int(self._programs.map("spent").get(0).sum())}

    def stop(self) -> None:
        """Take no more samples, but those of threads that are off the core."""
        if not self._returns.why_not:
            now = time.monotonic_ns()
            self._waiting += [self._still_away(pid, each, now, self._period_ns) for pid, each in self._sampled.items()]
        self._clocks.close()
        self._returns.close()
        self._stopped = True

    def _still_away(self, pid: int, sampled: Sampled, now: int, least_ns: int) -> np.ndarray:
        """sample_event records of a process's threads that have been off the core for so long at `now`, drawn as samples.c does."""
        if not self._names.beside:
            self._look_away(pid, sampled, now, least_ns)
        rows = [
            each.event(now, pid, tid, sampled.number, self._stays.state(tid, sampled.target))
            for tid, each in list(sampled.off_cpu.items())
            if not self._names.beside or self._stays.since_ns(pid, tid, sampled.since_ns) == each.since
        ]
        found = np.array(rows, self._event)
        return found[found["off_ns"] >= self._chance.random(len(found)) * self._off_period_ns]

    def _look_away(self, pid: int, sampled: Sampled, now: int, least_ns: int) -> None:
        """Find the threads of a process that have been off the core for so long at `now`, with their stacks. One is read once, as it stands still."""
        if pid not in self._sampled or self._known.get(sampled.number) is None:
            return
        left = {tid: self._stays.since_ns(pid, tid, sampled.since_ns) for tid in living_threads(pid)}
        left = {tid: since for tid, since in left.items() if since and now - since >= least_ns}
        sampled.off_cpu = {tid: known for tid, known in sampled.off_cpu.items() if left.get(tid) == known.since}
        stacks = off_cpu.stacks_of(sampled.target, self._frame) if left.keys() - sampled.off_cpu.keys() else {}
        program, descriptors = self._known[sampled.number], Descriptors(sampled.target.process, sampled.target.memory)
        for tid in left.keys() - sampled.off_cpu.keys():
            stack = program.add(stacks[tid]) if tid in stacks else _NO_FRAMES
            if self._stays.since_ns(pid, tid, sampled.since_ns) == left[tid]:  # it stood still meanwhile
                sampled.off_cpu[tid] = Away(left[tid], stack, self._stays.wait(tid, sampled.target, descriptors, self._resources))

    def _end_readings(self) -> None:
        """Read nothing more, also what is being read."""
        readings = self._names, self._files
        for each in readings:
            each.close()
        if self._names.beside:
            for asked in (sandbox.parsers, native_parsers):
                asked.abandon()
            for each in readings:
                each.join(_ENDS_S)

    def close(self) -> None:
        """Stop sampling and unload the programs."""
        self._end_readings()
        self._clocks.close()
        self._returns.close()
        self._programs.close()
