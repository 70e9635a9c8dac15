"""Operators as probes saw them from outside, against what torch.profiler saw inside another run of the same program."""

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.reader import Trace
from tests.bpf.conftest import COMMAND, lost
from tests.conftest import REPOSITORY
from tests.torch.conftest import PATIENCE_S, WORKLOADS

HERE = Path(__file__).parent
PROFILED = REPOSITORY / "scripts" / "bench" / "children" / "profiled.py"
SMALL = {
    "kim_cnn": ("--batches", "4", "--batch-size", "8"),
    "image_cnn": ("--batches", "3", "--batch-size", "8"),
    "rnn": ("--batches", "3", "--batch-size", "8"),
    "gan": ("--batches", "3", "--batch-size", "8"),
    "resnet": ("--batches", "2", "--batch-size", "4"),
    "mobilenet": ("--batches", "2", "--batch-size", "4"),
}


@pytest.fixture
def recorded(torch_python: Path, tmp_path: Path) -> Callable[..., Trace]:
    """`recorded(program, words, *options)`: the trace of a program from its "ready" on, attached to while it waits."""

    def record(program: Path, words: tuple[str, ...], *options: str) -> Trace:
        process = subprocess.Popen([str(torch_python), str(program), "--wait", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            attach = [*COMMAND, "attach", "--pid", str(process.pid), "-o", str(tmp_path / "trace"), *options]
            tracer = subprocess.Popen(attach, stderr=subprocess.PIPE, text=True)
            assert tracer.stderr is not None
            assert tracer.stderr.readline().startswith("tracing process")
            process.communicate("\n", timeout=PATIENCE_S)
            assert process.returncode == 0
            assert tracer.wait(PATIENCE_S) == 0
        finally:
            process.kill()
        return pytrace_ebpf.open(tmp_path / "trace")

    return record


def operators(trace: Trace) -> pd.DataFrame:
    """Calls of operators, by thread and in their order, with the name of each."""
    names = trace.functions().set_index("func_id")["name"]
    calls = trace.calls()
    calls = calls[calls["layer"] == "operator"]
    return calls.assign(name=calls["func_id"].map(names)).sort_values(["tid", "call_id"], ignore_index=True)


def without_twins(calls: pd.DataFrame) -> pd.DataFrame:
    """Without those that are the only operator in one of the same name: torch.profiler shows such a pair as one."""
    above = calls.set_index("call_id")["name"].reindex(calls["parent_id"]).to_numpy()
    alone = calls.groupby("parent_id")["call_id"].transform("size") == 1
    return calls[~((above == calls["name"]) & alone)]


@pytest.mark.parametrize("name", SMALL)
def test_operators_are_those_that_the_profiler_sees_in_their_order(name: str, torch_python: Path, recorded: Callable[..., Trace]) -> None:
    words = (*SMALL[name], "--threads", "1")
    trace = recorded(WORKLOADS / f"{name}.py", words, "--operators", "all")
    assert not lost(trace)
    told = subprocess.run([str(torch_python), str(PROFILED), name, *words], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    seen: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    mine = without_twins(operators(trace))
    order = [names.tolist() for _, names in mine.groupby("tid")["name"]]
    assert Counter(mine["name"]) == Counter(name for thread in seen["order"] for name in thread)
    assert sorted(order) == sorted(seen["order"])
    assert set(mine["status"]) == {"complete"}


def test_what_operators_get_and_return_is_what_they_do(recorded: Callable[..., Trace]) -> None:
    """The shapes of a text CNN are known: every size of every tensor of its own layers."""
    trace = recorded(WORKLOADS / "kim_cnn.py", ("--batches", "3", "--batch-size", "7", "--threads", "1"), "--layers", "torch,blas")
    rows = trace.operators()
    f = "float32"

    def tensors(name: str) -> list[Any]:
        these = rows[rows["name"] == name]
        return [
            ([None if s is None else list(s) for s in given], list(types), [list(s) for s in returned])
            for given, types, returned in zip(these["shapes"], these["dtypes"], these["result_shapes"], strict=True)
        ]

    assert tensors("aten::conv1d") == [([[7, 300, 124], [128, 300, 2], [128]], [f, f, f], [[7, 128, 123]])] * 3
    assert tensors("aten::embedding") == [([[5000, 300], [7, 124]], [f, "int64"], [[7, 124, 300]])] * 3
    assert tensors("aten::linear") == [([[7, 128], [103, 128], [103]], [f, f, f], [[7, 103]])] * 3
    assert tensors("aten::max_pool1d") == [([[7, 128, 123]], [f], [[7, 128, 1]])] * 3
    assert set(rows.loc[rows["layer"] == "blas", "library"]) == {"MKL", "oneDNN"}


def test_an_operator_that_raises_is_told_with_its_shapes_and_its_message(recorded: Callable[..., Trace]) -> None:
    trace = recorded(HERE / "mismatched.py", (), "--layers", "torch")
    rows = trace.operators()
    wrong = rows[rows["status"] == "unwound"]
    assert wrong["name"].tolist() == ["aten::linear", "aten::addmm"] * 20
    innermost = wrong[wrong["name"] == "aten::addmm"]
    assert all("shapes cannot be multiplied (4x8 and 9x3)" in text for text in innermost["error"])
    assert [[list(s) for s in shapes] for shapes in innermost["shapes"]] == [[[3], [4, 8], [9, 3]]] * 20
    calls = trace.calls()
    assert set(calls["status"]) <= {"complete", "unwound", "open_at_start", "open_at_end"}
