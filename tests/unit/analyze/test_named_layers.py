"""Named layers: one sequence each, with the links a slow walk up the stack would find."""

import random

import numpy as np
import pandas as pd
import pytest

from pytrace_ebpf.analyze.functions.named_layers import ORDER, contained, enclosing, modules, named_layers, parent_rows

MODULE = "torch.nn.modules.module"
FUNCTIONS = pd.DataFrame(
    [
        (0, "train", "train", "app", "python"),
        (1, "_call_impl", "Module._call_impl", MODULE, "python"),
        (2, "forward", "Net.forward", "app", "python"),
        (3, "forward", "Conv1d.forward", "torch.nn.modules.conv", "python"),
        (4, "aten::conv1d", "aten::conv1d", "<operator>", "operator"),
        (5, "sgemm", "sgemm", "MKL", "blas"),
        (6, "inner", "Module._call_impl.<locals>.inner", MODULE, "python"),
        (7, "gc generation 0", "gc generation 0", "<gc>", "gc"),
    ],
    columns=["func_id", "name", "qualname", "module", "function_layer"],
)
LAYER = FUNCTIONS["function_layer"].tolist()


def table(rows: list[tuple[int, int]]) -> pd.DataFrame:
    """`calls` of (func_id, depth) in preorder, ids 100, 101, ..."""
    ids, parents, last, stack = [], [], [], []
    for at, (_, depth) in enumerate(rows):
        stack = [*stack[:depth], at]
        ids.append(100 + at)
        parents.append(100 + stack[-2] if depth else -1)
        last.append(100 + at)
        for above in stack:
            last[above] = 100 + at
    func = [f for f, _ in rows]
    layer = pd.Categorical([LAYER[f] for f in func], list(ORDER[1:]))
    return pd.DataFrame({"call_id": ids, "parent_id": parents, "last_descendant_id": last, "layer": layer, "func_id": func})


FORWARD = [(0, 0), (1, 1), (2, 2), (1, 3), (6, 4), (3, 5), (4, 6), (5, 7), (5, 7), (4, 3), (7, 4), (2, 1), (4, 0)]


def test_each_layer_has_its_calls_and_modules_stand_above_python() -> None:
    layers = named_layers(table(FORWARD), FUNCTIONS)
    assert list(layers) == ["module", "python", "operator", "blas", "gc"]
    assert layers["module"]["qualname"].tolist() == ["Net.forward", "Conv1d.forward"]  # the one that train calls is no module
    assert layers["python"]["call_id"].tolist() == [100, 101, 102, 103, 104, 105, 111]
    assert layers["operator"]["call_id"].tolist() == [106, 109, 112]
    assert layers["operator"]["in_module"].tolist() == [105, 102, -1]
    assert layers["operator"]["in_python"].tolist() == [105, 102, -1]
    assert layers["blas"][["in_operator", "in_module"]].to_numpy().tolist() == [[106, 105], [106, 105]]
    assert layers["module"]["in_module"].tolist() == [-1, 102]


def test_an_entry_leads_to_what_it_contains_below() -> None:
    layers = named_layers(table(FORWARD), FUNCTIONS)
    first, stop = contained(layers["module"], layers["operator"])
    assert list(zip(first, stop, strict=True)) == [(0, 2), (0, 1)]
    first, stop = contained(layers["operator"], layers["blas"])
    assert list(zip(first, stop, strict=True)) == [(0, 2), (2, 2), (2, 2)]


def test_nothing_has_no_layers() -> None:
    assert named_layers(table([]), FUNCTIONS) == {}
    assert modules(table([(2, 0)]), FUNCTIONS).tolist() == [False]


@pytest.mark.parametrize("seed", range(20))
def test_links_are_those_a_walk_up_the_stack_finds(seed: int) -> None:
    dice = random.Random(seed)
    rows, depth = [], 0
    for _ in range(300):
        rows.append((dice.randrange(len(LAYER)), depth))
        depth = dice.randrange(max(depth - 3, 0), depth + 2)
    calls = table(rows)
    parent = parent_rows(calls)
    wanted = np.array([dice.random() < 0.2 for _ in rows])

    def above(row: int) -> int:
        row = int(parent[row])
        return row if row < 0 or wanted[row] else above(row)

    assert enclosing(parent, wanted).tolist() == [above(row) for row in range(len(rows))]
    upper, lower = calls[wanted].reset_index(drop=True), calls[~wanted].reset_index(drop=True)
    for low, high, first, stop in zip(upper["call_id"], upper["last_descendant_id"], *contained(upper, lower), strict=True):
        assert lower["call_id"][first:stop].tolist() == [i for i in lower["call_id"] if low < i <= high]
