"""What memory functions used, of made-up traces: amounts are charged to the calls that were open."""

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.cli import main
from pytrace_ebpf.trace.schema import CallKind
from pytrace_ebpf.trace.streams.faults import GROWN, MAJOR, MINOR
from tests.unit.derive.test_calls_properties import FUNCTIONS, SCENARIOS, seeds, story
from tests.unit.innermost import innermost
from tests.unit.synthetic import SAMPLE_FUNCTIONS, Row, write_trace

ENTRY, RETURN = int(CallKind.ENTRY), int(CallKind.RETURN)
RECORDED = {"faults": {"growth": 1}}
MAIN, STEP, FIB = 1, 3, 4


def event(ts: int, kind: int, func: int, frame: int, tid: int = 7) -> Row:
    return (ts, 7, tid, kind, func, frame, -1)


def fault(ts: int, kind: int = MINOR, grown: int = 0, tid: int = 7) -> Row:
    return (ts, 7, tid, kind, grown)


EVENTS = [
    event(10, ENTRY, MAIN, 1),
    event(20, ENTRY, STEP, 2),
    event(30, ENTRY, STEP, 3),
    event(40, RETURN, STEP, 3),
    event(50, RETURN, STEP, 2),
    event(60, RETURN, MAIN, 1),
]


def used(path: Path, faults: list[Row], events: list[Row] = EVENTS, **more: Any) -> dict[int, dict[str, Any]]:
    trace = pytrace_ebpf.open(write_trace(path, events=events, functions=SAMPLE_FUNCTIONS, faults=faults, manifest=RECORDED, end_ns=100, **more))
    rows = trace.memory().astype(object)
    return rows.where(rows.notna(), None).set_index("func_id").to_dict("index")


def test_a_fault_is_the_innermost_calls_own_and_all_of_its_callers(tmp_path: Path) -> None:
    rows = used(tmp_path, [fault(5), fault(10), fault(25), fault(30), fault(35, MAJOR), fault(40), fault(50), fault(60), fault(70)])
    assert rows[MAIN] | {"calls": 1, "self_minor_faults": 2, "minor_faults": 5, "self_major_faults": 0, "major_faults": 1} == rows[MAIN]
    assert rows[STEP] | {"calls": 2, "self_minor_faults": 3, "minor_faults": 3, "self_major_faults": 1, "major_faults": 1} == rows[STEP]


def test_recursion_counts_once_in_the_total(tmp_path: Path) -> None:
    rows = used(tmp_path, [fault(35, GROWN, 4096), fault(45, GROWN, 8192), fault(55, GROWN, -4096)])
    assert (rows[STEP]["self_grown_bytes"], rows[STEP]["grown_bytes"]) == (12288, 12288)
    assert (rows[MAIN]["self_grown_bytes"], rows[MAIN]["grown_bytes"]) == (-4096, 8192)


def test_threads_are_charged_for_their_own(tmp_path: Path) -> None:
    other = [event(15, ENTRY, FIB, 9, tid=8), event(90, RETURN, FIB, 9, tid=8)]
    rows = used(tmp_path, [fault(25), fault(25, tid=8), fault(26, tid=8), fault(27, tid=99)], [*EVENTS, *other])
    assert (rows[FIB]["self_minor_faults"], rows[MAIN]["minor_faults"]) == (2, 1)


@pytest.mark.parametrize("cuts", [(), (33,), (25, 45), tuple(range(11, 99, 7))])
def test_segments_make_no_difference(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    faults = [fault(ts) for ts in range(1, 99)]
    rows = used(tmp_path, faults, cuts=cuts)
    assert (rows[MAIN]["self_minor_faults"], rows[MAIN]["minor_faults"], rows[STEP]["self_minor_faults"]) == (20, 50, 30)


def allocation(ts: int, blocks: int, size: int, freed: int = 0, freed_size: int = 0, level: int | None = None, peak: int = 0) -> Row:
    return (ts, 7, 7, blocks, size, freed, freed_size, size - freed_size if level is None else level, max(peak, size))


@pytest.mark.parametrize("cuts", [(), (33,), (25, 45), tuple(range(11, 99, 7))])
def test_what_is_kept_and_the_peak_are_those_of_whole_calls(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    """step allocates 100 and keeps 60 of it, the step below allocates 1,000 that the upper one frees, and main frees what is left of all."""
    rows = [
        allocation(10, 1, 5),  # main, until it calls
        allocation(20, 2, 100, 1, 40),  # step, until it calls
        allocation(30, 4, 1000),  # the step below
        allocation(40, 0, 0, 4, 1000, level=-1000),  # step, after that
        allocation(50, 0, 0, 1, 60, level=-60),  # main, after both
    ]
    trace = pytrace_ebpf.open(
        write_trace(
            tmp_path, events=EVENTS, functions=SAMPLE_FUNCTIONS, allocations=rows, manifest={"options": {"memory": True}}, end_ns=100, cuts=cuts
        )
    )
    used = trace.memory().set_index("func_id")
    columns = ["self_blocks", "self_bytes", "blocks", "bytes", "kept_blocks", "kept_bytes", "peak_bytes"]
    assert used.loc[STEP, columns].tolist() == [6, 1100, 6, 1100, 1, 60, 1060]
    assert used.loc[MAIN, columns].tolist() == [1, 5, 7, 1105, 1, 5, 1065]
    assert used["minor_faults"].isna().all()


SAMPLED = {"native_memory": {"sample_bytes": 100}}


def block(ts: int, size: int, since: int = 0, tid: int = 7, by: int = 7) -> Row:
    """One of native_blocks: allocated, or, `size` below 0, freed, which thread `by` had allocated `since`."""
    return (ts, 7, tid, size, abs(size), since, by if size < 0 else 0)


@pytest.mark.parametrize("cuts", [(), (33,), (25, 45), tuple(range(11, 99, 7))])
def test_of_malloc_that_is_kept_which_the_same_call_and_thread_did_not_free(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    """By the call that was open at both moments: main, the step that it calls, and the one below that."""
    rows = [
        *(block(15, 1000), block(22, 100), block(32, 10), block(34, 20), block(33, 40)),
        block(38, -10, since=32),  # within the step below
        block(36, -100, since=22),  # of the step above, while the one below is open
        block(45, -20, since=34),  # of the step below, which has ended
        block(55, -40, since=33, by=8),  # of another thread
        block(52, -500, since=5),  # of before all calls
    ]
    trace = pytrace_ebpf.open(
        write_trace(tmp_path, events=EVENTS, functions=SAMPLE_FUNCTIONS, native_blocks=rows, manifest=SAMPLED, end_ns=100, cuts=cuts)
    )
    used = trace.memory().set_index("func_id")
    columns = ["self_native_bytes", "native_bytes", "native_kept_bytes"]
    assert used.loc[MAIN, columns].tolist() == [1000, 1170, 1040]
    assert used.loc[STEP, columns].tolist() == [170, 170, 40]
    assert used["bytes"].isna().all() and len(trace.native_blocks()) == 10
    window = trace.window(30, None).memory().set_index("func_id")
    assert window.loc[MAIN, columns].tolist() == [0, 70, 40]  # what was allocated before it is not kept less


def test_what_malloc_did_stands_in_the_report_with_how_it_was_sampled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_trace(tmp_path, events=EVENTS, functions=SAMPLE_FUNCTIONS, native_blocks=[block(25, 3_000_000)], manifest=SAMPLED, end_ns=100)
    assert main.main(["report", str(tmp_path), "--by", "memory"]) == 0
    said = capsys.readouterr().out
    assert "self native" in said and "3.00 MB" in said and "native: malloc's, estimated by a sample about every 100 B" in " ".join(said.split())


def test_a_call_after_another_has_a_peak_of_its_own(tmp_path: Path) -> None:
    events = [event(ts, kind, STEP, 1) for ts, kind in ((10, ENTRY), (20, RETURN), (30, ENTRY), (40, RETURN))]
    rows = [allocation(10, 1, 500), allocation(30, 1, 200, peak=300, level=200)]
    trace = pytrace_ebpf.open(
        write_trace(tmp_path, events=events, functions=SAMPLE_FUNCTIONS, allocations=rows, manifest={"options": {"memory": True}}, end_ns=100)
    )
    assert trace.memory()["peak_bytes"].tolist() == [500] and trace.memory()["kept_bytes"].tolist() == [700]


def test_what_a_thread_without_events_used_is_not_kept_for_ever(tmp_path: Path) -> None:
    rows = used(
        tmp_path,
        [fault(ts, tid=99) for ts in range(1, 99)],
        cuts=tuple(range(11, 99, 7)),
        threads=[(7, 7, "main", 0, None), (7, 99, "pool", 0, None)],
    )
    assert rows[MAIN]["minor_faults"] == 0


@given(seed=seeds, scenario=st.sampled_from(SCENARIOS))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_each_amount_is_its_innermost_calls(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str) -> None:
    """And all of a function's calls with those below have what is theirs and what is those'."""
    told, rng = story(seed, scenario), random.Random(seed)
    told["events"] = [(*row[:4], abs(row[4]), *row[5:]) for row in told["events"]]  # an entry without a name is charged as of no function
    told["cuts"] = ()  # a call that was open unseen is known by its end alone, and amounts wait for two segments
    last = {row[2]: row[0] for row in sorted(told["events"])} or {50: 200}
    whose = rng.choices(sorted(last), k=50)
    faults = sorted((rng.randrange(told["start_ns"], last[tid] + 1), 50, tid, GROWN, rng.randrange(-99, 99)) for tid in whose)
    trace = pytrace_ebpf.open(
        write_trace(tmp_path_factory.mktemp("memory"), **told | {"faults": faults, "functions": FUNCTIONS, "manifest": RECORDED})
    )
    ts, pid, tid, _, grown = np.array(faults).T
    found = innermost(trace, pid, tid, ts)
    used = trace.memory().set_index("func_id")
    within = found.call_id >= 0
    expected = pd.Series(grown[within]).groupby(found.func_id[within]).sum()
    own = used["self_grown_bytes"]
    pd.testing.assert_series_equal(own[own != 0], expected[expected != 0], check_dtype=False, check_index_type=False, check_names=False)
    calls = trace.calls()
    for func_id, outer in calls[calls["outermost"]].groupby("func_id"):
        of = sum(
            grown[(found.call_id >= first) & (found.call_id <= last)].sum()
            for first, last in zip(outer["call_id"], outer["last_descendant_id"], strict=True)
        )
        assert used["grown_bytes"][func_id] == of


@given(seed=seeds, edges=st.lists(st.integers(90, 400), min_size=1, max_size=3))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_windows_add_up_to_the_whole(tmp_path_factory: pytest.TempPathFactory, seed: int, edges: list[int]) -> None:
    told, rng = story(seed, "whole"), random.Random(seed)
    told["threads"] = [(*row[:4], None) for row in told["threads"]]  # faults come until the end, so no thread may have ended before
    faults = [(rng.randrange(told["start_ns"], told["end_ns"]), 50, 50, MINOR, 0) for _ in range(50)]
    more = {"faults": sorted(faults), "functions": FUNCTIONS, "manifest": RECORDED}
    trace = pytrace_ebpf.open(write_trace(tmp_path_factory.mktemp("memory"), **told | more))
    borders = [None, *sorted(edges), None]
    parts = pd.concat([trace.window(*of).memory() for of in itertools.pairwise(borders)])
    parts = parts.groupby("func_id")[["self_minor_faults", "minor_faults"]].sum()
    whole = trace.memory().set_index("func_id")[["self_minor_faults", "minor_faults"]]
    pd.testing.assert_frame_equal(parts[parts.any(axis=1)], whole[whole.any(axis=1)], check_dtype=False, check_index_type=False)


def test_without_faults_nothing_is_claimed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_trace(tmp_path, events=EVENTS, functions=SAMPLE_FUNCTIONS, end_ns=100)
    assert pytrace_ebpf.open(path).memory()["minor_faults"].isna().all()
    assert main.main(["report", str(path), "--by", "memory"]) == 0
    assert "--faults" in capsys.readouterr().out
