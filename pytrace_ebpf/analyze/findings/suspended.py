"""What requests that are coroutines await: as no thread waits for it, no wait says so.

While a request is suspended its event loop runs others, or has nothing to run. Only the latter is counted here: a request that is late because the loop is held does not wait for
what it awaits, and whoever holds the loop has findings of his own.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.findings.requests import Of
from pytrace_ebpf.analyze.findings.sentences import Found
from pytrace_ebpf.analyze.functions.own_code import NONE
from pytrace_ebpf.analyze.tasks import awaited
from pytrace_ebpf.derive.scheduling.last_at import last_at, thread_keys

_NEARLY_ALL = 0.9
_AWAITED = ["func_id", "awaited_func_id"]

Ints = npt.NDArray[np.int64]


def suspended(trace: Any, requests: pd.DataFrame, loops: pd.DataFrame) -> tuple[list[Found], int]:
    """Of `requests` (Requests.of_coroutines) what their own code awaits, and for how long together it was suspended while its loop had nothing to run, ns.

    `loops`: pid, tid, start_ns, until_ns of when event loops had nothing to run.

    Memory is bounded by the number of coroutines and of these.
    """
    tasks = trace.tasks([*awaited.COLUMNS, "pid", "tid", "start_ns", "end_ns"])
    tasks = tasks.assign(awaited_ns=_idle_ns(tasks, loops))
    endpoints = requests.set_index("request_id")["endpoint_func_id"]
    rows = awaited.awaited(tasks, trace.functions(), endpoints)
    of_endpoint = requests.groupby("endpoint_func_id")["wall_ns"].agg(["size", "sum"])
    found = []
    for (own, what), group in rows.groupby(_AWAITED):
        ns, by_endpoint = int(group["awaited_ns"].sum()), group.set_index("endpoint_func_id")["awaited_ns"]
        alone = by_endpoint.max() >= _NEARLY_ALL * ns
        endpoint = int(by_endpoint.idxmax()) if alone else NONE
        of = of_endpoint.loc[endpoint] if alone else of_endpoint.sum()
        part = by_endpoint.max() / ns if alone else 1.0
        waits = int(group["waits"].sum())
        found.append(
            Found(
                rule="awaits",
                ns=ns,
                own=int(own),
                called=int(what),
                waits=waits,
                evidence="--by task",
                of=Of(endpoint, int(of["size"]), int(of["sum"]), float(part)),
            )
        )
    return found, int(rows["awaited_ns"].sum())


def _idle_ns(tasks: pd.DataFrame, loops: pd.DataFrame) -> Ints:
    """For how long the loop of each coroutine had nothing to run, from its first resume to its end."""
    keys = thread_keys(loops["pid"].to_numpy(np.int64), loops["tid"].to_numpy(np.int64))
    order = np.lexsort((loops["start_ns"].to_numpy(np.int64), keys))
    keys, start, until = keys[order], *(loops[name].to_numpy(np.int64)[order] for name in ("start_ns", "until_ns"))
    before = np.concatenate([[0], np.cumsum(until - start)])
    of = thread_keys(tasks["pid"].to_numpy(np.int64), tasks["tid"].to_numpy(np.int64))
    first = before[np.searchsorted(keys, of, "left")]

    def up_to(ts: Ints) -> Ints:
        at = last_at(keys, start, of, ts)
        inside = np.where(at >= 0, np.minimum(until[at], ts) - start[at], 0) if len(keys) else np.zeros(len(ts), np.int64)
        found: Ints = np.where(at >= 0, before[at] + inside, first)
        return found

    return up_to(tasks["end_ns"].to_numpy(np.int64)) - up_to(tasks["start_ns"].to_numpy(np.int64))
