"""Synthetic trace directories: write any rows through the schema, and one realistic sample.

`write_trace` takes plain rows (tuples in the schema's column order); `Script` acts a
thread's life on its own clock and yields both its function and its scheduling rows.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pytrace_ebpf.trace import derived
from pytrace_ebpf.trace.declared import STREAMS
from pytrace_ebpf.trace.files import Files
from pytrace_ebpf.trace.schema import CALLER, FORMAT, LOSS_CLASSES, MANIFEST, TABLES, CallKind, SchedKind

Row = tuple[Any, ...]
FUTEX = 202
NANOSLEEP = 230
GIL = (0x5000, 0x5100)


def table_of(name: str, rows: Sequence[Row]) -> pa.Table:
    """Rows (tuples in the schema's column order, the last columns left out where they say nothing) as an Arrow table of that schema."""
    schema = TABLES[name].arrow
    rows = [(*row, *(column.absent for column in TABLES[name].columns[len(row) :])) for row in rows]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _segment_of(rows: Iterable[Row], start: int, end: int, column: int = 0) -> list[Row]:
    return [r for r in rows if start <= r[column] < end]


def write_trace(
    path: Path,
    *,
    events: Sequence[Row] = (),
    sched: Sequence[Row] = (),
    cputime: Sequence[Row] = (),
    functions: Sequence[Row] = (),
    threads: Sequence[Row] | None = None,
    processes: Sequence[Row] | None = None,
    usage: Sequence[Row] = (),
    losses: Sequence[Row] = (),
    samples: Sequence[Row] = (),
    stacks: Sequence[Row] = (),
    resources: Sequence[Row] = (),
    external_switches: Sequence[Row] = (),
    start_ns: int = 0,
    end_ns: int | None = None,
    cuts: Sequence[int] = (),
    state: str = "complete",
    manifest: dict[str, Any] | None = None,
    **of_streams: Sequence[Row],
) -> Path:
    """Write a whole trace directory and return its path.

    Rows are tuples in the schema's column order. `events` need only be in each thread's own order,
    `sched` in the order of time. `cuts` are the inner borders of segments. `threads` and `processes`
    left out are made from the events. `manifest` replaces single keys of the manifest. `of_streams`: rows of the tables of streams.
    """
    assert of_streams.keys() <= {table.name for stream in STREAMS for table in stream.tables}
    last = max([r[0] for r in events] + [r[0] for r in sched] + [r[0] for r in samples] + [start_ns])
    end_ns = last + 1 if end_ns is None else end_ns
    keys = sorted({(r[1], r[2]) for r in [*events, *sched, *samples]})
    if threads is None:
        threads = [(pid, tid, f"thread-{tid}", start_ns, None) for pid, tid in keys]
    if processes is None:
        processes = [
            (pid, 1, "/usr/bin/python3", "python3 app.py", "3.11.2", "usdt", *GIL, start_ns, None) for pid in sorted({pid for pid, _ in keys})
        ]
    borders = [start_ns, *cuts, end_ns]
    segments = []
    for index, (lo, hi) in enumerate(zip(borders, borders[1:], strict=False)):
        last_one = index == len(borders) - 2
        top = 2**62 if last_one else hi
        parts = {
            "events": sorted(_segment_of(events, lo, top), key=lambda r: (r[1], r[2])),
            "sched": _segment_of(sched, lo, top),
            "cputime": _segment_of(cputime, lo, top),
            "external_switches": _segment_of(external_switches, lo, top),
            "functions": list(functions) if index == 0 else [],
            "threads": list(threads) if last_one else [],
            "processes": list(processes) if index == 0 else [],
            "usage": _segment_of(usage, lo, top),
            **{name: _segment_of(rows, lo, top) for name, rows in of_streams.items()},
            "samples": _segment_of(samples, lo, top),
            "stacks": list(stacks) if index == 0 else [],
            "resources": list(resources) if index == 0 else [],
            "losses": [r for r in losses if (lo <= r[2] < top) or (index == 0 and r[2] < lo)],
        }
        for name, rows in parts.items():
            if rows:
                (path / name).mkdir(parents=True, exist_ok=True)
                pq.write_table(table_of(name, rows), path / name / f"part-{index:05d}.parquet")
        counts = {name: len(rows) for name, rows in parts.items()}
        segments.append({"index": index, "start_ns": lo, "end_ns": hi, "rows": counts})
    lost = dict.fromkeys(LOSS_CLASSES, 0)
    for name, _, _, count, *_ in losses:
        lost[name] += count
    whole = {
        "format": FORMAT,
        "format_version": 1,  # whose manifest lists the segments
        "state": state,
        "entry_line": CALLER,
        "start_ns": start_ns,
        "end_ns": end_ns if state == "complete" else None,
        "clock": [{"monotonic_ns": start_ns, "realtime_ns": start_ns + 1_700_000_000_000_000_000}],
        "host": {"hostname": "sample", "kernel": "6.1.0", "machine": "x86_64", "cpus": 2},
        "target": {
            "pid": keys[0][0] if keys else 0,
            "command": "python3 app.py",
            "executable": "/usr/bin/python3",
            "python_version": "3.11.2",
        },
        "argv": ["pytrace-ebpf", "run", "--", "python3", "app.py"],
        "options": {},
        "sources": [{"pid": pid, "source": "usdt", "why": "its probes are known to be correct"} for pid in sorted({k[0] for k in keys})],
        "events": {"call": len(events), "sched": len(sched), "function": len(functions)},
        "lost": lost,
        "cost": {"source": "usdt", "ns_per_call": 980.0},
        "segments": segments,
    }
    path.mkdir(parents=True, exist_ok=True)
    (path / MANIFEST).write_text(json.dumps(whole | (manifest or {}), indent=1))
    return path


@dataclass
class Script:
    """One thread's life, acted on its own clock; fills `events` and `sched` rows."""

    pid: int
    tid: int
    cpu: int = 0
    now: int = 0
    events: list[Row] = field(default_factory=list)
    sched: list[Row] = field(default_factory=list)
    stack: list[tuple[int, int]] = field(default_factory=list)
    frames: int = 0

    def _sched(self, kind: SchedKind, state: int = 0, syscall: int = -1, address: int = 0, other: int = 0, resource: int = 0) -> None:
        other_pid = self.pid if other else 0
        self.sched.append((self.now, self.pid, self.tid, kind, self.cpu, state, syscall, address, other_pid, other, -1, resource))

    def snapshot(self) -> "Script":
        """The thread is running when recording begins."""
        self._sched(SchedKind.SNAPSHOT)
        return self

    def born(self, by: int) -> "Script":
        """Created by thread `by`, on a core 20 us later."""
        self._sched(SchedKind.FORK, other=by)
        self._sched(SchedKind.WAKING, other=by)
        return self._back(20_000)

    def open(self, func: int) -> "Script":
        """A frame that was open when recording began."""
        self.frames += 1
        self.stack.append((func, self.tid * 1000 + self.frames))
        self.events.append((self.now, self.pid, self.tid, CallKind.OPEN, *self.stack[-1], -1))
        return self

    def enter(self, func: int, frame: int | None = None) -> "Script":
        """Call function `func`."""
        self.frames += 1
        self.stack.append((func, self.tid * 1000 + self.frames if frame is None else frame))
        self.events.append((self.now, self.pid, self.tid, CallKind.ENTRY, *self.stack[-1], max(10 * func + 1, -1)))
        return self

    def leave(self, line: int | None = None) -> "Script":
        """Return from the innermost function."""
        func, frame = self.stack.pop()
        self.events.append((self.now, self.pid, self.tid, CallKind.RETURN, func, frame, max(10 * func + 5, -1) if line is None else line))
        return self

    def line(self, number: int, kind: CallKind = CallKind.LINE) -> "Script":
        """The innermost function comes to a line, or STANDS at it."""
        func, frame = self.stack[-1]
        self.events.append((self.now, self.pid, self.tid, kind, func, frame, number))
        return self

    def run(self, ns: int) -> "Script":
        """Compute."""
        self.now += ns
        return self

    def _back(self, queued: int, cpu: int | None = None) -> "Script":
        self.now += queued
        self.cpu = self.cpu if cpu is None else cpu
        self._sched(SchedKind.IN)
        return self

    def preempted(self, ns: int, by: int, cpu: int | None = None) -> "Script":
        """Lose the core to thread `by` for `ns`, come back on `cpu`."""
        self._sched(SchedKind.OUT, other=by)
        return self._back(ns, cpu)

    def wait(
        self,
        ns: int,
        *,
        syscall: int = NANOSLEEP,
        address: int = 0,
        waker: int = 0,
        queued: int = 5_000,
        cpu: int | None = None,
        resource: int = 0,
        ready: int = 0,
        by_timer: bool = False,
    ) -> "Script":
        """Block for `ns` in `syscall` for `resource`, be woken by `waker`, with `ready` in its epoll instance, wait `queued` more for a core."""
        self._sched(SchedKind.OUT, state=1, syscall=syscall, address=address, resource=resource)
        self.now += ns
        self._sched(SchedKind.WAKING, state=int(by_timer), other=waker, resource=ready)
        return self._back(queued, cpu)

    def gil(self, ns: int, waker: int = 0, queued: int = 5_000) -> "Script":
        """Wait for the GIL."""
        return self.wait(ns, syscall=FUTEX, address=GIL[0] + 0x20, waker=waker, queued=queued)

    def exit(self) -> "Script":
        """The thread ends."""
        self._sched(SchedKind.EXIT)
        return self


SAMPLE_FUNCTIONS: list[Row] = [
    (0, "/app/main.py", "<module>", "<module>", 1, "main"),
    (1, "/app/main.py", "main", "main", 11, "main"),
    (2, "/app/work.py", "run", "Worker.run", 21, "work"),
    (3, "/app/work.py", "step", "Worker.step", 31, "work"),
    (4, "/app/work.py", "fib", "fib", 41, "work"),
    (5, "/app/io.py", "fetch", "Client.fetch", 51, "io"),
    (6, "/usr/lib/python3.11/threading.py", "join", "Thread.join", 61, "threading"),
]


def _fib(script: Script, n: int) -> None:
    script.enter(4).run(800)
    if n > 1:
        _fib(script, n - 1)
        script.run(150)
        _fib(script, n - 2)
    script.run(300).leave()


def sample(path: Path) -> Path:
    """A program of 3 threads, 2 cores and about 200 calls: a GIL fight, a sleep, preemption, open ends."""
    pid, ms = 4000, 1_000_000
    main = Script(pid, pid, cpu=0, now=1000 * ms).snapshot().open(0).open(1).run(2 * ms)
    fighters = []
    for number, tid in enumerate((pid + 1, pid + 2)):
        main.run(100_000)
        fighter = Script(pid, tid, cpu=number, now=main.now).born(pid).enter(2)
        for turn in range(4):
            fighter.enter(3)
            if (turn + number) % 2:
                fighter.gil(5 * ms, waker=4001 + (1 - number))
            _fib(fighter, 5)
            fighter.run(5 * ms - 20_000)
            if turn == 1:
                fighter.preempted(400_000, by=999, cpu=1 - fighter.cpu)
            fighter.leave()
        if number:
            fighter.enter(5).run(30_000).wait(20 * ms, waker=0).run(30_000).leave()
            fighter.enter(3).run(ms)  # still in it when the recording ends
        else:
            fighter.leave().exit()
        fighters.append(fighter)
    main.enter(6).wait(45 * ms, syscall=FUTEX, address=0x9000, waker=4001, cpu=1).run(40_000).leave().leave()
    main.run(ms).enter(5).run(20_000).wait(3 * ms).leave()
    end = max(main.now, *(f.now for f in fighters)) + ms
    everyone = [main, *fighters]
    threads = [
        (pid, pid, "python3", 1000 * ms, None),
        (pid, pid + 1, "worker-1", fighters[0].sched[0][0], fighters[0].now),
        (pid, pid + 2, "worker-2", fighters[1].sched[0][0], None),
    ]
    usage = [
        row
        for second in range(0, 60, 10)
        for row in (
            (1000 * ms + second * ms, "process", pid, pid, 0.1 + second / 1000, 0.02, None, 50 << 20, 200 << 20, 3, 12 + second, 4),
            (1000 * ms + second * ms, "core", -1, 0, 5.0 + second / 1000, 1.0, 90.0, None, None, None, None, None),
            (1000 * ms + second * ms, "core", -1, 1, 4.0 + second / 1000, 1.0, 91.0, None, None, None, None, None),
        )
    ]
    return write_trace(
        path,
        events=[row for script in everyone for row in script.events],
        sched=sorted((row for script in everyone for row in script.sched), key=lambda r: r[0]),
        functions=SAMPLE_FUNCTIONS,
        threads=threads,
        usage=usage,
        start_ns=1000 * ms,
        end_ns=end,
        cuts=(1020 * ms, 1040 * ms),
    )


def convoy(path: Path) -> Path:
    """Thread 2 waits for the GIL that thread 1 holds in func 0, which wakes it at 60."""
    sched = [
        (0, 1, 1, 7, 0, 0, -1, 0, 0, 0, -1), (0, 1, 2, 7, 1, 0, -1, 0, 0, 0, -1), (10, 1, 2, 1, 1, 1, 202, 0x1008, 0, 0, 1),
        (60, 1, 2, 2, 1, 0, -1, 0, 1, 1, -1), (65, 1, 2, 0, 1, 0, -1, 0, 0, 0, -1), (90, 1, 1, 1, 0, 1, 0, 0, 0, 0, 1),
    ]  # fmt: skip
    return write_trace(
        path, events=[(5, 1, 1, 0, 0, 1, 1), (95, 1, 1, 1, 0, 1, 1)], sched=sched, functions=SAMPLE_FUNCTIONS, end_ns=100,
        threads=[(1, 1, "main", 0, None), (1, 2, "worker", 0, None)], processes=[(1, 0, "/p", "p", "3.11.2", "usdt", 0x1000, 0x1100, 0, None)],
    )  # fmt: skip


def reseal(folder: Path) -> None:
    """Have a derived table say that its parts are as they are now."""
    key, said = folder / derived._KEY_FILE, pq.read_schema(folder / derived._KEY_FILE)
    footers = json.dumps(derived._footers(Files(folder))).encode()
    pq.write_table(said.with_metadata(said.metadata | {derived._FOOTERS: footers}).empty_table(), key)
