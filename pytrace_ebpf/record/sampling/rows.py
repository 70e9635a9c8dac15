"""Rows of `samples` of what the kernel half reports."""

import numpy as np

from pytrace_ebpf.record.output import tables
from pytrace_ebpf.record.output.tables import Columns

MOST_MISSED = 1 << 24  # as trace/limits.py has it


def columns(samples: np.ndarray, stack_id: np.ndarray, tasks: np.ndarray) -> Columns:
    """Columns of `samples`, with the numbers of their stacks and the names of their tasks."""
    return {
        **tables.when_and_who(samples),
        "cpu": samples["cpu"].astype(np.int16),
        "stack_id": stack_id,
        "off_ns": samples["off_ns"].astype(np.int64),
        "missed": np.minimum(samples["missed"], MOST_MISSED).astype(np.int32),
        "opcode": np.where(samples["opcode"] > 255, -1, samples["opcode"].astype(np.int16)),
        "state": samples["state"].astype(np.int8) - np.int8(1),
        "task": tasks,
        "syscall": samples["syscall"].astype(np.int32),
        "resource_id": samples["resource"].astype(np.int64),
    }
