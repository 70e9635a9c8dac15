"""What tracing cost, taken off the calling-context tree: as off each call, where no call has less than that."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.analyze.functions.by_function import by_function, compensate, of_tree, overall_of_tree
from pytrace_ebpf.analyze.functions.compensated import compensated
from pytrace_ebpf.trace.states import SPLIT
from tests.unit.derive.test_calls_properties import SCENARIOS, seeds, story
from tests.unit.synthetic import sample, write_trace


@pytest.mark.parametrize(("cost", "own"), [(40.0, 0.0), (100.0, 25.0)])
def test_it_is_what_each_call_would_lose(tmp_path: Path, cost: float, own: float) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    tree, calls = trace.tree(), trace.calls()
    expected = by_function(compensate(calls, cost, own), trace.functions()).set_index("func_id")
    found = of_tree(compensated(tree, *np.full((2, len(tree)), [[cost], [own]])), trace.functions()).set_index("func_id")
    names = ["calls", "total_ns", "self_ns", "on_cpu_ns", "self_on_cpu_ns"]
    assert found["total_ns"].sum() < of_tree(tree, trace.functions())["total_ns"].sum()
    pd.testing.assert_frame_equal(found[names].sort_index(), expected[names].sort_index(), check_dtype=False)


def test_each_layer_has_its_own_cost(tmp_path: Path) -> None:
    """Rows of one function that calls nothing cost much, all others nothing."""
    trace = pytrace_ebpf.open(sample(tmp_path))
    tree = trace.tree()
    leaves = ~tree["node_id"].isin(tree["parent_id"]) & (tree["calls"] > 0)
    dear = leaves & (tree["func_id"] == tree.loc[leaves, "func_id"].mode()[0])
    out = compensated(tree, np.where(dear, 10.0, 0.0), np.zeros(len(tree)))
    callers = tree["node_id"].isin(tree.loc[dear, "parent_id"])
    assert (tree["self_ns"] - out["self_ns"])[callers].sum() == 10 * tree.loc[dear, "calls"].sum()
    assert (tree["self_ns"] == out["self_ns"])[~callers].all()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS), st.sampled_from([1.0, 30.0, 1e12]))
def test_no_time_goes_below_zero_and_the_parts_still_sum(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str, cost: float) -> None:
    trace = pytrace_ebpf.open(write_trace(tmp_path_factory.mktemp("compensated") / "trace", **story(seed, scenario)))
    tree = trace.tree()
    for part in (tree, *(tree[tree["tid"] == tid] for tid in tree["tid"].unique())):
        out = compensated(part, np.full(len(part), cost), np.full(len(part), cost / 4))
        times = [name for name in out if name.endswith("_ns")]
        assert (out[times].fillna(0) >= 0).all(axis=None) and (out[times].isna() == part[times].isna()).all(axis=None)
        told = out[list(SPLIT)].notna().all(axis=1)
        assert (out[[*SPLIT, "unknown_ns"]].sum(axis=1) == out["total_ns"])[told].all()
        whole = overall_of_tree(out)
        assert whole["wall_ns"] == out.loc[out["depth"] == 0, "total_ns"].sum()
