"""Function events from CPython's USDT probes, by BPF; nothing enters the process."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record import frames, opening, qualnames, tables
from pytrace_ebpf.record.calibrate import FibChild
from pytrace_ebpf.record.filters import Filters
from pytrace_ebpf.record.functions import ProbeIds, Qualify
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.record.target import Target, inspect
from pytrace_ebpf.record.usdt_probes import Plan, UsdtProbes, plan
from pytrace_ebpf.trace.schema import LOSS_CLASSES, CallKind


@dataclass
class _Loaded:
    target: Target  # the first process of this interpreter
    owner: os.stat_result  # of that process
    probes: UsdtProbes
    ids: ProbeIds


class UsdtCalls:
    """The programs of every interpreter that was met, each on any number of its processes."""

    name = "usdt"
    waited_ns = 0  # a full ring loses events instead

    def __init__(self, recording: Recording, ring_pages: int, filters: Filters, follow: bool) -> None:
        self._recording, self._ring_pages, self._filters, self._follow = recording, ring_pages, filters, follow
        self._wanted: list[bool] = []  # by func_id
        self._loaded: dict[Plan, _Loaded] = {}
        self._innermost = opening.Innermost()
        self._qualnames: dict[int, Qualify] = {}
        self._untold_frames = 0

    def prepare(self, target: Target) -> None:
        """Compile and load the programs for the target's interpreter."""
        self._load(target)

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
        walked, recorded = loaded.probes.walked(), self._calls_and_open_frames(loaded)
        of_target = recorded[recorded["pid_tgid"] >> np.uint64(32) == target.pid]
        stacks = opening.still_open(stacks, walked, of_target, walk_ns)
        opened = opening.Opening(target, start_ns, walk_ns, walked, stacks)
        calls, untold = opening.apply(opened, recorded, self._recording.functions, self._qualnames[target.pid])
        self._untold_frames += untold
        self._innermost.expect(opened)
        self._emit(self._innermost.drop_entered(tables.call_columns(calls)))
        self._recording.processes.add_python(target, self.name, start_ns)

    def reset(self, pid: int, tid: int, ts: int) -> None:
        """Let `tid` be walked again."""
        for loaded in self._loaded.values():
            loaded.probes.forget_walk(tid)

    def drain(self) -> None:
        """Emit what is in the rings."""
        for loaded in list(self._loaded.values()):
            self._drain(loaded)

    def losses(self) -> np.ndarray:
        """Of all programs; frames that could not be told count as stack_depth."""
        total = np.zeros(len(LOSS_CLASSES), np.int64)
        for loaded in self._loaded.values():
            total += loaded.probes.losses()
        total[LOSS_CLASSES.index("stack_depth")] += self._untold_frames
        return total

    def detach(self, pids: set[int]) -> None:
        """Remove the probes from these processes; the kernel attaches no other ones meanwhile."""
        for pid in pids:
            for loaded in self._loaded.values():
                loaded.probes.detach(pid)

    def stop(self) -> None:
        """Switch the programs off."""
        for loaded in self._loaded.values():
            loaded.probes.record(False)

    def leave(self) -> None:
        """Begin to remove every probe."""
        for loaded in self._loaded.values():
            loaded.probes.detach_all()

    def cost_per_call(self) -> float | None:
        """Median of rounds with the probes less the one without, in a process of the first interpreter that was met."""
        first = next(iter(self._loaded.values()), None)
        if first is None:
            return None
        try:
            with FibChild(first.target, first.owner) as child:
                plain = child.ns_per_call()
                try:
                    first.probes.attach(child.pid, inspect(child.pid).binary_path)
                    first.probes.record(True)
                    return max(0.0, round(child.ns_per_call() - plain, 1))
                finally:
                    first.probes.detach(child.pid)
        except TargetError:
            return None

    def close(self) -> None:
        """Remove every probe and unload the programs."""
        for loaded in self._loaded.values():
            loaded.probes.close()

    def _load(self, target: Target) -> _Loaded:
        if target.layout is None:
            raise TargetError(f"the structures of this Python in process {target.pid} are not known")
        planned = plan(target.binary, target.layout)
        if planned not in self._loaded:
            self._loaded[planned] = _Loaded(
                target,
                Path(f"/proc/{target.pid}").stat(),
                UsdtProbes(planned, self._ring_pages, self._follow),
                ProbeIds(self._recording.functions),
            )
        return self._loaded[planned]

    def _attach(self, target: Target, loaded: _Loaded) -> None:
        loaded.probes.attach(target.pid, target.binary_path)
        self._qualnames[target.pid] = qualnames.for_process(target.pid, target.library)

    def _calls_and_open_frames(self, loaded: _Loaded) -> np.ndarray:
        calls = loaded.probes.drain_calls(np.copy)
        self._introduce(loaded)
        told = calls["kind"] != CallKind.OPEN
        calls["func"][told] = loaded.ids.func_ids(calls["func"][told]).view(np.uint32)
        return calls

    def _introduce(self, loaded: _Loaded) -> None:
        introduced = loaded.probes.drain_functions()
        loaded.ids.introduce(
            introduced, lambda pid: self._qualnames.get(pid, _no_qualname), self._recording.processes.read_code
        )

    def _drain(self, loaded: _Loaded) -> None:
        calls = loaded.probes.drain_calls(tables.call_columns)
        self._introduce(loaded)
        if (calls["kind"] == CallKind.OPEN).any():  # of a process that is not being opened
            calls = tables.where(calls, calls["kind"] != CallKind.OPEN)
        calls["func_id"] = loaded.ids.func_ids(calls["func_id"].view(np.uint32))
        self._emit(self._innermost.drop_entered(calls))

    def _emit(self, calls: tables.Columns) -> None:
        if self._filters:
            places = self._recording.functions.places
            self._wanted += [place is None or self._filters.wants(*place) for place in places[len(self._wanted) :]]
            wanted = np.array([*self._wanted, True])  # the last for UNKNOWN, which is -1
            calls = tables.where(calls, wanted[calls["func_id"]])
        self._recording.emit(calls)


def _no_qualname(file: str, first_line: int, name: str) -> str | None:
    return None
