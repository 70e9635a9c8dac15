"""How fast calls are rebuilt: events per second and core, on a synthetic trace of fib-like recursion over two threads.

    python scripts/bench/reconstruct.py [--events 4000000] [--runs 5] [--broken]

Every figure is the median of the runs. "write" is the derived calls' Parquet, which only the first
opening of a trace pays. --broken leaves out one event of a thousand, to see what repairing costs.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "unit"))

from synthetic import GIL, write_trace

import pytrace_ebpf
from pytrace_ebpf.analyze import calls, finished, split, stretch
from pytrace_ebpf.trace.manifest import read_manifest
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import MANIFEST, TABLES, SchedKind

PID, SECOND = 4000, 10**9


def fib(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The events of fib(n) as (delta, depth) arrays."""
    small = (np.array([1, -1], np.int8), np.array([0, 0], np.int32))
    one, two = small, small
    for _ in range(n - 1):
        delta = np.concatenate(([1], two[0], one[0], [-1])).astype(np.int8)
        depth = np.concatenate(([0], two[1] + 1, one[1] + 1, [0])).astype(np.int32)
        one, two = two, (delta, depth)
    return two


def thread_events(tid: int, count: int, broken: bool) -> pa.Table:
    """About `count` events of one thread: fib(20) over and over."""
    delta, depth = fib(20)
    times = -(-count // len(delta))
    delta, depth = np.tile(delta, times), np.tile(depth, times)
    total = len(delta)
    random = np.random.default_rng(tid)
    table = pa.table(
        {
            "ts": SECOND + np.cumsum(random.integers(500, 2000, total)),
            "pid": np.full(total, PID, np.int32),
            "tid": np.full(total, tid, np.int32),
            "kind": (delta < 0).astype(np.int8),
            "func_id": np.zeros(total, np.int32),
            "frame": depth.astype(np.int64) * 16 + tid * 100_000,
            "line": np.where(delta > 0, 1, 3).astype(np.int32),
        },
        schema=TABLES["events"].arrow,
    )
    return table.filter(pa.array(random.random(total) > 1e-3)) if broken else table


def thread_sched(tid: int, start: int, end: int) -> list[tuple[Any, ...]]:
    """A thread that fights for the GIL every 5 ms and is preempted now and then."""
    rows = [(start, PID, tid, SchedKind.SNAPSHOT, 0, 0, -1, 0, 0, 0)]
    for ts in range(start + 5_000_000, end, 5_000_000):
        cpu = (ts // 5_000_000) % 2
        if ts % 3:
            rows.append((ts, PID, tid, SchedKind.OUT, cpu, 1, 202, GIL[0] + 8, 0, 0))
            rows.append((ts + 1_000_000, PID, tid, SchedKind.WAKING, cpu, 0, -1, 0, PID, PID))
        else:
            rows.append((ts, PID, tid, SchedKind.OUT, cpu, 0, -1, 0, 0, 0))
        rows.append((ts + 1_050_000, PID, tid, SchedKind.IN, cpu, 0, -1, 0, 0, 0))
    return rows


def make(path: Path, events: int, broken: bool) -> Path:
    """A trace of about `events` events in segments of a second."""
    tables = [thread_events(tid, events // 2, broken) for tid in (PID, PID + 1)]
    end = max(t["ts"][-1].as_py() for t in tables) + 1
    sched = sorted((row for tid in (PID, PID + 1) for row in thread_sched(tid, SECOND, end)), key=lambda r: r[0])
    cuts = list(range(2 * SECOND, end, SECOND))
    write_trace(path, sched=sched, start_ns=SECOND, end_ns=end, cuts=cuts)
    borders = [SECOND, *cuts, end]
    manifest = read_manifest(path)
    (path / "events").mkdir()
    for index, (low, high) in enumerate(zip(borders, borders[1:], strict=False)):
        parts = [t.filter((pc.field("ts") >= low) & (pc.field("ts") < high)) for t in tables]
        whole = pa.concat_tables(parts)
        pq.write_table(whole, path / "events" / f"part-{index:05d}.parquet")
        manifest["segments"][index]["rows"]["events"] = whole.num_rows
    (path / MANIFEST).write_text(json.dumps(manifest))
    return path


class Stopwatch:
    """CPU seconds spent in functions, by what they are for."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def watch(self, owner: Any, name: str, purpose: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.process_time()
            try:
                return inner(*args, **kwargs)
            finally:
                self.spent[purpose] = self.spent.get(purpose, 0) + time.process_time() - begin

        setattr(owner, name, timed)


def one_run(path: Path, watch: Stopwatch) -> dict[str, float]:
    """CPU seconds by purpose of one reconstruction."""
    watch.spent.clear()
    with tempfile.TemporaryDirectory() as out:
        trace = pytrace_ebpf.open(path)
        begin = time.process_time()
        for _ in calls.rebuild(trace):
            pass
        total = time.process_time() - begin
        spent = dict(watch.spent)
        begin = time.process_time()
        calls.derive(trace, Path(out))
        return {**spent, "total": total, "total with writing the calls": time.process_time() - begin}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--broken", action="store_true")
    options = parser.parse_args()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    watch = Stopwatch()
    watch.watch(Trace, "part", "read")
    for name in ("pair", "depths", "mismatched"):
        watch.watch(calls, name, "pair")
    watch.watch(calls, "repair", "repair")
    for owner, name in ((split.Scheduling, "load"), (split.Scheduling, "find"), (stretch.Stretch, "_split")):
        watch.watch(owner, name, "split")
    watch.watch(finished.Finished, "to_arrow", "to Arrow")
    with tempfile.TemporaryDirectory() as folder:
        path = make(Path(folder) / "trace", options.events, options.broken)
        count = sum(s["rows"].get("events", 0) for s in read_manifest(path)["segments"])
        size = sum(f.stat().st_size for f in (path / "events").iterdir())
        runs = [one_run(path, watch) for _ in range(options.runs)]
    print(f"{count:,} events, {size / count:.1f} bytes each, medians of {options.runs} runs, CPU time of one core")
    for purpose in runs[0]:
        seconds = statistics.median(run[purpose] for run in runs)
        print(f"{purpose:30} {seconds / count * 1e9:8.1f} ns/event {count / seconds / 1e6:8.1f} million events/s")


if __name__ == "__main__":
    main()
