"""Stacks reported by the kernel half, as func_ids and lines, and the tree of those that the samples of a segment refer to."""

import bisect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise

import numpy as np

from pytrace_ebpf.record.cpython.functions import UNKNOWN, Functions
from pytrace_ebpf.record.cpython.lines import NO_LINE, CodeLines
from pytrace_ebpf.record.cpython.qualnames import Qualify
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.record.sampling.native import FRAME_NATIVE, Native, Natives

FIRST_STACK = 2  # a sample_event.stack from here on refers to a stack
Place = tuple[int, int]  # func_id, line
Key = tuple[int, int]  # of a code object: address, identity
Frame = tuple[int, int, int]  # struct sample_frame: those, and the position
_UNREAD: Place = (UNKNOWN, NO_LINE)
_COROUTINE = 0x80 | 0x100  # co_flags
FRAME_ENTERED, NATIVE_WHOLE = 1 << 62, 1  # events.h


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

    def __init__(
        self,
        functions: Functions,
        read: Callable[[list[Key]], Mapping[Key, CodeLines]],
        qualify: Qualify,
        unit: int,
        natives: Natives | None = None,
        nested: bool = False,
        user: int = 0,
    ) -> None:
        """`read` returns the contents of code objects, without those that are gone; `unit`: the bytes that one unit of the reported positions stands for.

        `nested`: the interpreter's C function is entered for every frame (up to 3.10). `user`: whose share its functions take.
        """
        self.user = user
        self.stale = False  # what was reported of it was not learned, and will not be reported again
        self.since_s = time.monotonic()
        self.asked = self.learned = 0  # reports that were handed on to be learned, and those of them that were
        self._holds: set[int] = set()  # func_ids
        self._functions, self._read, self._qualify, self._unit = functions, read, qualify, unit
        self._natives, self._nested = natives, nested
        self.apart: set[int] = set()  # stacks whose native frames do not fit those of Python: they have none
        self._codes: dict[Key, Code] = {}
        self._place: dict[Frame, Place | None] = {}  # None: of the interpreter's own code
        self.stacks: dict[int, tuple[Place, ...]] = {}  # outermost first
        self.size = 0  # frames and lines kept
        self._gone = 0  # code objects that were gone before they were read
        self.may_have_tasks = True  # set back by who looks for them, and again where a coroutine is met for the first time

    def copy(self, other: "Program") -> None:
        """Know the code objects of the program that forked this one, which may have ended before they can be read."""
        self._codes = {**other._codes, **self._codes}
        self._hold({code.func_id for code in self._codes.values() if code.func_id is not None})
        self.may_have_tasks = False

    @property
    def learning(self) -> bool:
        """Whether some of what was reported waits to be learned."""
        return self.asked > self.learned

    def close(self) -> None:
        """Nothing refers to it any more."""
        self._functions.release(self._holds)
        self._holds = set()

    def _hold(self, func_ids: set[int]) -> None:
        new = func_ids - self._holds - {UNKNOWN}
        self._functions.hold(new)
        self._holds |= new

    def learn(self, reported: np.ndarray) -> tuple[int, int]:
        """Take in stack_event records of this program; returns how many code objects were new, and how many of them were gone by now."""
        before, gone = len(self._codes), self._gone
        parts: dict[int, dict[int, list[Frame]]] = {}
        totals: dict[int, tuple[int, int, int]] = {}
        columns = (reported[name].tolist() for name in ("stack", "first", "count", "total", "deep", "native"))
        for *event, frames in zip(*columns, reported["frames"], strict=True):  # one step per new stack, not per sample
            stack, first, count, total, deep, native = event
            if stack not in self.stacks:
                parts.setdefault(stack, {})[first] = frames[:count].tolist()
                totals[stack] = total, deep, native
        frames = {frame for by_first in parts.values() for frames in by_first.values() for frame in frames}
        self._read_places({frame for frame in frames if frame[0] < FRAME_NATIVE})
        known = self._natives.functions({code for code, _, _ in frames if code >= FRAME_NATIVE}, self.user) if self._natives else {}
        natives: dict[tuple[Frame, ...], Below] = {}  # many stacks have the same
        for stack, by_first in parts.items():
            outwards = [frame for first in sorted(by_first) for frame in by_first[first]]
            total, deep, native = totals[stack]
            if len(outwards) == total:  # else the ring was full before its last frames
                python = bisect.bisect_left(outwards, 1, key=_is_native)
                below = tuple(outwards[python:])
                if below not in natives:
                    natives[below] = Below([known.get(code) for code, _, _ in below])
                runs = self._runs(outwards[:python])
                joined = join(runs, natives[below], native == NATIVE_WHOLE and not deep)
                if joined is None:
                    self.apart.add(stack)
                    joined = [place for run in runs for place in run]
                self.stacks[stack] = (*((_UNREAD,) if deep else ()), *joined[::-1])
                self.size += total
        return len(self._codes) - before, self._gone - gone

    def _runs(self, outwards: list[Frame]) -> list[list[Place]]:
        """Python frames by the call of the interpreter's C function that runs them; the innermost first, of all and in each."""
        places = [self._place[frame] for frame in outwards]
        ends = range(1, len(outwards) + 1) if self._nested else [at for at, frame in enumerate(outwards, 1) if frame[0] & FRAME_ENTERED]
        runs = [[place for place in places[begin:end] if place is not None] for begin, end in pairwise((0, *ends, len(outwards)))]
        return runs if runs[-1] else runs[:-1]

    def add(self, frames: np.ndarray, deep: bool = False) -> int:
        """Take in one stack, records of struct sample_frame, innermost first; returns what samples refer to it by. `deep`: it has more frames."""
        stack, inwards = int.from_bytes(blake2b(frames.tobytes(), digest_size=8).digest(), "little") | FIRST_STACK, frames[::-1].tolist()
        self._read_places(set(inwards))
        self.stacks[stack] = (*((_UNREAD,) if deep else ()), *self._places(inwards))
        self.size += len(inwards)
        return stack

    def _read_places(self, frames: set[Frame]) -> None:
        new = frames - self._place.keys()
        self._read_codes(sorted({(code & ~FRAME_ENTERED, identity) for code, identity, _ in new}))
        for code, identity, position in new:
            known = self._codes[code & ~FRAME_ENTERED, identity]
            self._place[code, identity, position] = None if known.func_id is None else (known.func_id, known.line(position * self._unit))
        self.size += len(new)

    def _places(self, frames: list[Frame]) -> Iterator[Place]:
        return (place for frame in frames if (place := self._place[frame]) is not None)

    def _read_codes(self, keys: list[Key]) -> None:
        wanted = [key for key in keys if key not in self._codes]
        found = self._read(wanted) if wanted else {}
        for key in wanted:
            read = found.get(key)
            if read is None:
                self._codes[key] = Code(UNKNOWN)
                self._gone += 1
            elif read.info.is_shim:
                self._codes[key] = Code(None)
            else:
                info = read.info
                self.may_have_tasks |= bool(info.flags & _COROUTINE)
                func_id = self._functions.intern(info.file, info.name, info.qualname, info.first_line, info.flags, self._qualify, self.user)
                self._hold({func_id})
                self._codes[key] = Code(func_id, [begin for begin, _ in read.ranges], [line for _, line in read.ranges])
                self.size += len(read.ranges)


def _is_native(frame: Frame) -> bool:
    return frame[0] >= FRAME_NATIVE


class Below:
    """The native frames of a stack, the innermost first, by the calls of the interpreter's C function among them."""

    def __init__(self, natives: list[Native | None]) -> None:
        """`natives`: None, a function of which nothing is known any more."""
        segments: list[list[Native | None]] = [[]]
        for native in natives:
            if native and native.evaluates:
                segments.append([])
            else:
                segments[-1].append(native)
        self.calls = len(segments) - 1
        # Where the thread is, is shown whatever it is.
        self.inside = [_place(native) for at, native in enumerate(segments[0]) if not (at and native and native.calls)]
        named = [[native for native in segment if native and not native.calls and not native.nameless] for segment in segments[1:]]
        self.outside = [[_place(native) for native in segment] for segment in named]
        self.outermost = [[_place(native) for native in segment if not native.begins] for segment in named]


def _place(native: Native | None) -> Place:
    return (native.func_id, NO_LINE) if native else _UNREAD


def join(runs: list[list[Place]], below: Below, whole: bool) -> list[Place] | None:
    """One stack of Python frames and native ones, innermost first; None where they do not fit each other.

    The interpreter's C function stands for a run of Python frames, and what it called for the innermost of them is below that. `whole`: no
    frame is missing; else only those below the innermost Python frame are certain. Left out is what the interpreter calls functions by, unless the
    thread was there, and outside of all Python frames what only began the interpreter or the thread. `runs` may be empty: a thread of a BLAS's pool.
    """
    if below.calls != len(runs) and (whole or not runs):
        return None
    found = [*below.inside]
    for at, run in enumerate(runs):
        found += run
        if whole:
            found += below.outside[at] if at + 1 < len(runs) else below.outermost[at]
    return found


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
