"""Which function waits longest for a lock, and which function releases it."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.added import added
from pytrace_ebpf.derive.calls.primitives import LIBRARY, among

COLUMNS = ("func_id", "start_ns", "blocked_until_ns", "end_ns", "kind", "waker_func_id")


def most_contended(trace: Any, functions: pd.DataFrame) -> dict[str, int] | None:
    """func_id, waker_func_id and ns of the pair that most time was waited for in a pytrace_ebpf Trace with these `functions`; None where there is none.

    Waits within the modules that pools and queues are made of count for nothing, as an idle thread of a pool waits for a lock too; and
    neither do locks whose release was not seen.
    """
    library = among(functions, LIBRARY)
    sums = added((_contended(part, library) for part in trace.waits_by_part(COLUMNS)), ["func_id", "waker_func_id"], {"ns": "sum"})
    return {name: int(value) for name, value in sums.loc[sums["ns"].idxmax()].items()} if len(sums) else None


def _contended(waits: pd.DataFrame, library: npt.NDArray[np.bool_]) -> pd.DataFrame:
    waits = waits[(waits["kind"] == "lock") & (waits["func_id"] >= 0) & (waits["waker_func_id"] >= 0)]
    waits = waits[~library[waits["func_id"]]]
    return waits.assign(ns=(waits["blocked_until_ns"].fillna(waits["end_ns"]) - waits["start_ns"]).astype("int64"))
