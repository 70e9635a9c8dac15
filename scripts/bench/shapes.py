"""Traces that are large in one way each, for bounds.py: made segment by segment, as a recorder writes them."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from synthetic import GIL, Row, table_of, write_trace

from pytrace_ebpf.record.output.events_part import write_events
from pytrace_ebpf.trace.schema import MANIFEST, TABLES, CallKind, SchedKind

E, R, UNWIND, RESUME, YIELD = (int(kind) for kind in (CallKind.ENTRY, CallKind.RETURN, CallKind.UNWIND, CallKind.RESUME, CallKind.YIELD))
GENERATOR = 0x20  # co_flags
FUTEX = 202
_OF_SEGMENT = 250_000  # repetitions

Columns = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """What is many; so many of it at full size; the events of the repetitions from one to another, and the scheduling, both as columns of the
    schema; functions, threads and processes that they name."""

    title: str
    full: int
    events: Callable[[int, int], Columns]
    sched: Callable[[int, int], Columns] = lambda first, last: {}
    functions: Callable[[int], list[Row]] = lambda many: [function(k) for k in range(3)]
    threads: Callable[[int], list[tuple[int, int]]] = lambda many: [(1, 1)]
    step: int = 10  # ns that one repetition takes


def function(number: int, flags: int = 0) -> Row:
    """A row of schema.FUNCTIONS."""
    return (number, f"/app/module{number % 1000}.py", f"f{number}", f"f{number}", 1 + number // 1000, f"module{number % 1000}", flags, "python")


def repeated(first: int, last: int, step: int, **each: list[int]) -> Columns:
    """Columns of an event sequence that is repeated; `at`: when its events come, in the repetition's `step` ns."""
    at = each.pop("at")
    ts = (np.arange(first, last)[:, None] * step + np.asarray(at)).ravel()
    return {"ts": ts, **{name: np.tile(np.asarray(values), last - first) for name, values in each.items()}}


def _generators(first: int, last: int) -> Columns:
    """A plain function makes a generator, takes one value, and drops it; of one in twenty it takes another. Their memory is used again."""
    columns = repeated(
        first, last, 10, at=[0, 1, 2, 3, 4, 9], kind=[E, E, YIELD, RESUME, R, R], func_id=[1, 2, 2, 2, 2, 1], frame=[16, 0, 0, 0, 0, 16]
    )
    number = np.repeat(np.arange(first, last), 6)
    columns["frame"] = np.where(columns["frame"], 16, 1024 + 16 * (number % 64))
    once = (number % 20 != 0) & np.isin(columns["ts"] % 10, (3, 4))
    return {name: column[~once] for name, column in columns.items()}


def _calls_of(functions: int) -> Callable[[int, int], Columns]:
    def events(first: int, last: int) -> Columns:
        columns = repeated(first, last, 10, at=[0, 9], kind=[E, R], func_id=[0, 0], frame=[16, 16])
        return columns | {"func_id": np.repeat(np.arange(first, last) % functions, 2)}

    return events


def _of_threads(first: int, last: int) -> Columns:
    columns = repeated(first, last, 10, at=[0, 2, 4, 8], kind=[E, E, R, R], func_id=[0, 1, 1, 0], frame=[16, 32, 32, 16])
    return columns | {"tid": np.repeat(100 + np.arange(first, last), 4)}


def _waits(address: Callable[[np.ndarray], np.ndarray]) -> Callable[[int, int], Columns]:
    def sched(first: int, last: int) -> Columns:
        columns = repeated(
            first, last, 10, at=[2, 5, 6], kind=[SchedKind.OUT, SchedKind.WAKING, SchedKind.IN], state=[1, 0, 0], syscall=[FUTEX, -1, -1]
        )
        return columns | {
            "address": np.where(columns["syscall"] == FUTEX, np.repeat(address(np.arange(first, last)), 3), 0),
            "cpu": 0,
            "holder_tid": -1,
        }

    return sched


SHAPES = {
    "generators": Shape("generators, 95 % of them abandoned", 10_000_000, _generators, functions=lambda many: [function(0), function(1), function(2, GENERATOR)]),
    "exceptions": Shape(
        "exceptions raised", 10_000_000,
        lambda first, last: repeated(first, last, 10, at=[0, 1, 5, 8], kind=[E, E, UNWIND, R], func_id=[0, 1, 1, 0], frame=[16, 32, 32, 16]),
    ),
    "functions": Shape("functions", 1_000_000, _calls_of(1_000_000), functions=lambda many: [function(k) for k in range(many)]),
    "short-threads": Shape("short threads", 100_000, _of_threads, threads=lambda many: [(1, 100 + k) for k in range(many)]),
    "many-processes": Shape(
        "processes", 10_000, lambda first, last: (own := _of_threads(first, last)) | {"pid": own["tid"]},
        threads=lambda many: [(100 + k, 100 + k) for k in range(many)],
    ),
    "waits": Shape("waits", 50_000_000, _calls_of(3), _waits(lambda number: np.full(len(number), 4096))),
    "locks": Shape("locks", 1_000_000, _calls_of(3), _waits(lambda number: 65536 + 64 * number)),
    "requests": Shape(
        "requests", 1_000_000,
        lambda first, last: repeated(first, last, 10, at=[0, 1, 3, 8], kind=[E, E, R, R], func_id=[1, 2, 2, 1], frame=[16, 32, 32, 16]),
    ),
}  # fmt: skip


def pieces(many: int) -> Iterator[tuple[int, int]]:
    """The repetitions of each segment."""
    for first in range(0, many, _OF_SEGMENT):
        yield first, min(first + _OF_SEGMENT, many)


def filled(table: str, columns: Columns) -> pa.Table:
    """Columns of a table, with what is left out: of one process and thread."""
    rows, default = len(columns["ts"]), {"pid": 1, "tid": 1, "line": 1}
    arrow = TABLES[table].arrow
    return pa.table({name: np.broadcast_to(np.asarray(columns.get(name, default.get(name, 0))), rows) for name in arrow.names}).cast(arrow)


def make(path: Path, shape: Shape, many: int) -> Path:
    """A trace with so many of it."""
    spans = list(pieces(many))
    threads = shape.threads(many)
    write_trace(
        path,
        threads=[(pid, tid, f"worker-{tid}", 0, None) for pid, tid in threads],
        processes=[(pid, 0, "/usr/bin/python3", "python3 app.py", "3.13.5", "agent", *GIL, 0, None) for pid in sorted({pid for pid, _ in threads})],
        end_ns=many * shape.step,
        cuts=[last * shape.step for _, last in spans[:-1]],
    )
    manifest = json.loads((path / MANIFEST).read_text())
    for name in ("events", "sched", "functions"):
        (path / name).mkdir(exist_ok=True)
    pq.write_table(table_of("functions", shape.functions(many)), path / "functions" / "part-00000.parquet")
    manifest["segments"][0]["rows"]["functions"] = len(shape.functions(many))
    for number, (first, last) in enumerate(spans):
        rows = manifest["segments"][number]["rows"]
        events = filled("events", shape.events(first, last))
        with (path / "events" / f"part-{number:05d}.parquet").open("wb") as file:
            write_events(file, events)
        rows["events"] = len(events)
        snapshot = {"ts": [0], "kind": [SchedKind.SNAPSHOT], "syscall": [-1], "holder_tid": [-1]}
        columns = shape.sched(first, last)
        parts = [filled("sched", snapshot)] * (number == 0) + ([filled("sched", columns)] if columns else [])
        if parts:
            sched = pa.concat_tables(parts)
            pq.write_table(sched, path / "sched" / f"part-{number:05d}.parquet")
            rows["sched"] = len(sched)
    (path / MANIFEST).write_text(json.dumps(manifest))
    return path
