"""The boxes of a picture hold what the calls hold: every call or the sum of those it merges, and no more boxes than asked for."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.view.page.boxes import PARTS, Boxes, of_calls
from tests.unit.callrows import frame, random_calls
from tests.unit.synthetic import sample


def blocks(calls: pd.DataFrame, most: int) -> pd.DataFrame:
    boxes = Boxes(most)
    boxes.add(of_calls(calls))
    return boxes.made()


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return pytrace_ebpf.open(sample(tmp_path / "trace"))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("most", (1, 20, 60))
def test_merged_boxes_keep_what_was_in_them(seed: int, most: int) -> None:
    calls = frame({1: [call for i in range(8) for call in random_calls(10 * seed + i)]})
    made = blocks(calls, most)
    assert len(made) <= max(most, calls["depth"].nunique())
    by_depth, expected = made.groupby("depth"), calls.groupby("depth")
    assert by_depth["calls"].sum().tolist() == expected.size().tolist()
    assert by_depth["wall_ns"].sum().tolist() == expected["wall_ns"].sum().tolist()
    assert (made[list(PARTS)].sum(axis=1) == made["wall_ns"]).all()
    assert made["on_cpu"].sum() == calls["on_cpu_ns"].fillna(0).sum()
    assert made["unknown"].sum() == calls.loc[calls["on_cpu_ns"].isna(), "wall_ns"].sum()
    for _, level in by_depth:
        assert (level["start_ns"].to_numpy()[1:] >= level["end_ns"].to_numpy()[:-1]).all()
    for box in made.itertuples():
        inside = calls[(calls["depth"] == box.depth) & (calls["start_ns"] >= box.start_ns) & (calls["end_ns"] <= box.end_ns)]
        time = inside.groupby("func_id")["wall_ns"].sum()
        assert time[box.func_id] == time.max() or box.start_ns == box.end_ns


def test_all_is_shown_where_it_may_be() -> None:
    calls = frame({1: random_calls(3)})
    assert len(blocks(calls, len(calls))) == len(calls)
    assert list(blocks(calls[:0], 10).columns) == list(blocks(calls, 10).columns)


def test_a_wait_of_unknown_kind_is_off_the_core() -> None:
    calls = frame({1: random_calls(3)})
    calls["gil_wait_ns"] = pd.array([None] * len(calls), "Int64")
    known = calls["on_cpu_ns"].notna()
    made = blocks(calls, len(calls))
    rest = (calls["wall_ns"] - calls["on_cpu_ns"] - calls["runq_wait_ns"] - calls["blocked_ns"])[known]
    assert made["off"].sum() == rest.sum() and made["gil_wait"].sum() == 0


@pytest.mark.parametrize("most", [50, 400, 5000])
@pytest.mark.parametrize("pieces", [2, 17])
def test_pieces_make_the_boxes_of_the_whole(trace: Trace, most: int, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for which function a merged box is called by."""
    calls = trace.calls(tid=4002).sort_values("end_ns", kind="stable", ignore_index=True)
    many = pd.concat([calls.assign(start_ns=calls["start_ns"] + k * 10**8, end_ns=calls["end_ns"] + k * 10**8) for k in range(20)], ignore_index=True)
    whole = blocks(many.sort_values(["depth", "start_ns"], kind="stable"), most)
    boxes = Boxes(most)
    monkeypatch.setattr("pytrace_ebpf.view.page.boxes.ROOM", 100)
    for some in np.array_split(np.arange(len(many)), pieces):
        boxes.add(of_calls(many.iloc[some].sort_values(["depth", "start_ns"], kind="stable")))
    made = boxes.made()
    pd.testing.assert_frame_equal(made.drop(columns="func_id"), whole.drop(columns="func_id"))
    assert (made["func_id"] == whole["func_id"])[whole["calls"] == 1].all()
