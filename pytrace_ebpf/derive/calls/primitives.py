"""The modules through which programs wait: what a thread waits for there is better named by what the program called than by a lock inside."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.added import added
from pytrace_ebpf.trace.schema import OF_THE_INTERPRETER

# Waits below their functions are named by them (Queue.get). A loop that polls waits for no one thing, but others wake it through asyncio.
PRIMITIVES = ("threading", "queue", "_queue", "multiprocessing", "concurrent")
LIBRARY = (*PRIMITIVES, "asyncio", "selectors", "socketserver")
COLUMNS = ("func_id", "start_ns", "blocked_until_ns", "end_ns", "kind", "primitive_func_id", "caller_func_id", "waker_primitive_func_id", "waker_caller_func_id")  # fmt: skip
_WAITER, _WAKER = ["primitive_func_id", "caller_func_id"], ["waker_primitive_func_id", "waker_caller_func_id"]


def among(functions: pd.DataFrame, modules: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Mask by func_id of those of `functions` (schema.FUNCTIONS) that are of these modules or packages."""
    code, names = pd.factorize(functions["module"])  # each module once: functions may be a million
    found = np.array([*(str(name).split(".")[0] in modules for name in names), False], bool)[code]
    mask = np.zeros(int(functions["func_id"].max()) + 1 if len(functions) else 0, bool)
    mask[functions["func_id"].to_numpy()[found]] = True
    return mask


def main_wait(trace: Any, func_id: int) -> dict[str, int] | None:
    """What a function of LIBRARY waited for longest in a pytrace_ebpf Trace; None where it was called by no function of the program.

    Out: func_id; primitive_func_id and caller_func_id, ns of waiting for it; waker_primitive_func_id and waker_caller_func_id (-1 none or not known)
    of who ended most of that, and waker_ns, how much.
    """
    rows = added((_ended(part, func_id) for part in trace.waits_by_part(COLUMNS)), [*_WAITER, *_WAKER], {"ns": "sum"})
    if not len(rows):
        return None
    sums = rows.groupby(_WAITER)["ns"].sum()
    primitive, caller = sums.idxmax()
    own = rows[(rows["primitive_func_id"] == primitive) & (rows["caller_func_id"] == caller)]
    most = own.loc[own["ns"].idxmax()]
    return {name: int(most[name]) for name in (*_WAITER, *_WAKER)} | {"func_id": func_id, "ns": int(sums.max()), "waker_ns": int(most["ns"])}


def _ended(waits: pd.DataFrame, func_id: int) -> pd.DataFrame:
    waits = waits[(waits["func_id"] == func_id) & ~waits["kind"].isin((*OF_THE_INTERPRETER, "preempted")) & (waits["primitive_func_id"] >= 0)]
    return waits.assign(ns=waits["blocked_until_ns"].fillna(waits["end_ns"]).astype(np.int64) - waits["start_ns"])
