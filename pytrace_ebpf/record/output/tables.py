"""Ring records and rows to columns, and columns to Arrow tables of the trace format."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from pytrace_ebpf.lazy_imports import pa
from pytrace_ebpf.trace import schema
from pytrace_ebpf.trace.schema import CallKind, SchedKind

Columns = dict[str, np.ndarray]  # of one table, all of the same length

_LONG_RUN = 100  # rows of one thread: so many are sliced in less time than copied


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
        "cpu": np.where(records["kind"] == SchedKind.EXEC, -1, records["cpu"].astype(np.int16)),
        "state": records["state"].astype(np.int32),
        "syscall": records["syscall"].astype(np.int32),
        "address": records["address"].astype(np.int64),
        "other_pid": records["other_pid"].astype(np.int32),
        "other_tid": records["other"].astype(np.int32),
        "holder_tid": records["holder"].astype(np.int32),
        "resource_id": records["resource"].astype(np.int64),
    }


def where(columns: Columns, rows: np.ndarray | slice) -> Columns:
    """The rows of a mask or of positions, or without a copy those of a slice."""
    return {name: column[rows] for name, column in columns.items()}


def cut_at(batches: list[Columns], ts: int) -> tuple[list[Columns], list[Columns]]:
    """Cut batches, none of them empty, into the rows before `ts` and those from it on."""
    before: list[Columns] = []
    after: list[Columns] = []
    for batch in batches:  # nearly in the order of time: only few need to be looked at row by row
        if int(batch["ts"].max()) < ts:
            before.append(batch)
            continue
        early = batch["ts"] < ts
        starts = _starts(early)
        if len(early) < _LONG_RUN * len(starts):
            parts = [where(batch, early), where(batch, ~early)]
        else:  # the memory stays where it is
            parts = [where(batch, slice(*run)) for run in itertools.pairwise([*starts.tolist(), len(early)])]
        for part in parts:
            if length(part):
                (before if part["ts"][0] < ts else after).append(part)
    return before, after


def joined(batches: list[Columns]) -> Columns:
    """Batches, of which there is one at least, as one."""
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def events_table(batches: list[Columns], streams: bool = False) -> pa.Table:
    """The `events` table of batches, grouped by thread, each in its own order; `streams`: a thread's rows may come from several rings.

    Where a batch has long runs of one thread, as the agent's have, their memory becomes the table's as it is.
    """
    starts = [_starts(batch["tid"]) for batch in batches]
    long = sum(len(batch["ts"]) for batch in batches) >= _LONG_RUN * sum(map(len, starts))
    if streams or not long or (any(_beside_the_ring(batch) for batch in batches) and not _in_order(batches)):
        columns = joined(batches)
        # Rows that do not come through the ring, such as OPEN and RESET, have their place by time alone.
        by_time = streams or _beside_the_ring(columns)
        order = np.lexsort((columns["ts"], columns["tid"])) if by_time else np.argsort(columns["tid"], kind="stable")
        return pa.table(where(columns, order), schema=schema.EVENTS.arrow)
    runs: list[tuple[int, pa.RecordBatch]] = []
    for batch, start in zip(batches, starts, strict=True):
        rows = pa.record_batch(batch, schema=schema.EVENTS.arrow)
        ends = [*start[1:].tolist(), len(batch["ts"])]
        runs += [(int(batch["tid"][begin]), rows.slice(begin, end - begin)) for begin, end in zip(start.tolist(), ends, strict=True)]
    return pa.Table.from_batches([rows for _, rows in sorted(runs, key=lambda run: run[0])])


def _starts(values: np.ndarray) -> np.ndarray:
    """Where runs of one value begin."""
    return np.concatenate(([0], np.flatnonzero(values[1:] != values[:-1]) + 1))


def _beside_the_ring(columns: Columns) -> bool:
    return bool((columns["kind"] >> 1 == CallKind.OPEN >> 1).any())


def _in_order(batches: list[Columns]) -> bool:
    """Whether every thread's rows are in the order of time as they come."""
    last: dict[int, int] = {}
    for batch in batches:
        ts, tid, start = batch["ts"], batch["tid"], _starts(batch["tid"])
        backwards = np.diff(ts, prepend=ts[0]) < 0
        for thread, began, ended in zip(tid[start].tolist(), ts[start].tolist(), ts[np.append(start[1:], len(ts)) - 1].tolist(), strict=True):
            if began < last.get(thread, began):
                return False
            last[thread] = ended
        backwards[start] = False
        if backwards.any():
            return False
    return True


def by_time(table: schema.Table, columns: Columns) -> pa.Table:
    """A table of moments, sorted by time; what is negative, or no object, in a column that may be null is null."""
    rows = where(columns, np.argsort(columns["ts"], kind="stable"))
    nullable = {column.name for column in table.columns if column.nullable}
    arrays = {name: row if row.dtype == object else pa.array(row, mask=row < 0 if name in nullable else None) for name, row in rows.items()}
    return pa.table(arrays, schema=table.arrow)


def as_they_come(table: schema.Table, columns: Columns) -> pa.Table:
    """Any table, its rows in no other order."""
    return pa.table(columns, schema=table.arrow)


def columns_of(rows: Sequence[dict[str, Any]]) -> Columns:
    """Few rows as columns of Python's objects; no column where there is no row."""
    return {name: np.fromiter((row[name] for row in rows), object, len(rows)) for name in rows[0]} if rows else {}


def length(columns: Columns) -> int:
    """The number of rows."""
    return len(next(iter(columns.values()), ()))
