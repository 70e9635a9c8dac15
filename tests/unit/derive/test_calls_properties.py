"""Reconstruction equals the slow reference, whatever is cut, lost or odd."""

import random
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.derive import one_pass
from pytrace_ebpf.record.output.missing import Missing
from pytrace_ebpf.trace.schema import CALLS, SYSCALL_UNKNOWN, CallKind, SchedKind
from tests.unit import reference
from tests.unit.synthetic import GIL, Row, table_of, write_trace

PID = 50
SCENARIOS = ("whole", "ends", "unlisted", "loss", "damaged", "half", "frameless", "mixed", "perf", "everything")
FUNCTIONS = [(k, f"/m{k // 2}.py", f"f{k}", f"f{k}", 1, f"m{k // 2}") for k in range(5)]
seeds = st.integers(0, 2**40)


class Program:
    """A random thread: nested calls, generators whose frames come back, at random moments."""

    def __init__(self, rng: random.Random, tid: int, open_frames: int, known_frames: bool) -> None:
        self.rng, self.tid, self.now, self.known_frames = rng, tid, 100, known_frames
        self.rows: list[Row] = []
        self.stack: list[tuple[int, int]] = []
        self.sleeping: list[tuple[int, int]] = []  # generators between yield and resume
        self.generators = 0
        for _ in range(open_frames):
            self.stack.append((rng.randrange(5), self.frame()))

    def frame(self) -> int:
        return 1 + len(self.stack) * 16 + self.tid * 1000

    def row(self, kind: CallKind, func: int, frame: int) -> None:
        line = self.rng.randrange(1, 99)
        self.rows.append((self.now, PID, self.tid, int(kind), func, frame if self.known_frames else 0, line))

    def live(self, steps: int) -> None:
        rng = self.rng
        for _ in range(steps):
            self.now += rng.choice((0, 1, 2, 7, 30))
            choice = rng.random()
            if choice < 0.45:
                self.enter((rng.randrange(-1, 5), self.frame()))
            elif choice < 0.55 and len(self.stack) < 60:
                self.generators += 1
                fresh = (rng.randrange(5), 10_000_000 + self.tid * 1000 + self.generators)
                resumes = self.sleeping and rng.random() < 0.7
                self.enter(*((self.sleeping.pop(), CallKind.RESUME) if resumes else (fresh,)))
            elif self.stack:
                func, frame = self.stack.pop()
                yields = frame >= 10_000_000 and rng.random() < 0.7
                if yields:
                    self.sleeping.append((func, frame))
                ends = (CallKind.YIELD,) if yields else (CallKind.RETURN, CallKind.RETURN, CallKind.UNWIND)
                self.row(rng.choice(ends), rng.choice((func, -1)), frame)

    def enter(self, what: tuple[int, int], kind: CallKind = CallKind.ENTRY) -> None:
        self.stack.append(what)
        self.row(kind, *what)


def life(rng: random.Random, tid: int, end: int, noise: float) -> list[Row]:
    """A thread's scheduling: mostly right, with rows missing and misplaced as often as `noise`."""
    rows: list[Row] = []
    now, cpu, state = 100, 0, "on"

    def add(kind: SchedKind, task: int = 0, syscall: int = -1, address: int = 0) -> None:
        if rng.random() >= noise:
            rows.append((now, PID, tid, int(kind), cpu, task, syscall, address, 0, rng.randrange(9)))
        if rng.random() < noise:
            kind = rng.choice(list(SchedKind)[:-2])
            rows.append((now, PID, tid, int(kind), rng.randrange(3), rng.randrange(2), -1, 0, 0, 0))

    if rng.random() < 0.7:
        add(SchedKind.SNAPSHOT, *rng.choice(((0,), (0x100,), (1, 202, GIL[0]), (2, 0, 0))))
    while now < end:
        now += rng.choice((0, 1, 5, 40))
        if state == "on":
            blocks = rng.choice(((0, -1, 0), (0x100, 3, 0), (1, 202, GIL[0] + 4), (1, 202, GIL[1]), (2, -1, 0), (0x81, 7, 0)))
            add(SchedKind.OUT, *blocks)
            state = "off" if blocks[0] & 0x7F else "ready"
        elif state == "off":
            add(SchedKind.WAKING)
            state = "ready"
        else:
            cpu = rng.randrange(3)
            add(SchedKind.IN, address=rng.choice((0, 0, 3, 20)))
            state = "on"
    if rng.random() < 0.3:
        now = max(now, end) + rng.randrange(20)
        add(SchedKind.EXIT)
        add(SchedKind.OUT, 0x80)
    return rows


def without_wakeups(rows: list[Row]) -> list[Row]:
    """The same as perf reports it."""
    kept = [r for r in rows if r[3] not in (SchedKind.WAKING, SchedKind.MIGRATE)]
    return [(*r[:5], int(r[5] & 0x7F != 0), SYSCALL_UNKNOWN, 0, 0, 0) if r[3] in (SchedKind.OUT, SchedKind.SNAPSHOT) else r for r in kept]


def half_lost(rng: random.Random, rows: list[Row]) -> list[bool]:
    """Which of one or several threads' rows are lost, about half of them: each by itself, in bursts, or all within windows of time."""
    how = rng.choice(("single", "bursts", "windows"))
    if how == "windows":
        width = rng.choice((20, 100, 400))
        gone = {k for k in range(max((r[0] for r in rows), default=0) // width + 1) if rng.random() < 0.5}
        return [r[0] // width in gone for r in rows]
    turns = 0.5 if how == "single" else 0.05
    lost = [rng.random() < 0.5]
    for _ in rows[1:]:
        lost.append(lost[-1] != (rng.random() < turns))
    return lost[: len(rows)]


def story(seed: int, scenario: str) -> dict[str, Any]:
    """Arguments for write_trace and for the reference."""
    rng = random.Random(seed)
    everything = scenario == "everything"
    events: list[Row] = []
    sched: list[Row] = []
    threads: list[Row] = []
    for tid in range(PID, PID + rng.randrange(1, 4)):
        opened = rng.randrange(6) if scenario != "whole" else 0
        known = scenario != "frameless" and (not everything or rng.random() < 0.8)
        program = Program(rng, tid, opened, known)
        listed = scenario in ("ends", "loss", "damaged") or (everything and rng.random() < 0.6)
        if listed:
            for func, frame in program.stack:
                program.row(CallKind.OPEN, func, frame)
        program.live(rng.randrange(60))
        while program.stack and scenario in ("whole", "unlisted") and rng.random() < 0.95:
            program.now += 1
            program.row(CallKind.RETURN, *program.stack.pop())
        events += program.rows
        noise = 0.15 if scenario in ("damaged", "everything") else 0.0
        sched += life(rng, tid, program.now, noise) if rng.random() < 0.8 else []
        threads.append((PID, tid, "t", rng.choice((90, 100)), rng.choice((None, program.now + 5))))
    end = max([r[0] for r in [*events, *sched]], default=100) + 1
    losses: list[Row] = []
    if scenario in ("loss", "everything"):
        for name in rng.choices(("call_ring", "sched_ring", "function_ring"), k=rng.randrange(4)):
            start = rng.randrange(80, end)
            losses.append((name, start, start + rng.randrange(0, 60), 3))
        holes = [loss for loss in losses if loss[0] == "call_ring"]
        events = [r for r in events if not any(s <= r[0] <= e for _, s, e, _ in holes) or rng.random() < 0.4]
    if scenario in ("damaged", "everything"):
        events = [r for r in events if rng.random() > 0.04]
        events = [(*r[:3], int(CallKind.RESET), -1, 0, -1) if r[3] != CallKind.OPEN and rng.random() < 0.01 else r for r in events]
    if scenario == "mixed":
        events = [(*r[:5], 0, r[6]) if rng.random() < 0.2 else r for r in events if rng.random() > 0.02]
    if scenario == "half":
        lost = half_lost(rng, events)
        events = [r for r, gone in zip(events, lost, strict=True) if not gone]
    cuts = sorted(rng.sample(range(91, end), min(end - 91, rng.randrange(5))))
    if scenario == "perf" or (everything and rng.random() < 0.3):
        sched = without_wakeups(sched)
    sched.sort(key=lambda r: r[0])
    losses += not_reported(sched, losses, [*cuts, end])
    return {
        "events": events,
        "sched": sched,
        "threads": threads,
        "processes": [(PID, 1, "python3", "python3", "3.11.2", "usdt", *GIL, 95, None)],
        "functions": FUNCTIONS[: rng.choice((0, 2, 5))],
        "losses": losses,
        "start_ns": 90,
        "end_ns": end,
        "cuts": cuts,
        "manifest": {"scheduling": {"source": "bpf", "why": "", "throttling": 1}},
    }


def not_reported(sched: list[Row], losses: list[Row], ends: list[int]) -> list[Row]:
    """What a recorder finds missing in segments that end so."""
    missing, found = Missing(), list[Row]()
    for at, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        table = table_of("sched", [row for row in sched if start <= row[0] < end])
        found += [tuple(row.values()) for row in missing.found(table, None if at else table_of("losses", losses)).to_pylist()]
    return found


def all_reported(rows: dict[str, Any]) -> dict[str, Any]:
    """The same without the scheduling of threads of which a switch or a wake-up is missing: of others all that is known is in calls' rows."""
    missing = {loss[5] for loss in rows["losses"] if loss[0] in ("sched_in", "sched_out", "sched_waking")}
    return rows | {
        "sched": [row for row in rows["sched"] if row[2] not in missing],
        "losses": [loss for loss in rows["losses"] if loss[0] not in ("sched_in", "sched_out", "sched_waking")],
    }


def rebuilt(rows: dict[str, Any]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        return plain(pytrace_ebpf.open(write_trace(Path(folder) / "trace", **rows)).calls())


def plain(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as the reference gives them."""
    values = frame.astype(object).where(frame.notna(), None)
    return [{str(k): v for k, v in row.items()} for row in values.to_dict("records")]


def check_skip_list(calls: list[dict[str, Any]]) -> None:
    """The ids are a valid preorder, and the links of the skip list lead where they say."""
    by_id = {c["call_id"]: c for c in calls}
    assert len(by_id) == len(calls)
    for call in calls:
        below = [c for c in calls if call["call_id"] < c["call_id"] <= call["last_descendant_id"]]
        assert all(c["depth"] > call["depth"] and c["tid"] == call["tid"] for c in below)
        assert all(call["start_ns"] <= c["start_ns"] and c["end_ns"] <= call["end_ns"] for c in below)
        children = [c for c in below if c["parent_id"] == call["call_id"]]
        assert {c["depth"] for c in children} <= {call["depth"] + 1}
        walked = []
        at = call["call_id"] + 1 if below else -1
        while at != -1:
            walked.append(by_id[at])
            at = by_id[at]["next_sibling_id"]
        assert walked == children
        for prefix in ("", "self_"):
            split = [call[prefix + k] for k in reference.PARTS]
            assert None in split or (sum(split) == call[f"{prefix}wall_ns"] and min(split) >= 0)
        split = [call[k] for k in reference.PARTS]
        assert split[0] is None or 0 <= split[0] <= call["wall_ns"]
        assert split[1] is None or (split[0] is not None and split[2] is not None)
        assert (split[2] is None) == (split[3] is None)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS))
def test_equals_the_reference(seed: int, scenario: str) -> None:
    rows = story(seed, scenario)
    expected = reference.calls(**rows)
    calls = rebuilt(rows)
    names = [c.name for c in CALLS.columns if c.name != "worker_on_cpu_ns"]
    assert [{n: c[n] for n in names} for c in calls] == [{n: c[n] for n in names} for c in expected]
    check_skip_list(calls)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.lists(st.integers(91, 400), max_size=6, unique=True))
@example(0, [])
def test_where_segments_are_cut_does_not_matter(seed: int, cuts: list[int]) -> None:
    """On undamaged traces with listed open frames and no snapshots at a border to interpret."""
    rows = story(seed, "ends")
    rows["sched"] = [r for r in rows["sched"] if r[3] != SchedKind.SNAPSHOT]
    once = rebuilt(rows | {"cuts": []})
    assert rebuilt(rows | {"cuts": sorted(c for c in cuts if c < rows["end_ns"])}) == once


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.integers(1, 40))
def test_how_rows_are_cut_into_pieces_does_not_matter(seed: int, piece: int) -> None:
    rows = story(seed, "ends")
    once = rebuilt(rows)
    with patch.object(one_pass, "PIECE", piece):
        assert rebuilt(rows) == once


def test_a_thousand_threads_with_half_of_all_events_lost() -> None:
    rng = random.Random(8)
    events: list[Row] = []
    for tid in range(1, 1001):
        program = Program(rng, tid, 0, True)
        program.live(rng.randrange(12))
        lost = half_lost(rng, program.rows)
        events += [row for row, gone in zip(program.rows, lost, strict=True) if not gone]
    rows = story(0, "whole") | {
        "events": events,
        "sched": sorted((row for tid in range(1, 1001, 10) for row in life(rng, tid, 300, 0.0)), key=lambda r: r[0]),
        "threads": [(PID, tid, "t", 90, None) for tid in range(1, 1001)],
        "losses": [("call_ring", 120, 140, 9)],
        "end_ns": 1000,
        "cuts": [110, 150, 200],
    }
    rows["losses"] += not_reported(rows["sched"], rows["losses"], [*rows["cuts"], rows["end_ns"]])
    calls, expected = rebuilt(rows), reference.calls(**rows)
    assert len({c["tid"] for c in calls}) > 500
    names = [c.name for c in CALLS.columns if c.name != "worker_on_cpu_ns"]
    assert [{n: c[n] for n in names} for c in calls] == [{n: c[n] for n in names} for c in expected]
