"""Ring records to Arrow tables of the trace format."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pytrace_ebpf.trace import schema
from pytrace_ebpf.trace.schema import CallKind, SchedKind


def split_at(batches: list[np.ndarray], ts: int) -> tuple[np.ndarray | None, list[np.ndarray]]:
    """Cut batches of records with a `ts` field into those before `ts`, joined, and those from it on.

    Returns (None, batches) where there is none before.
    """
    if not batches:
        return None, []
    joined = np.concatenate(batches) if len(batches) > 1 else batches[0]
    before = joined["ts"] < ts
    if before.all():
        return joined, []
    kept = joined[before]
    return (kept if len(kept) else None), [joined[~before]]


def events_table(events: np.ndarray) -> pa.Table:
    """call_event records (func already a func_id) to the `events` table, grouped by thread."""
    tid = events["pid_tgid"].astype(np.uint32).view(np.int32)
    special = events["kind"] > CallKind.RETURN
    if special.any():
        # OPEN rows carry the time recording began: they sort before everything else of their thread.
        order = np.lexsort((np.where(events["kind"] == CallKind.OPEN, 0, events["ts"]), tid))
    elif (tid[1:] != tid[:-1]).any():
        order = np.argsort(tid, kind="stable")
    else:
        order = None
    if order is not None:
        events, tid = events[order], tid[order]
    return _table(
        schema.EVENTS,
        {
            "ts": events["ts"].astype(np.int64),
            "pid": (events["pid_tgid"] >> np.uint64(32)).astype(np.int32),
            "tid": tid,
            "kind": events["kind"].astype(np.int8),
            "func_id": events["func"].astype(np.int32),
            "frame": events["frame"].astype(np.int64),
            "line": events["line"],
        },
    )


def sched_table(events: np.ndarray) -> pa.Table:
    """sched_event records to the `sched` table, sorted by time."""
    events = events[np.argsort(events["ts"], kind="stable")]
    return _table(
        schema.SCHED,
        {
            "ts": events["ts"].astype(np.int64),
            "pid": events["pid"].astype(np.int32),
            "tid": events["tid"].astype(np.int32),
            "kind": events["kind"].astype(np.int8),
            "cpu": np.where(events["kind"] == SchedKind.EXEC, -1, events["cpu"]).astype(np.int16),
            "state": events["state"].astype(np.int32),
            "syscall": events["syscall"],
            "address": events["address"].astype(np.int64),
            "other_pid": events["other_pid"].astype(np.int32),
            "other_tid": events["other"].astype(np.int32),
        },
    )


def rows_table(table: schema.Table, rows: Sequence[dict[str, Any]]) -> pa.Table:
    """A small table from dictionaries."""
    return pa.Table.from_pylist(list(rows), schema=table.arrow)


def _table(table: schema.Table, columns: dict[str, np.ndarray]) -> pa.Table:
    return pa.table({name: np.ascontiguousarray(values) for name, values in columns.items()}, schema=table.arrow)
