"""FLOPs by our formulas against torch.utils.flop_counter, operator by operator, to the unit."""

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pytrace_ebpf.analyze.flops import flops


@pytest.fixture(scope="module")
def rows(torch_python: Path) -> list[dict[str, Any]]:
    program = str(Path(__file__).with_name("flop_counter_says.py"))
    out = subprocess.run([str(torch_python), program], check=True, capture_output=True, text=True, timeout=120).stdout
    rows: list[dict[str, Any]] = json.loads(out.splitlines()[-1])
    return rows


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
