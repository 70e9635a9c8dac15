"""What the program's own code waits for, added up; apart from that threads that have nothing to do."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.findings.contexts import PLACE, Contexts
from pytrace_ebpf.analyze.findings.locks import Locks
from pytrace_ebpf.analyze.findings.requests import Requests
from pytrace_ebpf.analyze.waits.resources import labels, of_clients, sends
from pytrace_ebpf.analyze.waits.whole import whole_waits
from pytrace_ebpf.derive.added import Added
from pytrace_ebpf.derive.calls.primitives import PRIMITIVES, among
from pytrace_ebpf.trace.client_functions import pool_of
from pytrace_ebpf.trace.schema import AGENT, OF_THE_INTERPRETER

COLUMNS = (
    "pid", "tid", "call_id", "start_ns", "blocked_until_ns", "end_ns", "kind", "syscall", "resource_id", "throttled_ns", "waker_pid", "waker_tid", "holder_tid",
    "slices", "func_id", "primitive_func_id", "caller_func_id", *(f"{whose}own_func_id" for whose in ("", "holder_", "waker_")), "own_line", "own_called_func_id",
)  # fmt: skip
KEY = [
    "pid", "own_func_id", "own_line", "own_called_func_id", "on_loop", "kind", "syscall", "resource", "primitive_func_id", "other_func_id", "shakes_hands", "endpoint",
]  # fmt: skip
_PAIR = ["pid", "own_func_id", "primitive_func_id", "tid", "waker_tid"]
_ENDER = ["pid", "own_func_id", "primitive_func_id", "waker_tid"]
_TAKER = ["own_func_id", "waker_pid", "waker_tid", "endpoint"]
_THREAD = ["pid", "tid"]
_LOOP = ["pid", "tid", "start_ns", "until_ns"]
NOBODY = -2
_HANDSHAKE = "do_handshake"  # of TLS, in ssl and what is like it
_COUNTED = {"ns": "sum", "waits": "sum"}
_SUMS = {"ns": "sum", "waits": "sum", "small_ns": "sum"}
SMALL_NS = 20_000_000
# What a thread waits in for others of its own program to be done, or for the next piece of work.
FOR_OTHERS = ("Thread.start", "Thread.join", "Process.join", "Popen.wait", "Event.wait", "Future.result", "wait", "as_completed", "Executor.map", "ThreadPoolExecutor.shutdown",
               "ProcessPoolExecutor.shutdown", "Executor.__exit__", "Pool.map", "Pool.join", "ApplyResult.get", "ApplyResult.wait", "_shutdown")  # fmt: skip
_FOR_WORK = ("Queue.get", "SimpleQueue.get", "Condition.wait", "Condition.wait_for", "JoinableQueue.get")
WITHOUT_OTHERS = (
    *(name for name in FOR_OTHERS if name not in ("Future.result", "ApplyResult.get")),
    *_FOR_WORK,
)  # in a thread's outermost function
OWN_SIGNALS = ("pipe", "eventfd", "unix socket")  # resources that no other process has the other end of: by which threads wake the one that polls
_WITHOUT_WORK = ("lock", "poll", "sleep", "other", "wait-child")  # of a thread that runs no own code
_MOST = 0.5


@dataclass(frozen=True)
class Waited:
    """rows: by KEY, ns, waits, and small_ns, of those that take less than SMALL_NS; of own code, and not for work. idle: by thread, ns and waits.

    takers: of time without a core by own function and who took it, ns, of which throttled_ns without a CPU quota. locks: of locks.py.
    enders: of waits in primitives by function and by the thread that ended them, ns. loops: when event loops had nothing to run, where that was asked for.
    """

    rows: pd.DataFrame
    idle: pd.DataFrame
    takers: pd.DataFrame
    locks: pd.DataFrame
    enders: pd.DataFrame
    loops: pd.DataFrame


def waited(trace: Any, at: Contexts, requests: Requests, with_loops: bool = False) -> Waited:
    """Of a pytrace_ebpf Trace, the contexts of its tree and its requests. Memory is bounded by the different waits, and by what Locks keeps; `with_loops`: and by
    the rounds of event loops."""
    resources, threads = trace.resources(), trace.threads()
    called, clients = labels(resources), of_clients(resources)["resource_id"]
    handshakes = at.functions.loc[at.functions["name"] == _HANDSHAKE, "func_id"]
    of_pools = at.functions.loc[[pool_of(str(module)) is not None for module in at.functions["module"]], "func_id"]
    ours, names = threads.loc[threads["name"] == AGENT, "tid"], primitives(at.functions)
    rows, idle, takers, pairs, enders, locks = (
        Added(KEY, _SUMS),
        Added(_THREAD, _COUNTED),
        Added(_TAKER, {"ns": "sum", "throttled_ns": "sum"}),
        Added(_PAIR, _COUNTED),
        Added(_ENDER, {"ns": "sum"}),
        Locks(),
    )
    loops = [pd.DataFrame(columns=_LOOP, dtype=np.int64)]
    for part in whole_waits(trace.waits_by_part(COLUMNS)):
        some = _named(part[(part["call_id"] >= 0) & ~part["tid"].isin(ours)], at, called, handshakes)
        some["in_pool"] = some["caller_func_id"].isin(of_pools)
        some["endpoint"] = requests.of_moments(*(some[name].to_numpy(np.int64) for name in ("pid", "tid", "start_ns")))
        locks.add(some)
        preempted = some["kind"] == "preempted"
        takers.add(some[preempted | (some["throttled_ns"] > 0)])
        some = some[~preempted]
        nothing_to_do = _is_idle(some, clients, names)
        idle.add(some[nothing_to_do])
        if with_loops:
            loops.append(some.loc[nothing_to_do & (some["kind"] == "poll"), _LOOP])
        some = some[~nothing_to_do & (some["own_func_id"] >= 0)]
        rows.add(some)
        enders.add(some[some["primitive_func_id"] >= 0])
        pairs.add(some[some["primitive_func_id"].map(names).isin(_FOR_WORK) & ~some["in_pool"]])
    for_work = _of_queues(pairs.table, at)
    of_pairs = pairs.table.merge(for_work)
    idle.add(of_pairs)
    left = rows.table.merge(for_work, how="left", indicator=True)
    return Waited(
        left[left.pop("_merge") == "left_only"].reset_index(drop=True), idle.table, takers.table, locks.table(), enders.table, pd.concat(loops)
    )


def primitives(functions: pd.DataFrame) -> "pd.Series[Any]":
    """By func_id the names of functions that a program waits in."""
    chosen = functions[among(functions, PRIMITIVES)[functions["func_id"]]]
    named = chosen["qualname"].astype("object")
    plain = named.str.contains(".", regex=False) | ~chosen["module"].isin(("queue", "_queue", "threading"))
    short = {
        "get": "Queue.get",
        "wait": "Condition.wait",
        "join": "Thread.join",
        "start": "Thread.start",
    }  # before 3.11 the class is not always known
    return named.where(plain, named.map(short).fillna(named)).set_axis(chosen["func_id"])


def _named(part: pd.DataFrame, at: Contexts, called: "pd.Series[Any]", handshakes: "pd.Series[int]") -> pd.DataFrame:
    """Waits with what they are added up by."""
    out = part.merge(at.places, how="left", on=PLACE)
    kind = out["kind"].astype("object")
    gil, preempted = kind == "gil", kind == "preempted"
    until = out["blocked_until_ns"].fillna(out["end_ns"]).astype(np.int64)
    other = out["waker_own_func_id"].where(~gil, out["holder_own_func_id"].where(out["holder_tid"] != 0, NOBODY))
    ns = (until - out["start_ns"]).where(~preempted, out["end_ns"] - out["start_ns"])
    return out.assign(
        kind=kind,
        until_ns=until,
        ns=ns,
        small_ns=ns.where(ns < SMALL_NS, 0),
        waits=1,
        shakes_hands=out["func_id"].isin(handshakes),
        throttled_ns=out["throttled_ns"].fillna(0).astype(np.int64),
        own_line=out["own_line"].fillna(-1).astype(np.int64),
        own_depth=out["own_depth"].fillna(0).astype(np.int64),
        on_loop=out["on_loop"].fillna(0).astype(bool),
        syscall=out["syscall"].astype("object"),
        resource=out["resource_id"].map(called).astype("object"),
        primitive_func_id=out["primitive_func_id"].where(~kind.isin(OF_THE_INTERPRETER), -1),
        other_func_id=other.where(kind.isin(("lock", *OF_THE_INTERPRETER)), -1),
        waker_pid=out["waker_pid"].fillna(-1).astype(np.int64),
        waker_tid=out["waker_tid"].fillna(-1).astype(np.int64),
    )


def _is_idle(waits: pd.DataFrame, clients: "pd.Series[int]", names: "pd.Series[Any]") -> "pd.Series[bool]":
    """Which waits are for something to do: for clients, in a library that has none for this thread, or for other threads of the program."""
    kind, depth, main = waits["kind"], waits["own_depth"], waits["tid"] == waits["pid"]
    primitive, named = waits["primitive_func_id"].map(names), (waits["primitive_func_id"] >= 0) & ~waits["in_pool"]
    of_clients = waits["resource_id"].isin(clients) & ~sends(waits["syscall"])
    in_library = (waits["own_func_id"] < 0) & kind.isin(_WITHOUT_WORK)
    for_others = named & ((main & primitive.isin(FOR_OTHERS)) | ((depth == 0) & primitive.isin(WITHOUT_OTHERS)))
    for_nobody = (kind == "poll") & (waits["resource"].isna() | waits["resource"].isin(OWN_SIGNALS))
    by_itself = (depth == 0) & ~waits["on_loop"] & ((~main & (kind == "sleep")) | for_nobody)
    return of_clients | in_library | for_others | by_itself


def _of_queues(pairs: pd.DataFrame, at: Contexts) -> pd.DataFrame:
    """Those of _PAIR's places where threads wait for work that threads give them which never come there; where they give it each other, as connections of a
    pool, that is short."""
    place = _PAIR[:3]
    come = at.places[PLACE].rename(columns={"tid": "waker_tid"}).assign(among=1)
    rows = pairs.merge(come, how="left", on=["pid", "waker_tid", "own_func_id"])
    sums = rows.assign(among=rows["ns"].where(rows["among"].notna(), 0)).groupby(place, as_index=False)[["ns", "among"]].sum()
    return sums.loc[sums["among"] < _MOST * sums["ns"], place]
