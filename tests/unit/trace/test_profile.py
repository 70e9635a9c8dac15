"""Samples that are summed as they are taken: the report of the sums is that of the samples."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.analyze.live.profile import profile
from pytrace_ebpf.analyze.live.samples import LiveSamples
from pytrace_ebpf.analyze.samples.by_line import by_line
from pytrace_ebpf.analyze.samples.paths import segments
from pytrace_ebpf.analyze.samples.tree import nodes
from pytrace_ebpf.trace.profile import RARE
from pytrace_ebpf.trace.schema import PROCESSES, PROFILE, SAMPLES, STACKS, TABLES
from pytrace_ebpf.trace.states import SPLIT
from tests.unit.synthetic import GIL, write_trace

PERIOD = 1000
MACHINE = "x86_64"
FUNCTIONS = [(number, f"/app/{number}.py", f"f{number}", f"f{number}", 1, f"m{number}") for number in range(4)]
SUMMED: dict[str, Any] = {
    "sampling": {"period_ns": PERIOD, "off_core": 1, "summed_ns": 10**10},
    "sources": [{"pid": 1, "source": "sample", "why": "x"}],
}
SAMPLED = SUMMED | {"sampling": {"period_ns": PERIOD, "off_core": 1}}


def stacks_of(calls: list[tuple[int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Rows of `stacks`: each the stack of one before, or none, and a function and line."""
    return [(7 + at, 7 + above % at if at and above % 3 else -1, func_id, line) for at, (above, func_id, line) in enumerate(calls)]


sample = st.tuples(st.integers(1, 3), st.integers(-2, 9), st.sampled_from([0, 0, 40, 5000]), st.integers(0, 2))
trees = st.lists(st.tuples(st.integers(0, 20), st.integers(-1, 3), st.integers(-1, 3)), min_size=1, max_size=10, unique=True)


def rows(samples: list[tuple[int, int, int, int]], stacks: list[Any]) -> list[Any]:
    number = [stack if stack < 0 else stacks[stack % len(stacks)][0] for _, stack, _, _ in samples]
    return [
        (10_000 * (at + 1), pid, pid, 0, stack, -1, off, 0 if off else missed)
        for at, ((pid, _, off, missed), stack) in enumerate(zip(samples, number, strict=True))
    ]


def table(spec: Any, content: list[Any]) -> pa.Table:
    content = [(*row, *(column.absent for column in spec.columns[len(row) :])) for row in content]
    columns = zip(*content, strict=True) if content else [()] * len(spec.columns)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, spec.arrow, strict=True)], schema=spec.arrow)


def summed_trace(path: Path, windows: list[pa.Table]) -> pytrace_ebpf.trace.reader.Trace:
    write_trace(path, functions=FUNCTIONS, threads=[], processes=[(pid, 1, "p", "p", "3.11", "sample", *GIL, 0, None) for pid in (1, 2, 3)],
                end_ns=10**6, manifest=SUMMED)  # fmt: skip
    (path / "profile").mkdir(exist_ok=True)
    whole = pa.concat_tables(windows)
    pq.write_table(whole, path / "profile" / "part-00000.parquet")
    manifest = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(manifest.replace('"events": 0', f'"profile": {len(whole)}, "events": 0', 1))
    return pytrace_ebpf.open(path)


def comparable(tree: pd.DataFrame) -> pd.DataFrame:
    """A tree by process and the functions on the way, whatever the numbers of its nodes; without the variance of unknown time, which nobody reports."""
    paths: dict[int, tuple[int, ...]] = {-1: ()}
    for node, parent, func_id in zip(tree["node_id"], tree["parent_id"], tree["func_id"], strict=True):
        paths[node] = (*paths[parent], func_id)
    named = tree.assign(path=[str(paths[node]) for node in tree["node_id"]]).drop(
        columns=["node_id", "parent_id", "tid", *[name for name in tree if "unknown_square" in name]]
    )
    return named.set_index(["pid", "path"]).sort_index().astype("float64").round(3)


@pytest.mark.parametrize("seed", range(3))
def test_the_tree_and_the_lines_of_the_sums_are_those_of_the_samples(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    calls = list({(chance.randrange(40), chance.randrange(-1, 4), chance.randrange(-1, 4)) for _ in range(40)})
    first, second = (
        [(chance.randint(1, 3), chance.randint(-2, 99), chance.choice([0, 0, 40, 5000]), chance.randrange(3)) for _ in range(count)]
        for count in (300, 90)
    )
    place, stacks = tmp_path, stacks_of(calls)
    content = rows(first + second, stacks)
    raw = write_trace(place / "raw", functions=FUNCTIONS, samples=content, stacks=stacks, end_ns=10**6, manifest=SAMPLED)
    live, windows = LiveSamples(0, MACHINE, {"period_ns": PERIOD}), []
    for number, part in enumerate((content[: len(first)], content[len(first) :])):
        weighed = live.take({"samples": table(SAMPLES, part)}, (number + 1) * 10**6)
        windows.append(profile(weighed, table(STACKS, stacks), number * 10**6, (number + 1) * 10**6))
    summed = summed_trace(place / "summed", windows)
    exact = pytrace_ebpf.open(raw)
    pd.testing.assert_frame_equal(comparable(nodes(summed)), comparable(nodes(exact)))
    lines = [by_line(trace, PERIOD, 10_000) for trace in (summed, exact)]
    pd.testing.assert_frame_equal(*lines)
    assert sum(int(each["samples"].sum()) for each, _ in segments(summed)) == len(content)


@given(trees, st.lists(sample, min_size=1, max_size=30), st.integers(1, 5))
def test_of_too_many_stacks_the_rarest_are_one_and_no_time_is_lost(calls: list[Any], samples: list[Any], most: int) -> None:
    stacks = stacks_of(calls)
    weighed = LiveSamples(0, MACHINE, {"period_ns": PERIOD}).take({"samples": table(SAMPLES, rows(samples, stacks))}, 10**6)
    few = profile(weighed, table(STACKS, stacks), 0, 1, most).to_pandas()
    assert len(few[few["samples"] + few["off_samples"] > 0]) <= most + weighed["pid"].nunique()
    assert (few.loc[few["node_id"] == RARE, ["parent_id", "func_id"]] == -1).all(axis=None)
    for name in (*SPLIT, "unknown_ns"):
        assert few[name].sum() == weighed[name].sum()
    assert few["samples"].sum() + few["off_samples"].sum() == len(samples)


def test_a_caller_stands_before_its_callees_and_numbers_are_unique_in_a_window() -> None:
    stacks = [(5, -1, 0, 1), (6, 5, 1, 2), (7, 6, 2, 3), (8, 5, 2, 9)]
    content = [(1000, 1, 1, 0, 7, -1, 0, 0), (2000, 2, 2, 0, 7, -1, 0, 0), (3000, 2, 2, 0, 8, -1, 0, 0), (4000, 2, 2, 0, -1, -1, 0, 0)]
    weighed = LiveSamples(0, MACHINE, {"period_ns": PERIOD}).take({"samples": table(SAMPLES, content)}, 10**6)
    found = profile(weighed, table(STACKS, stacks), 10, 20)
    assert found.schema == PROFILE.arrow
    tree = found.to_pandas()
    named = tree[tree["node_id"] >= 0]
    assert named["node_id"].tolist() == list(range(7))
    assert (named["parent_id"] < named["node_id"]).all()
    assert (
        named.set_index("node_id")["pid"].reindex(named["parent_id"][named["parent_id"] >= 0]).tolist()
        == named["pid"][named["parent_id"] >= 0].tolist()
    )
    assert tree.loc[tree["node_id"] == -1, ["pid", "samples"]].to_numpy().tolist() == [[2, 1]]
    assert tree["on_cpu_ns"].sum() == 4 * PERIOD


def test_the_moment_that_a_gil_is_known_waits_for_it_are_told_from_others() -> None:
    """Its address comes with a later segment, as of a program that has just started."""
    live = LiveSamples(0, MACHINE, {"period_ns": PERIOD})
    process = [(1, 0, "p", "p", "3.11", "sample", 0, 0, 0, None)]
    out, waking, in_ = 1, 2, 0

    def segment(at: int, processes: list[Any]) -> pd.DataFrame:
        sched = [
            (at, 1, 1, out, 0, 1, 202, GIL[0], 0, 0, -1), (at + 3000, 1, 1, waking, 0, 0, -1, 0, 0, 0, -1), (at + 4000, 1, 1, in_, 0, 0, -1, 0, 0, 0, -1),
        ]  # fmt: skip
        found = {"sched": table(TABLES["sched"], sched), "samples": table(SAMPLES, [(at + 4001, 1, 1, 0, -1, -1, 4000, 0)])}
        return live.take(found | ({"processes": table(PROCESSES, processes)} if processes else {}), at + 10_000)

    before = segment(10_000, process)
    after = segment(20_000, [(*process[0][:6], *GIL, 0, None)])
    assert before[["runq_wait_ns", "gil_wait_ns", "blocked_ns", "unknown_ns"]].to_numpy().tolist() == [[1000, 0, 3000, 0]]
    assert after[["runq_wait_ns", "gil_wait_ns", "blocked_ns", "unknown_ns"]].to_numpy().tolist() == [[1000, 3000, 0, 0]]


def test_what_is_known_of_threads_that_ended_is_let_go() -> None:
    live = LiveSamples(0, MACHINE, {"period_ns": PERIOD})
    exit_ = 6
    for number in range(8):
        at, tids = number * 10_000, range(1000 * number + 2, 1000 * number + 1002)
        begun = [(at + 1, 1, tid, 0, 0, 0, -1, 0, 0, 0, -1) for tid in tids]
        ended = [(at + 2, 1, tid, exit_, 0, 0, -1, 0, 0, 0, -1) for tid in tids]
        lost = table(TABLES["losses"], [("sched_ring", at + 5, at + 6, 1)]) if number == 3 else None
        live.take({"sched": table(TABLES["sched"], begun + ended)} | ({"losses": lost} if lost is not None else {}), at + 9_999)
    assert len(live._waits._waits.state()["keys"]) < 4000
    assert np.all(live._waits._recent["end_ns"] >= 0)
