"""`report --by operator`, `--by blas` and `--errors`: sums, sentences and lines from hand-made traces, within any width."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

import pytrace_ebpf
from pytrace_ebpf.analyze.functions import by_function
from pytrace_ebpf.analyze.native.around import calls_within, native_by_part
from pytrace_ebpf.analyze.native.by_operator import shapes_text
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CallKind, SchedKind
from pytrace_ebpf.view.by import BY
from tests.unit.synthetic import Row, write_trace

E, R, _, _, UNWIND, *_ = (int(kind) for kind in CallKind)
STEP, FORWARD, LINEAR, ADDMM, SGEMM, RELU, GEMM = range(7)
TORCH = "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py"
FUNCTIONS = [
    (STEP, "/app/train.py", "step", "Model.step", 10, "train", 0, "python"),
    (FORWARD, TORCH, "forward", "Linear.forward", 120, "torch.nn.modules.linear", 0, "python"),
    (LINEAR, "", "aten::linear", "aten::linear", -1, "<operator>", 0, "operator"),
    (ADDMM, "", "aten::addmm", "aten::addmm.out", -1, "<operator>", 0, "operator"),
    (SGEMM, "/lib/libmkl.so", "sgemm", "sgemm", -1, "MKL", 0, "blas"),
    (RELU, "", "aten::relu", "aten::relu", -1, "<operator>", 0, "operator"),
    (GEMM, "/lib/libblas.so", "dgemm", "dgemm", -1, "BLAS", 0, "blas"),
]
F = "float32"
# Two steps of a layer 30 -> 50 on 20 samples, the second with 10 samples; then one that is given the wrong size.
STEPS = [
    (10, E, STEP), (11, E, FORWARD), (12, E, LINEAR), (14, E, ADDMM), (15, E, SGEMM), (55, R, SGEMM), (58, R, ADDMM), (62, R, LINEAR),
    (63, R, FORWARD), (70, E, RELU), (80, R, RELU), (90, R, STEP),
    (110, E, STEP), (111, E, FORWARD), (112, E, LINEAR), (114, E, ADDMM), (115, E, SGEMM), (135, R, SGEMM), (138, R, ADDMM), (142, R, LINEAR),
    (143, R, FORWARD), (150, R, STEP),
]  # fmt: skip
GIVEN = [
    (ts + at, func, result, shapes, [F] * len(shapes))
    for ts, n in ((0, 20), (100, 10))
    for at, func, result, shapes in (
        (12, LINEAR, False, [[n, 30], [50, 30], [50]]), (62 - ts // 5, LINEAR, True, [[n, 50]]),
        (14, ADDMM, False, [[50], [n, 30], [30, 50]]), (58 - ts // 5, ADDMM, True, [[n, 50]]), (15, SGEMM, False, [[n, 30], [30, 50]]),
    )
]  # fmt: skip
FAILS = [
    (200, E, STEP), (201, E, FORWARD), (202, E, LINEAR), (204, E, ADDMM), (208, UNWIND, ADDMM), (209, UNWIND, LINEAR), (210, UNWIND, FORWARD),
]  # fmt: skip
WRONG = [(202, LINEAR, False, [[20, 31], [50, 30], [50]], [F] * 3), (204, ADDMM, False, [[50], [20, 31], [30, 50]], [F] * 3)]
MESSAGE = "mat1 and mat2 shapes cannot be multiplied (20x31 and 30x50)"


def trace(path: Path, events: list[Any], arguments: list[Any] = (), lines: dict[int, int] | None = None, **more: Any) -> Any:  # type: ignore[assignment]
    """Of events (ts, kind, function) and arguments of one thread that always has a core; `lines`: that of the event at ts."""
    rows: list[Row] = [(ts, 7, 7, kind, func, 0, (lines or {}).get(ts, -1)) for ts, kind, func in events]
    tensors: list[Row] = [(ts, 7, 7, *rest) for ts, *rest in arguments]
    sched = [(events[0][0], 7, 7, SchedKind.SNAPSHOT, 0, 0, -1, 0, 0, 0)]
    return pytrace_ebpf.open(write_trace(path, events=rows, arguments=tensors, functions=FUNCTIONS, sched=sched, **more))


def found(opened: Any, by: str, **facts: Any) -> tuple[pd.DataFrame, dict[str, Any]]:
    return BY[by].found(opened, opened.calls(), facts)


def shown(opened: Any, by: str, width: int = 99, **facts: Any) -> list[str]:
    table, more = found(opened, by, **facts)
    facts |= {"scheduling": opened.scheduling, "start_ns": opened.start_ns} | more
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        for part in BY[by].shown(facts, table, width, False, 20):
            console.print(part)
    return capture.get().splitlines()


def test_sums_by_operator(tmp_path: Path) -> None:
    table, facts = found(trace(tmp_path, STEPS, GIVEN), "operator")
    product = 2 * 30 * 30 * 50
    columns = ["name", "calls", "total_ns", "self_ns", "self_on_cpu_ns", "flops"]
    assert table.fillna({"flops": -1})[columns].to_numpy().tolist() == [
        ["sgemm", 2, 60, 60, 60, product],
        ["aten::linear", 2, 80, 12, 12, product],
        ["aten::relu", 1, 10, 10, 10, -1],
        ["aten::addmm", 2, 68, 8, 8, product],
    ]
    assert table["flops_per_s"].fillna(-1).tolist() == [round(product * 1e9 / ns) if ns else -1 for ns in (60, 80, 0, 68)]
    assert facts["sentence"] == "PyTorch's operators took 90ns; 67 % of the time of native code is `sgemm` (MKL) itself."
    layers = [[row[key] for key in ("layer", "calls", "total_ns", "self_ns", "flops")] for row in facts["layers"]]
    assert layers == [["operator", 5, 90, 30, product], ["blas", 2, 60, 60, product]]


def test_by_shapes_on_demand(tmp_path: Path) -> None:
    table, _ = found(trace(tmp_path, STEPS, GIVEN), "operator", shapes=True)
    rows = table[["name", "overload", "shapes", "calls", "total_ns"]].astype(object).where(table.notna(), None).to_numpy().tolist()
    assert rows == [
        ["sgemm", "", "20x30, 30x50", 1, 40],
        ["sgemm", "", "10x30, 30x50", 1, 20],
        ["aten::relu", "", None, 1, 10],
        ["aten::linear", "", "10x30, 50x30, 50", 1, 30],
        ["aten::linear", "", "20x30, 50x30, 50", 1, 50],
        ["aten::addmm", "out", "50, 10x30, 30x50", 1, 24],
        ["aten::addmm", "out", "50, 20x30, 30x50", 1, 44],
    ]
    assert shapes_text(((2, 3), None, ())) == "2x3, -, ()"


def test_an_operator_in_one_of_its_own_name_is_not_counted_twice(tmp_path: Path) -> None:
    opened = trace(tmp_path, [(10, E, RELU), (12, E, RELU), (15, R, RELU), (20, R, RELU)])
    table, facts = found(opened, "operator")
    assert table[["calls", "total_ns", "self_ns"]].to_numpy().tolist() == [[2, 10, 10]]
    assert facts["layers"][0]["total_ns"] == 10


def test_blas_answers_in_a_sentence(tmp_path: Path) -> None:
    table, facts = found(trace(tmp_path, STEPS, GIVEN), "blas")
    columns = ["library", "name", "operator", "m", "n", "k", "calls", "total_ns", "threads", "flops"]
    assert table[columns].to_numpy().tolist() == [
        ["MKL", "sgemm", "aten::addmm", 20, 50, 30, 1, 40, 1, 60000],
        ["MKL", "sgemm", "aten::addmm", 10, 50, 30, 1, 20, 1, 30000],
    ]
    expected = "MKL, an optimized BLAS, is used: 2 calls, most of their 60ns in sgemm, for `aten::addmm` (100 %), called from 1 thread"
    assert facts["sentence"] == expected + ", 1.0 cores busy meanwhile."


def test_blas_without_operators_and_of_unknown_make(tmp_path: Path) -> None:
    opened = trace(tmp_path, [(10, E, STEP), (11, E, GEMM), (12, E, GEMM), (15, R, GEMM), (20, R, GEMM), (21, R, STEP)])
    table, facts = found(opened, "blas")
    assert table["m"].isna().all() and table["operator"].isna().all()
    assert "BLAS, a BLAS not known to be optimized, is used: 1 call," in facts["sentence"]
    assert table[["calls", "total_ns"]].to_numpy().tolist() == [[2, 9]]
    assert "by which operators was not recorded" in facts["sentence"]
    assert any("(no operator" in line for line in shown(opened, "blas"))


@pytest.mark.parametrize(("layers", "said"), [(["blas"], "No BLAS was called"), ([], "was not recorded"), (None, "was not recorded")])
def test_no_blas(tmp_path: Path, layers: list[str] | None, said: str) -> None:
    options = {} if layers is None else {"layers": layers}
    opened = trace(tmp_path, [(10, E, STEP), (21, R, STEP)], manifest={"options": options})
    assert said in " ".join(shown(opened, "blas"))
    assert ("were not recorded" in found(opened, "operator")[1]["sentence"]) == (not layers)


@pytest.mark.parametrize(("layers", "said", "raised"), [(["operator"], "No operator was left by an error", 0), (["blas"], "was not recorded", None)])
def test_no_errors(tmp_path: Path, layers: list[str], said: str, raised: int | None) -> None:
    opened = trace(tmp_path, [(10, E, STEP), (21, R, STEP)], manifest={"options": {"layers": layers}})
    assert said in shown(opened, "error")[-1] and found(opened, "error")[1]["errors_raised"] == raised


def test_an_error_has_its_operator_its_shapes_and_its_lines(tmp_path: Path) -> None:
    events, errors = [*STEPS, *FAILS, (220, UNWIND, STEP)], [(206, 7, 7, MESSAGE)]
    opened = trace(tmp_path, events, [*GIVEN, *WRONG], lines={210: 125, 220: 13}, errors=errors)
    table, facts = found(opened, "error")
    (row,) = table.astype(object).where(table.notna(), None).to_dict("records")
    assert (row["name"], row["shapes"], row["dtypes"]) == ("aten::linear", "20x31, 50x30, 50", "float32, float32, float32")
    assert (row["inner"], row["inner_shapes"]) == ("aten::addmm", "50, 20x31, 30x50")
    assert (row["qualname"], row["file"], row["line"]) == ("Linear.forward", TORCH, 125)
    assert (row["caller_qualname"], row["caller_file"], row["caller_line"]) == ("Model.step", "/app/train.py", 13)
    assert (row["error"], row["times"], row["end_ns"], facts["errors_raised"]) == (MESSAGE, 1, 209, 1)
    lines = shown(opened, "error")
    assert "  called for Model.step at /app/train.py:13" in lines and f"  {MESSAGE}" in lines


@pytest.mark.parametrize("source", ["agent", "usdt"])
@pytest.mark.parametrize("after", [False, True])
def test_the_line_of_a_call_that_went_on_is_not_shown(tmp_path: Path, source: str, after: bool) -> None:
    """The agent reports that step caught the error; the probes do not, but it calls something afterwards."""
    events = [*FAILS, *([(212, E, RELU), (213, R, RELU)] if after else []), (220, R, STEP)]
    sources = [{"pid": 7, "source": source, "why": ""}]
    opened = trace(tmp_path, events, WRONG, lines={210: 125, 220: 13}, manifest={"sources": sources})
    table, _ = found(opened, "error")
    known = source == "usdt" and not after
    assert table["line"].tolist() == [125]
    assert table["caller_line"].fillna(-1).tolist() == [13 if known else -1]
    assert table["error"].isna().all()
    assert any("went on" in line for line in shown(opened, "error")) != known
    assert any("message was not read" in line for line in shown(opened, "error"))


def test_equal_errors_are_shown_once(tmp_path: Path) -> None:
    again = [(ts + 100, kind, func) for ts, kind, func in (*FAILS, (220, UNWIND, STEP))]
    opened = trace(tmp_path, [*FAILS, (220, UNWIND, STEP), *again], WRONG + [(ts + 100, *rest) for ts, *rest in WRONG], lines={210: 5, 310: 5})
    table, _ = found(opened, "error")
    assert table[["times", "end_ns", "line"]].to_numpy().tolist() == [[2, 209, 5]]


def test_errors_of_threads_at_the_same_time_stay_apart(tmp_path: Path) -> None:
    rows: list[Row] = [(ts + (tid == 8), 7, tid, kind, func, 0, -1) for ts, kind, func in FAILS[:6] for tid in (7, 8)]
    rows = sorted(rows, key=lambda row: row[2])
    errors = [(206, 7, 7, "of 7"), (207, 7, 8, "of 8")]
    opened = pytrace_ebpf.open(write_trace(tmp_path, events=rows, errors=errors, functions=FUNCTIONS))
    table, _ = found(opened, "error")
    assert table[["tid", "name", "inner", "error"]].to_numpy().tolist() == [
        [7, "aten::linear", "aten::addmm", "of 7"], [8, "aten::linear", "aten::addmm", "of 8"],
    ]  # fmt: skip


@pytest.mark.parametrize("width", [40, 60, 80, 99])
@pytest.mark.parametrize("by", ["operator", "shapes", "blas", "error"])
def test_no_line_is_wider_than_asked(tmp_path: Path, by: str, width: int) -> None:
    opened = trace(tmp_path, [*STEPS, *FAILS], [*GIVEN, *WRONG], errors=[(206, 7, 7, MESSAGE * 3 + "\nand\x1b[2J more")])
    lines = shown(opened, "operator" if by == "shapes" else by, width, shapes=by == "shapes")
    assert all(len(line) <= width for line in lines)
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize("words", [["--by", "operator"], ["--by", "operator", "--shapes"], ["--by", "blas"], ["--errors"]])
def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    trace(tmp_path, [*STEPS, *FAILS], [*GIVEN, *WRONG])
    assert main(["report", str(tmp_path), *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["by"] == (words[1] if len(words) > 1 else "error")
    assert len(told["rows"]) == {"operator": 4, "blas": 2, "error": 1}[told["by"]] + 5 * ("--shapes" in words)


def test_native_calls_of_a_segment_come_with_those_that_they_lie_in(tmp_path: Path) -> None:
    opened = trace(tmp_path, STEPS + FAILS, GIVEN + WRONG, cuts=[16, 60, 113, 137, 206])
    parts, every = list(native_by_part(opened, ("layer", "end_ns"))), opened.operators()
    assert sorted(pd.concat([rows.loc[rows["own"], "call_id"] for rows in parts])) == every["call_id"].tolist()
    assert max(map(len, parts)) <= 4 < len(every)
    for rows in parts:
        for row in rows[rows["own"]].itertuples():
            above = every[(every["call_id"] < row.call_id) & (every["end_ns"] > row.end_ns)]
            assert set(above["call_id"]) <= set(rows["call_id"])
    assert len(parts) > 2 and any(not rows["own"].all() for rows in parts)


@pytest.mark.parametrize("by", ["operator", "shapes", "blas", "error"])
def test_only_the_native_calls_of_a_segment_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """What is said is the same as of all of them at once, also where segments end within them."""
    idle = [(ts + at, kind, STEP) for ts in range(1000, 3000, 4) for at, kind in enumerate((E, E, R, R))]
    given: dict[str, Any] = {"events": STEPS + FAILS + idle, "arguments": GIVEN + WRONG, "errors": [(207, 7, 7, MESSAGE)]}
    facts = {"shapes": by == "shapes"}
    kind = BY["operator" if by == "shapes" else by]
    expected = kind.found(trace(tmp_path / "whole", **given), pd.DataFrame(), facts)
    assert len(expected[0])
    for cut in (13, 16, 60, 113, 137, 206, 209):
        opened = trace(tmp_path / f"cut{cut}", **given, cuts=[cut, 215, 2000])
        with monkeypatch.context() as patched:
            patched.setattr(Trace, "calls", lambda *_, **__: pytest.fail("all calls were read"))
            patched.setattr(Trace, "operators", lambda *_, **__: pytest.fail("all operators were read"))
            found = kind.found(opened, pd.DataFrame(), facts)
        pd.testing.assert_frame_equal(found[0], expected[0], check_dtype=False)
        assert found[1] == expected[1]
    assert main(["report", str(opened.directory), *(["--by", "operator", "--shapes"] if by == "shapes" else ["--by", by])]) == 0


@pytest.mark.parametrize("cut", [13, 60, 137, 206])
def test_compensated_no_call_outside_of_native_ones_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    within = [
        (3001, E, FORWARD),
        (3002, E, LINEAR),
        (3003, E, STEP),
        (3004, E, ADDMM),
        (3005, R, ADDMM),
        (3006, R, STEP),
        (3009, R, LINEAR),
        (3010, R, FORWARD),
    ]
    idle = [(ts + at, kind, STEP) for ts in range(1000, 3000, 4) for at, kind in enumerate((E, E, R, R))]
    opened = trace(tmp_path, STEPS + FAILS + idle + within, GIVEN + WRONG, cuts=[cut, 2000, 3004])
    columns = [*by_function.COLUMNS, "layer"]
    every = by_function.compensate(opened.calls(columns=columns), 0.5)
    expected = BY["operator"].found(opened, every, {"compensated": True})
    monkeypatch.setattr(Trace, "calls", lambda *_, **__: pytest.fail("all calls were read"))
    held = calls_within(opened, columns)
    assert (held["func_id"] == STEP).sum() == 1 and len(held) < 20 < len(every)
    found = BY["operator"].found(opened, by_function.compensate(held, 0.5), {"compensated": True})
    pd.testing.assert_frame_equal(found[0], expected[0], check_dtype=False)
    assert found[1] == expected[1]
