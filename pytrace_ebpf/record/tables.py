"""Ring records to Arrow tables of the trace format."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pytrace_ebpf.trace import schema
from pytrace_ebpf.trace.schema import CallKind, SchedKind

Columns = dict[str, np.ndarray]  # of one table, all of the same length


def call_columns(records: np.ndarray) -> Columns:
    """call_event records as columns of `events`, func_id being what `func` is; cheapest right at the drain, in cache."""
    return {
        **when_and_who(records),
        "kind": records["kind"].astype(np.int8),
        "func_id": records["func"].astype(np.int32),
        "frame": records["frame"].astype(np.int64),
        "line": records["line"].astype(np.int32),
    }


def when_and_who(records: np.ndarray) -> Columns:
    """ts, pid and tid of records that have ts and pid_tgid."""
    process_and_thread = records["pid_tgid"]
    return {
        "ts": records["ts"].astype(np.int64),
        "pid": (process_and_thread >> np.uint64(32)).astype(np.int32),
        "tid": process_and_thread.astype(np.uint32).view(np.int32),
    }


def sched_columns(records: np.ndarray) -> Columns:
    """sched_event records as columns of `sched`."""
    return {
        "ts": records["ts"].astype(np.int64),
        "pid": records["pid"].astype(np.int32),
        "tid": records["tid"].astype(np.int32),
        "kind": records["kind"].astype(np.int8),
        "cpu": np.where(records["kind"] == SchedKind.EXEC, -1, records["cpu"]).astype(np.int16),
        "state": records["state"].astype(np.int32),
        "syscall": records["syscall"].astype(np.int32),
        "address": records["address"].astype(np.int64),
        "other_pid": records["other_pid"].astype(np.int32),
        "other_tid": records["other"].astype(np.int32),
        "holder_tid": records["holder"].astype(np.int32),
    }


def where(columns: Columns, rows: np.ndarray) -> Columns:
    """The rows of a mask or of positions."""
    return {name: column[rows] for name, column in columns.items()}


def cut_at(batches: list[Columns], ts: int) -> tuple[Columns | None, list[Columns]]:
    """Cut batches into the rows before `ts`, joined, and batches of those from it on; None where none is before."""
    before: list[Columns] = []
    after: list[Columns] = []
    for batch in batches:  # nearly in the order of time: only few need to be looked at row by row
        if int(batch["ts"].max()) < ts:
            before.append(batch)
            continue
        early = batch["ts"] < ts
        before.append(where(batch, early))
        after.append(where(batch, ~early))
    if not any(len(batch["ts"]) for batch in before):
        return None, after
    return {name: np.concatenate([batch[name] for batch in before]) for name in before[0]}, after


def events_table(columns: Columns, streams: bool = False) -> pa.Table:
    """The `events` table, grouped by thread, each in its own order; `streams`: a thread's rows may come from several rings."""
    if streams or np.isin(columns["kind"], (CallKind.OPEN, CallKind.RESET)).any():
        # Only their time says where rows belong that come in beside the ring, as OPEN and RESET do.
        order = np.lexsort((columns["ts"], columns["tid"]))
    elif (columns["tid"][1:] != columns["tid"][:-1]).any():
        order = np.argsort(columns["tid"], kind="stable")
    else:
        return pa.table(columns, schema=schema.EVENTS.arrow)
    return pa.table(where(columns, order), schema=schema.EVENTS.arrow)


def by_time(table: schema.Table, columns: Columns) -> pa.Table:
    """A table of scheduling, sorted by time; what is negative in a column that may be null is null."""
    rows = where(columns, np.argsort(columns["ts"], kind="stable"))
    nullable = {column.name for column in table.columns if column.nullable}
    arrays = {name: pa.array(row, mask=row < 0 if name in nullable else None) for name, row in rows.items()}
    return pa.table(arrays, schema=table.arrow)


def errors_table(columns: Columns) -> pa.Table:
    """The `errors` table."""
    return pa.table(columns, schema=schema.ERRORS.arrow)


def warm_up() -> None:
    """Let the first conversion import pandas now, not while events are coming in."""
    pa.table({"warm": np.zeros(1)})


def rows_table(table: schema.Table, rows: Sequence[dict[str, Any]]) -> pa.Table:
    """A small table from dictionaries."""
    return pa.Table.from_pylist(list(rows), schema=table.arrow)
