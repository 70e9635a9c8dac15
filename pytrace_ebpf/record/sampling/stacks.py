"""Stacks reported by the kernel half, as func_ids and lines, and the tree of those that the samples of a segment refer to."""

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from pytrace_ebpf.record.cpython.functions import UNKNOWN, Functions, Qualify
from pytrace_ebpf.record.cpython.lines import NO_LINE, CodeLines
from pytrace_ebpf.record.output.tables import Columns

FIRST_STACK = 2  # a sample_event.stack from here on refers to a stack
Place = tuple[int, int]  # func_id, line
Key = tuple[int, int]  # of a code object: address, identity
_UNREAD: Place = (UNKNOWN, NO_LINE)


@dataclass
class Code:
    """A code object: its func_id (None: the interpreter's own code) and its lines by position."""

    func_id: int | None
    begins: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def line(self, position: int) -> int:
        """The line of the instruction `position` bytes behind the first one."""
        at = bisect.bisect_right(self.begins, max(position, 0)) - 1
        return self.lines[at] if at >= 0 else NO_LINE


class Program:
    """One sampled program, from its start or its last exec on: its code objects, and the stacks reported of it."""

    def __init__(self, functions: Functions, read: Callable[[list[Key]], Mapping[Key, CodeLines]], qualify: Qualify, unit: int) -> None:
        """`read` returns the contents of code objects, without those that are gone; `unit`: the bytes that one unit of the reported positions stands for."""
        self._functions, self._read, self._qualify, self._unit = functions, read, qualify, unit
        self._codes: dict[Key, Code] = {}
        self.stacks: dict[int, tuple[Place, ...]] = {}  # outermost first
        self.size = 0  # frames and lines kept

    def learn(self, reported: np.ndarray) -> None:
        """Take in stack_event records of this program."""
        new = reported[np.array([stack not in self.stacks for stack in reported["stack"].tolist()], bool)]
        frames = [event["frames"][: event["count"]] for event in new]
        if not frames:
            return
        self._read_codes(np.unique(np.concatenate(frames)[["code", "identity"]]).tolist())
        parts: dict[int, dict[int, np.ndarray]] = {}
        for event, some in zip(new, frames, strict=True):  # one step per new stack, not per sample
            parts.setdefault(int(event["stack"]), {})[int(event["first"])] = some
        deep = set(new["stack"][new["deep"] != 0].tolist())
        totals = dict(zip(new["stack"].tolist(), new["total"].tolist(), strict=True))
        for stack, by_first in parts.items():
            inwards = [place for first in sorted(by_first, reverse=True) for place in self._places(by_first[first][::-1])]
            if sum(map(len, by_first.values())) < totals[stack]:  # the ring was full before its last frames
                continue
            self.stacks[stack] = (*((_UNREAD,) if stack in deep else ()), *inwards)
            self.size += len(inwards)

    def add(self, frames: np.ndarray) -> int:
        """Take in one stack, records of struct sample_frame, innermost first; returns what samples refer to it by."""
        stack = int.from_bytes(blake2b(frames.tobytes(), digest_size=8).digest(), "little") | FIRST_STACK
        self._read_codes(np.unique(frames[["code", "identity"]]).tolist())
        self.stacks[stack] = tuple(self._places(frames[::-1]))
        return stack

    def _read_codes(self, keys: list[Key]) -> None:
        wanted = [key for key in keys if key not in self._codes]
        found = self._read(wanted)
        for key in wanted:
            read = found.get(key)
            if read is None:
                self._codes[key] = Code(UNKNOWN)
            elif read.info.is_shim:
                self._codes[key] = Code(None)
            else:
                info = read.info
                func_id = self._functions.intern(info.file, info.name, info.qualname, info.first_line, info.flags, self._qualify)
                self._codes[key] = Code(func_id, [begin for begin, _ in read.ranges], [line for _, line in read.ranges])
                self.size += len(read.ranges)

    def _places(self, frames: np.ndarray) -> Iterator[Place]:
        for code, identity, position in frames.tolist():
            known = self._codes[code, identity]
            if known.func_id is not None:
                yield known.func_id, known.line(position * self._unit)


class Tree:
    """Numbers the stacks of one segment: each is its caller's stack and one frame more."""

    def __init__(self, first: int) -> None:
        """`first`: the number to begin with."""
        self._first = first
        self._numbers: dict[tuple[int, Place], int] = {}

    def number(self, stack: Iterable[Place]) -> int:
        """The number of a stack, given from its outermost frame inwards."""
        above = -1
        for place in stack:
            above = self._numbers.setdefault((above, place), self._first + len(self._numbers))
        return above

    @property
    def next(self) -> int:
        """The number that a new stack would get."""
        return self._first + len(self._numbers)

    def rows(self) -> Columns:
        """Columns of `stacks`, a caller before what it called."""
        rows = [(number, above, func_id, line) for (above, (func_id, line)), number in self._numbers.items()]
        numbers = np.array(rows, np.int64).reshape(-1, 4)
        types = {"stack_id": np.int64, "parent_id": np.int64, "func_id": np.int32, "line": np.int32}
        return {name: numbers[:, at].astype(kind) for at, (name, kind) in enumerate(types.items())}
