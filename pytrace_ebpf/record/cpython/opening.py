"""The frames that were open when recording of a process began, as CALL_OPEN events.

A thread that had an event while the probes were in WALK mode was walked by the
probe itself, at that event. Any other thread stood still meanwhile, so reading its
frames from outside is just as exact.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from pytrace_ebpf.record.cpython.frames import OpenFrame, read_codes
from pytrace_ebpf.record.cpython.functions import UNKNOWN, Code, ProbeIds
from pytrace_ebpf.record.output.tables import Columns, where
from pytrace_ebpf.record.process.target import Target
from pytrace_ebpf.trace.schema import CallKind

Stacks = dict[int, list[OpenFrame]]  # by thread


@dataclass(frozen=True)
class Opening:
    """What became known of a process's open frames while the probes were in WALK mode."""

    target: Target
    start_ns: int  # just before WALK was set
    walk_ns: int  # just after it was set
    walked: dict[int, int]  # tid -> next frame to walk, of the threads that had an event; 0: all were walked
    stacks: Stacks  # read from outside, outermost first


def still_open(stacks: Stacks, walked: Iterable[int], calls: np.ndarray, before_ns: int) -> Stacks:
    """`stacks` without innermost frames that had returned: an entry or return is reported a moment before the frame comes or goes.

    `calls`: the call_event records of one process since the probes were attached; a thread that was not `walked` and
    whose last one before `before_ns` is the return of its innermost frame stands behind it.
    """
    early = calls[(calls["kind"] != CallKind.OPEN) & (calls["ts"] < before_ns)]
    threads, last = np.unique(early["pid_tgid"].astype(np.uint32)[::-1], return_index=True)
    said = dict(zip(threads.tolist(), early[::-1][last], strict=True))
    kept = dict(stacks)
    for tid in said.keys() & stacks.keys() - set(walked):
        if said[tid]["kind"] in (CallKind.RETURN, CallKind.YIELD) and said[tid]["frame"] == _token(stacks[tid][-1]):
            kept[tid] = stacks[tid][:-1]
    return kept


def join(opening: Opening, calls: np.ndarray) -> tuple[Stacks, np.ndarray, int]:
    """What was open, by thread, and what came after it: (frames outermost first, call_event records, frames that could not be read).

    `calls` are the call_event records of the process since the probes were attached. What it did before its open
    frames were known is left out, so that what is kept is consistent.
    """
    is_open = calls["kind"] == CallKind.OPEN
    opened, calls = calls[is_open], calls[~is_open]
    early = calls["ts"] < opening.walk_ns
    unread = 0
    stacks: Stacks = {}
    for tid in {*opening.stacks, *opened["pid_tgid"].astype(np.uint32).tolist()}:
        pid_tgid = np.uint64(opening.target.pid << 32 | tid)
        stack = opening.stacks.get(tid, [])
        if tid in opening.walked:
            walked = opened[opened["pid_tgid"] == pid_tgid]  # innermost first
            if len(walked):
                thread_calls = calls["pid_tgid"] == pid_tgid
                early[thread_calls] = calls["ts"][thread_calls] < walked["ts"][0]
            stack, missing = _join(stack, walked, opening.walked[tid])
            unread += missing
        stacks[tid] = stack
    return stacks, calls[~early], unread


class OpenCalls:
    """The CALL_OPEN events of a process, once its code has names."""

    def __init__(self, opening: Opening, stacks: Stacks, ids: ProbeIds) -> None:
        """Read the code of these frames, and have `ids` name it."""
        self._opening, self._stacks = opening, stacks
        self._func_ids: dict[int, int | None] = {}  # by the code object's address; None: the interpreter's own
        wanted = sorted({frame.code_address for stack in stacks.values() for frame in stack})
        infos, codes = read_codes(opening.target, wanted), []
        for address in wanted:
            info = infos.get(address)
            if info is None or info.is_shim:
                self._func_ids[address] = UNKNOWN if info is None else None
                continue
            put = partial(self._func_ids.__setitem__, address)
            codes.append(Code(info.file, info.name, info.qualname or "", info.first_line, info.flags, 0, put))
        self._number = len(wanted)
        ids.ask(opening.target.pid, codes)

    def are_named(self) -> bool:
        """Whether all have names."""
        return len(self._func_ids) == self._number

    def records(self, dtype: np.dtype) -> np.ndarray:
        """As call_event records with func_ids, thread by thread."""
        rows = [np.zeros(0, dtype)]
        for tid, stack in self._stacks.items():
            named = [(_token(frame), func) for frame in stack if (func := self._func_ids[frame.code_address]) is not None]
            thread = np.zeros(len(named), dtype)
            thread["ts"], thread["pid_tgid"] = self._opening.start_ns, np.uint64(self._opening.target.pid << 32 | tid)
            thread["kind"], thread["line"] = CallKind.OPEN, -1
            thread["frame"] = [frame for frame, _ in named]
            thread["func"] = np.array([func for _, func in named], np.int32).view(np.uint32)
            rows.append(thread)
        return np.concatenate(rows)


class Innermost:
    """Frames read from outside that may still be before their entry event.

    A thread can wait for the GIL in a frame whose entry has not fired yet. Should the
    thread's first event be the entry of the frame that was read as its innermost, the
    call is in the trace already, and that event is dropped.
    """

    def __init__(self) -> None:
        self._frames: dict[int, int] = {}  # tid -> events.frame

    def expect(self, opening: Opening) -> None:
        """Take in the threads of `opening` that had no event yet."""
        for tid, stack in opening.stacks.items():
            if tid not in opening.walked and stack:
                self._frames[tid] = _token(stack[-1])

    def drop_entered(self, calls: Columns) -> Columns:
        """`calls` without the first event of each such thread where it is the entry of that frame."""
        if not self._frames or not len(calls["ts"]):
            return calls
        mine = np.isin(calls["tid"], np.array(list(self._frames), np.int32))
        candidates = np.flatnonzero(mine & (calls["kind"] != CallKind.OPEN))
        threads, first = np.unique(calls["tid"][candidates], return_index=True)
        keep = np.ones(len(calls["ts"]), bool)
        for tid, at in zip(threads.tolist(), candidates[first].tolist(), strict=True):
            frame = self._frames.pop(tid)
            keep[at] = calls["kind"][at] not in (CallKind.ENTRY, CallKind.RESUME) or calls["frame"][at] != frame
        return calls if keep.all() else where(calls, keep)


def _token(frame: OpenFrame) -> int:
    return frame.frame_address >> 3 & 0xFFFFFFFF


def _join(stack: list[OpenFrame], walked: np.ndarray, rest: int) -> tuple[list[OpenFrame], int]:
    """The walked frames, outermost first, below what was read from outside of the part not walked: frames up to `rest`."""
    inner = [OpenFrame(int(row["frame"]) << 3, int(row["func"]) | (int(row["line"]) & 0xFFFFFFFF) << 32) for row in walked[::-1]]
    if not rest:
        return inner, 0
    outer = [i for i, frame in enumerate(stack) if frame.frame_address == rest]
    return (stack[: outer[0] + 1] + inner, 0) if outer else (inner, 1)
