"""Which function waits longest for a lock, and which function releases it."""

from typing import Any

import pandas as pd

from pytrace_ebpf.analyze.waits.primitives import LIBRARY, among

COLUMNS = ("func_id", "start_ns", "blocked_until_ns", "end_ns", "kind", "waker_func_id")


def most_contended(trace: Any, functions: pd.DataFrame) -> dict[str, int] | None:
    """func_id, waker_func_id and ns of the pair that most time was waited for in a pytrace_ebpf Trace with these `functions`; None where there is none.

    Waits within the modules that pools and queues are made of count for nothing, as an idle thread of a pool waits for a lock too; and
    neither do locks whose release was not seen.
    """
    waits = trace.waits(columns=COLUMNS)
    waits = waits[(waits["kind"] == "lock") & (waits["func_id"] >= 0) & (waits["waker_func_id"] >= 0)]
    waits = waits[~among(functions, LIBRARY)[waits["func_id"]]]
    if not len(waits):
        return None
    ns = (waits["blocked_until_ns"].fillna(waits["end_ns"]) - waits["start_ns"]).astype("int64")
    sums: pd.Series = ns.groupby([waits["func_id"], waits["waker_func_id"]]).sum()
    waiting, releasing = sums.idxmax()
    return {"func_id": int(waiting), "waker_func_id": int(releasing), "ns": int(sums.max())}
