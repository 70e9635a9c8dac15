"""What reading traces costs that are large in another way than by their length: many threads, many processes, a deep stack, a million contexts, and
generators, exceptions, functions, short threads, waits, locks and requests by the million (shapes.py).

    python scripts/bench/bounds.py [--only deep generators] [--size 0.01] [--ask function task html]

--size: the share of the second kind that is made, 1 for 10 million generators. "more": ns of CPU time that an answer takes for each row of events and
scheduling above what the plain sums (report) take.

Each trace is made, then each command answers from nothing in a process of its own: time and CPU time of the whole command, its peak memory and, of
exports, the size of the file. tests/unit/derive/test_bounds.py holds what comes out of the first pass to be right.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "unit"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import shapes
from read import command, forget
from synthetic import GIL, Row, write_trace
from test_bounds import call_and_return, contexts, events, up_and_down

from pytrace_ebpf.record.output.events_part import write_events
from pytrace_ebpf.trace.schema import MANIFEST, SchedKind

REPORTS = ("function", "module", "thread", "task", "line", "request", "wait", "gil", "core")
EXPORTS = ("folded", "speedscope", "pprof", "otlp", "firefox", "callgrind", "pstats", "perfetto", "chrome")
FUNCTIONS = [(k, f"/app/module{k}.py", f"f{k}", f"f{k}", 1, f"module{k}", 0, "python") for k in range(2)]


def many(pids: int, tids: int) -> pa.Table:
    """A hundred and one calls of each of `tids` threads, shared out among `pids` processes."""
    own = call_and_return(100)
    return pa.concat_tables([events(**own, pid=1 + k * pids // tids, tid=100 + k) for k in range(tids)])


SHAPES = {
    "threads": ("10,000 threads", lambda: many(1, 10_000)),
    "processes": ("100 processes, 1,000 threads", lambda: many(100, 1000)),
    "deep": ("100,000 calls deep", lambda: events(**up_and_down(100_000), pid=1, tid=1)),
    "contexts": ("a million contexts", lambda: events(**contexts(20), pid=1, tid=1)),
}


def switches_of(pid: int, tid: int, end_ns: int) -> list[Row]:
    """A thread that waits for the GIL ten times."""
    rows: list[Row] = [(0, pid, tid, SchedKind.SNAPSHOT, tid % 2, 0, -1, 0, 0, 0, -1)]
    for at in range(end_ns // 20, end_ns, end_ns // 10):
        rows += [
            (at, pid, tid, SchedKind.OUT, tid % 2, 1, 202, GIL[0] + 8, 0, 0, -1),
            (at + 20, pid, tid, SchedKind.WAKING, -1, 0, -1, 0, pid, tid - 1, -1),
            (at + 25, pid, tid, SchedKind.IN, tid % 2, 0, -1, 0, 0, 0, -1),
        ]
    return rows


def make(path: Path, table: pa.Table) -> Path:
    """A trace of one segment with these events."""
    threads = sorted((each["pid"], each["tid"]) for each in table.select(["pid", "tid"]).group_by(["pid", "tid"]).aggregate([]).to_pylist())
    end_ns = int(np.max(table["ts"].to_numpy())) + 1
    processes = sorted({pid for pid, _ in threads})
    write_trace(
        path,
        sched=sorted(row for pid, tid in threads for row in switches_of(pid, tid, end_ns)),
        functions=FUNCTIONS,
        threads=[(pid, tid, f"worker-{tid}", 0, None) for pid, tid in threads],
        processes=[(pid, 0, "/usr/bin/python3", "python3 app.py", "3.13.5", "agent", *GIL, 0, None) for pid in processes],
        end_ns=end_ns,
    )
    (path / "events").mkdir()
    with (path / "events" / "part-00000.parquet").open("wb") as file:
        write_events(file, table)
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["segments"][0]["rows"]["events"] = len(table)
    (path / MANIFEST).write_text(json.dumps(manifest))
    return path


def answers(path: Path, out: Path, only: list[str], requests: str | None) -> list[tuple[str, list[str]]]:
    """What is asked: its name, and the words of the command; the plain sums first. `requests`: the function that answers them, where the trace has some."""
    asked = [
        (f"report --by {by}", by, ["report", str(path), "--by", by, *(["--request", requests] if by == "request" and requests else [])])
        for by in REPORTS
    ]
    asked += [("report --html", "html", ["report", str(path), "--html", str(out)])]
    asked += [(f"export to {to}", to, ["export", str(path), "--to", to, "-o", str(out)]) for to in EXPORTS]
    return [(what, words) for what, name, words in asked if not only or name in (*only, "function")]


def measure(path: Path, out: Path, only: list[str], requests: str | None = None) -> None:
    """Print what each answer takes."""
    segments = json.loads((path / MANIFEST).read_text())["segments"]
    calls, rows = (sum(each["rows"].get(name, 0) for each in segments) for name in ("events", "sched"))
    print(f"{calls / 1e6:,.2f} million events, {rows / 1e6:,.2f} million of scheduling, {len(segments)} segments", flush=True)
    plain = 0.0
    for what, words in answers(path, out, only, requests):
        forget(path)
        seconds, cpu, peak = command(*words)
        plain = plain or cpu
        size = f"{out.stat().st_size / 1e6:10.1f} MB" if out.exists() else ""
        more = f"{(cpu - plain) * 1e9 / max(1, calls + rows):8.1f} ns more"
        print(f"{what:24} {seconds:8.2f} s {cpu:8.2f} s CPU {more} {peak:8.0f} MiB{size}", flush=True)
        out.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=(*SHAPES, *shapes.SHAPES), default=[])
    parser.add_argument("--size", type=float, default=1.0)
    parser.add_argument("--ask", nargs="+", choices=(*REPORTS, "html", *EXPORTS), default=[])
    options = parser.parse_args()
    for name in (*SHAPES, *shapes.SHAPES):
        if options.only and name not in options.only:
            continue
        with tempfile.TemporaryDirectory(prefix="bench-bounds-") as folder:
            path, out = Path(folder) / "trace", Path(folder) / "out"
            if name in SHAPES:
                title, table = SHAPES[name]
                print(f"\n{title}")
                make(path, table())
            else:
                shape = shapes.SHAPES[name]
                many = max(1, int(shape.full * options.size))
                print(f"\n{many:,} {shape.title}")
                shapes.make(path, shape, many)
            measure(path, out, options.ask, "f1" if name == "requests" else None)


if __name__ == "__main__":
    main()
