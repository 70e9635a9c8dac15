"""The stacks of threads that are off the core when recording ends: no program will see them come back, so user space reads them."""

import struct
from collections.abc import Mapping

import numpy as np

from pytrace_ebpf.record.cpython.frames import OpenFrame, open_frames
from pytrace_ebpf.record.cpython.layout import Layout
from pytrace_ebpf.record.cpython.lines import identity_of
from pytrace_ebpf.record.process.memory import Memory, MemoryFault
from pytrace_ebpf.record.process.target import Target

MOST_FRAMES = 1024  # of a stack, as in the kernel half


def stacks_of(target: Target, frame: np.dtype) -> Mapping[int, np.ndarray]:
    """The stacks of a process's threads by thread id: records of dtype `frame` (struct sample_frame), innermost first.

    A thread that runs meanwhile has any stack, or none. A thread without Python frames is left out. Nothing is raised.
    """
    found: dict[int, np.ndarray] = {}
    if target.layout is None:
        return found
    known: dict[int, int] = {}  # identities by address
    for tid, frames in open_frames(target, everywhere=True).items():
        try:
            rows = [_frame(target.memory, target.layout, each, known) for each in frames[::-1][:MOST_FRAMES]]
        except (MemoryFault, struct.error):
            continue
        found[tid] = np.array(rows, frame)
    return found


def _frame(memory: Memory, layout: Layout, frame: OpenFrame, known: dict[int, int]) -> tuple[int, int, int]:
    """struct sample_frame."""
    code = frame.code_address
    if code not in known:
        known[code] = identity_of(memory, layout, code, memory.i32(code + layout.code_first_line))
    if layout.code_start is None:
        return code, known[code], memory.i32(frame.frame_address + layout.frame_position)
    position = memory.u64(frame.frame_address + layout.frame_position) - (code + layout.code_start)
    return code, known[code], position if abs(position) < 1 << 31 else -1
