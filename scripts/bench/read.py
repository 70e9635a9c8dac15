"""What reading a trace costs, by its size: reports, windows, exports and group-bys, each in a process of its own.

    python scripts/bench/read.py [--calls 1000000 25000000] [--keep DIR] [--most-rows 2000000] [--most-written 30000000] [--viztracer PYTHON] [--only-made] [--steps]

All sizes of docs/cost.md: --calls 1000000 25000000 100000000 300000000. Traces are made: two threads that hand each other the GIL every
5 ms and serve requests of some 40 functions, 1.3 million calls a second; no two requests take the same times; events are written as a recorder
does. Each kind of report is asked for where nothing is kept, and "again" from what is kept then. Time and CPU time are of
the whole command, the interpreter's start and imports included; peak memory is of that process.
Above --most-rows calls what reads a row for every call is left out, above --most-written the exports that visit every call, but for windows.
--only-made: make the traces (with --keep) and no more; --steps: of traces whose calls/ is there already measure steps through the layers, and no more.
--viztracer: a Python that has it; it traces as many calls as fit its buffer, saves them and loads what it saved. --keep: make traces there
and leave them.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "unit"))

from compiled_pass import compiled_pass
from synthetic import GIL, table_of, write_trace

import pytrace_ebpf
from pytrace_ebpf.analyze.functions import call_sequence
from pytrace_ebpf.derive import tables
from pytrace_ebpf.record.output.events_part import write_events
from pytrace_ebpf.trace.manifest import open_directory, read_manifest
from pytrace_ebpf.trace.schema import MANIFEST, TABLES, CallKind, SchedKind

REPOSITORY = Path(__file__).resolve().parents[2]
PID, SECOND, TURN = 4000, 10**9, 5_000_000
CLOCK = 10
THREADS = (PID, PID + 1)
FUNCTIONS = [(k, f"/app/module{k // 8}.py", f"f{k}", f"Class{k // 4}.f{k}", 10 * k + 1, f"app.module{k // 8}", 0, "python") for k in range(40)]


def request() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The events of some thousand calls: (+1 or -1, function, depth)."""
    rng, out = np.random.default_rng(7), []

    def call(func: int, depth: int) -> None:
        out.append((1, func, depth))
        for k in range(int(rng.integers(0, 5)) if depth < 7 else 0):
            call((func * 3 + k + 1) % 40, depth + 1)
        if func == 13 and depth < 20:  # some recursion
            call(13, depth + 1)
        out.append((-1, func, depth))

    while len(out) < 20_000:
        call(0, 1)
    return tuple(np.array(column) for column in zip(*out, strict=True))  # type: ignore[return-value]


def took_by(func: np.ndarray) -> np.ndarray:
    """About how long it is from each event to the next, in ns: each function has its own pace."""
    return np.random.default_rng(3).lognormal(np.log(300), 0.8, len(FUNCTIONS))[func].round().astype(np.int64)


def request_times(took: np.ndarray, tid: int, number: int) -> np.ndarray:
    """When the events of request `number` of a thread come after its start: no two requests are alike, but each takes as long."""
    varied = np.cumsum(took * np.random.default_rng((tid, number)).lognormal(0, 0.2, len(took)))
    return (np.concatenate(([0], varied[:-1] * (took.sum() / varied[-1]))) // CLOCK).astype(np.int64) * CLOCK


def events_of(tid: int, segment: int, pattern: tuple[np.ndarray, ...], took: np.ndarray) -> pa.Table:
    """A thread's events of one second: when it runs, which is every other turn."""
    step, func, depth = pattern
    length, active = int(took.sum()), SECOND // 2
    times = np.arange(segment * active // length, (segment + 1) * active // length + 1)
    ran = np.concatenate([at * length + request_times(took, tid, int(at)) for at in times])
    inside = (ran >= segment * active) & (ran < (segment + 1) * active)
    ran, place = ran[inside], np.tile(np.arange(len(step)), len(times))[inside]
    ts = SECOND + ran // TURN * 2 * TURN + ran % TURN + (tid - PID) * TURN
    enters = step[place] > 0
    columns = {
        "ts": ts, "pid": np.full(len(ts), PID), "tid": np.full(len(ts), tid), "kind": np.where(enters, CallKind.ENTRY, CallKind.RETURN),
        "func_id": func[place], "frame": depth[place] * 112 + tid * (1 << 20), "line": func[place] * 10 + np.where(enters, 1, 5),
    }  # fmt: skip
    return pa.table({name: pa.array(columns[name]).cast(TABLES["events"].arrow.field(name).type) for name in columns}, schema=TABLES["events"].arrow)


def switches_of(segment: int) -> list[tuple[Any, ...]]:
    """They hand each other the GIL at the end of each turn."""
    rows: list[tuple[Any, ...]] = []
    for turn in range(segment * SECOND // TURN, (segment + 1) * SECOND // TURN):
        goes, comes, at = THREADS[turn % 2], THREADS[1 - turn % 2], SECOND + (turn + 1) * TURN
        rows += [(at - 30_000, PID, goes, SchedKind.OUT, turn % 2, 1, 202, GIL[0] + 8, 0, 0, comes)]
        rows += [
            (at - 20_000, PID, comes, SchedKind.WAKING, -1, 0, -1, 0, PID, goes, -1),
            (at - 5_000, PID, comes, SchedKind.IN, 1 - turn % 2, 0, -1, 0, 0, 0, -1),
        ]
    return rows


def make(path: Path, wanted: int) -> Path:
    """A trace of about `wanted` calls in segments of a second."""
    pattern = request()
    took = took_by(pattern[1])
    per_second = len(pattern[0]) / 2 * SECOND / took.sum()  # both threads
    seconds = max(1, round(wanted / per_second))
    edges = [SECOND * k for k in range(1, seconds + 2)]
    start = [
        (SECOND, PID, tid, SchedKind.SNAPSHOT, 0, int(tid != PID), 202 if tid != PID else -1, GIL[0] + 8 if tid != PID else 0, 0, 0, -1)
        for tid in THREADS
    ]
    write_trace(
        path,
        functions=FUNCTIONS,
        threads=[(PID, tid, f"worker-{tid}", SECOND, None) for tid in THREADS],
        start_ns=SECOND,
        end_ns=edges[-1],
        cuts=edges[1:-1],
        processes=[(PID, 1, "/usr/bin/python3", "python3 app.py", "3.13.5", "agent", *GIL, SECOND, None)],
    )
    manifest, _ = read_manifest(open_directory(path))
    for name in ("events", "sched"):
        (path / name).mkdir()
    for index in range(seconds):
        parts = {
            "events": pa.concat_tables([events_of(tid, index, pattern, took) for tid in THREADS]),
            "sched": table_of("sched", [*(start if not index else []), *switches_of(index)]),
        }
        for name, table in parts.items():
            with (path / name / f"part-{index:05d}.parquet").open("wb") as file:  # as a recorder writes them
                write_events(file, table) if name == "events" else pq.write_table(table, file, compression="lz4")
            manifest["segments"][index]["rows"][name] = len(table)
    manifest["segments"][-1]["rows"]["threads"], manifest["segments"][0]["rows"]["threads"] = 0, len(THREADS)
    (path / "threads" / f"part-{seconds - 1:05d}.parquet").rename(path / "threads" / "part-00000.parquet")
    (path / MANIFEST).write_text(json.dumps(manifest))
    return path


def an_event(path: Path) -> Iterator[tuple[str, float]]:
    """What, and its CPU time in ns an event."""
    trace = pytrace_ebpf.open(path)
    events = sum(segment["rows"]["events"] for segment in trace.segments)
    yield "compiled pass: tree", compiled_pass(trace, rows=False, nodes=1 << 20) / events * 1e9
    yield "compiled pass: rows", compiled_pass(trace, rows=True) / events * 1e9
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        tables.make(trace, {"calls": Path(folder)})
        yield "rows, read, made and written as Parquet", (time.process_time() - begin) / events * 1e9
        size = sum(part.stat().st_size for part in Path(folder).iterdir())
    yield "bytes a call in events/; in calls/", sum(part.stat().st_size for part in (path / "events").iterdir()) / events * 2
    yield "", size / events * 2


OF_SUMS = ("folded", "speedscope")  # exports whose size and time do not grow with the calls
Measured = tuple[float, float, float]
AT_END = """
import atexit, resource, sys
def report():
    use = resource.getrusage(resource.RUSAGE_SELF)
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    sys.stderr.write(f"\\n{use.ru_utime + use.ru_stime} {int(peak.split()[1]) / 1024}\\n")
atexit.register(report)
"""
COMMAND = "from pytrace_ebpf.cli.main import main; sys.exit(main(sys.argv[1:]))"


def command(*words: str, program: str = COMMAND, python: str = sys.executable) -> Measured:
    """(seconds, CPU seconds, peak MiB) of a process of its own."""
    begin = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([python, "-c", AT_END + program, *words], env=environment, capture_output=True, text=True)
    spent = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"{words}: {done.stderr[-2000:]}")
    cpu, peak = done.stderr.splitlines()[-1].split()
    return spent, float(cpu), float(peak)


BY = ("module", "thread", "task", "request", "line", "wait", "gil", "core")


def forget(path: Path) -> None:
    """What is derived of a trace."""
    for name in ("sums", "gil", "cores", "settled", *(name for name, table in TABLES.items() if table.derived)):
        shutil.rmtree(path / name, ignore_errors=True)


def measures(path: Path, rows: bool, written: bool) -> Iterator[tuple[str, Measured]]:
    trace, middle = str(path), str(len(read_manifest(open_directory(path))[0]["segments"]) // 2)
    forget(path)
    yield "report, first", command("report", trace)
    yield "report, again", command("report", trace)
    window = ["--from", middle, "--until", str(int(middle) + 1)]
    yield "report of a second in the middle", command("report", trace, *window)
    forget(path)
    yield "report of a second in the middle, first", command("report", trace, *window)
    for by in BY:
        forget(path)
        yield f"report --by {by}, first", command("report", trace, "--by", by)
        yield f"report --by {by}, again", command("report", trace, "--by", by)
    yield "report --by core of a second", command("report", trace, "--by", "core", *window)
    with tempfile.TemporaryDirectory() as folder:
        for to in ("folded", "speedscope", "perfetto", "chrome"):
            if written or to in OF_SUMS:
                yield f"export to {to}", command("export", trace, "--to", to, "-o", f"{folder}/out")
            yield f"export to {to} of a second", command("export", trace, "--to", to, "-o", f"{folder}/out", *window)
    if rows:
        yield (
            "trace.calls(): calls/ derived",
            command(trace, program="import pytrace_ebpf; pytrace_ebpf.open(sys.argv[1]).calls(['call_id'], ids=(0, 0))"),
        )
        query = "select func_id, count(*), sum(wall_ns), sum(self_wall_ns), sum(on_cpu_ns), sum(gil_wait_ns), max(wall_ns) from '{}/calls/*.parquet' group by func_id"
        if not subprocess.run([sys.executable, "-c", "import duckdb"], capture_output=True).returncode:
            yield (
                "DuckDB: six sums by function over calls/",
                command(trace, program=f"import duckdb; duckdb.sql({query!r}.format(sys.argv[1])).fetchall()"),
            )
        grouped = (
            "import pandas as pd; c = ['func_id', 'wall_ns', 'self_wall_ns', 'on_cpu_ns', 'gil_wait_ns']; "
            "pd.read_parquet(sys.argv[1] + '/calls', columns=c).groupby('func_id')[c[1:]].agg(['sum', 'max'])"
        )
        yield "pandas: the same", command(trace, program=grouped)


def steps(path: Path, count: int = 200) -> Iterator[tuple[str, list[float]]]:
    """What of walking through the layers, and its CPU times in ms: from `count` calls of a thread, wherever they are."""
    trace, taken = pytrace_ebpf.open(path), defaultdict[str, list[float]](list)
    begin = time.process_time()
    levels = len(trace.layers(THREADS[0]))
    yield f"layers() of a thread, {levels} levels", [(time.process_time() - begin) * 1e3]
    tree = trace.tree(["tid", "calls"])
    first = int(trace.calls(["call_id"], tid=THREADS[0], start_ns=trace.start_ns, end_ns=trace.start_ns + SECOND)["call_id"].iloc[0])
    rng = np.random.default_rng(1)
    for number in rng.integers(0, tree["calls"][tree["tid"] == THREADS[0]].sum(), count).tolist():
        begin = time.process_time()
        entry = call_sequence.entry(trace, first + number)
        taken["a step to any call"].append((time.process_time() - begin) * 1e3)
        for what in ("children", "next", "parent"):
            begin = time.process_time()
            if getattr(entry, what)():
                taken[f"{what}() from there"].append((time.process_time() - begin) * 1e3)
    yield from taken.items()


def print_steps(path: Path) -> None:
    for what, ms in steps(path):
        print(f"{what:45} {np.median(ms):8.1f} ms CPU, of ten one {np.quantile(ms, 0.9):.1f}", flush=True)


SAVE = """
from viztracer import VizTracer
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
tracer = VizTracer(tracer_entries=int(sys.argv[2]), verbose=0, ignore_c_function=True)
tracer.start()
for _ in range(int(sys.argv[2]) // 21891 + 1):
    fib(20)
tracer.stop()
tracer.save(sys.argv[1])
"""
LOAD = "import json; json.load(open(sys.argv[1]))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, nargs="+", default=[1_000_000, 25_000_000])
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--most-rows", type=int, default=2_000_000)
    parser.add_argument("--most-written", type=int, default=30_000_000)
    parser.add_argument("--viztracer", metavar="PYTHON")
    parser.add_argument("--only-made", action="store_true")
    parser.add_argument("--steps", action="store_true")
    options = parser.parse_args()
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, 1024), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory() as folder:
        for count in options.calls:
            path = Path(folder) / str(count)
            if not path.exists():
                make(path, count)
            manifest, _ = read_manifest(open_directory(path))
            made = sum(segment["rows"]["events"] for segment in manifest["segments"]) // 2
            print(f"\n{made:,} calls in {len(manifest['segments'])} s", flush=True)
            if options.steps:
                print_steps(path)
            if options.only_made or options.steps:
                continue
            if made <= options.most_written * 1.1:
                for what, ns in an_event(path):
                    print(f"{what:45} {ns:8.1f} {'ns an event' if what and 'bytes' not in what else 'bytes'}", flush=True)
            for what, (seconds, cpu, peak) in measures(path, made <= options.most_rows * 1.4, made <= options.most_written * 1.1):
                print(f"{what:45} {seconds:8.2f} s {cpu:8.2f} s CPU {peak:8.0f} MiB", flush=True)
            if made <= options.most_rows * 1.4:
                print_steps(path)
    if options.viztracer:
        with tempfile.TemporaryDirectory() as folder:
            for entries in (1_000_000, 4_000_000):
                print(f"VizTracer, {entries:,} calls")
                for what, program in (("traced and saved", SAVE), ("loaded as JSON", LOAD)):
                    seconds, cpu, peak = command(f"{folder}/viz.json", str(entries), program=program, python=options.viztracer)
                    print(f"{what:45} {seconds:8.2f} s {cpu:8.2f} s CPU {peak:8.0f} MiB")
                print(f"{Path(folder, 'viz.json').stat().st_size / entries:45.1f} bytes a call")


if __name__ == "__main__":
    main()
