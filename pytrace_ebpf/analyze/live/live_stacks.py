"""The functions of a segment's stacks: the innermost one, its line, and all of them; native code stands where Python called it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.samples.paths import UNKNOWN, UNREAD
from pytrace_ebpf.trace.snapshot import OUTSIDE

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Stacks:
    """leaves: by stack_id func_id, line (-1 unknown) and native (bool: what it was in was native code). members: stack_id, func_id, each function of a stack once."""

    leaves: pd.DataFrame
    members: pd.DataFrame


def functions_of(stacks: pd.DataFrame, used: Ints, natives: Ints) -> Stacks:
    """Of `stacks` (schema.STACKS) those `used`; `natives`: func_id of native functions. What has no function of Python's is OUTSIDE."""
    table = stacks.sort_values("stack_id")
    ids, parent, func_id, line = (table[name].to_numpy(np.int64) for name in ("stack_id", "parent_id", "func_id", "line"))
    native = np.isin(func_id, natives)
    used = np.unique(used)
    leaf, leaf_line = np.full(len(used), OUTSIDE), np.full(len(used), -1, np.int64)
    owner, now = np.arange(len(used)), used
    owners, functions, first = list[Ints](), list[Ints](), np.zeros(len(used), bool)
    for depth in range(len(ids) + 1):
        owner, now = owner[now >= 0], now[now >= 0]
        row = np.searchsorted(ids, now)
        there = (row < len(ids)) & (ids[np.minimum(row, len(ids) - 1)] == now) if len(ids) else np.zeros(len(now), bool)
        owner, row = owner[there], row[there]
        if not len(row):
            break
        if not depth:
            first[owner] = native[row]
        python = ~native[row]
        owners.append(owner[python])
        functions.append(func_id[row[python]])
        inner = python & (leaf[owner] == OUTSIDE)
        leaf[owner[inner]], leaf_line[owner[inner]] = func_id[row[inner]], line[row[inner]]
        now = parent[row]
    nobody = np.flatnonzero(leaf == OUTSIDE)
    leaf[used == UNREAD] = UNKNOWN
    member = pd.DataFrame({
        "stack_id": used[np.concatenate([*owners, nobody]).astype(np.int64)],
        "func_id": np.concatenate([*functions, leaf[nobody]]).astype(np.int64),
    })  # fmt: skip
    leaves = pd.DataFrame({"func_id": leaf, "line": leaf_line, "native": first}, index=pd.Index(used, name="stack_id"))
    return Stacks(leaves, member.drop_duplicates(ignore_index=True))
