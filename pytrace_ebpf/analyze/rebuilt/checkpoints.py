"""States of the engine between two segments, each with the sums of the calls that ended since the one before: kept next to the trace's tables.

So a second report derives nothing, one of a trace that grew only its new segments, and a window begins at the segment it begins in.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pytrace_ebpf.analyze.time.windows import windows_of
from pytrace_ebpf.rebuild.library import NODE, SITE
from pytrace_ebpf.trace.reader import DERIVATION, Trace
from pytrace_ebpf.trace.schema import CALL_LOSSES, SCHED_LOSSES

FOLDER = "sums"
_MOST_BYTES = 1 << 30
_HEADER_BYTES = 1 << 12
_CODEC = "zstd"
_DIGITS = 24  # of a key, in a file's name

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Checkpoint:
    """What the engine (rebuild.engine.Engine) knows after segments: `nodes`, `keys` and `sites` of its tree since the state before, and `saved`."""

    nodes: npt.NDArray[np.void]
    keys: Ints
    sites: npt.NDArray[np.void]
    saved: bytes

    def packed(self) -> bytes:
        """As bytes; 1/5 of its size or less."""
        lengths = {"nodes": len(self.nodes), "keys": len(self.keys), "sites": len(self.sites), "saved": len(self.saved)}
        body = b"".join((np.ascontiguousarray(self.nodes).data, self.keys.astype("<i8").data, np.ascontiguousarray(self.sites).data, self.saved))
        return json.dumps(lengths).encode() + b"\n" + pa.compress(body, codec=_CODEC, asbytes=True)

    @classmethod
    def unpacked(cls, content: bytes) -> "Checkpoint | None":
        """None of what is damaged."""
        try:
            end = content.index(b"\n", 0, _HEADER_BYTES)
            lengths = json.loads(content[:end])
            nodes, keys, sites, saved = (int(lengths[name]) for name in ("nodes", "keys", "sites", "saved"))
            sizes = [nodes * NODE.itemsize, keys * 8, sites * SITE.itemsize, saved]
            if min(sizes) < 0 or sum(sizes) > _MOST_BYTES:
                return None
            body = pa.decompress(content[end + 1 :], decompressed_size=sum(sizes), codec=_CODEC, asbytes=True)
        except (ValueError, KeyError, TypeError, RecursionError, OSError, pa.ArrowException):
            return None
        first, second, third = (sum(sizes[:k]) for k in (1, 2, 3))
        of_nodes, of_keys, of_sites = body[:first], body[first:second], body[second:third]
        return cls(np.frombuffer(of_nodes, NODE), np.frombuffer(of_keys, "<i8").astype(np.int64), np.frombuffer(of_sites, SITE), body[third:])


class Checkpoints:
    """The states that are kept of a trace, in the order of its segments; those that were made of other data than it has now are left out."""

    def __init__(self, trace: Trace) -> None:
        self._trace, self._pieces = trace, trace.pieces(FOLDER)
        self._keys = list(segment_keys(trace))
        self._parts = self._found()  # (first, last) segment by place, one after the other
        self._keeps = False
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

    def keep(self, last: int, content: bytes) -> None:
        """Keep Checkpoint.packed() of what follows the last state, up to the segment `last`; files that belong to no state are removed."""
        first, self.size = self.reach, len(content)
        if not self._keeps:
            for name in set(self._pieces.names()) - {self._name(*part) for part in self._parts}:
                self._pieces.drop(name)
            self._keeps = True
        self._pieces.keep(self._name(first, last), content)
        self._parts.append((first, last))

    def forget(self) -> None:
        """None of them can be used: the next keep() begins anew."""
        self._parts = []


def segment_keys(trace: Trace) -> Iterator[str]:
    """For each segment what everything up to its end depends on: how it is derived, the segments, and what is known of that time."""
    tables = [rows[np.argsort(rows[:, 0], kind="stable")] for rows in _timed_tables(trace)]
    sum_ = hashlib.sha256(json.dumps([DERIVATION, NODE.itemsize, SITE.itemsize, trace.start_ns, trace.scheduling["source"]]).encode())
    at = [0] * len(tables)
    for segment in trace.segments:
        sum_.update(json.dumps(segment, sort_keys=True).encode())
        for k, rows in enumerate(tables):
            upto = max(at[k], int(np.searchsorted(rows[:, 0], segment["end_ns"])))
            sum_.update(np.ascontiguousarray(rows[at[k] : upto]).tobytes())
            at[k] = upto
        yield sum_.hexdigest()[:_DIGITS]


def _timed_tables(trace: Trace) -> Iterator[Ints]:
    """Tables whose first column says from when on their rows matter."""
    yield trace.threads()[["start_ns", "pid", "tid"]].to_numpy(np.int64)
    yield trace.processes()[["start_ns", "pid", "gil_start", "gil_end"]].to_numpy(np.int64)
    for classes in (CALL_LOSSES, SCHED_LOSSES):
        yield windows_of(trace.losses(), classes)
