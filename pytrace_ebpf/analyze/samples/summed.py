"""Samples that were summed as they were taken (schema.PROFILE), as samples again: of the same stacks, which stand for the same time."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.trace.profile import RARE, SQUARES
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import STACKS
from pytrace_ebpf.trace.states import SPLIT, SYSCALL_UNKNOWN

_TIMES = (*SPLIT, "unknown_ns")
_KEY = ["pid", "stack_id"]

Ints = npt.NDArray[np.int64]


def summed(trace: Trace) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """(samples, stacks) as samples.paths.segments gives them, some windows at a time.

    A row of samples is all those of a process with the same stack that were on a core, or of those off it (off_ns 1): `samples` says how
    many. They have no moment (ts: when the first window began), and no thread (tid is pid).
    """
    for rows in trace.profile_by_part():
        if len(rows):
            yield _as_samples(rows)


def _as_samples(rows: pa.Table) -> tuple[pd.DataFrame, pd.DataFrame]:
    stack, stacks = _stacks(rows)
    first = int(rows["start_ns"].to_numpy().min())
    columns = {name: rows[name].to_numpy() for name in ("samples", "off_samples", "missed", *_TIMES, *SQUARES)}
    whole = pd.DataFrame({"pid": rows["pid"].to_numpy(), "stack_id": stack, **columns})
    whole = whole[(whole["samples"] > 0) | (whole["off_samples"] > 0)].groupby(_KEY, as_index=False).sum()
    on = whole.loc[whole["samples"] > 0, [*_KEY, "samples", "missed", "on_cpu_ns"]].assign(off_ns=0)
    off = (
        whole.loc[whole["off_samples"] > 0]
        .drop(columns=["samples", "missed", "on_cpu_ns"])
        .rename(columns={"off_samples": "samples"})
        .assign(off_ns=1)
    )
    found = pd.concat([on, off], ignore_index=True)
    missing = {name: found[name].fillna(0) if name in found else 0 for name in (*_TIMES, *SQUARES, "on_cpu_square", "unknown_square", "missed")}
    found = found.assign(**missing, tid=found["pid"], ts=first, cpu=-1, opcode=-1, state=-1, task=None, syscall=SYSCALL_UNKNOWN, resource_id=0)
    whole_numbers = ["samples", "missed", *_TIMES]
    found[whole_numbers] = found[whole_numbers].astype(np.int64)
    found["total_ns"] = found[list(_TIMES)].sum(axis=1)
    return found, stacks


def _stacks(rows: pa.Table) -> tuple[Ints, pd.DataFrame]:
    """Of each row its stack, the same in all windows and processes, and the stacks (schema.STACKS), a caller before its callees."""
    node, parent, func_id, line, start = (rows[name].to_numpy().astype(np.int64) for name in ("node_id", "parent_id", "func_id", "line", "start_ns"))
    _, window = np.unique(start, return_inverse=True)
    key, above = window << 32 | node, window << 32 | parent
    order = np.argsort(key)
    stack = np.where(node >= 0, -1, node)
    at, parts, next_id = np.flatnonzero((node >= 0) & (parent < 0)), list[tuple[Ints, ...]](), 0
    if (rare := node == RARE).any():
        parts.append((np.zeros(1, np.int64), np.full(1, -1), np.full(1, -1), np.full(1, -1)))
        stack[rare], next_id = 0, 1
    callers = order[np.minimum(np.searchsorted(key, above, sorter=order), len(key) - 1)]
    known = (parent >= 0) & (key[callers] == above) & (callers != np.arange(len(key)))
    by_caller = np.argsort(np.where(known, callers, -1), kind="stable")
    first = np.searchsorted(np.where(known, callers, -1)[by_caller], np.arange(len(key)))
    count = np.bincount(callers[known], minlength=len(key))
    for _ in range(len(key)):
        if not len(at):
            break
        caller = np.where(known[at], stack[callers[at]], -1)
        unique, which = np.unique(np.stack([caller, func_id[at], line[at]], axis=1), axis=0, return_inverse=True)
        stack[at] = next_id + which.reshape(-1)
        parts.append((next_id + np.arange(len(unique)), *unique.T))
        next_id += len(unique)
        ends = np.cumsum(count[at])
        at = by_caller[np.repeat(first[at], count[at]) + np.arange(ends[-1]) - np.repeat(ends - count[at], count[at])]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else [np.zeros(0, np.int64)] * 4
    types = zip(STACKS.arrow.names, STACKS.arrow.types, strict=True)
    return stack, pd.DataFrame({name: column.astype(kind.to_pandas_dtype()) for (name, kind), column in zip(types, columns, strict=True)})
