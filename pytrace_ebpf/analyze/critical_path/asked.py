"""What a critical path is asked for: requests, the calls of some functions, or the whole run; each as the spans of time on threads that it consists of."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.calls.entry_points import asked as fitting
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.formatting import clean

ITEM = ("request_id", "pid", "tid", "func_id", "start_ns", "end_ns", "suspended")
"""Of one that is asked for: its number where it is a request (Int64), its thread and function (-1 the whole run), when, and whether it was suspended meanwhile."""
SPAN = ("item", "pid", "tid", "start_ns", "end_ns", "suspended")
"""What an item did on one thread from one moment to another, or that it was suspended."""
_CALL = ("pid", "tid", "func_id", "start_ns", "end_ns", "frame", "outermost", "resumed", "yielded")


def of_requests(requests: pd.DataFrame) -> pd.DataFrame:
    """Items (ITEM) of `requests` (schema.REQUESTS)."""
    rows = requests.assign(suspended=requests["awaited_ns"] > 0)
    return rows[rows["end_ns"] > rows["start_ns"]][list(ITEM)].astype({"request_id": "Int64"}).reset_index(drop=True)


def of_calls(trace: Any, patterns: Sequence[str]) -> pd.DataFrame:
    """Items of the outermost calls of the functions that fit `patterns`, of coroutines from the first resume to the end. Raises UsageError where no function fits."""
    calls = fitted(trace, patterns, "--function")
    wanted = calls["func_id"].unique()
    plain = calls[calls["outermost"] & ~calls["resumed"] & ~calls["yielded"]].assign(suspended=False)
    tasks = trace.tasks(["coroutine_id", "pid", "tid", "func_id", "start_ns", "end_ns", "awaited_ns"])
    tasks = tasks[tasks["func_id"].isin(wanted) & (tasks["awaited_ns"] > 0)].assign(suspended=True)
    rows = pd.concat([plain.assign(request_id=pd.NA), tasks.assign(request_id=pd.NA)])
    rows = rows[rows["end_ns"] > rows["start_ns"]].sort_values(["start_ns", "pid", "tid"], kind="stable")
    return rows[list(ITEM)].astype({"request_id": "Int64"}).reset_index(drop=True)


def fitted(trace: Any, patterns: Sequence[str], option: str) -> pd.DataFrame:
    """The calls of the functions that fit `patterns`. Raises UsageError, which names the `option`, where no function fits."""
    functions = trace.functions()
    wanted = fitting(functions, patterns).index.to_numpy(np.int64)
    if not len(wanted):
        raise UsageError(f"{option} {clean(' '.join(patterns))} fits none of the {len(functions):,} functions of this trace.")
    return _calls(trace, wanted)


def of_run(trace: Any) -> pd.DataFrame:
    """One item: the main thread of the program that was recorded, from beginning to end."""
    threads, pid = trace.threads(), int(trace.manifest["target"].get("pid") or 0)
    main = threads[(threads["tid"] == threads["pid"]) & ((threads["pid"] == pid) | (pid not in threads["pid"].to_numpy()))].head(1)
    end = main["end_ns"].fillna(trace.end_ns).astype(np.int64).clip(upper=trace.end_ns)
    rows = main.assign(request_id=pd.NA, func_id=-1, start_ns=main["start_ns"].clip(lower=trace.start_ns), end_ns=end, suspended=False)
    return rows[rows["end_ns"] > rows["start_ns"]][list(ITEM)].astype({"request_id": "Int64"}).reset_index(drop=True)


def spans(trace: Any, items: pd.DataFrame) -> pd.DataFrame:
    """The spans (SPAN) of `items`, in the order of item and time; they are as long as these."""
    plain = items.assign(item=np.arange(len(items)))
    of_tasks = plain[plain["suspended"]]
    plain = plain[~plain["suspended"]]
    if len(of_tasks):
        plain = pd.concat([plain, _of_tasks(trace, of_tasks)])
    return plain[list(SPAN)].sort_values(["item", "start_ns"], kind="stable", ignore_index=True)


def _calls(trace: Any, functions: npt.NDArray[np.int64]) -> pd.DataFrame:
    return pd.concat(list(trace.calls_by_part(_CALL, functions.tolist())), ignore_index=True)


def _of_tasks(trace: Any, items: pd.DataFrame) -> pd.DataFrame:
    """Resumes of each of `items`, and between them that it was suspended."""
    same = ["pid", "func_id", "frame"]
    resumes = _calls(trace, items["func_id"].unique()).astype(dict.fromkeys(same, "int64")).sort_values("start_ns", kind="stable")
    first = items.astype({"pid": "int64", "func_id": "int64"}).merge(
        resumes.drop_duplicates(["pid", "func_id", "tid", "start_ns"])[[*same, "tid", "start_ns"]],
        how="left",
        on=["pid", "func_id", "tid", "start_ns"],
    )
    first = first.assign(frame=first["frame"].fillna(0).astype(np.int64), until=first["end_ns"]).sort_values("start_ns", kind="stable")
    rows = pd.merge_asof(resumes, first[[*same, "start_ns", "until", "item"]].assign(begun=first["start_ns"]), on="start_ns", by=same)
    rows = rows[rows["item"].notna() & (rows["start_ns"] < rows["until"])].sort_values(["item", "start_ns"], kind="stable")
    rows = rows.assign(item=rows["item"].astype(np.int64), end_ns=np.minimum(rows["end_ns"], rows["until"]))
    known = items.set_index("item")
    # Up to when an item is covered before each resume: two of damaged events may overlap.
    reach = rows.groupby("item")["end_ns"].cummax()
    covered = reach.groupby(rows["item"]).shift(1).fillna(rows["item"].map(known["start_ns"])).astype(np.int64)
    begin = np.maximum(rows["start_ns"], covered)
    resumed = rows.assign(start_ns=begin, end_ns=np.maximum(rows["end_ns"], begin), suspended=False)
    before = rows.assign(start_ns=covered, end_ns=rows["start_ns"], suspended=True)
    after = known.assign(start_ns=reach.groupby(rows["item"]).max().reindex(known.index).fillna(known["start_ns"]).astype(np.int64)).reset_index()
    out = pd.concat([resumed, before, after])[list(SPAN)].astype({"start_ns": np.int64, "end_ns": np.int64})
    return out[out["end_ns"] > out["start_ns"]]
