"""What a long recording costs: segments (a day has 90,000) written by the recorder's own writer, then opened by a process that does only that.

    python scripts/bench/long.py [--segments 10000] [--keep 1800] [--into DIR]

The segments are made up, not recorded: each has a second of a quiet service, 300 events of 40 functions, 200 switches of 4
threads of its own that begin and end in it, usage, and now and then a new function. The writer works as while recording, each
segment on the disk before the next; --into /dev/shm leaves the disk out. --keep: seconds, as `--keep` of the commands.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pytrace_ebpf.record.options import Keep
from pytrace_ebpf.record.output.description import new_manifest
from pytrace_ebpf.record.output.writer import Writer
from pytrace_ebpf.trace.schema import TABLES, SchedKind

SECOND, PID = 10**9, 4000
EVENTS, SWITCHES, THREADS, FUNCTIONS = 300, 200, 4, 40
READ = """
import sys, time
import pytrace_ebpf
from pytrace_ebpf.view.contents import contents
imported = time.process_time()
trace = pytrace_ebpf.open(sys.argv[1])
opened = time.process_time()
small = [len(table()) for table in (trace.functions, trace.processes, trace.threads, trace.neighbours, trace.losses)]
read = time.process_time()
usage = len(trace.usage())
used = time.process_time()
facts = contents(trace)
print(f"CPU time: open {opened - imported:.2f} s, small tables ({sum(small):,} rows) {read - opened:.2f} s, usage ({usage:,} rows) {used - read:.2f} s, "
      f"info {time.process_time() - used:.2f} s; {len(trace.segments):,} segments, {facts['calls']:,} calls, dropped: {facts['dropped']}")
"""


def main() -> None:
    """Write, and open."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--segments", type=int, default=10_000)
    arguments.add_argument("--keep", type=float)
    arguments.add_argument("--into", type=Path)
    asked = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-long-", dir=asked.into))
    try:
        write(folder / "trace", asked.segments, Keep(seconds=asked.keep) if asked.keep else None)
        files = sum(1 for each in (folder / "trace").rglob("*") if each.is_file())
        print(f"{files:,} files, manifest {(folder / 'trace' / 'manifest.json').stat().st_size:,} bytes")
        print(subprocess.run([sys.executable, "-c", READ, folder / "trace"], check=True, capture_output=True, text=True).stdout.strip())
    finally:
        shutil.rmtree(folder)


def write(path: Path, count: int, keep: Keep | None) -> None:
    """All segments, and what that took."""
    facts: dict[str, Any] = {"sources": [], "events": {}, "lost": {}, "cost": {}}
    manifest = new_manifest(0, {"pid": PID, "command": "service", "executable": "", "python_version": "3.11.2"}, ["bench"], {})
    writer = Writer(path, manifest | facts, keep=keep)
    began, first = time.perf_counter(), resident()
    for number in range(count):
        writer.segment(number * SECOND, (number + 1) * SECOND, segment(number), {"events": {"call": EVENTS * (number + 1)}})
        if number == 1000:
            first = resident()
    writer.close({"state": "complete", "end_ns": count * SECOND})
    spent = time.perf_counter() - began
    print(
        f"{count:,} segments in {spent:.0f} s, {spent / count * 1e3:.1f} ms each; resident after 1,000: {first:.0f} MB, at the end: {resident():.0f} MB"
    )


def resident() -> float:
    """MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def segment(number: int) -> dict[str, pa.Table]:
    """The tables of second `number`."""
    start, tids = number * SECOND, PID + 1 + np.arange(THREADS) + number % 5000 * THREADS
    tid = np.repeat(tids, EVENTS // THREADS)
    place = np.arange(EVENTS)
    events = {
        "ts": start + place * (SECOND // EVENTS), "pid": PID, "tid": tid, "kind": place % 2,
        "func_id": place // 2 * 7 % FUNCTIONS, "frame": 140_000_000_000_000 + place // 2 % 5 * 80, "line": place % 90,
    }  # fmt: skip
    moment = np.arange(SWITCHES)
    sched = {
        "ts": start + moment * (SECOND // SWITCHES), "pid": PID, "tid": tids[moment // 3 % THREADS],
        "kind": np.array([SchedKind.IN, SchedKind.OUT, SchedKind.WAKING])[moment % 3], "cpu": moment % 2, "state": moment % 3 == 1,
        "syscall": -1, "address": 0, "other_pid": 0, "other_tid": 0, "holder_tid": -1,
    }  # fmt: skip
    ids = [("process", PID), *(("thread", int(each)) for each in tids), ("core", 0), ("core", 1)]
    empty = dict.fromkeys(("idle_s", "rss_bytes", "vms_bytes", "threads", "voluntary_switches", "involuntary_switches", "cpus"))
    usage = [{"ts": start, "kind": kind, "pid": PID, "id": id_, "user_s": float(number), "system_s": 0.0} | empty for kind, id_ in ids]
    threads = [{"pid": PID, "tid": int(each), "name": "worker", "comm": "worker", "start_ns": start, "end_ns": start + SECOND - 1} for each in tids]
    process = {"pid": PID, "ppid": 1, "executable": "/usr/bin/python3", "command": "service", "python_version": "3.11.2", "source": "agent"}
    first = {"processes": [process | {"gil_start": 1, "gil_end": 2, "start_ns": 0, "end_ns": None}]} if not number else {}
    functions = [] if number % 10 else [
        {"func_id": number // 10, "file": f"/app/f{number}.py", "name": "f", "qualname": "f", "first_line": 1, "module": "f", "flags": 0, "function_layer": "python"}
    ]  # fmt: skip
    rows = {
        name: pa.Table.from_pylist(some, TABLES[name].arrow)
        for name, some in ({"usage": usage, "threads": threads, "functions": functions} | first).items()
    }
    return rows | {name: whole(name, columns) for name, columns in (("events", events), ("sched", sched))}


def whole(name: str, columns: dict[str, Any]) -> pa.Table:
    """Columns, or one value for all rows, as a table."""
    schema = TABLES[name].arrow
    count = len(columns["ts"])
    return pa.table([pa.array(np.broadcast_to(columns[field.name], count)).cast(field.type) for field in schema], schema=schema)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    print(json.dumps({"python": sys.version.split()[0]}))
    main()
