"""The icicle holds what the trace holds: every call or the sum of those it merges, no more boxes than asked for, and no script but its own."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.functions.named_layers import named_layers
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.states import NAMES
from pytrace_ebpf.view.export import icicle
from pytrace_ebpf.view.export.icicle_blocks import PARTS, Boxes
from tests.unit.callrows import frame, random_calls
from tests.unit.synthetic import SAMPLE_FUNCTIONS, Script, sample, write_trace


def blocks(calls: pd.DataFrame, most: int) -> pd.DataFrame:
    boxes = Boxes(most)
    boxes.add(calls)
    return boxes.made()


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return pytrace_ebpf.open(sample(tmp_path / "trace"))


def page(trace: Trace, tid: int | None = None) -> str:
    out = io.BytesIO()
    icicle.write(trace, tid, out)
    return out.getvalue().decode()


def data(text: str) -> dict[str, Any]:
    return dict(json.loads(re.findall(r'<script type="application/json" id="trace">(.*?)</script>', text, re.DOTALL)[0]))


def boxes(rows: list[list[list[int]]]) -> list[list[dict[str, int]]]:
    """The boxes per level, as the page's script reads them."""
    levels = []
    for gap, length, func, calls, wall, *parts, workers in rows:
        end = np.cumsum(np.add(gap, length))
        wall = np.add(wall, length)
        columns = {"start": end - length, "end": end, "func": func, "calls": calls, "wall": wall, "workers": workers}
        columns |= {"on_cpu": wall - np.sum(parts, axis=0), **dict(zip(PARTS[1:], parts, strict=True))}
        levels.append(pd.DataFrame(columns).to_dict("records"))
    return levels


@pytest.mark.parametrize("tid", (4000, 4001, 4002))
def test_a_small_thread_is_shown_call_by_call(trace: Trace, tid: int) -> None:
    shown = data(page(trace, tid))
    calls = trace.calls(tid=tid)
    assert shown["calls"] == len(calls) and f"tid {tid}" in shown["thread"]
    assert shown["from_ns"] + trace.start_ns == calls["start_ns"].min()
    functions = trace.functions().set_index("func_id")["qualname"]
    for depth, level in enumerate(boxes(shown["rows"])):
        expected = calls[calls["depth"] == depth]
        origin = calls["start_ns"].min()
        assert [(b["start"] + origin, b["end"] + origin, b["calls"]) for b in level] == [
            (s, e, 1) for s, e in zip(expected["start_ns"], expected["end_ns"], strict=True)
        ]
        assert [shown["functions"][b["func"]][0] for b in level] == expected["func_id"].map(functions).tolist()
        for name in NAMES:
            assert [b[name] for b in level] == expected[f"{name}_ns"].tolist()


def test_the_thread_that_computed_most_is_shown_by_itself(trace: Trace) -> None:
    outer = trace.calls(depth=0).groupby("tid")["on_cpu_ns"].sum()
    assert f"tid {outer.idxmax()})" in data(page(trace))["thread"]


def test_states_of_the_thread_add_up_to_its_calls(trace: Trace) -> None:
    shown = data(page(trace, 4001))
    (outer, *_), (states,) = boxes(shown["rows"]), boxes(shown["states"])
    for part in PARTS:
        assert sum(b[part] for b in states) == sum(b[part] for b in outer)


@pytest.mark.parametrize(("source", "part"), (("bpf", "blocked"), ("perf", "off")))
def test_a_wait_is_shown_where_it_was_recorded(tmp_path: Path, source: str, part: str) -> None:
    script = Script(10, 10).snapshot().enter(1).run(1000).wait(50_000, queued=0).run(500).preempted(700, by=9).run(100).leave()
    path = write_trace(
        tmp_path / "t", events=script.events, sched=script.sched, functions=SAMPLE_FUNCTIONS, manifest={"scheduling": {"source": source, "why": ""}}
    )
    ((*states,),) = boxes(data(page(pytrace_ebpf.open(path)))["states"])
    assert {name: sum(b[name] for b in states) for name in PARTS if any(b[name] for b in states)} == {"on_cpu": 1600, "runq_wait": 700, part: 50_000}


def test_without_switches_the_calls_are_shown_alone(tmp_path: Path) -> None:
    script = Script(10, 10).enter(1).run(1000).enter(2).run(10).leave().leave()
    shown = data(page(pytrace_ebpf.open(write_trace(tmp_path / "t", events=script.events, functions=SAMPLE_FUNCTIONS))))
    assert shown["states"] == [] and [b["unknown"] for level in boxes(shown["rows"]) for b in level] == [1010, 10]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("most", (1, 20, 60))
def test_merged_boxes_keep_what_was_in_them(seed: int, most: int) -> None:
    calls = frame({1: [call for i in range(8) for call in random_calls(10 * seed + i)]}).assign(worker_on_cpu_ns=3)
    made = blocks(calls, most)
    assert len(made) <= max(most, calls["depth"].nunique())
    by_depth, expected = made.groupby("depth"), calls.groupby("depth")
    assert by_depth["calls"].sum().tolist() == expected.size().tolist()
    assert by_depth["wall_ns"].sum().tolist() == expected["wall_ns"].sum().tolist()
    assert (made[list(PARTS)].sum(axis=1) == made["wall_ns"]).all() and made["workers"].sum() == 3 * len(calls)
    assert made["on_cpu"].sum() == calls["on_cpu_ns"].fillna(0).sum()
    assert made["unknown"].sum() == calls.loc[calls["on_cpu_ns"].isna(), "wall_ns"].sum()
    for _, level in by_depth:
        assert (level["start_ns"].to_numpy()[1:] >= level["end_ns"].to_numpy()[:-1]).all()
    for box in made.itertuples():
        inside = calls[(calls["depth"] == box.depth) & (calls["start_ns"] >= box.start_ns) & (calls["end_ns"] <= box.end_ns)]
        time = inside.groupby("func_id")["wall_ns"].sum()
        assert time[box.func_id] == time.max() or box.start_ns == box.end_ns


def test_all_is_shown_where_it_may_be() -> None:
    calls = frame({1: random_calls(3)}).assign(worker_on_cpu_ns=0)
    assert len(blocks(calls, len(calls))) == len(calls)
    assert list(blocks(calls[:0], 10).columns) == list(blocks(calls, 10).columns)


def test_a_wait_of_unknown_kind_is_off_the_core() -> None:
    calls = frame({1: random_calls(3)}).assign(worker_on_cpu_ns=0)
    calls["gil_wait_ns"] = pd.array([None] * len(calls), "Int64")
    known = calls["on_cpu_ns"].notna()
    made = blocks(calls, len(calls))
    rest = (calls["wall_ns"] - calls["on_cpu_ns"] - calls["runq_wait_ns"] - calls["blocked_ns"])[known]
    assert made["off"].sum() == rest.sum() and made["gil_wait"].sum() == 0


def test_a_page_of_many_calls_stays_small(tmp_path: Path) -> None:
    script = Script(10, 10).snapshot().enter(1)
    for turn in range(20_000):
        script.run(300 + 7 * (turn % 91)).enter(2 + turn % 3).run(100).enter(4).run(200 + turn % 1000).leave().leave()
    script.leave()
    trace = pytrace_ebpf.open(write_trace(tmp_path / "t", events=script.events, sched=script.sched, functions=SAMPLE_FUNCTIONS))
    text = page(trace)
    assert len(text) < 2_000_000 and data(text)["calls"] == 40_001
    assert 5_000 < sum(len(level) for level in boxes(data(text)["rows"])) <= 30_000


def test_modules_and_operators_have_their_own_layer(tmp_path: Path) -> None:
    functions = [
        (0, "/app/train.py", "train", "train", 1, "train", 0, "python"),
        (1, "/lib/torch/nn/modules/module.py", "_call_impl", "Module._call_impl", 1, "torch.nn.modules.module", 0, "python"),
        (2, "/app/net.py", "forward", "Net.forward", 9, "net", 0, "python"),
        (3, "", "aten::conv1d", "aten::conv1d.padding", -1, "<operator>", 0, "operator"),
        (4, "/lib/libmkl.so", "sgemm", "sgemm", -1, "MKL", 0, "blas"),
    ]
    script = Script(10, 10).snapshot()
    for func in range(5):
        script.run(100).enter(func)
    for _ in range(5):
        script.run(100).leave()
    trace = pytrace_ebpf.open(write_trace(tmp_path / "t", events=script.events, sched=script.sched, functions=functions))
    shown = data(page(trace))
    named = [(name, place, shown["layers"][layer][0]) for name, place, layer in shown["functions"]]
    assert [layer for _, _, layer in named] == ["python", "python", "module", "operator", "blas"]
    assert named[3][:2] == ("aten::conv1d.padding", "") and named[4][:2] == ("sgemm", "/lib/libmkl.so")
    layers = named_layers(trace.calls(), trace.functions())
    assert [int(layers["blas"][f"in_{name}"].iloc[0]) for name in ("module", "python", "operator")] == trace.calls()["call_id"].tolist()[2:3] * 2 + [
        3
    ]


def test_names_cannot_leave_their_place(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>{{trace}}"
    script = Script(10, 10).snapshot().enter(0).run(1000).leave()
    rows = [(0, "/a<b>.py", evil, evil, 1, "a")]
    trace = pytrace_ebpf.open(write_trace(tmp_path / "t", events=script.events, sched=script.sched, functions=rows))
    text = page(trace)
    assert text.count("<script") == 2 and "alert(1)</script>" not in text
    assert data(text)["functions"][0][:2] == [evil, "/a<b>.py:1"]


def test_nothing_is_fetched(trace: Trace) -> None:
    assert not re.search(r"https?:|src=|href=|import\(|fetch\(|@import|url\(", page(trace))


def test_it_says_which_threads_there_are(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Thread 1 made no calls.*4001"):
        page(trace, 1)
    with pytest.raises(UsageError, match="no calls to show"):
        page(pytrace_ebpf.open(write_trace(tmp_path / "empty")))


def test_the_command_writes_it_beside_you(trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", "trace", "--to", "icicle", "--tid", "4002"]) == 0
    assert "tid 4002" in data((tmp_path / "trace.html").read_text())["thread"]
    assert main(["export", "trace", "--to", "icicle", "--tid", "1"]) == 2


@pytest.mark.parametrize("most", [50, 400, 5000])
@pytest.mark.parametrize("pieces", [2, 17])
def test_pieces_make_the_boxes_of_the_whole(trace: Trace, most: int, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for which function a merged box is called by."""
    calls = trace.calls(tid=4002).sort_values("end_ns", kind="stable", ignore_index=True)
    many = pd.concat([calls.assign(start_ns=calls["start_ns"] + k * 10**8, end_ns=calls["end_ns"] + k * 10**8) for k in range(20)], ignore_index=True)
    whole = blocks(many.sort_values(["depth", "start_ns"], kind="stable"), most)
    boxes = Boxes(most)
    monkeypatch.setattr("pytrace_ebpf.view.export.icicle_blocks.ROOM", 100)
    for some in np.array_split(np.arange(len(many)), pieces):
        boxes.add(many.iloc[some].sort_values(["depth", "start_ns"], kind="stable"))
    made = boxes.made()
    pd.testing.assert_frame_equal(made.drop(columns="func_id"), whole.drop(columns="func_id"))
    assert (made["func_id"] == whole["func_id"])[whole["calls"] == 1].all()
