"""Who held the GIL when and who waited for whom, on lives acted by hand; and how it is said."""

import json
import random
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

import pytrace_ebpf
from pytrace_ebpf.analyze.waits import gil as by_gil
from pytrace_ebpf.analyze.waits import gil_turns
from pytrace_ebpf.analyze.waits import reasons as why
from pytrace_ebpf.analyze.waits.gil import Gil, analyze, prepare
from pytrace_ebpf.analyze.waits.gil_turns import Holds
from pytrace_ebpf.cli import main
from pytrace_ebpf.derive import feed
from pytrace_ebpf.derive.sinks import gil as gil_holds
from pytrace_ebpf.derive.sinks.gil import NOBODY, UNKNOWN
from pytrace_ebpf.rebuild.gil_handoffs import gil_handoffs
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CallKind, SchedKind
from pytrace_ebpf.view.sentence import most_time, top_function, waited_for
from tests.unit import gil_reference
from tests.unit.synthetic import FUTEX, GIL, NANOSLEEP, Row, write_trace

PID, HOG, VICTIM = 7, 7, 8
US, MS = 1_000, 1_000_000
FUNCTIONS: list[Row] = [(0, "/app/a.py", "hog", "hog", 1, "a"), (1, "/app/a.py", "victim", "A.victim", 9, "a")]


def event(ts: int, tid: int, kind: CallKind, func: int) -> Row:
    return (ts, PID, tid, kind, func, tid * 10 + func, 1)


def switch(
    ts: int,
    tid: int,
    kind: SchedKind,
    holder: int = UNKNOWN,
    *,
    gil: bool = False,
    runnable: bool = False,
    other: int = 0,
) -> Row:
    syscall = -1 if runnable or kind != SchedKind.OUT else FUTEX if gil else NANOSLEEP
    return (
        ts,
        PID,
        tid,
        kind,
        0,
        0 if runnable else 1,
        syscall,
        GIL[0] if gil else 0,
        PID if other else 0,
        other,
        holder,
    )


def contention() -> tuple[list[Row], list[Row]]:
    """The hog computes from 0 to 30 ms; the victim sleeps till 4, waits in two turns of 5 ms and 2, has it for 100 us, sleeps."""
    out, woken, came = SchedKind.OUT, SchedKind.WAKING, SchedKind.IN
    events = [
        event(0, HOG, CallKind.ENTRY, 0), event(10, VICTIM, CallKind.ENTRY, 1), event(20 * US, HOG, CallKind.ENTRY, 0),
        event(30 * MS, HOG, CallKind.RETURN, 0), event(30 * MS + 10, HOG, CallKind.RETURN, 0),
    ]  # fmt: skip
    sched = [
        switch(0, HOG, came), switch(5, VICTIM, came),
        switch(10 * US, VICTIM, out, HOG),  # asleep
        switch(4 * MS, VICTIM, woken), switch(4 * MS, VICTIM, came),
        switch(4 * MS + 10, VICTIM, out, HOG, gil=True), switch(9 * MS, VICTIM, woken), switch(9 * MS, VICTIM, came),
        switch(9 * MS + 20, VICTIM, out, HOG, gil=True),
        switch(11 * MS, VICTIM, woken, other=HOG), switch(11 * MS + 2, HOG, out, NOBODY, gil=True),
        switch(11 * MS + 50, VICTIM, came),
        switch(11 * MS + 60, HOG, woken, other=VICTIM), switch(11 * MS + 70, HOG, came), switch(11 * MS + 80, HOG, out, VICTIM, gil=True),
        switch(11 * MS + 100 * US, HOG, woken, other=VICTIM), switch(11 * MS + 100 * US + 5, VICTIM, out, NOBODY),
        switch(11 * MS + 101 * US, HOG, came),
        switch(25 * MS, VICTIM, woken), switch(25 * MS, VICTIM, came), switch(25 * MS + 5, VICTIM, SchedKind.EXIT),
    ]  # fmt: skip
    return events, sched


def trace_of(path: Path, events: list[Row], sched: list[Row], **more: Any) -> Trace:
    return pytrace_ebpf.open(write_trace(path, events=events, sched=sorted(sched, key=lambda row: row[0]), functions=FUNCTIONS, **more))


def found(trace: Trace) -> Gil:
    return analyze(trace)


def intervals(trace: Trace) -> list[tuple[int, int]]:
    """(who, since when)."""
    parts, take = list[pd.DataFrame](), Holds.take

    def noting(self: Holds, *more: Any) -> Any:
        found = take(self, *more)
        parts.append(found[0])
        return found

    with patch.object(Holds, "take", noting):
        analyze(trace)
    held = pd.concat(parts).query("not open")
    assert (held["end_ns"][:-1].to_numpy() == held["start_ns"][1:].to_numpy()).all()
    return list(zip(held["tid"], held["start_ns"], strict=True))


@pytest.mark.parametrize("cuts", [(), (9 * MS + 10, 11 * MS + 1, 11 * MS + 90), tuple(range(MS, 30 * MS, MS))])
def test_what_is_known_is_put_together(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    trace = trace_of(tmp_path, *contention(), cuts=cuts, end_ns=31 * MS)
    assert intervals(trace) == [
        (HOG, 0), (VICTIM, 10), (HOG, 10 * US),
        (NOBODY, 11 * MS), (VICTIM, 11 * MS + 50), (NOBODY, 11 * MS + 100 * US), (HOG, 11 * MS + 101 * US),
    ]  # fmt: skip
    pair = found(trace).pairs.iloc[0]
    assert (pair["waiting_func_id"], pair["holding_func_id"], pair["held"], pair["waits"]) == (1, 0, "function", 1)
    assert pair["total_ns"] == pair["longest_ns"] == 7 * MS - 30


def test_figures_of_processes_and_threads(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *contention(), end_ns=31 * MS)
    gil = found(trace)
    (process,) = gil.processes.to_dict("records")
    assert process["wall_ns"] == 31 * MS == sum(process[k] for k in ("alone_ns", "contended_ns", "handover_ns", "idle_ns", "unknown_ns"))
    # Wanted by the victim in two turns, by by the hog after that but for the 10 ns between its two.
    assert process["contended_ns"] == 7 * MS - 30 + 20 + 100 * US - 80
    assert process["handover_ns"] == 50 + 1 * US
    hog, victim = gil.threads.sort_values("tid").to_dict("records")
    assert (victim["waits"], victim["waited_ns"], victim["mean_ns"], victim["longest_ns"]) == (
        1,
        7 * MS - 30,
        7 * MS + 40,
        7 * MS + 40,
    )
    assert (victim["holds"], victim["held_ns"]) == (2, 10 * US - 10 + 100 * US - 50)
    assert (victim["convoys"], victim["convoy_ns"]) == (1, 7 * MS + 40)
    assert (hog["waits"], hog["convoys"], hog["holds"]) == (1, 0, 3)
    assert gil.takes.to_dict("records") == [
        {"pid": PID, "tid": HOG, "holder_tid": NOBODY, "waits": 1}, {"pid": PID, "tid": VICTIM, "holder_tid": HOG, "waits": 1},
    ]  # fmt: skip


def test_a_thread_that_ended_holds_it_no_more(tmp_path: Path) -> None:
    events = [
        event(0, HOG, CallKind.ENTRY, 0),
        event(MS, HOG, CallKind.RETURN, 0),
        event(MS + 5, VICTIM, CallKind.ENTRY, 1),
    ]
    sched = [
        switch(5, HOG, SchedKind.OUT, HOG),
        switch(9, HOG, SchedKind.IN),
        switch(2 * MS, HOG, SchedKind.EXIT),
        switch(3 * MS, VICTIM, SchedKind.EXIT),
    ]
    assert intervals(trace_of(tmp_path, events, sched, end_ns=4 * MS)) == [(HOG, 0), (VICTIM, MS + 5), (NOBODY, 3 * MS)]


def test_where_switches_were_lost_it_is_not_known(tmp_path: Path) -> None:
    events = [event(ts * MS, HOG, CallKind.ENTRY, 0) for ts in range(1, 10)]
    sched = [switch(MS + 5, HOG, SchedKind.OUT, HOG), switch(MS + 9, HOG, SchedKind.IN)]
    trace = trace_of(tmp_path, events, sched, losses=[("sched_ring", 3 * MS + 5, 6 * MS + 5, 1)], end_ns=10 * MS)
    assert intervals(trace) == [(UNKNOWN, 0), (HOG, MS), (UNKNOWN, 3 * MS + 5), (HOG, 7 * MS)]


def test_without_holders_only_waits_are_reported(tmp_path: Path) -> None:
    events, sched = contention()
    gil = found(trace_of(tmp_path, events, [row[:10] for row in sched], end_ns=31 * MS))
    assert not len(gil.processes)
    assert set(gil.pairs["held"]) == {"not known"}
    assert gil.threads["held_ns"].isna().all() and gil.threads["convoys"].isna().all()
    assert gil.threads["waited_ns"].sum() > 7 * MS - 100


def contention_of(rng: random.Random) -> tuple[list[Row], list[Row]]:
    """Threads of two processes that wait for the GIL and for other things, call, and end; who has the GIL is read at most of their switches."""
    events: list[Row] = []
    sched: list[Row] = []
    for pid in (PID, PID + 1):
        tids = [pid * 10 + k for k in range(rng.choice((1, 3, 4)))]
        read = rng.random() < 0.9
        for tid in tids:
            now = rng.randrange(20)
            while now < 3000:
                gil, took, queued = rng.random() < 0.6, rng.choice((3, 50, 400)), rng.choice((0, 2, 90))
                holder = rng.choice((*tids, NOBODY, UNKNOWN)) if read else UNKNOWN
                out = switch(now, tid, SchedKind.OUT, holder, gil=gil, runnable=rng.random() < 0.1)
                rows = [out, switch(now + took, tid, SchedKind.WAKING, other=rng.choice((0, *tids))), switch(now + took + queued, tid, SchedKind.IN)]
                sched += [(row[0], pid, *row[2:8], pid if row[9] else 0, *row[9:]) for row in rows]
                now += took + queued
                for _ in range(rng.choice((0, 0, 1, 3))):
                    now += rng.choice((0, 1, 20))
                    events.append((now, pid, tid, int(rng.choice((CallKind.ENTRY, CallKind.RETURN))), rng.randrange(2), tid, 1))
                now += rng.choice((1, 5, 60, 600))
                if rng.random() < 0.02:
                    sched.append((now, pid, *switch(now, tid, SchedKind.EXIT)[2:]))
                    break
    return events, sched


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 40, 300, 10**9]))
def test_some_segments_at_a_time_say_what_all_at_once_do(tmp_path_factory: pytest.TempPathFactory, seed: int, patience: int) -> None:
    rng = random.Random(seed)
    events, sched = contention_of(rng)
    cuts = sorted(rng.sample(range(1, 3000), rng.choice((1, 3, 9))))
    losses = [("sched_ring", 1000, 1200, 1)] if rng.random() < 0.3 else []
    processes = [(pid, 1, "", "", "3.11.2", "agent", *GIL, 0, rng.choice((None, 2500))) for pid in (PID, PID + 1)]
    trace = trace_of(tmp_path_factory.mktemp("gil"), events, sched, cuts=cuts, end_ns=5000, losses=losses, processes=processes)
    with (
        patch.object(gil_turns, "TIMED_OUT_NS", patience),
        patch.object(gil_reference, "TIMED_OUT_NS", patience),
        patch.object(by_gil, "_AT_ONCE", 1),
    ):
        own = rng.choice((trace, trace, trace.window(700, 2100), trace.window(pid=PID + 1)))
        found, expected = analyze(own), gil_reference.analyze(own)
    for name, table in vars(expected).items():
        by = [column for column in table if column not in ("name", "longest_ns", "mean_ns")]
        one, other = (each.sort_values(by, ignore_index=True) for each in (getattr(found, name), table))
        pd.testing.assert_frame_equal(one, other, check_dtype=False)


@pytest.mark.parametrize("seed", range(3))
def test_the_pass_for_the_waits_finds_who_held_it_too(tmp_path: Path, seed: int) -> None:
    events, sched = contention_of(random.Random(seed))
    of = {"cuts": [700, 1500, 2100], "end_ns": 5000, "losses": [("sched_ring", 1000, 1200, 1)]}
    alone, beside = (trace_of(tmp_path / name, events, sched, **of) for name in ("alone", "beside"))
    expected = [rows.tolist() for rows in gil_holds.evidence(alone)]
    assert len(expected) == 4 and sum(map(len, expected)) > 5
    with patch.object(feed, "_MANY", 0), patch.object(feed, "cores", lambda: 1 + seed):
        prepare(beside)
    with patch.object(gil_holds, "_of_segment", None):  # nothing is read again
        assert [rows.tolist() for rows in gil_holds.evidence(beside)] == expected
    for name, table in vars(analyze(alone)).items():
        pd.testing.assert_frame_equal(getattr(analyze(beside), name), table)


def test_what_waits_is_bounded_by_what_is_open(tmp_path: Path) -> None:
    """Not by the length of the trace, though a thread sleeps all along and another wants the GIL for good."""
    events, sched, held = list[Row](), [switch(1, 9, SchedKind.OUT, HOG), switch(2, 11, SchedKind.OUT, HOG, gil=True)], list[int]()
    for turn in range(30):
        at = 10 + turn * 1000
        sched += [switch(at, VICTIM, SchedKind.OUT, HOG, gil=True), switch(at + 500, VICTIM, SchedKind.WAKING, other=HOG)]
        sched += [switch(at + 510, HOG, SchedKind.OUT, NOBODY), switch(at + 520, VICTIM, SchedKind.IN), switch(at + 900, HOG, SchedKind.IN)]
        events += [event(at + 600, VICTIM, CallKind.ENTRY, 1), event(at + 610, VICTIM, CallKind.RETURN, 1), event(at + 950, HOG, CallKind.ENTRY, 0)]
    trace, take = trace_of(tmp_path, events, sched, cuts=range(10, 30_000, 1000), end_ns=30_100), by_gil._Sums.take

    def noting(self: Any, *more: Any) -> None:
        take(self, *more)
        frames = [*vars(self).values(), *vars(self._turns).values(), *vars(self._holds).values()]
        held.append(sum(len(each) for each in frames if isinstance(each, pd.DataFrame)))

    with patch.object(by_gil._Sums, "take", noting), patch.object(by_gil, "_AT_ONCE", 1):
        assert analyze(trace).threads["waits"].sum() == 31
    assert len(held) > 25 and max(held) < 50


def test_no_rows(tmp_path: Path) -> None:
    gil = found(trace_of(tmp_path, [], []))
    assert [len(table) for table in vars(gil).values()] == [0, 0, 0, 0]


def test_reasons_of_one_function(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *contention(), end_ns=31 * MS)
    of_victim, of_hog = (why.reasons(trace, func_id) for func_id in (1, 0))
    assert of_victim["gil"] == [{"func_id": 0, "ns": 7 * MS - 30}]
    slept = 4 * MS - 10 * US + 14 * MS - 100 * US - 5
    assert of_victim["blocked"] == [{"kind": "sleep", "syscall": "clock_nanosleep", "resource": None, "func_id": why.NOBODY, "ns": slept}]
    assert [part["func_id"] for part in of_hog["gil"]] == [1, why.NOBODY]
    assert of_hog["blocked"] == of_hog["runq"] == of_victim["runq"] == []


@pytest.mark.parametrize("columns", [80, 99])
@pytest.mark.parametrize("holders", [True, False])
def test_the_report_names_holders_and_waiters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, holders: bool
) -> None:
    events, sched = contention()
    trace = trace_of(tmp_path, events, sched if holders else [row[:10] for row in sched], end_ns=31 * MS)
    monkeypatch.setattr("pytrace_ebpf.cli.report.console", lambda: Console(width=columns, highlight=False, emoji=False, markup=False))
    assert main.main(["report", str(trace.directory), "--by", "gil"]) == 0
    out = capsys.readouterr().out
    assert max(cell_len(line.rstrip()) for line in out.splitlines()) <= columns
    if holders:
        assert "`A.victim` waited 7.00ms for the GIL held by `hog`." in out and "The GIL was held 100 %" in out
    else:
        assert "Who held the GIL was not recorded" in out and "(not known)" in out


def test_the_report_without_ebpf_says_that_it_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = trace_of(tmp_path, contention()[0], [], manifest={"scheduling": {"source": "perf", "why": "rootless"}})
    assert main.main(["report", str(trace.directory), "--by", "gil"]) == 0
    assert "is not known without eBPF" in capsys.readouterr().out


def test_json_has_documented_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documented = (Path(__file__).parents[3] / "docs/reading-a-report.md").read_text()
    trace = trace_of(tmp_path, *contention(), end_ns=31 * MS)
    assert main.main(["report", str(trace.directory), "--by", "gil", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    rows = [facts["rows"][0], *(row[0] for row in facts["gil"].values())]
    for key in ("gil", "sentence", *facts["gil"], *(key for row in rows for key in row)):
        assert f"`{key}`" in documented, key


def row(on_cpu: int, runq: int, gil: int, blocked: int) -> dict[str, int]:
    split = {"self_on_cpu_ns": on_cpu, "self_runq_wait_ns": runq, "self_gil_wait_ns": gil, "self_blocked_ns": blocked}
    return {"func_id": 0, "self_ns": on_cpu + runq + gil + blocked, **split}


def blocked(kind: str, syscall: str | None, other: int) -> dict[str, Any]:
    return {"kind": kind, "syscall": syscall, "resource": None, "func_id": other, "ns": 9}


@pytest.mark.parametrize(
    ("split", "reasons", "said"),
    [
        ((18, 0, 82, 0), {"gil": [{"func_id": 1, "ns": 50}, {"func_id": 2, "ns": 32}]}, "82 % of `load` is waiting for the GIL, mostly held by `tokenize`."),
        ((18, 0, 82, 0), {"gil": [{"func_id": 0, "ns": 82}]}, "82 % of `load` is waiting for the GIL, mostly held by itself in other threads."),
        ((60, 0, 40, 0), {"gil": [{"func_id": 1, "ns": 40}]}, "40 % of `load` is waiting for the GIL, mostly held by `tokenize`."),
        ((18, 0, 82, 0), {"gil": [{"func_id": -1, "ns": 82}]}, "82 % of `load` is waiting for the GIL."),
        ((50, 50, 0, 0), {"runq": [{"func_id": 0, "ns": 9}]}, "`load` computes; half of its time it has no core: `load` on other threads has them."),
        ((70, 30, 0, 0), {"runq": [{"func_id": why.NOBODY, "ns": 9}]}, "`load` computes; 30 % of its time it has no core: other programs have them."),
        ((95, 5, 0, 0), {"runq": []}, "`load` computes."),
        ((1, 0, 0, 99), {"blocked": [blocked("net", "recvfrom", why.NOBODY)]}, "`load` is waiting in recvfrom (net), woken by no thread of this program."),
        ((20, 0, 0, 80), {"blocked": [blocked("lock", "futex", 2)]}, "80 % of `load` is waiting for a lock, woken by `put`."),
        ((0, 0, 0, 99), {"blocked": [blocked("sleep", "clock_nanosleep", -1)]}, "`load` is sleeping."),
        ((30, 20, 20, 30), {}, ""),
    ],
)  # fmt: skip
def test_the_sentence_in_plain_words(split: tuple[int, int, int, int], reasons: dict[str, Any], said: str) -> None:
    everything = {"gil": [], "blocked": [], "runq": []} | reasons
    assert top_function(row(*split), 100, lambda: everything, {0: "load", 1: "tokenize", 2: "put"}) == said


def of_functions(**columns: list[Any]) -> pd.DataFrame:
    """Rows by function, named a, b and so on; with no time where none is given."""
    count = len(columns["ns"])
    nothing = dict.fromkeys(("unknown_ns", "on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"), [0] * count)
    own = {f"self_{name}": values for name, values in (nothing | columns).items()}
    return pd.DataFrame({"func_id": range(count), "qualname": list("abc")[:count], **own})


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"ns": [61, 39], "on_cpu_ns": [4, 2], "runq_wait_ns": [39, 37], "blocked_ns": [18, 0]},
            "61 %, of which 64 % in the run queue and 30 % blocked.",
        ),
        ({"ns": [60, 40], "on_cpu_ns": [0, 40], "blocked_ns": [60, 0]}, "60 %, all of it blocked. Of the time on a core `b` has the most, 100 %."),
        (
            {"ns": [70, 30], "on_cpu_ns": [7, 3], **{name: [None, None] for name in ("runq_wait_ns", "gil_wait_ns", "blocked_ns")}},
            "70 %, of which 90 % off the core and 10 % on a core.",
        ),
        (
            {"ns": [80, 20], "on_cpu_ns": [20, 20], "gil_wait_ns": [20, 0], "unknown_ns": [40, 0]},
            "80 %, of which 50 % not recorded, 25 % on a core and 25 % waiting for the GIL.",
        ),
        ({"ns": [70, 30], "on_cpu_ns": [None, None]}, "70 %."),
    ],
)
def test_where_nothing_dominates_the_sentence_is_plain(columns: dict[str, list[Any]], said: str) -> None:
    assert most_time(of_functions(**columns)) == f"`a` has the most self time, {said}"


def test_few_samples_name_no_function_and_native_code_is_named_last() -> None:
    columns = {"ns": [50, 30], "on_cpu_ns": [50, 30]}
    assert most_time(of_functions(**columns, error_ns=[40, 5])) == "There are too few samples to say where the time went."
    assert most_time(of_functions(**columns, error_ns=[1, 1]).assign(native=[1, 0])) == "`b` has the most self time, 38 %, all of it on a core."
    assert most_time(of_functions(**columns).assign(func_id=-1)) == ""


@pytest.mark.parametrize(
    ("at", "below", "said"),
    [
        ((70, 0, 0, 30), (69, 0, 0, 31), "`load` computes."),
        ((40, 30, 0, 30), (40, 29, 0, 31), "`load` computes; 30 % of its time it has no core."),
        ((50, 20, 30, 0), (40, 29, 29, 2), "30 % of `load` is waiting for the GIL."),
        ((50, 0, 0, 50), (51, 0, 0, 49), "50 % of `load` is waiting, for several things."),
    ],
)
def test_from_which_share_on_something_is_said(at: tuple[int, int, int, int], below: tuple[int, int, int, int], said: str) -> None:
    def nobody() -> dict[str, Any]:
        return {"gil": [], "blocked": [], "runq": []}

    assert [top_function(row(*split), 100, nobody, {0: "load"}) for split in (at, below)] == [said, ""]


def test_quiet_where_nothing_dominates_or_is_known() -> None:
    def unasked() -> dict[str, Any]:
        raise AssertionError("the waits were read for nothing")

    assert top_function(row(100, 0, 0, 0), 2_000, unasked, {0: "load"}) == ""
    assert top_function(row(100, 0, 0, 0) | {"self_gil_wait_ns": None}, 100, unasked, {0: "load"}) == ""
    assert top_function(row(100, 0, 0, 0), 100, unasked, {0: "load"}) == "`load` computes."
    assert waited_for([]) == ""


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=40), min_size=1, max_size=6),
    st.lists(st.integers(-1, 61), max_size=6),
    st.booleans(),
    st.lists(st.sampled_from(CallKind), min_size=1, max_size=7),
    st.integers(1, 30),
)
def test_events_far_from_all_others_say_nothing(times: list[list[int]], others: list[int], in_order: bool, kinds: list[CallKind], size: int) -> None:
    """What is left when they are left out first is what is left when all have been put in order."""
    runs = [(sorted(run) if in_order else run, 7 + number // 4, number) for number, run in enumerate(times)]
    ts, pid, tid = (np.concatenate([np.full(len(run), of) if of is not None else run for run, of in each]) for each in (
        [(run, None) for run, _, _ in runs], [(run, pid) for run, pid, _ in runs], [(run, tid) for run, _, tid in runs],
    ))  # fmt: skip
    rows = np.zeros(len(ts) + len(others), gil_holds.ROW)
    rows["ts"], rows["pid"], rows["holder"] = np.append(ts, others), np.append(pid, [7] * len(others)), np.append(tid, [99] * len(others))
    rows["by"][len(ts) :] = 5

    def left(rows: gil_holds.Rows) -> list[Any]:
        return list(gil_holds._ends_of_runs(rows[np.lexsort((rows["ts"], rows["pid"]))]).tolist())

    kind = np.resize(kinds, len(ts))
    events = pa.table({"ts": ts, "pid": pid, "tid": tid, "kind": kind})
    shows = np.append(~np.isin(kind, (CallKind.OPEN, CallKind.STANDS, CallKind.RESET)), np.ones(len(others), bool))
    for pieces in ([events], [events.slice(at, size) for at in range(0, len(events), size)]):
        kept = np.append(gil_handoffs(pieces, np.array(others, np.int64)), np.ones(len(others), bool))
        assert shows[kept].all()
        assert left(rows[kept]) == left(rows[shows])
