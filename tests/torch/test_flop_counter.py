"""FLOPs by our formulas against torch.utils.flop_counter, operator by operator, to the unit."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf.derive.native.flops import flops

PROGRAM = str(Path(__file__).with_name("flop_counter_says.py"))
WORKLOADS = Path(__file__).parents[2] / "scripts" / "workloads"


def says(python: Path, *words: str) -> Any:
    out = subprocess.run([str(python), PROGRAM, *words], check=True, stdout=subprocess.PIPE, text=True, timeout=120).stdout
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def rows(torch_python: Path) -> list[dict[str, Any]]:
    return list(says(torch_python))


def ours(row: dict[str, Any]) -> int | None:
    given, returned = ([None if s is None else tuple(s) for s in row[key]] for key in ("given", "returned"))
    return flops(row["name"], given, row["dtypes"], returned)


def in_groups(row: dict[str, Any]) -> bool:
    return row["name"] == "aten::convolution_backward" and row["groups"] > 1


def test_equal_to_the_unit(rows: list[dict[str, Any]]) -> None:
    counted = [row for row in rows if row["flops"] is not None and not in_groups(row)]
    assert [(row, ours(row)) for row in counted if ours(row) != row["flops"]] == []
    seen = Counter(row["name"] for row in counted)
    assert seen["aten::convolution"] >= 10 and seen["aten::convolution_backward"] >= 8
    assert {"aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "aten::conv1d", "aten::matmul"} <= set(seen)


def test_a_convolution_in_groups_computes_each_weight_s_gradient_once(rows: list[dict[str, Any]]) -> None:
    """flop_counter multiplies all channels with all, though only those of one group meet."""
    backward = [row for row in rows if in_groups(row)]
    assert len(backward) == 2
    for row in backward:
        forward = next(r for r in rows if r["name"] == "aten::convolution" and r["given"][:2] == row["given"][1:3])
        assert ours(row) == 2 * forward["flops"]
        assert row["flops"] == (1 + row["groups"]) * forward["flops"]


def test_no_operator_of_these_networks_is_without_a_formula(rows: list[dict[str, Any]]) -> None:
    assert {row["name"] for row in rows if ours(row) is None} == set()


@pytest.mark.bpf
@pytest.mark.parametrize("workload", ["kim_cnn", "gan"])
def test_a_recorded_run_has_as_many(workload: str, torch_python: Path, tmp_path: Path) -> None:
    """Embedding, convolutions also transposed, linear layers, and their backward passes on the engine's own terms."""
    options = ("--batches", "2", "--batch-size", "4", "--threads", "1")
    expected = says(torch_python, workload, *options)
    program = [str(torch_python), str(WORKLOADS / f"{workload}.py"), *options]
    command = [sys.executable, "-m", "pytrace_ebpf", "run", "--layers", "torch", "-o", str(tmp_path / "trace"), "--", *program]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
    operators = pytrace_ebpf.open(tmp_path / "trace").operators(columns=["name", "flops"]).astype({"name": object})
    found = operators.groupby("name")["flops"].sum()
    assert {name: int(found[name]) for name in expected} == expected
    assert {"aten::convolution", "aten::convolution_backward", "aten::addmm", "aten::mm"} <= set(expected)
