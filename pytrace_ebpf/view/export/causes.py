"""What each state of a thread is called, and who is behind it: the words of Perfetto's state tracks."""

from typing import Any

import pandas as pd

from pytrace_ebpf.analyze.waits.resources import labels, named
from pytrace_ebpf.trace.schema import OF_THE_INTERPRETER
from pytrace_ebpf.trace.states import STATES

_KEY = ["pid", "tid", "start_ns"]
_LABELS = {state.name: state.label for state in STATES} | {"off_cpu": "off CPU"}
_WAITS = [*_KEY, "blocked_until_ns", "kind", "syscall", "resource_id", "lock_address", "waker_pid", "waker_tid", "holder_tid", "holder_func_id"]
NUMBERS = ("woken by", "held by", "lock")  # annotations, in the order of the columns waker_tid, holder_tid, lock_address


def causes(trace: Any, timeline: pd.DataFrame, functions: pd.DataFrame) -> pd.DataFrame:
    """`timeline` (of derive.scheduling.split, at least one row) with label (object), and of the rows that began a wait blocked_until_ns, waker_pid, waker_tid,
    holder_tid and lock_address (Int64, null for none and for nobody). `functions`: schema.FUNCTIONS."""
    waits = trace.waits(_WAITS, start_ns=int(timeline["start_ns"].min()), end_ns=int(timeline["start_ns"].max()) + 1)
    for name in ("kind", "syscall"):
        waits[name] = waits[name].astype("object")
    holder = waits["holder_func_id"].map(functions.set_index("func_id")["qualname"]).astype("object")
    waits["label"] = _labels(waits, holder, named(waits, labels(trace.resources())))
    out = timeline.merge(waits.drop_duplicates(_KEY), how="left", on=_KEY, suffixes=("_number", ""), sort=False)
    state = out["state"].astype("object")
    core = out["cpu"].map({c: f"on core {c}" if c >= 0 else "on a core" for c in out["cpu"].unique()})
    # A wait for a core after having been blocked is no cause of its own: the wait's row began before it.
    out["label"] = out["label"].fillna(state.map(_LABELS)).mask(state == "on_cpu", core).astype("object")
    for name in ("waker_tid", "holder_tid", "lock_address", "waker_pid", "blocked_until_ns"):
        out[name] = out[name].astype("Int64")
    for name in ("waker_tid", "holder_tid"):
        out[name] = out[name].mask(out[name] <= 0)
    return out


def _labels(waits: pd.DataFrame, holder: "pd.Series[Any]", resource: "pd.Series[Any]") -> "pd.Series[Any]":
    """By kind: "GIL wait, held by f", "io-read: read /var/lib/app/log", "net: recvfrom postgres 10.0.0.7:5432", "lock", "stop-the-world", "page-fault"."""
    called = waits["kind"] + (": " + waits["syscall"].astype("object") + (" " + resource).fillna("")).fillna("").mask(
        waits["kind"].isin(("lock", *OF_THE_INTERPRETER)), ""
    )
    called = called.mask(waits["kind"] == "preempted", _LABELS["runq_wait"] + ": preempted")
    called = called.mask((waits["kind"] == "other") & waits["syscall"].isna(), other=pd.NA)
    return called.mask(waits["kind"] == "gil", _LABELS["gil_wait"] + (", held by " + holder).fillna(""))
