"""The stacks of threads that are off the core when recording ends: no program will see them come back, so user space reads them."""

import struct
from collections.abc import Mapping

import numpy as np

from pytrace_ebpf.record.cpython.frames import open_frames
from pytrace_ebpf.record.cpython.lines import place_of
from pytrace_ebpf.record.process.memory import MemoryFault
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
            rows = [place_of(target.memory, target.layout, each.frame_address, each.code_address, known) for each in frames[::-1][:MOST_FRAMES]]
        except (MemoryFault, struct.error):
            continue
        found[tid] = np.array(rows, frame)
    return found
