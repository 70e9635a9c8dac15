"""How fast a trace is read: nanoseconds of CPU time an event, on a synthetic trace of fib-like recursion over two threads, or on --trace.

    python scripts/bench/reconstruct.py [--events 4000000 | --trace DIR] [--runs 5] [--broken] [--baseline DIR]

Every figure is the median of the runs, which take turns. "library" is the compiled pass alone, over events that are in memory.
--broken leaves out one event of a thousand, to see what repairing costs. --baseline: a checkout of another version, whose calls and
report of the same trace are timed in the same run. Peak memory is of a process that does only that.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "unit"))

from compiled_pass import compiled_pass
from synthetic import GIL, write_trace

import pytrace_ebpf
from pytrace_ebpf.derive import streams, tables
from pytrace_ebpf.derive.read_ahead import PIECE
from pytrace_ebpf.derive.sums import sums_of
from pytrace_ebpf.trace.manifest import open_directory, read_manifest
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import MANIFEST, TABLES, SchedKind

REPOSITORY = Path(__file__).resolve().parents[2]
PID, SECOND = 4000, 10**9
DERIVED = [name for name, table in TABLES.items() if table.derived]


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
    manifest, _ = read_manifest(open_directory(path))
    (path / "events").mkdir()
    for index, (low, high) in enumerate(zip(borders, borders[1:], strict=False)):
        parts = [t.filter((pc.field("ts") >= low) & (pc.field("ts") < high)) for t in tables]
        whole = pa.concat_tables(parts)
        pq.write_table(whole, path / "events" / f"part-{index:05d}.parquet")
        manifest["segments"][index]["rows"]["events"] = whole.num_rows
    (path / MANIFEST).write_text(json.dumps(manifest))
    return path


def read(trace: Trace) -> None:
    for segment in trace.segments:
        for _ in trace.batches("events", segment["index"], PIECE):
            pass


def rebuilt(trace: Trace) -> None:
    for pieces in streams.calls(trace):
        for _ in pieces:
            pass


def written(trace: Trace) -> None:
    with tempfile.TemporaryDirectory() as out:
        tables.make(trace, {"calls": Path(out)})


def timed(work: Any, *arguments: Any) -> float:
    begin = time.process_time()
    work(*arguments)
    return time.process_time() - begin


WORK = {
    "library: sums by function": lambda trace: compiled_pass(trace, rows=False, nodes=1),
    "library: tree": lambda trace: compiled_pass(trace, rows=False, nodes=1 << 20),
    "library: rows": lambda trace: compiled_pass(trace, rows=True),
    "read events": lambda trace: timed(read, trace),
    "tree, reading included": lambda trace: timed(sums_of, trace),
    "rows as Arrow tables": lambda trace: timed(rebuilt, trace),
    "rows written to calls/": lambda trace: timed(written, trace),
}
IN_A_PROCESS = {
    "calls": "pytrace_ebpf.open(TRACE).calls(columns=['call_id'], ids=(0, 0))",
    "all of calls": "pytrace_ebpf.open(TRACE).calls()",
    "four columns of calls": "pytrace_ebpf.open(TRACE).calls(columns=['func_id', 'wall_ns', 'gil_wait_ns', 'self_wall_ns'])",
    "report": "main.main(['report', TRACE])",
}


def process(checkout: Path, path: Path, what: str, fresh: bool) -> tuple[float, float, int]:
    """(CPU seconds, seconds, peak bytes) of a process that has a checkout of ours do something."""
    if fresh:
        for name in DERIVED:
            shutil.rmtree(path / name, ignore_errors=True)
    program = (
        "import sys, resource, time, pytrace_ebpf; from pytrace_ebpf.cli import main\n"
        f"TRACE = {str(path)!r}; begin, before = time.perf_counter(), time.process_time()\n{IN_A_PROCESS[what]}\n"
        "use = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(time.process_time() - before, time.perf_counter() - begin, use.ru_maxrss << 10, file=sys.stderr)"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=path.parent, env={**os.environ, "PYTHONPATH": str(checkout)}, capture_output=True, text=True, check=True)
    cpu, wall, peak = done.stderr.splitlines()[-1].split()
    return float(cpu), float(wall), int(peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--broken", action="store_true")
    parser.add_argument("--baseline", type=Path)
    options = parser.parse_args()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    checkouts = {"": REPOSITORY} | ({f" ({options.baseline.name})": options.baseline} if options.baseline else {})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        if options.trace:
            shutil.copytree(options.trace, path, ignore=shutil.ignore_patterns(*DERIVED))
        else:
            make(path, options.events, options.broken)
        trace = pytrace_ebpf.open(path)
        count = sum(s["rows"].get("events", 0) for s in trace.segments)
        size = sum(f.stat().st_size for f in (path / "events").iterdir())
        runs = [{name: work(trace) for name, work in WORK.items()} for _ in range(options.runs)]
        asked = (("calls", True), ("all of calls", False), ("four columns of calls", False), ("report", True), ("report", False))
        tasks = [(what, fresh, name) for name in checkouts for what, fresh in asked]
        trace.calls(ids=(0, 0))
        trace_sizes = trace.sizes("calls")
        processes = [{task: process(checkouts[task[2]], path, task[0], task[1]) for task in tasks} for _ in range(options.runs)]
    rows, stored = (sum(each) for each in zip(*trace_sizes, strict=True))
    print(
        f"{rows:,} calls, {stored / rows:.2f} bytes each; {count:,} events, {size / count:.1f} bytes each; medians of {options.runs} runs, CPU time"
    )
    for name in WORK:
        print(f"{name:30} {statistics.median(run[name] for run in runs) / count * 1e9:8.1f} ns/event")
    for task in tasks:
        what, fresh, name = task
        cpu, wall, peak = (statistics.median(run[task][k] for run in processes) for k in range(3))
        print(f"{what + ('' if fresh else ', again') + name:30} {wall:8.2f} s {cpu:8.2f} s CPU {peak / 2**20:8.0f} MiB")


if __name__ == "__main__":
    main()
