"""The calls that native ones were made by, and these themselves: what is said of native code needs no others."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALLS


def calls_around(trace: Trace, columns: Sequence[str]) -> pd.DataFrame:
    """`columns`, call_id and last_descendant_id of the native calls of a trace and of all that they lie in, in the order of call_id.

    Read some at a time: memory is bounded by how many these are.
    """
    names = list(dict.fromkeys(["call_id", "last_descendant_id", *columns]))
    ids = np.sort(trace.operators(["call_id"])["call_id"].to_numpy(np.int64))
    found = [to_frame(CALLS.arrow.empty_table().select(names), CALLS)]
    for calls in trace.iter_calls(names) if len(ids) else ():
        first = np.searchsorted(ids, calls["call_id"].to_numpy(np.int64))
        last = np.searchsorted(ids, calls["last_descendant_id"].to_numpy(np.int64), side="right")
        found.append(calls[last > first])
    return pd.concat(found[1:] or found).sort_values("call_id", ignore_index=True)
