"""Open frames that are read from outside, against the events that the probes had reported by then."""

import numpy as np
import pytest

from pytrace_ebpf.record.cpython.frames import OpenFrame
from pytrace_ebpf.record.cpython.opening import Stacks, still_open
from pytrace_ebpf.trace.schema import CallKind

RECORD = np.dtype([("ts", "<u8"), ("pid_tgid", "<u8"), ("frame", "<u4"), ("kind", "<u4")])
PID, BEFORE_NS = 100, 1000
OUTER, INNER = OpenFrame(0x7000_0000_1000, 1), OpenFrame(0x7000_0000_1080, 2)


def reported(*events: tuple[int, int, OpenFrame, CallKind]) -> np.ndarray:
    rows = [(ts, PID << 32 | tid, frame.frame_address >> 3 & 0xFFFFFFFF, kind) for ts, tid, frame, kind in events]
    return np.array(rows, RECORD)


@pytest.mark.parametrize("kind", [CallKind.RETURN, CallKind.YIELD])
def test_a_frame_whose_return_was_reported_is_not_open(kind: CallKind) -> None:
    stacks: Stacks = {1: [OUTER, INNER], 2: [OUTER, INNER]}
    calls = reported((900, 1, INNER, CallKind.ENTRY), (990, 1, INNER, kind), (995, 2, INNER, CallKind.ENTRY))
    assert still_open(stacks, (), calls, BEFORE_NS) == {1: [OUTER], 2: [OUTER, INNER]}


@pytest.mark.parametrize(
    "calls",
    [
        reported(),
        reported((900, 1, INNER, CallKind.RETURN), (990, 1, INNER, CallKind.ENTRY)),  # its place was taken again
        reported((990, 1, OUTER, CallKind.RETURN)),  # of a recursion: not this one
        reported((990, 1, INNER, CallKind.OPEN)),
        reported((990, 3, INNER, CallKind.RETURN)),  # of another thread
        reported((1010, 1, INNER, CallKind.RETURN)),  # it is in the trace
    ],
)
def test_a_frame_whose_return_was_not_reported_is_open(calls: np.ndarray) -> None:
    assert still_open({1: [OUTER, INNER]}, (), calls, BEFORE_NS) == {1: [OUTER, INNER]}


def test_a_walk_by_the_probes_wins() -> None:
    calls = reported((990, 1, INNER, CallKind.RETURN))
    assert still_open({1: [OUTER, INNER]}, {1: 0}, calls, BEFORE_NS) == {1: [OUTER, INNER]}
