"""States of the engine between two segments, each with the sums of the calls that ended since the one before: kept next to the trace's tables.

So a second report derives nothing, one of a trace that grew only its new segments, and a window begins at the segment it begins in. Where
a recording has dropped old segments (`--retain`) those from before are Earlier: they are of another beginning.
"""

import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pytrace_ebpf.derive.scheduling.windows import unseen_of, windows_of
from pytrace_ebpf.rebuild.library import NODE, SITE
from pytrace_ebpf.trace.deriving import DERIVATION
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALL_LOSSES, SCHED_LOSSES

FOLDER = "sums"
_MOST_BYTES = 1 << 30
_HEADER_BYTES = 1 << 12
_CODEC = "zstd"
_DIGITS = 24  # of a key, in a file's name

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Place:
    """Of a state: the name of that before it, "" none, when the segments between begin and end, and what says which these are."""

    before: str = ""
    start_ns: int = 0
    end_ns: int = 0
    segments: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """What the engine (rebuild.engine.Engine) knows after segments: `nodes`, `keys` and `sites` of its tree since the state before, and `saved`."""

    nodes: npt.NDArray[np.void]
    keys: Ints
    sites: npt.NDArray[np.void]
    saved: bytes
    place: Place = field(default_factory=Place)

    def packed(self) -> bytes:
        """As bytes; 1/5 of its size or less."""
        lengths = {"nodes": len(self.nodes), "keys": len(self.keys), "sites": len(self.sites), "saved": len(self.saved)}
        place = [self.place.before, self.place.start_ns, self.place.end_ns, self.place.segments]
        out = pa.BufferOutputStream()
        out.write(json.dumps(lengths | {"place": place}).encode() + b"\n")
        with pa.CompressedOutputStream(out, _CODEC) as packing:  # one after the other: a large tree is never there once more
            for array in (np.ascontiguousarray(self.nodes), self.keys.astype("<i8"), np.ascontiguousarray(self.sites)):
                packing.write(array.view(np.uint8).data)
            packing.write(self.saved)
        return bytes(out.getvalue())

    @classmethod
    def unpacked(cls, content: bytes) -> "Checkpoint | None":
        """None of what is damaged."""
        try:
            end = content.index(b"\n", 0, _HEADER_BYTES)
            lengths = json.loads(content[:end])
            nodes, keys, sites, saved = (int(lengths[name]) for name in ("nodes", "keys", "sites", "saved"))
            before, start_ns, end_ns, segments = lengths["place"]
            place = Place(str(before), int(start_ns), int(end_ns), str(segments))
            sizes = [nodes * NODE.itemsize, keys * 8, sites * SITE.itemsize, saved]
            if min(sizes) < 0 or sum(sizes) > _MOST_BYTES:
                return None
            body = pa.decompress(memoryview(content)[end + 1 :], decompressed_size=sum(sizes), codec=_CODEC)
        except (ValueError, KeyError, TypeError, RecursionError, OSError, pa.ArrowException):
            return None
        first, second, third = (sum(sizes[:k]) for k in (1, 2, 3))
        of_nodes, of_keys, of_sites = body[:first], body[first:second], body[second:third]
        numbers = np.frombuffer(of_keys, "<i8").astype(np.int64)
        return cls(np.frombuffer(of_nodes, NODE), numbers, np.frombuffer(of_sites, SITE), bytes(body[third:]), place)


class Checkpoints:
    """The states that are kept of a trace, in the order of its segments; those that were made of other data than it has now are left out."""

    def __init__(self, trace: Trace) -> None:
        self._trace, self._pieces = trace, trace.pieces(FOLDER)
        self._keys = list(segment_keys(trace))
        self._contents = Contents(trace)
        self._parts = self._found()  # (first, last) segment by place, one after the other
        self._keeps = False
        self._earlier: Earlier | None = None
        self.size = 0  # bytes of the last state that was read or kept

    def _found(self) -> list[tuple[int, int]]:
        parts: list[tuple[int, int]] = []
        for name in self._pieces.names():
            numbers = name.split("-")
            if len(numbers) != 3 or not (numbers[0].isdigit() and numbers[1].isdigit()):
                continue
            first, last = int(numbers[0]), int(numbers[1])
            following = parts[-1][1] + 1 if parts else 0
            if first == following and first <= last < len(self._keys) and self._name(first, last) == name:
                parts.append((first, last))
        return parts

    def _name(self, first: int, last: int) -> str:
        return f"{first:06d}-{last:06d}-{self._keys[last]}"

    @property
    def reach(self) -> int:
        """After how many segments the last state is; 0 for none."""
        return self._parts[-1][1] + 1 if self._parts else 0

    @property
    def writable(self) -> bool:
        return self._pieces.writable

    def upto(self, segments: int) -> Iterator[tuple[int, Checkpoint]]:
        """The states after up to so many segments, in turn, each with its number of them; the first that does not open ends them, and it and those after it are forgotten."""
        for place, (first, last) in enumerate(self._parts):
            if last >= segments:
                return
            state = self._read(first, last)
            if state is None:
                self._parts = self._parts[:place]
                return
            yield last + 1, state

    def nearest(self, segments: int) -> tuple[int, bytes | None]:
        """After how many segments the last state is that is no later than after `segments`, and what Engine.load() takes; 0, None for none."""
        for first, last in reversed(self._parts):
            if last < segments:
                state = self._read(first, last)
                if state is not None:
                    return last + 1, state.saved
        return 0, None

    def _read(self, first: int, last: int) -> Checkpoint | None:
        content = self._pieces.read(self._name(first, last), _MOST_BYTES)
        self.size = len(content or b"")
        return Checkpoint.unpacked(content) if content is not None else None

    def _read_named(self, name: str) -> Checkpoint | None:
        content = self._pieces.read(name, _MOST_BYTES)
        return Checkpoint.unpacked(content) if content is not None else None

    def keep(self, last: int, state: Checkpoint) -> None:
        """Keep what follows the last state, up to the segment `last`; files that belong to no state are removed."""
        first = self.reach
        before = self._name(*self._parts[-1]) if self._parts else ""
        content = replace(state, place=self._contents.place(first, last, before)).packed()
        self.size = len(content)
        if not self._keeps:
            self._drop(self._others() - set(self._earlier.names if self._earlier else ()))
            self._keeps = True
        self._pieces.keep(self._name(first, last), content)
        self._parts.append((first, last))

    def earlier(self) -> "Earlier | None":
        """States with another beginning, which stay until they are done_with(); None where there are none."""
        if self._earlier is None and self.writable and self._trace.manifest.get("dropped"):
            names = sorted(self._others())
            self._earlier = Earlier(self._contents, self._read_named, names) if names else None
        return self._earlier

    def done_with_earlier(self) -> None:
        """They are of no use any more."""
        self._earlier = None
        self._drop(self._others())

    def _others(self) -> set[str]:
        return set(self._pieces.names()) - {self._name(*part) for part in self._parts}

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._pieces.drop(name)

    def forget(self) -> None:
        """None of them can be used: the next keep() begins anew."""
        self._parts = []


class Contents:
    """Which segments a state follows, without what was before them: the same of a trace that has another beginning."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def ends(self) -> list[int]:
        """Where each segment ends."""
        return [segment["end_ns"] for segment in self._trace.segments]

    @cached_property
    def _tables(self) -> list[Ints]:
        threads, _, *losses = _timed_tables(self._trace)  # a process's GIL stands in the engine's state
        return [threads, *losses]

    def place(self, first: int, last: int, before: str) -> Place:
        """Of the state after the segments from `first` to `last`, which follows the one that is called `before`."""
        listed = self._trace.segments[first : last + 1]
        start, end = self.ends[first - 1] if first else self._trace.start_ns, self.ends[last]
        sum_ = hashlib.sha256(json.dumps([*_settings(self._trace), listed], sort_keys=True).encode())
        for rows in self._tables:  # where the trace begins by now, all that goes on begins
            sum_.update(np.ascontiguousarray(rows[(rows[:, 0] > start) & (rows[:, 0] <= end)]).tobytes())
        return Place(before, start, end, sum_.hexdigest())


class Earlier:
    """States of the same recording from before it dropped its first segments, in the order of time."""

    def __init__(self, contents: Contents, read: Callable[[str], Checkpoint | None], names: list[str]) -> None:
        self.names = names
        self._contents, self._read, self._at = contents, read, 0
        self._states: dict[int, Checkpoint | None] = {}  # the last ones that were read, by place in `names`

    def _state(self, place: int) -> Checkpoint | None:
        if place not in self._states:
            self._states = {at: state for at, state in self._states.items() if at >= self._at}
            self._states[place] = self._read(self.names[place]) if place < len(self.names) else None
        return self._states[place]

    def _find(self, end_ns: int) -> None:
        """Go to the first state that is no earlier; no other is asked for again."""
        while self._at < len(self.names):
            state = self._state(self._at)
            if state and state.place.end_ns >= end_ns:
                return
            self._at += 1

    def following(self, segments: int) -> tuple[Checkpoint, Checkpoint, int] | None:
        """The state that was there after so many segments of the trace, the next one, and after how many segments that was."""
        if not segments:
            return None
        ends = self._contents.ends
        self._find(ends[segments - 1])
        before, after = self._state(self._at), self._state(self._at + 1)
        if not (before and after and before.place.end_ns == ends[segments - 1] and after.place.before == self.names[self._at]):
            return None
        count = bisect_left(ends, after.place.end_ns) + 1
        if count <= segments or count > len(ends) or self._contents.place(segments, count - 1, after.place.before) != after.place:
            return None
        return before, after, count

    def ahead(self, segments: int) -> int | None:
        """After how many segments, more than so many, the next state is."""
        ends = self._contents.ends
        self._find(ends[segments - 1] + 1 if segments else ends[0])
        state = self._state(self._at)
        count = bisect_left(ends, state.place.end_ns) + 1 if state else 0
        return count if state and count <= len(ends) and ends[count - 1] == state.place.end_ns else None


def segment_keys(trace: Trace) -> Iterator[str]:
    """For each segment what everything up to its end depends on: how it is derived, the segments, and what is known of that time."""
    tables = [rows[np.argsort(rows[:, 0], kind="stable")] for rows in _timed_tables(trace)]
    sum_ = hashlib.sha256(json.dumps([*_settings(trace), trace.start_ns]).encode())
    at = [0] * len(tables)
    for segment in trace.segments:
        sum_.update(json.dumps(segment, sort_keys=True).encode())
        for k, rows in enumerate(tables):
            upto = max(at[k], int(np.searchsorted(rows[:, 0], segment["end_ns"])))
            sum_.update(np.ascontiguousarray(rows[at[k] : upto]).tobytes())
            at[k] = upto
        yield sum_.hexdigest()[:_DIGITS]


def _settings(trace: Trace) -> list[Any]:
    return [DERIVATION, NODE.itemsize, SITE.itemsize, trace.scheduling["source"]]


def _timed_tables(trace: Trace) -> Iterator[Ints]:
    """Tables whose first column says from when on their rows matter."""
    yield trace.threads()[["start_ns", "pid", "tid"]].to_numpy(np.int64)
    yield trace.processes()[["start_ns", "pid", "gil_start", "gil_end"]].to_numpy(np.int64)
    for classes in (CALL_LOSSES, SCHED_LOSSES):
        yield windows_of(trace.losses(), classes)
    unseen = unseen_of(trace.losses())
    yield unseen[np.argsort(unseen[:, 1], kind="stable")][:, [1, 0, 2, 3]]
