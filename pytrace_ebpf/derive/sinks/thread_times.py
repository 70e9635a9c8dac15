"""Where the time of each thread went, inside of calls and outside, from the same pass as the tree."""

import numpy as np
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.derive.arrow_table import from_frame
from pytrace_ebpf.derive.feed import has_only_cputime
from pytrace_ebpf.derive.sums import Sums
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import THREAD_TIMES
from pytrace_ebpf.trace.states import NAMES


def of_sums(trace: Trace, sums: Sums) -> pa.Table:
    """The time of each thread as schema.THREAD_TIMES."""
    return from_frame(THREAD_TIMES, _times(trace, sums))


def _times(trace: Trace, sums: Sums) -> pd.DataFrame:
    spent = pd.DataFrame(sums.spent).assign(pid=sums.spenders >> 32, tid=sums.spenders & 0xFFFFFFFF)
    spent = spent[spent["calls"] >= 0].sort_values(["pid", "tid"], ignore_index=True)
    if has_only_cputime(trace):
        return _by_cputime(trace, spent)
    known = spent[[*NAMES, "off"]].sum(axis=1).where(spent["known"], 0)
    out = spent[["pid", "tid", "calls"]].assign(known_ns=known)
    for part in NAMES:
        is_split = (known > 0) & ((spent["off"] == 0) | (part == "on_cpu"))
        out[f"{part}_ns"] = spent[part].astype("Int64").where(is_split)
    return out


def _by_cputime(trace: Trace, spent: pd.DataFrame) -> pd.DataFrame:
    """By CPU time: of the whole trace from a thread's first sample to its last, of a window by the curve through its samples."""
    out = spent[["pid", "tid", "calls"]].assign(gil_wait_ns=pd.NA, blocked_ns=pd.NA)
    rows = trace.cputime()
    if trace.whole is trace:
        queued = rows["runq_wait_ns"].where(rows["runq_wait_ns"] >= 0)
        ends = rows.assign(runq_wait_ns=queued).sort_values("ts").groupby(["pid", "tid"])[["ts", "on_cpu_ns", "runq_wait_ns"]]
        passed = (ends.last() - ends.first()).astype("Int64").rename(columns={"ts": "known_ns"})
        out = out.merge(passed.reset_index(), how="outer", on=["pid", "tid"])
        out[["calls", "known_ns"]] = out[["calls", "known_ns"]].fillna(0)
    else:
        known = np.where(spent["known"] & (spent["on_cpu"] >= 0), trace.end_ns - trace.start_ns, 0)
        out["known_ns"], out["on_cpu_ns"] = known, spent["on_cpu"].astype("Int64").where(known > 0)
        out["runq_wait_ns"] = spent["runq_wait"].astype("Int64").where((known > 0) & bool(rows["runq_wait_ns"].notna().all()))
    out["on_cpu_ns"] = out["on_cpu_ns"].clip(upper=out["known_ns"])
    return out
