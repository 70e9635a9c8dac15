"""Folded stacks (`outer;inner;innermost value`), as flamegraph.pl and most viewers read them: self time in nanoseconds."""

from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.by_function import COLUMNS as _TIMES
from pytrace_ebpf.analyze.by_function import values, with_self
from pytrace_ebpf.errors import UsageError

SUFFIX = ".folded"
VALUES = ("wall", "on_cpu", "runq_wait", "gil_wait", "blocked")
COLUMNS = (*_TIMES, "depth")


def write(trace: Any, value: str, out: BinaryIO) -> None:
    """Write the self time `value` (one of VALUES) of every distinct stack of `trace`, summed over calls and threads.

    Raises UsageError where nothing is known of that value.
    """
    calls = with_self(trace.calls(columns=list(COLUMNS)))
    weight, known = values(calls[f"self_{value}_ns"])
    if len(calls) and not known.any():
        raise UsageError(f"This trace has no scheduling events, so it has no {value}; export --value wall instead.")
    if not known[values(calls["self_on_cpu_ns"])[1]].all():
        raise UsageError(f"This trace does not tell {value} of all its calls; export --value on_cpu or wall instead.")
    for stack, total in _folded(calls, weight, _frames(trace.functions())):
        out.write(f"{stack} {total}\n".encode())


def _folded(calls: pd.DataFrame, weight: npt.NDArray[np.int64], frames: dict[int, str]) -> list[tuple[str, int]]:
    """(stack, total weight) of every distinct stack with a weight, found layer by layer."""
    ids, func = calls["call_id"].to_numpy(np.int64), calls["func_id"].to_numpy(np.int64)
    by_id = np.argsort(ids)
    parent = calls["parent_id"].to_numpy(np.int64)
    parent_row = by_id[np.searchsorted(ids[by_id], parent).clip(max=max(len(ids) - 1, 0))] if len(ids) else by_id
    depth = calls["depth"].to_numpy()
    layers = np.split(order := np.argsort(depth, kind="stable"), np.flatnonzero(np.diff(depth[order])) + 1)
    stack_of = np.empty(len(ids), np.int64)
    stacks: list[str] = []
    for rows in layers if len(ids) else ():
        above = np.where(parent[rows] < 0, -1, stack_of[parent_row[rows]])
        pairs, code = np.unique(np.stack([above, func[rows]]), axis=1, return_inverse=True)
        stack_of[rows] = len(stacks) + code.ravel()
        stacks += [(f"{stacks[a]};" if a >= 0 else "") + frames.get(f, "(unknown)") for a, f in pairs.T.tolist()]
    total = np.zeros(len(stacks), np.int64)
    np.add.at(total, stack_of, weight)
    return [(s, t) for s, t in zip(stacks, total.tolist(), strict=True) if t]


def _frames(functions: pd.DataFrame) -> dict[int, str]:
    """Function id to the text of its frame; a semicolon or line break would end it."""
    rows = functions[["func_id", "qualname", "file", "first_line"]].itertuples(index=False)
    clean = str.maketrans({";": ":", "\n": " ", "\r": " "})
    return {i: f"{name} ({file}:{line})".translate(clean) for i, name, file, line in rows}
