"""The stacks of samples as paths of functions: each once, whatever the lines and however many segments name it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.samples.sampling import is_summed
from pytrace_ebpf.analyze.samples.summed import summed
from pytrace_ebpf.analyze.samples.weights import COLUMNS, Intervals, Periods, looked_at, weighed
from pytrace_ebpf.derive.added import added
from pytrace_ebpf.trace.conditions import are
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.sampled import NATIVE

NO_FRAMES, UNREAD = -1, -2  # of `samples.stack_id`
UNKNOWN = -1  # of `func_id`
OTHER = -2  # in Paths: what stands for the paths that were merged
_AT_ONCE = 1 << 16  # samples whose intervals off the core are looked for together

Ints = npt.NDArray[np.int64]


def segments(trace: Trace, native: bool = True, outside: bool = False) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """(samples with the time that each stands for, as weights.weighed has it; stacks) of each segment that has samples of a trace, or of its window.

    Without `native` frames what was in native code stands where Python called it; `outside`: frames that no Python called stay.
    """
    natives = natives_of(trace) if not native else np.zeros(0, np.int64)
    if is_summed(trace):
        for found, stacks in summed(trace):
            yield _of_python(found, stacks, natives, outside) if len(natives) else (found, stacks)
        return
    whole = trace.whole
    periods = Periods.of(trace.manifest.get("sampling") or {"period_ns": 0})
    start_ns, end_ns = (trace.start_ns, trace.end_ns) if whole is not trace else (0, np.iinfo(np.int64).max)
    for held in _at_once(_within(trace, start_ns, end_ns)):
        intervals = Intervals.of(trace, pd.concat([samples for _, samples in held]))
        for segment, samples in held:
            stacks = whole.part("stacks", segment).to_pandas()
            found = weighed(samples, intervals, periods, start_ns, end_ns, looked_at(trace))
            yield _of_python(found, stacks, natives, outside) if len(natives) else (found, stacks)


def _within(trace: Trace, start_ns: int, end_ns: int) -> Iterator[tuple[int, pd.DataFrame]]:
    """Of each segment its index, and the samples of the trace or the window."""
    for segment in trace.whole.segments[getattr(trace, "first", 0) :]:  # an interval off the core may end long after a window
        samples = trace.whole.part("samples", segment["index"]).to_pandas()
        within = (samples["ts"] >= start_ns) & (samples["ts"] - samples["off_ns"] < end_ns)
        for name, wanted in (("pid", getattr(trace, "pid", None)), ("tid", getattr(trace, "tid", None))):
            within &= are(samples[name], wanted)
        if within.any():
            yield segment["index"], samples[within]


def _at_once(segments: Iterable[tuple[int, pd.DataFrame]]) -> Iterator[list[tuple[int, pd.DataFrame]]]:
    """Segments that follow each other, with _AT_ONCE samples or a little more."""
    held = list[tuple[int, pd.DataFrame]]()
    for each in segments:
        held.append(each)
        if sum(len(samples) for _, samples in held) >= _AT_ONCE:
            yield held
            held = []
    if held:
        yield held


def natives_of(trace: Trace) -> Ints:
    """The func_ids of native functions that samples know."""
    functions = trace.functions()
    return functions.loc[functions["function_layer"] == NATIVE, "func_id"].to_numpy(np.int64)


def _of_python(samples: pd.DataFrame, stacks: pd.DataFrame, natives: Ints, outside: bool) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both without the frames of these functions; `outside`: without those that others than these called."""
    numbers, native = stacks["stack_id"].to_numpy(np.int64), np.isin(stacks["func_id"].to_numpy(np.int64), natives)
    place = pd.Series(np.arange(len(numbers)), numbers)
    above = stacks["parent_id"].map(place).fillna(-1).to_numpy(np.int64)
    if outside:
        within = np.zeros(len(numbers), bool)
        for at, caller in enumerate(above.tolist()):  # which comes first
            within[at] = caller >= 0 and (within[caller] or not native[caller])
        native &= within
    while (over := (above >= 0) & native[above]).any():
        above[over] = above[above[over]]
    parent = np.where(above >= 0, numbers[above], NO_FRAMES)
    became = pd.Series(np.where(native, parent, numbers), numbers)
    stack_id = samples["stack_id"]
    return samples.assign(stack_id=stack_id.map(became).fillna(stack_id).astype(np.int64)), stacks.assign(parent_id=parent)[~native]


def by_thread(trace: Trace) -> pd.DataFrame:
    """How many samples there are of each thread, and the time that they stand for: pid, tid, weights.COLUMNS."""
    columns = ["pid", "tid", *COLUMNS]
    none = pd.DataFrame({name: [] for name in columns}, dtype=np.int64)
    return added(chain([none], (samples[columns] for samples, _ in segments(trace))), ["pid", "tid"], dict.fromkeys(COLUMNS, "sum"))


@dataclass
class Paths:
    """Numbered from 0, a caller's path before those that it leads to: of each the caller's number (-1 none), its function, and its depth."""

    parents: list[int] = field(default_factory=list)
    functions: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    _numbers: dict[tuple[int, int], int] = field(default_factory=dict)

    def number(self, parent: int, func_id: int) -> int:
        """Of the path to `func_id` from that one."""
        at = self._numbers.setdefault((parent, func_id), len(self.parents))
        if at == len(self.parents):
            self.parents.append(parent)
            self.functions.append(func_id)
            self.depths.append(self.depths[parent] + 1 if parent >= 0 else 0)
        return at

    def of_stacks(self, stacks: pd.DataFrame) -> dict[int, int]:
        """The paths of a segment's stacks (schema.STACKS), by stack_id, and of those that could not be read."""
        found = {UNREAD: self.number(-1, UNKNOWN), -1: -1}
        for stack, parent, func_id in zip(*(stacks[name].tolist() for name in ("stack_id", "parent_id", "func_id")), strict=True):
            found[stack] = self.number(found[parent], func_id)
        return found

    def merged(self, total: Ints, most: int) -> "tuple[Paths, Ints]":
        """The paths with the largest `total`, a caller's being at least its callees' together, `most` of them or a few more; and what each became.

        Those below the caller that is left become one path of it, OTHER.
        """
        rank = np.lexsort((np.arange(len(total)), -total))
        kept = np.zeros(len(total), bool)
        kept[rank[:most]] = True
        out, became = Paths(), np.full(len(total), -1, np.int64)
        for at, (parent, function) in enumerate(zip(self.parents, self.functions, strict=True)):  # a caller comes before its callees
            above = int(became[parent]) if parent >= 0 else -1
            if above >= 0 and out.functions[above] == OTHER:
                became[at] = above
            else:
                became[at] = out.number(above, function if kept[at] else OTHER)
        return out, became

    def outermost(self, key: Ints) -> npt.NDArray[np.bool_]:
        """Of each path, whether its last function's key is not also one before it; `key`: by path."""
        keys, found = key.tolist(), np.ones(len(key), bool)
        for at, parent in enumerate(self.parents):
            while parent >= 0 and keys[parent] != keys[at]:
                parent = self.parents[parent]
            found[at] = parent < 0
        return found
