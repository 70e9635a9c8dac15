"""Calls summed by call path, against a walk over each call's ancestors."""

import random

import numpy as np
import pandas as pd
import pytest

from pytrace_ebpf.experiment.paths import NO_PATH, SPLIT, by_path, repeated
from tests.unit.callrows import Call, frame, functions, random_calls, wall


def rows(seed: int) -> pd.DataFrame:
    calls = frame({1: random_calls(seed), 2: random_calls(seed + 1000)}, stride=2)
    return calls.assign(worker_on_cpu_ns=calls["on_cpu_ns"] * 2)


def named(count: int) -> pd.DataFrame:
    return functions(count).assign(function_layer="python")


def chains(calls: pd.DataFrame) -> list[tuple[int, ...]]:
    """Each call's functions from the outermost down, the slow way."""
    func, parent = dict(zip(calls["call_id"], calls["func_id"], strict=True)), dict(zip(calls["call_id"], calls["parent_id"], strict=True))
    found = []
    for call in calls["call_id"]:
        chain, at = [], call
        while at != -1:
            chain.append(func[at])
            at = parent[at]
        found.append(tuple(reversed(chain)))
    return found


def by_name(paths: pd.DataFrame) -> dict[tuple[str, ...], pd.Series]:
    """The rows of by_path under their chain of names."""
    by_id = {row["path_id"]: row for _, row in paths.iterrows()}
    found = {}
    for row in by_id.values():
        chain, at = [row["qualname"]], row["parent_path_id"]
        while at != NO_PATH:
            chain.append(by_id[at]["qualname"])
            at = by_id[at]["parent_path_id"]
        found[tuple(reversed(chain))] = row
    return found


@pytest.mark.parametrize("seed", range(20))
def test_every_path_has_the_sums_of_its_calls(seed: int) -> None:
    calls = rows(seed)
    found = by_name(by_path(calls, named(4)))
    expected = calls.assign(chain=chains(calls)).groupby("chain", sort=False)
    assert len(found) == expected.ngroups
    for chain, group in expected:
        row = found[tuple(f"C.f{func}" for func in chain)]
        assert (row["calls"], row["depth"], row["wall_ns"]) == (len(group), len(chain) - 1, group["wall_ns"].sum())
        unknown = group["on_cpu_ns"].isna()
        assert row["unknown_ns"] == group["wall_ns"][unknown].sum()
        for name in (*SPLIT, "worker_on_cpu_ns"):
            assert pd.isna(row[name]) if unknown.all() else row[name] == group[name].sum()


@pytest.mark.parametrize("seed", range(20))
def test_self_times_sum_to_the_outermost_calls(seed: int) -> None:
    paths = by_path(rows(seed), named(4))
    assert paths["self_wall_ns"].sum() == paths.loc[paths["depth"] == 0, "wall_ns"].sum()
    known = paths[paths[list(SPLIT)].notna().all(axis=1)]
    assert (known[[*SPLIT, "unknown_ns"]].sum(axis=1) == known["wall_ns"]).all()


def test_a_path_has_the_same_id_under_other_numbers_of_functions() -> None:
    calls, dice = rows(3), random.Random(3)
    numbers = dice.sample(range(100, 200), 4)
    other = named(4).assign(func_id=numbers)
    renumbered = calls.assign(func_id=calls["func_id"].map(dict(enumerate(numbers))))
    pd.testing.assert_frame_equal(by_path(calls, named(4)), by_path(renumbered, other.sample(frac=1, random_state=1)))


def test_namesakes_in_other_places_are_other_paths() -> None:
    calls = frame({1: [Call(0, 5), Call(1, 5), Call(2, 5), Call(-1, 5)]}).assign(worker_on_cpu_ns=pd.NA)
    alike = named(3).assign(qualname="f", module="m", first_line=[1, 1, 2], function_layer=["python", "operator", "python"])
    paths = by_path(calls, alike)
    assert len(paths) == 4 and sorted(paths["qualname"]) == ["?", "f", "f", "f"]


def test_no_calls_are_no_paths() -> None:
    calls = rows(0).head(0)
    assert len(by_path(calls, named(4))) == 0


def test_recursion_is_one_path_a_level_however_deep() -> None:
    call = Call(0, 1)
    for _ in range(200):
        call = Call(0, 1, [call])
    paths = by_path(frame({1: [call]}).assign(worker_on_cpu_ns=0), named(1))
    assert list(paths["depth"]) == list(range(201)) and (paths["self_wall_ns"] == 1).all()
    assert paths.loc[0, "wall_ns"] == wall(call) == 201
    assert repeated(paths, np.zeros(201, np.int64)).sum() == 200


@pytest.mark.parametrize("seed", range(20))
def test_repeated_are_those_with_an_ancestor_of_the_same_key(seed: int) -> None:
    paths = by_path(rows(seed), named(4))
    chain = by_name(paths)
    key = paths["qualname"].map(lambda name: int(name[-1]) // 2).to_numpy(np.int64)
    again = repeated(paths, key)
    names = {row["path_id"]: names for names, row in chain.items()}
    for path, is_again in zip(paths["path_id"], again, strict=True):
        *above, own = (int(name[-1]) // 2 for name in names[path])
        assert is_again == (own in above)
