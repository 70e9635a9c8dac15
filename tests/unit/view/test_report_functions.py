"""Aggregation by function and module agrees with a slow walk over the call trees."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from pytrace_ebpf.analyze.functions.by_function import by_function, compensate
from pytrace_ebpf.trace.states import SPLIT
from tests.unit.callrows import UNKNOWN_NS, Call, frame, functions, random_calls, wall


def walked(threads: dict[int, Sequence[Call]], module: bool) -> dict[object, dict[str, int | None]]:
    """What by_function must say, one call at a time."""
    out: dict[object, dict[str, int | None]] = defaultdict(lambda: defaultdict(int))  # type: ignore[arg-type]

    def visit(call: Call, above: frozenset[object]) -> None:
        key = f"m{call.func // 2}" if module else call.func
        row, split, own = out[key], call.split(), call.self_split
        row["calls"] += 1  # type: ignore[operator]
        self_ns = UNKNOWN_NS if own is None else sum(own)
        row["self_ns"] += self_ns  # type: ignore[operator]
        # A call's own split is known only where that of all calls below is: it is a difference.
        for name, value in zip(SPLIT, own or (0,) * 4, strict=True):
            row["self_" + name] += value if split else 0  # type: ignore[operator]
        row["self_unknown_ns"] += 0 if split else self_ns  # type: ignore[operator]
        row["self_known"] = bool(row["self_known"] or split)
        if key not in above:
            row["total_ns"] += wall(call)  # type: ignore[operator]
            for name, value in zip(SPLIT, split or (0,) * 4, strict=True):
                row[name] += value  # type: ignore[operator]
            row["unknown_ns"] += 0 if split else wall(call)  # type: ignore[operator]
            row["known"] = bool(row["known"] or split)
        for child in call.below:
            visit(child, above | {key})

    for roots in threads.values():
        for root in roots:
            visit(root, frozenset())
    for row in out.values():
        for prefix in ("", "self_"):
            if not row.pop(f"{prefix}known", False):
                row |= {prefix + name: None for name in SPLIT}
    return out


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("key", ["function", "module"])
def test_totals_and_splits_are_those_of_a_walk(seed: int, stride: int, key: str) -> None:
    threads = {tid: random_calls(100 * seed + tid) for tid in (1, 2, 3)}
    table = by_function(frame(threads, stride=stride), functions(4), key)
    expected = walked(threads, key == "module")
    assert list(table["total_ns"]) == sorted(table["total_ns"], reverse=True)
    assert len(table) == len(expected)
    for row in table.to_dict("records"):
        want = expected[row["module" if key == "module" else "func_id"]]
        assert {k: None if pd.isna(row[k]) else row[k] for k in want} == want


def test_recursion_is_counted_once() -> None:
    calls = frame({1: [Call(0, 10, [Call(1, 5, [Call(0, 100, [Call(0, 1)])])])]})
    row = by_function(calls, functions(2)).set_index("func_id").loc[0]
    assert (row["calls"], row["total_ns"], row["self_ns"]) == (3, 116, 111)


def test_an_unknown_function_has_a_row_without_a_name() -> None:
    table = by_function(frame({1: [Call(-1, 10)]}), functions(1))
    assert table["calls"].tolist() == [1] and table["qualname"].isna().all()


def test_no_calls_make_an_empty_table() -> None:
    none = frame({1: [Call(0, 1)]}).head(0)
    for key in ("function", "module"):
        assert len(by_function(none, functions(2), key)) == 0


def test_compensation_takes_what_the_calls_below_cost_off_the_callers() -> None:
    calls = frame({1: [Call(0, (1000, 0, 0, 70), [Call(1, 500, [Call(2, 5)]), Call(1, 500)])], 2: [Call(0, 9)]}, stride=2)
    out = compensate(calls, 100.0).set_index(["tid", "func_id", "start_ns"]).sort_index()
    assert out["on_cpu_ns"].tolist() == [2005 - 300, 505 - 100, 500, 5, 9]
    assert (calls["wall_ns"] - compensate(calls, 100.0)["wall_ns"]).tolist() == (calls["on_cpu_ns"] - compensate(calls, 100.0)["on_cpu_ns"]).tolist()


def test_compensation_takes_off_each_call_its_own_cost() -> None:
    calls = frame({1: [Call(0, 1000, [Call(1, 500, [Call(2, 5)]), Call(1, 500)])]})
    cost = np.array([7.0, 10.0, 200.0, 40.0])[calls["call_id"].rank().astype(int) - 1]
    taken = calls["wall_ns"] - compensate(calls, cost)["wall_ns"]
    assert taken[calls["call_id"].argsort()].tolist() == [250, 200, 0, 0]
    own = calls["wall_ns"] - compensate(calls, cost, 0.5 * cost)["wall_ns"]
    assert own[calls["call_id"].argsort()].tolist() == [254, 205, 5, 20]


def test_compensation_never_goes_below_zero() -> None:
    calls = frame({1: [Call(0, 10, [Call(1, None, [Call(2, 20)])])]})
    out = compensate(calls, 1e9)
    assert (out["wall_ns"] >= 0).all() and (out["on_cpu_ns"].dropna() >= 0).all()
    assert out["on_cpu_ns"].isna().tolist() == calls["on_cpu_ns"].isna().tolist()
    assert (by_function(out, functions(3))["self_ns"] >= 0).all()
