"""Reconstruction at its edges: many threads, many processes, depth, contexts; memory follows what is open and not how long a trace is."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pytrace_ebpf.derive.calls import rows as call_rows
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.trace.schema import TABLES, CallKind

PIECE = 1 << 16


def events(**columns: object) -> pa.Table:
    """Rows of schema.EVENTS; a column may be one number."""
    rows = len(columns["ts"])  # type: ignore[arg-type]
    return pa.table({name: np.broadcast_to(np.asarray(columns.get(name, 1)), rows) for name in TABLES["events"].arrow.names}).cast(
        TABLES["events"].arrow
    )


def engine(threads: list[tuple[int, int]], functions: int, nodes: int, rows: bool = False) -> Engine:
    """One that knows so many threads (pid, tid) and functions, each of a module of its own."""
    made = Engine(0, by_cputime=False, rows=rows, nodes=nodes)
    none = np.zeros((0, 2), np.int64)
    made.losses(none, none)
    made.functions(np.zeros(functions, np.int32), np.arange(functions, dtype=np.int32))
    pids = sorted({pid for pid, _ in threads})
    made.processes(pids, *([0] * len(pids) for _ in range(3)))
    made.threads([pid for pid, _ in threads], [tid for _, tid in threads], [0] * len(threads), [-1] * len(threads))
    return made


def taken(made: Engine, batches: Iterator[pa.Table], end_ns: int) -> int:
    """How many rows of calls the events of one segment made."""
    return sum(made.take(batches, end_ns, PIECE)) + made.finish(end_ns)


def call_and_return(count: int) -> dict[str, np.ndarray]:
    """A call of main that calls f `count` times."""
    kind = np.array([CallKind.ENTRY, *[CallKind.ENTRY, CallKind.RETURN] * count, CallKind.RETURN])
    inner = np.array([0, *[1, 1] * count, 0])
    return {"ts": np.arange(len(kind)), "kind": kind, "func_id": inner, "frame": 16 + 16 * inner}


@pytest.mark.parametrize(
    "threads", [[(1, 1 + k) for k in range(10_000)], [(1 + k // 10, 1000 + k) for k in range(1000)]], ids=["10,000 threads", "100 processes"]
)
def test_every_thread_has_its_own_calls(threads: list[tuple[int, int]]) -> None:
    own = call_and_return(3)
    made = engine(threads, 2, 1 << 20, rows=True)
    parts = (events(**own, pid=pid, tid=tid) for pid, tid in threads)
    found = []
    for count in made.take([pa.concat_tables(parts)], 100, PIECE):
        found.append(
            call_rows.table(made.rows(), True).select(["call_id", "pid", "tid", "depth", "wall_ns"]).combine_chunks().to_pandas() if count else None
        )
    assert made.finish(100) == len(threads)  # the last call of each thread, whose next sibling is not known before
    rows = sum(len(frame) for frame in found if frame is not None)
    assert rows == 3 * len(threads)
    nodes = made.nodes()
    assert len(nodes) == 1 + 3 * len(threads)
    assert nodes["calls"][nodes["depth"] == 1].tolist() == [3] * len(threads)
    assert len(made.save()) < 2000 * len(threads)


def up_and_down(depth: int) -> dict[str, np.ndarray]:
    """A function that calls itself, `depth` calls in all."""
    frames = 16 + 16 * np.arange(depth)
    kind = np.repeat([CallKind.ENTRY, CallKind.RETURN], depth)
    return {"ts": np.arange(2 * depth), "kind": kind, "func_id": np.zeros(2 * depth, np.int32), "frame": np.concatenate((frames, frames[::-1]))}


def test_a_depth_of_a_hundred_thousand() -> None:
    depth = 100_000
    made = engine([(1, 1)], 1, 1 << 20)
    table = events(**up_and_down(depth), pid=1, tid=1)
    taken(made, iter([table.slice(0, depth), table.slice(depth)]), 2 * depth)
    nodes = made.nodes()
    assert nodes["depth"].max() == depth - 1 and len(nodes) == depth + 2
    assert nodes["total"]["wall"][nodes["depth"] >= 0].tolist() == list(range(2 * depth - 1, 0, -2))
    assert nodes["outermost"][2:].tolist() == [3] + [0] * (depth - 1)


def test_the_nodes_of_a_tree_keep_the_engine_in_whose_memory_they_are() -> None:
    made = engine([(1, 1)], 1, 1 << 20)
    taken(made, iter([events(**up_and_down(100), pid=1, tid=1)]), 200)
    nodes, alive = made.nodes(), weakref.ref(made)
    del made
    gc.collect()
    assert alive() is not None and nodes["depth"].max() == 99
    del nodes
    gc.collect()
    assert alive() is None


def contexts(levels: int) -> dict[str, np.ndarray]:
    """All paths of two functions, `levels` deep: each but the last level calls both."""
    delta = np.array([1, -1], np.int8)
    func = np.array([0, 0], np.int32)
    depth = np.array([0, 0], np.int32)
    for _ in range(levels - 1):
        below, down, deeper = np.tile(delta, 2), np.concatenate((func, np.where(depth == 0, 1, func))), np.tile(depth + 1, 2)
        delta, func, depth = np.concatenate(([1], below, [-1])), np.concatenate(([0], down, [0])), np.concatenate(([0], deeper, [0]))
    kind = np.where(delta > 0, int(CallKind.ENTRY), int(CallKind.RETURN))
    return {"ts": np.arange(len(kind)), "kind": kind, "func_id": func, "frame": 16 + 16 * depth}


def test_a_million_contexts_have_a_node_each_and_no_more_than_are_allowed() -> None:
    table = events(**contexts(20))
    calls = len(table) // 2
    assert calls == (1 << 20) - 1
    sums = {}
    for most in (1 << 21, 1000):
        made = engine([(1, 1)], 2, most)
        taken(made, iter(table.slice(at, PIECE) for at in range(0, len(table), PIECE)), len(table))
        nodes = made.nodes()
        assert len(nodes) == calls + 2 if most > calls else most <= len(nodes) <= most + 2 * 4
        assert nodes["calls"][nodes["depth"] >= 0].sum() == calls
        sums[most] = [nodes["self"]["wall"][nodes["func_id"] == func].sum() for func in (0, 1)]
    assert sums[1000] == sums[1 << 21]


PEAK = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import pyarrow.compute as pc
from tests.unit.derive.test_bounds import PIECE, call_and_return, engine, events
own = events(**call_and_return(PIECE // 2 - 1), pid=1, tid=1)
def batches(count):
    for k in range(count):
        yield own.set_column(0, "ts", pc.add(own["ts"], k * PIECE))
made = engine([(1, 1)], 2, 1 << 20, rows=True)
peaks = []
for count in (4, 60):
    for _ in made.take(batches(count), 1 << 40, PIECE):
        pass
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
print(*peaks, len(made.nodes()), len(made.save()))
"""


def test_memory_does_not_follow_the_length_of_a_trace() -> None:
    """Sixty pieces take what four took; the rows of all would take 400 MB."""
    done = subprocess.run([sys.executable, "-c", PEAK, str(Path(__file__).parents[3])], capture_output=True, text=True, check=True)
    few, many, nodes, state = map(int, done.stdout.split())
    assert many - few < 40 << 20
    assert nodes == 4 and state < 5000
