"""The table of operators from hand-made traces: tensors joined to their calls, costs, errors, and what may be added up."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.native.around import joined
from pytrace_ebpf.derive.sinks.operators import counted
from pytrace_ebpf.trace.schema import CallKind
from tests.unit.synthetic import Row, write_trace

E, R, _, _, UNWIND, *_ = (int(kind) for kind in CallKind)
STEP, LINEAR, ADDMM, SGEMM, RELU, STACK, LAUNCH = range(7)
FUNCTIONS = [
    (STEP, "/app/train.py", "step", "Model.step", 10, "train", 0, "python"),
    (LINEAR, "", "aten::linear", "aten::linear", -1, "<operator>", 0, "operator"),
    (ADDMM, "", "aten::addmm", "aten::addmm.out", -1, "<operator>", 0, "operator"),
    (SGEMM, "/lib/libmkl.so", "sgemm", "sgemm", -1, "MKL", 0, "blas"),
    (RELU, "", "aten::relu_", "aten::relu_", -1, "<operator>", 0, "operator"),
    (STACK, "", "aten::stack", "aten::stack", -1, "<operator>", 0, "operator"),
    (LAUNCH, "/lib/libcudart.so", "cudaLaunchKernel", "cudaLaunchKernel", -1, "libcudart", 0, "cuda"),
]
F = "float32"
# A layer of 3 -> 5 on two samples; then relu_, whose tensors were not read, and stack with an undefined tensor.
EVENTS = [
    (10, E, STEP), (20, E, LINEAR), (21, E, ADDMM), (22, E, SGEMM), (30, R, SGEMM), (31, R, ADDMM), (33, R, LINEAR),
    (40, E, RELU), (45, R, RELU), (50, E, STACK), (53, E, LAUNCH), (54, R, LAUNCH), (55, R, STACK), (60, R, STEP),
]  # fmt: skip
ARGUMENTS = [
    (20, LINEAR, False, [[2, 3], [5, 3], [5]], [F, F, F]), (33, LINEAR, True, [[2, 5]], [F]),
    (21, ADDMM, False, [[5], [2, 3], [3, 5]], [F, F, F]), (31, ADDMM, True, [[2, 5]], [F]),
    (22, SGEMM, False, [[2, 3], [3, 5]], [F, F]),
    (50, STACK, False, [[2, 2], None, []], [F, None, "int64"]), (55, STACK, True, [], []),
]  # fmt: skip


def trace(path: Path, events: list[Any] = EVENTS, arguments: list[Any] = ARGUMENTS, **more: Any) -> Any:
    """Of events (ts, kind, function) and arguments (ts, function, result, shapes, dtypes) of one thread."""
    rows: list[Row] = [(ts, 7, 7, kind, func, 0, -1) for ts, kind, func in events]
    tensors: list[Row] = [(ts, 7, 7, *rest) for ts, *rest in arguments]
    return pytrace_ebpf.open(write_trace(path, events=rows, arguments=tensors, functions=FUNCTIONS, **more))


def plain(value: Any) -> Any:
    return [plain(v) for v in value] if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("cuts", [(), (25,), (21, 30, 31, 32, 50)])
def test_each_call_has_its_tensors(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    table = trace(tmp_path, cuts=cuts).operators()
    found = [
        (o.layer, o.name, o.overload, o.library, plain(o.shapes), plain(o.dtypes), plain(o.result_shapes), plain(o.result_dtypes))
        for o in table.astype(object).where(table.notna(), None).itertuples()
    ]
    assert found == [
        ("operator", "aten::linear", "", None, [[2, 3], [5, 3], [5]], [F, F, F], [[2, 5]], [F]),
        ("operator", "aten::addmm", "out", None, [[5], [2, 3], [3, 5]], [F, F, F], [[2, 5]], [F]),
        ("blas", "sgemm", "", "MKL", [[2, 3], [3, 5]], [F, F], None, None),
        ("operator", "aten::relu_", "", None, None, None, None, None),
        ("operator", "aten::stack", "", None, [[2, 2], None, []], [F, None, "int64"], [], []),
        ("cuda", "cudaLaunchKernel", "", "libcudart", None, None, None, None),
    ]


@pytest.mark.parametrize("cuts", [(), (25,)])
def test_costs_and_times(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    opened = trace(tmp_path, cuts=cuts)
    table, calls = opened.operators(), opened.calls()
    null = pd.NA
    assert table["flops"].fillna(-1).tolist() == [60, 60, 60, -1, 0, -1]
    assert table["bytes"].fillna(-1).tolist() == [144, 144, 124, -1, 24, -1]
    assert table["wall_ns"].tolist() == [13, 10, 8, 5, 5, 1]
    assert table["self_wall_ns"].tolist() == [3, 2, 8, 5, 4, 1]
    assert table["on_cpu_ns"].tolist() == [null] * 6
    assert calls.set_index("call_id").loc[table["call_id"], "parent_id"].tolist() == table["parent_id"].tolist()


def test_only_what_is_asked_for(tmp_path: Path) -> None:
    opened = trace(tmp_path)
    assert opened.operators(columns=["name"], layer="blas")["name"].tolist() == ["sgemm"]
    assert opened.operators(columns=["name"], start_ns=40, end_ns=50)["name"].tolist() == ["aten::relu_"]
    assert opened.arguments(columns=["ts"], end_ns=22)["ts"].tolist() == [20, 21]


def test_each_operation_is_counted_once_in_every_layer(tmp_path: Path) -> None:
    opened = trace(tmp_path)
    table = opened.operators()
    mask = counted(joined(table, opened.calls()))
    assert table[mask]["name"].tolist() == ["aten::linear", "sgemm"]


def test_what_lies_in_a_call_without_a_formula_is_counted(tmp_path: Path) -> None:
    """Where linear's shapes were not read those of addmm count; an outer one that has none hides nobody."""
    opened = trace(tmp_path, arguments=[row for row in ARGUMENTS if row[1] != LINEAR])
    table = opened.operators()
    assert table[counted(joined(table, opened.calls()))]["name"].tolist() == ["aten::addmm", "sgemm"]
    zero = [(50, STACK, False, [[2, 2]], [F]), (55, STACK, True, [[1, 2, 2]], [F]), (52, RELU, False, [[2, 2]], [F]), (53, RELU, True, [[2, 2]], [F])]
    opened = trace(tmp_path / "zero", [(50, E, STACK), (52, E, RELU), (53, R, RELU), (55, R, STACK)], zero)
    table = opened.operators()
    assert table["flops"].tolist() == [0, 4]
    assert table[counted(joined(table, opened.calls()))]["name"].tolist() == ["aten::relu_"]


FAILING = [
    (10, E, STEP),
    (20, E, RELU),
    (21, R, RELU),
    (22, E, LINEAR),
    (23, E, ADDMM),
    (28, UNWIND, ADDMM),
    (29, UNWIND, LINEAR),
    (60, UNWIND, STEP),
]


@pytest.mark.parametrize("cuts", [(), (25,), (28,), (29,)])
def test_an_error_names_every_call_that_it_left(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    arguments = [(23, ADDMM, False, [[5], [2, 4], [3, 5]], [F, F, F])]
    errors = [
        (20, 7, 7, "not this one"),
        (25, 7, 7, "caught inside"),
        (26, 7, 7, "shapes differ"),
        (27, 7, 8, "another thread's"),
        (40, 7, 7, "later"),
    ]
    table = trace(tmp_path, FAILING, arguments, errors=errors, cuts=cuts).operators()
    assert [(o.name, o.status, o.error) for o in table.fillna({"error": ""}).itertuples()] == [
        ("aten::relu_", "complete", ""),
        ("aten::linear", "unwound", "shapes differ"),
        ("aten::addmm", "unwound", "shapes differ"),
    ]
    assert table["flops"].isna().all()  # what a failed call has computed is not known


def test_two_calls_at_the_same_time_do_not_become_four(tmp_path: Path) -> None:
    events = [(10, E, RELU), (10, E, RELU), (12, R, RELU), (12, R, RELU)]
    arguments = [(10, RELU, False, [[2]], [F]), (10, RELU, False, [[3]], [F])]
    table = trace(tmp_path, events, arguments).operators()
    assert [plain(shapes) for shapes in table["shapes"]] == [[[2]], [[2]]]


def test_a_trace_without_native_calls_has_no_operators(tmp_path: Path) -> None:
    table = trace(tmp_path, [(10, E, STEP), (20, R, STEP)], []).operators()
    assert len(table) == 0


def test_many_calls_of_many_shapes(tmp_path: Path) -> None:
    """Against a reading row by row."""
    random = np.random.default_rng(5)
    events, arguments = [], []
    for i in range(2000):
        at = 10 * i
        events += [(at, E, RELU), (at + 5, R, RELU)]
        for ts, result in ((at, False), (at + 5, True)):
            if random.random() < 0.8:
                shapes = [
                    None if random.random() < 0.1 else random.integers(0, 4, random.integers(0, 3)).tolist() for _ in range(random.integers(0, 4))
                ]
                arguments.append(
                    (ts, RELU, result, shapes, [None if s is None else ["float32", "int64", "bool"][random.integers(3)] for s in shapes])
                )
    table = trace(tmp_path, events, arguments, cuts=(4000, 4003, 12000)).operators()
    expected = {(ts, result): (shapes, dtypes) for ts, _, result, shapes, dtypes in arguments}
    for o in table.itertuples():
        assert (plain(o.shapes), plain(o.dtypes)) == expected.get((o.start_ns, False), (None, None))
        assert (plain(o.result_shapes), plain(o.result_dtypes)) == expected.get((o.end_ns, True), (None, None))
