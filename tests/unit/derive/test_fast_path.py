"""What the engine does by the stretch (rebuild/fast_path.c) is what it does event by event, as where all calls have rows."""

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.derive import feed
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALLER, CallKind
from tests.unit.derive.test_calls_properties import FUNCTIONS, PID, Program, life, seeds
from tests.unit.derive.test_sums_properties import Thread
from tests.unit.synthetic import GIL, write_trace

RESUMED, YIELDED = 32, 64  # rebuild/common.h


def story(seed: int) -> dict[str, Any]:
    """Threads with events enough for many segments, each with few switches; some events lost, some odd."""
    rng = random.Random(seed)
    rows: dict[str, Any] = {"events": [], "sched": [], "threads": [], "functions": FUNCTIONS[: rng.choice((2, 5))], "start_ns": 90}
    for tid in range(PID, PID + rng.randrange(1, 4)):
        if rng.random() < 0.5:
            program = Program(rng, tid, rng.randrange(4), known_frames=rng.random() < 0.9)
            program.live(rng.randrange(400))
            events, sched = program.rows, life(rng, tid, program.now, noise=0.1 if rng.random() < 0.2 else 0)
        else:
            script = Thread(rng, PID, tid, 100).live(rng.randrange(400)).script
            events, sched = script.events, script.sched
        rate = rng.choice((0, 0, 0.02))
        rows["events"] += [
            (*row[:3], int(rng.choice((CallKind.LINE, CallKind.STANDS, CallKind.UNWIND))), *row[4:]) if rng.random() < rate else row
            for row in events
            if rng.random() >= rate
        ]
        rows["sched"] += sched
        rows["threads"].append((PID, tid, "t", 90, None))
    end = max([row[0] for row in [*rows["events"], *rows["sched"]]], default=100) + 1
    lost = [("call_ring", at, at + 5, 1) for at in rng.sample(range(90, end), min(2, end - 90))] if rng.random() < 0.3 else []
    cuts = sorted(rng.sample(range(91, end), min(end - 91, rng.randrange(12))))
    return rows | {
        "sched": sorted(rows["sched"], key=lambda row: row[0]), "losses": lost, "end_ns": end, "cuts": cuts,
        "processes": [(PID, 1, "python3", "python3", "3.11.2", "usdt", *GIL, 95, None)],
    }  # fmt: skip


def found(trace: Trace, piece: int, each: bool, asked: list[tuple[int, int]], window: tuple[int, int] | None) -> list[Any]:
    """All that an engine finds out; `each`: it is made to take the events one by one. And what follows from its state in the middle."""
    one, out = feed.engine_of(trace, rows=each, nodes=40), list[Any]()
    one.want_cores({PID: (np.arange(0, 4000, 50), np.arange(0, 120, 1.5).astype(np.int64) ** 2, np.arange(80) % 4)})
    if window:
        one.window(*window)
    keys, moments = (np.array(column, np.int64) for column in zip(*asked, strict=True))
    answers = one.ask(keys, moments, np.zeros(len(trace.functions()), np.bool_))
    for place, (events, end_ns) in enumerate(feed.segments(trace, one)):
        for _ in one.take(events, end_ns, piece):
            pass
        if window is None and place == len(trace.segments) // 2:
            out += sums_after(trace, one.save(), place + 1)
    one.finish(trace.end_ns)
    return [*out, *sums_of(one), *(column.tolist() for column in answers), {k: v.tolist() for k, v in one.spent().items()}]


def sums_of(one: Engine) -> list[Any]:
    on_cores, by_function = one.cores()
    nodes = one.packed()[["parent", "func_id", "outermost", "calls", "total", "self"]]
    return [*nodes.tolist(), *one.sites().tolist(), *sorted(on_cores.tolist()), *by_function.tolist()]


def sums_after(trace: Trace, state: bytes, place: int) -> list[Any]:
    engine = feed.engine_of(trace, rows=False, nodes=40)
    engine.want_cores({})
    engine.load(state)
    for events, end_ns in feed.segments(trace, engine, place):
        for _ in engine.take(events, end_ns, 1 << 18):
            pass
    engine.finish(trace.end_ns)
    return sums_of(engine)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from((3, 50, 1000)))
def test_stretches_are_what_their_events_are_one_by_one(seed: int, piece: int) -> None:
    rows, rng = story(seed), random.Random(seed)
    asked = sorted((PID << 32 | rng.randrange(PID, PID + 3), rng.randrange(90, rows["end_ns"])) for _ in range(rng.randrange(1, 9)))
    window = (rng.randrange(90, 200), rng.randrange(200, 2000)) if rng.random() < 0.3 else None
    called_from = {"entry_line": CALLER} if rng.random() < 0.5 else {}
    with tempfile.TemporaryDirectory() as folder:
        trace = pytrace_ebpf.open(write_trace(Path(folder) / "trace", manifest=called_from, **rows))
        assert found(trace, piece, False, asked, window) == found(trace, piece, True, asked, window)


def rows_of(trace: Trace, piece: int, functions: list[int] | None, suspended: bool) -> dict[str, np.ndarray]:
    """Rows of calls by call_id; `functions`, `suspended`: as of Engine.want_rows_of(), None: of all."""
    engine, out = feed.engine_of(trace, rows=True), list[dict[str, np.ndarray]]()
    if functions is not None:
        engine.want_rows_of(np.array(functions, np.int64), suspended)
    for events, end_ns in feed.segments(trace, engine):
        out += [{name: column.copy() for name, column in engine.rows().items()} for _ in engine.take(events, end_ns, piece)]
    engine.finish(trace.end_ns)
    out.append(engine.rows())
    whole = {name: np.concatenate([part[name] for part in out]) for name in out[0]}
    order = np.argsort(whole["call_id"])
    return {name: column[order] for name, column in whole.items()}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from((3, 50, 1000)), st.lists(st.integers(0, 4), max_size=2), st.booleans())
def test_rows_of_some_functions_are_those_among_all(seed: int, piece: int, functions: list[int], suspended: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trace = pytrace_ebpf.open(write_trace(Path(folder) / "t", **story(seed)))
        known = [func_id for func_id in functions if func_id in set(trace.functions()["func_id"])]
        some, every = rows_of(trace, piece, known, suspended), rows_of(trace, piece, None, False)
        wanted = np.isin(every["func_id"], known) | (suspended & ((every["flags"] & (RESUMED | YIELDED)) != 0))
        for name, column in every.items():
            np.testing.assert_array_equal(some[name], column[wanted], name)
