"""Which trace context a request came with, or its first span: by the call on its thread within which that was seen."""

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.derive.scheduling.last_at import last_at
from pytrace_ebpf.derive.scheduling.split import thread_keys
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.streams.clients import TRACE_CONTEXTS

IDS = ["trace_id", "span_id"]
_FIRST = "opentelemetry"  # whose span is the request's own; that of a header is the caller's

Ints = npt.NDArray[np.int64]


def of_trace(trace: Trace) -> pd.DataFrame:
    """schema.TRACE_CONTEXTS of a trace, a few hundred bytes for each request."""
    whole = trace.whole
    parts = [whole.part(TRACE_CONTEXTS.name, segment["index"]) for segment in whole.segments if segment["rows"].get(TRACE_CONTEXTS.name)]
    return to_frame(pa.concat_tables(parts or [TRACE_CONTEXTS.arrow.empty_table()]), TRACE_CONTEXTS)


def of_requests(contexts: pd.DataFrame, calls: pd.DataFrame, request: Ints) -> pd.DataFrame:
    """IDS by request_id, of those that have some.

    `contexts`: schema.TRACE_CONTEXTS. `calls` (pid, tid, start_ns, end_ns), none within another: what requests consist of; `request`: the request_id of each.
    """
    contexts = contexts.sort_values("ts", kind="stable")
    key, start, whose, ts = _key(calls), calls["start_ns"].to_numpy(np.int64), _key(contexts), contexts["ts"].to_numpy(np.int64)
    order = np.lexsort((start, key))
    at = last_at(key[order], start[order], whose, ts)
    row = order[at[at >= 0]]
    found = contexts[at >= 0].assign(request_id=request[row], end_ns=calls["end_ns"].to_numpy(np.int64)[row])
    found = found[(found["ts"] <= found["end_ns"]) & (found["request_id"] >= 0)]
    found = found.assign(later=found["source"].astype("object") != _FIRST).sort_values("later", kind="stable")
    return found.drop_duplicates("request_id").set_index("request_id")[IDS]


def _key(rows: pd.DataFrame) -> Ints:
    return thread_keys(rows["pid"].to_numpy(np.int64), rows["tid"].to_numpy(np.int64))
