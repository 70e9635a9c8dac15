"""Sampled stacks without eBPF and privileges: threads are looked at from outside, a period apart, while they run on."""

import os
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from pytrace_ebpf.record.cpython import qualnames
from pytrace_ebpf.record.cpython.lines import read_lines
from pytrace_ebpf.record.output import tables
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.record.process.finding import Finding
from pytrace_ebpf.record.process.pinned import Descriptor
from pytrace_ebpf.record.process.target import Target
from pytrace_ebpf.record.recorder import Recorder, Rows
from pytrace_ebpf.record.sampling.remote_sampler import RemoteSampler, library
from pytrace_ebpf.record.sampling.sampling_source import serves
from pytrace_ebpf.record.sampling.stacks import FIRST_STACK, Program, Tree
from pytrace_ebpf.record.scheduling.cputime import queue_time_is_known
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.trace.schema import LOSS_CLASSES
from pytrace_ebpf.trace.states import SYSCALL_UNKNOWN

_INTERVAL_S, _CALM_S = 0.1, 0.2  # a program that takes the place of a traced one is found as soon
_HASTE_S, _HASTE_WITHIN_S = 0.02, 5.0  # while a program that was launched is no Python yet
_ALERT_S = 0.05  # code that is discarded before its name was read stays unnamed, so new stacks are read soon
_REFRESH_S, _FEW = 0.1, 50  # between two looks at which threads there are; of so many, and in proportion for more
_COST = 10  # looks take a tenth of a core at most: a long one is followed by a pause so many times as long
_MOST_KNOWN = 1 << 20  # frames and lines kept of one program; then all its stacks are reported again
_NO_OPCODE = 0xFFFF
_NO_PYTHON, _UNREAD = -1, -2  # of `samples.stack_id`


@dataclass
class _Sampled:
    target: Target
    outside: RemoteSampler
    program: Program
    next_refresh_s: float = 0.0
    stacks: dict[int, int] = field(default_factory=dict)  # Program's numbers by RemoteSampler's


class RootlessSamples(Recorder):
    """Looks at the Python processes of a recording, in a thread of its own; fills `samples` and `stacks`."""

    interval_s = _HASTE_S

    def __init__(self, recording: Recording, hz: float, follow: bool) -> None:
        """Raises HostError where the library is not built."""
        library()
        self._recording, self._period_ns, self._finding = recording, round(1e9 / hz), Finding(recording.processes, follow)
        self._sampled: dict[int, _Sampled] = {}  # by pid
        self._collected: list[tuple[_Sampled, np.ndarray, list[tuple[int, bool, np.ndarray]]]] = []
        self._waiting: list[tuple[_Sampled, np.ndarray]] = []
        self._lost: Counter[str] = Counter()  # of processes that are no longer sampled
        self._next_stack, self._spent_ns, self._drained_s = 0, 0, 0.0
        self._began_s = time.monotonic()
        self._alert = Descriptor(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self.alert_fd = self._alert.fileno()
        self._lock, self._stop = threading.Lock(), threading.Event()  # the lock: of _sampled and what it holds, of _collected
        self._looker: threading.Thread | None = None

    # -- which processes are sampled --------------------------------------------------------------

    def add(self, pid: int) -> None:
        """Sample all Python processes of the recording from now on."""
        self._look()

    def reset(self, pid: int, tid: int, ts: int) -> None:
        """The process runs another program now."""
        with self._lock:
            self._forget(pid)

    def _look(self) -> None:
        targets = self._recording.processes.targets
        with self._lock:
            for pid, each in list(self._sampled.items()):
                if targets.get(pid) is not each.target or each.program.size > _MOST_KNOWN:
                    self._forget(pid)
        for pid, target in list(targets.items()):
            if pid not in self._sampled:
                self._begin(target)

    def _begin(self, target: Target) -> None:
        if self._stop.is_set() or not serves(target)[0] or target.layout is None or target.runtime is None:
            return
        unit, qualify = target.layout.position_unit, qualnames.for_process(target.process, target.library)
        program = Program(self._recording.functions, partial(read_lines, target), qualify, unit)
        if (creator := self._sampled.get(target.ppid)) and creator.target.binary_file is target.binary_file:  # Target.forked
            program.copy(creator.program)
        with suppress(OSError):
            sampled = _Sampled(target, RemoteSampler(target, target.layout, target.runtime, self._period_ns), program)
            with self._lock:
                self._sampled[target.pid] = sampled
        if self._looker is None:
            self._looker = threading.Thread(target=self._take_looks, name="sampling", daemon=True)
            self._looker.start()

    def _forget(self, pid: int) -> None:
        if sampled := self._sampled.pop(pid, None):
            sampled.outside.finish(ended=True)
            self._collect(sampled)
            self._lost.update(sampled.outside.losses)
            sampled.outside.close()

    # -- looking at them, in another thread -------------------------------------------------------

    def _take_looks(self) -> None:
        period_s = self._period_ns / 1e9
        next_s = time.monotonic()
        while not self._stop.wait(next_s - time.monotonic()):
            spent_s, new = time.thread_time(), False
            with self._lock:
                for sampled in self._sampled.values():
                    self._look_at(sampled)
                    new |= sampled.outside.has_new_stacks
            now_s, spent_s = time.monotonic(), time.thread_time() - spent_s
            self._spent_ns += round(spent_s * 1e9)
            if new and now_s - self._drained_s > _ALERT_S:
                os.eventfd_write(self._alert.fileno(), 1)
            missed = max(now_s - next_s, 0.0) // period_s  # looks that there was no time for
            next_s = max(next_s + (missed + 1) * period_s, now_s + _COST * spent_s)

    def _look_at(self, sampled: _Sampled) -> None:
        now_s, outside = time.monotonic(), sampled.outside
        if not outside.ended and (now_s >= sampled.next_refresh_s or outside.has_new_threads):
            threads = outside.refresh()
            sampled.next_refresh_s = now_s + _REFRESH_S * max(threads / _FEW, 1)
        outside.look()
        if outside.is_filling:
            self._collect(sampled)

    def _collect(self, sampled: _Sampled) -> None:
        self._collected.append((sampled, *sampled.outside.collect()))

    # -- the samples ------------------------------------------------------------

    def drain(self) -> Rows:
        """No rows: samples are kept until the segment is closed, and written together with their stacks."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._alert.fileno())
        self._look()
        self._drained_s = time.monotonic()
        with self._lock:
            for sampled in self._sampled.values():
                self._collect(sampled)
            collected, self._collected = self._collected, []
        new = 0
        for sampled, samples, stacks in collected:
            for number, deep, frames in stacks:
                sampled.stacks[number] = sampled.program.add(frames, deep)
            new += len(stacks)
            if len(samples):
                self._waiting.append((sampled, samples))
        if not self._sampled and self._drained_s - self._began_s < _HASTE_WITHIN_S:
            self.interval_s = _HASTE_S
        else:
            self.interval_s = _INTERVAL_S if new else min(max(2 * self.interval_s, _INTERVAL_S), _CALM_S)
        return {}

    def observe(self, drained: Rows) -> None:
        """Find what is to be sampled too: nobody else may report it."""
        if not self._stop.is_set():
            self._finding.look()

    def cut(self) -> Rows:
        """Rows of `samples`, and of `stacks` those that they refer to."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return {}
        tree, numbers = Tree(self._next_stack), list[np.ndarray]()
        for sampled, samples in waiting:
            stacks, which = np.unique(samples["stack"], return_inverse=True)
            numbers.append(np.array([_number(tree, sampled, stack) for stack in stacks.tolist()], np.int64)[which])
        self._next_stack = tree.next
        columns = _columns(np.concatenate([samples for _, samples in waiting]), np.concatenate(numbers))
        return {"samples": [tables.where(columns, np.argsort(columns["ts"], kind="stable"))], "stacks": [tree.rows()]}

    def losses(self) -> np.ndarray:
        """Cumulative counts per loss class, int64."""
        with self._lock:
            total = sum((Counter(each.outside.losses) for each in self._sampled.values()), Counter(self._lost))
        return np.array([total[name] for name in LOSS_CLASSES], np.int64)

    def metadata(self) -> dict[str, Any]:
        """The manifest's `sampling`; `off_core`: 1 = threads off the core are sampled too; `states`: 1 = samples say what these waited for."""
        return {"sampling": {"period_ns": self._period_ns, "off_core": 1, "states": int(queue_time_is_known())}}

    def cost(self) -> dict[str, Any]:
        """CPU time spent on looking."""
        return {"sampling_ns": self._spent_ns}

    def stop(self) -> None:
        """Take no more samples, but those of threads that are off the core."""
        self._stop.set()
        if self._looker is not None:
            self._looker.join()
        with self._lock:
            for sampled in self._sampled.values():
                sampled.outside.finish()

    def close(self) -> None:
        """Let go of all processes."""
        self.stop()
        with self._lock:
            for pid in list(self._sampled):
                self._forget(pid)


def _number(tree: Tree, sampled: _Sampled, stack: int) -> int:
    if stack < FIRST_STACK:
        return _UNREAD if stack else _NO_PYTHON
    places = sampled.program.stacks.get(sampled.stacks.get(stack, 0))
    return _UNREAD if places is None else tree.number(places)


def _columns(samples: np.ndarray, stack_id: np.ndarray) -> Columns:
    return {
        **tables.when_and_who(samples),
        "cpu": np.full(len(samples), -1, np.int16),
        "stack_id": stack_id,
        "off_ns": samples["off_ns"].astype(np.int64),
        "opcode": np.where(samples["opcode"] == _NO_OPCODE, -1, samples["opcode"].astype(np.int16)),
        "missed": np.zeros(len(samples), np.int32),
        "state": samples["state"].astype(np.int8) - np.int8(1),
        "task": np.full(len(samples), None, object),
        "syscall": np.full(len(samples), SYSCALL_UNKNOWN, np.int32),
        "resource_id": np.zeros(len(samples), np.int64),
    }
