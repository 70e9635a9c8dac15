"""The calling-context tree, and reports from it: the same sums as of the rows of calls."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.analyze.functions.by_function import COLUMNS, by_function, of_tree, overall, overall_of_tree
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.rebuild import library
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import TREE
from pytrace_ebpf.trace.states import SPLIT
from tests.unit.derive.test_calls_properties import FUNCTIONS, SCENARIOS, all_reported, seeds, story
from tests.unit.synthetic import sample, write_trace
from tests.unit.trees import grow


def assert_same_sums(trace: Trace, tree: pd.DataFrame) -> None:
    calls = trace.calls(columns=[*COLUMNS, "depth"])
    for key in ("function", "module"):
        by = ["func_id"] if key == "function" else ["module"]
        rows, nodes = (
            table.sort_values(by, ignore_index=True) for table in (by_function(calls, trace.functions(), key), of_tree(tree, trace.functions(), key))
        )
        pd.testing.assert_frame_equal(nodes, rows, check_dtype=False)
    assert overall_of_tree(tree) == overall(calls)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS), st.sampled_from((1, 6, 1 << 20)))
def test_sums_are_those_of_the_rows(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str, most: int) -> None:
    """Calls that only their return names apart: of them the tree does not know that they are recursion until they end."""
    rows = all_reported(story(seed, scenario)) | {"functions": FUNCTIONS}
    rows["events"] = [(*r[:4], max(r[4], 0), *r[5:]) for r in rows["events"]]
    trace = pytrace_ebpf.open(write_trace(tmp_path_factory.mktemp("tree") / "trace", **rows))
    assert_same_sums(trace, to_frame(grow(trace, most), TREE))


def path_of(tree: pd.DataFrame, node: Any) -> tuple[int, ...]:
    by_id = tree.set_index("node_id")
    out: list[int] = []
    while by_id.loc[node, "depth"] >= 0:
        out.append(int(by_id.loc[node, "func_id"]))
        node = by_id.loc[node, "parent_id"]
    return (*reversed(out),)


def test_a_node_is_the_calls_through_one_path(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    tree, calls = trace.tree(), trace.calls()
    functions = calls.set_index("call_id")["func_id"]
    parents = calls.set_index("call_id")["parent_id"]
    paths = {}
    for call in calls["call_id"]:
        above = paths.get(parents[call], ())
        paths[call] = (*above, int(functions[call]))
    expected = calls.assign(path=calls["call_id"].map(paths)).groupby(["tid", "path"])[["wall_ns", "self_wall_ns", *SPLIT]].sum()
    nodes = tree[tree["depth"] >= 0]
    assert len(nodes) == len(expected)
    for row in nodes.to_dict("records"):
        want = expected.loc[(row["tid"], [path_of(tree, row["node_id"])]), :].iloc[0]
        assert (row["total_ns"], row["self_ns"]) == (want["wall_ns"], want["self_wall_ns"])
        assert [row[name] for name in SPLIT] == want[list(SPLIT)].tolist()
    assert tree.loc[tree["depth"] < 0, "tid"].tolist() == [4000, 4001, 4002]
    assert trace.tree(tid=4001)["tid"].unique().tolist() == [4001]


def test_no_rows_of_calls_are_made_for_it(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(sample(tmp_path))
    assert len(trace.tree())
    assert not (tmp_path / "calls").exists()
    assert (tmp_path / "tree").is_dir()


def test_where_the_library_was_not_built_one_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sample(tmp_path / "trace")
    monkeypatch.setattr(library, "FILE", tmp_path / "missing.so")
    library.library.cache_clear()
    try:
        assert main(["report", str(path)]) == HostError.exit_code
    finally:
        library.library.cache_clear()
    said = capsys.readouterr().err
    assert "no compiled library" in said and "scripts/build-libraries.sh" in said and said.count("\n") == 1
