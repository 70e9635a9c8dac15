"""A critical path as rows with names: each piece, in the order of time; and summed by function and what it was."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.critical_path import asked
from pytrace_ebpf.analyze.critical_path.innermost import BY_CALL, by_call
from pytrace_ebpf.analyze.critical_path.path import Path, path, with_all_threads
from pytrace_ebpf.analyze.critical_path.timelines import NOBODY
from pytrace_ebpf.analyze.waits.resources import labels
from pytrace_ebpf.analyze.waits.rivals import main_rivals, throttled
from pytrace_ebpf.derive.added import added
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.rebuild.critical_path import IN_QUEUE, ON_CORE, WAITS_FOR
from pytrace_ebpf.trace.states import BY_NAME

ON_CPU, RUN_QUEUE, UNKNOWN, AWAIT = BY_NAME["on_cpu"].name, BY_NAME["runq_wait"].name, "unknown", "await"
QUOTA = "CPU quota"
KEY = ["kind", "syscall", "resource", "through", "func_id", "own_func_id", "own_line"]
PIECES = ("item", "request_id", "start_ns", "end_ns", "pid", "tid", "call_id", *KEY, "through_func_id")

Ints = npt.NDArray[np.int64]


def critical_path(trace: Any, request_ids: Any = None, function: str | None = None) -> pd.DataFrame:
    """As Trace.critical_path()."""
    if trace.scheduling["source"] != "bpf":
        raise HostError("what determined how long it took is known only where eBPF recorded every context switch.")
    if function is not None:
        items = asked.of_calls(trace, [function])
    else:
        requests = trace.requests()
        items = asked.of_requests(requests if request_ids is None else requests[requests["request_id"].isin(request_ids)])
        if request_ids is None and not len(items):
            items = asked.of_run(trace)
    trace = with_all_threads(trace)
    return sequence(trace, path(trace, items))


def sequence(trace: Any, found: Path) -> pd.DataFrame:
    """Each piece of `found`, in the order of item and time: PIECES, where times are int64 ns.

    item: which of found.items; request_id its number, null where it is no request. kind: on_cpu, runq_wait, of which nobody is known to have ended it a wait by
    its kind (schema.WAITS), await while a coroutine was suspended, or unknown before a thread was made. call_id, func_id, own_func_id and own_line: of the innermost call,
    as in schema.WAITS. resource: what was waited for; in the run queue who had the core, or CPU quota. through: the kind of the wait of another thread that
    this piece stands for, and through_func_id the function of the program's own code that waited; null and -1 on the thread's own time. pid, tid: whose time it is.
    """
    parts = [rows.assign(**_through(found, rows["through"].to_numpy(np.int64))) for rows in _parts(trace, found, found.pieces)]
    rows = pd.concat(parts, ignore_index=True).sort_values(["item", "start"], kind="stable", ignore_index=True)
    keys = found.lines.keys[rows["thread"]]
    rows = rows.assign(pid=keys >> 32, tid=keys & 0xFFFFFFFF, request_id=found.items["request_id"].iloc[rows["item"]].array)
    return rows.rename(columns={"start": "start_ns", "end": "end_ns"})[list(PIECES)]


def summed(trace: Any, found: Path) -> pd.DataFrame:
    """The pieces of all of found.items together, the most time first: KEY as sequence() has them, and ns (int64)."""
    on_core = found.pieces["kind"] == ON_CORE
    parts = _parts(trace, found, _stacked(found, found.pieces[on_core]), found.pieces[~on_core])
    table = added((_weighed(found, part) for part in parts), KEY, {"ns": "sum"})
    return table[table["ns"] > 0].sort_values("ns", ascending=False, kind="stable", ignore_index=True)


def _weighed(found: Path, part: pd.DataFrame) -> pd.DataFrame:
    ns = (part["end"] - part["start"]) * part["weight"].to_numpy(np.int64)
    return part.assign(through=_kind_of(found, part["through"].to_numpy(np.int64)), ns=ns)[[*KEY, "ns"]]


def _kind_of(found: Path, through: Ints) -> npt.NDArray[np.object_]:
    kinds: npt.NDArray[np.object_] = np.append(found.lines.waits["kind"].astype("object").to_numpy(), np.array([None]))
    return kinds[through]


def _through(found: Path, through: Ints) -> dict[str, Any]:
    own = np.append(found.lines.waits["own_func_id"].to_numpy(np.int64), NOBODY)[through]
    return {"through": _kind_of(found, through), "through_func_id": own}


def _stacked(found: Path, pieces: pd.DataFrame) -> pd.DataFrame:
    """Those on a core where no two overlap that were come to through a wait of the same kind; `weight`: how many were there."""
    through = pieces["through"].to_numpy(np.int64)
    code, _ = pd.factorize(_kind_of(found, through), use_na_sentinel=False)
    codes = int(code.max(initial=0)) + 1
    group = np.tile(pieces["thread"].to_numpy(np.int64) * codes + code, 2)
    ts = np.concatenate((pieces["start"].to_numpy(np.int64), pieces["end"].to_numpy(np.int64)))
    step = np.repeat((1, -1), len(pieces))
    order = np.lexsort((ts, group))
    group, ts, weight = group[order], ts[order], np.cumsum(step[order])
    end = np.append(ts[1:], 0)[: len(ts)]
    kept = (weight > 0) & (end > ts)
    one = np.full(codes, NOBODY)
    one[code] = through  # any of its kind
    chosen = group[kept]
    return pd.DataFrame(
        {
            "thread": chosen // codes,
            "start": ts[kept],
            "end": end[kept],
            "through": one[chosen % codes],
            "weight": weight[kept],
            "kind": ON_CORE,
            "wait": NOBODY,
            "suspended": False,
        }
    )


def _parts(trace: Any, found: Path, *pieces: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """`pieces` with KEY but for `through`, call_id and weight; those on a core cut by call."""
    called = labels(trace.resources())
    for some in pieces:
        some = some if "weight" in some else some.assign(weight=1)
        on_core = (some["kind"] == ON_CORE).to_numpy()
        for part in by_call(trace, some[on_core], found.lines.keys):
            yield part.assign(kind=ON_CPU, syscall=None, resource=None)
        if (~on_core).any() or not on_core.any():
            yield _of_waits(trace, found, some[~on_core], called)


def _of_waits(trace: Any, found: Path, pieces: pd.DataFrame, called: "pd.Series[Any]") -> pd.DataFrame:
    at = pieces["wait"].to_numpy(np.int64)
    none = at < 0
    waits = (
        found.lines.waits.iloc[np.where(none, 0, at)].reset_index(drop=True) if len(found.lines.waits) else found.lines.waits.reindex(range(len(at)))
    )
    how = pieces["kind"].to_numpy()
    queued, waited = how == IN_QUEUE, how == WAITS_FOR
    of_task = waited & pieces["suspended"].to_numpy(bool) & (pieces["through"].to_numpy() == NOBODY)
    kind = np.select([of_task, waited, queued], [AWAIT, waits["kind"].astype("object"), RUN_QUEUE], UNKNOWN)
    resource = waits["resource_id"].map(called).astype("object").to_numpy(copy=True)
    resource[queued | none] = None
    if queued.any():
        resource[queued] = _rivals(trace, waits[queued])
    ids = {name: np.where(none, NOBODY, waits[name].fillna(NOBODY).to_numpy(np.int64)) for name in BY_CALL[1:]}
    if of_task.any():
        endpoint = found.items["func_id"].to_numpy(np.int64)[pieces["item"]] if "item" in pieces else np.full(len(at), NOBODY)
        ids |= {name: np.where(of_task, endpoint, ids[name]) for name in ("func_id", "own_func_id")}
        ids["own_line"] = np.where(of_task, NOBODY, ids["own_line"])
    syscall = waits["syscall"].astype("object").where(waits["syscall"].notna(), None).to_numpy(copy=True)
    syscall[~waited | of_task] = None
    return pieces.assign(kind=kind, syscall=syscall, resource=np.where(pd.isna(resource), None, resource), call_id=NOBODY, **ids)


def _rivals(trace: Any, waits: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Who had the core that each of `waits` was for, by the name of its thread; None where that is not known."""
    out = np.full(len(waits), None, object)
    if trace.rivals_known:
        rows = waits[["tid", "blocked_until_ns", "start_ns"]].assign(
            blocked_until_ns=waits["blocked_until_ns"].fillna(waits["end_ns"]).astype(np.int64)
        )
        had = rows.merge(main_rivals(trace, waits), how="left", on=["tid", "blocked_until_ns"])
        threads = pd.concat([trace.whole.threads()[["tid", "name"]], trace.neighbours()[["tid", "name"]]]).drop_duplicates("tid")
        names = had["rival_tid"].map(threads.set_index("tid")["name"]).astype("object").to_numpy()
        some = (had["rival_tid"].fillna(0) > 0).to_numpy()
        out[some] = names[some]
    out[throttled(waits).to_numpy()] = QUOTA
    return out
