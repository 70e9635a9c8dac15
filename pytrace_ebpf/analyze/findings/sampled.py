"""The findings of samples: what threads were at when they were looked at, by their stacks and the state that each sample says.

A sample says what is behind the descriptor that a thread waits for, and not for whom it waits. How it waits says the outermost function below the
program's own code that is known to wait for one kind of thing: libc's `recv` names the rule.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.findings.computed import OF_IMPORTS, at_work_ns
from pytrace_ebpf.analyze.findings.contexts import Contexts, Ints, contexts
from pytrace_ebpf.analyze.findings.rules import LOOK_UPS, PROCESSES, RULES, TO_DISK
from pytrace_ebpf.analyze.findings.sentences import Found
from pytrace_ebpf.analyze.findings.waited import FOR_OTHERS, WITHOUT_OTHERS, primitives
from pytrace_ebpf.analyze.functions.own_code import NONE
from pytrace_ebpf.analyze.samples.by_wait import by_wait
from pytrace_ebpf.analyze.samples.errors import with_errors
from pytrace_ebpf.analyze.samples.sampling import is_summed
from pytrace_ebpf.analyze.samples.tree import nodes
from pytrace_ebpf.derive.calls.nesting import levels
from pytrace_ebpf.trace.sampled import NATIVE

_MOSTLY, _ONLY_WAITS = 0.5, 0.9
_STATES = ("on_cpu", "runq_wait", "gil_wait", "blocked")
_CLIENTS = "clients"  # a listening socket: no rule, as nobody who works waits there
# By what is known of a function that waits, the names of functions: of libc, OpenSSL, the interpreter, and the standard library where no native frame is known.
_WAIT_IN = {
    "sleep": ("clock_nanosleep", "nanosleep", "usleep", "time_sleep"),
    "lock": ("PyThread_acquire_lock_timed", "PyThread_acquire_lock", "_PyMutex_LockTimed", "_PySemaphore_Wait", "pthread_mutex_lock", "sem_wait", "sem_clockwait"),
    "tls": ("SSL_do_handshake", "SSL_connect", "SSLSocket.do_handshake"),
    "peer": ("recv", "recvfrom", "recvmsg", "__recv", "connect", "__connect", "send", "sendto", "sendmsg", "SSL_read", "SSL_read_ex", "SSL_write", "SSL_write_ex",
             "SocketIO.readinto", "SSLSocket.read"),
    "subprocess": ("wait4", "__wait4", "waitpid", "waitid"),
    "fsync": TO_DISK,
    "dns": (*LOOK_UPS, "gethostbyname_r", "gethostbyaddr_r"),
    _CLIENTS: ("accept", "accept4", "socket.accept"),
}  # fmt: skip
_HOW = ("", *_WAIT_IN)
_OF_RESOURCES = ("peer", "tls", "fsync", "wait")
_WORDS = {rule.name: rule.waits for rule in RULES if rule.name != "wait"} | {
    "peer": "for a connection ({syscall})",
    "tls": "for a connection in TLS handshakes",
}


class Sampled(NamedTuple):
    """The findings, what they are shares of, ns, and how long threads had nothing to do: `only` so many just that, of `several` (0: not known)."""

    found: list[Found]
    at_work_ns: int
    idle_ns: int
    only: int
    several: int


def sampled(trace: Any, period: int) -> Sampled:
    """Of a pytrace_ebpf Trace of samples alone, each of `period` ns on a core."""
    functions = trace.functions()
    tree = nodes(trace, lines=True)
    at = contexts(tree, functions)
    rows = _rows(at)
    idle = _is_idle(rows, at)
    per_thread = rows.assign(idle_ns=rows["blocked_ns"].where(idle, 0)).groupby(["pid", "tid"])[["ns", "idle_ns"]].sum()
    waits = per_thread[per_thread["idle_ns"] > 0]
    only = int((waits["idle_ns"] >= _ONLY_WAITS * waits["ns"]).sum())
    idle_ns = int(per_thread["idle_ns"].sum())
    waited = _waited(rows[~idle & (rows["own_func_id"] >= 0)])
    _name_resources(waited, trace)
    found = [*waited, *_computed(rows, at)]
    of = int(rows["on_cpu_ns"].sum()) // period
    _with_errors(found, period, of)
    return Sampled(found, at_work_ns(at) - idle_ns, idle_ns, *((0, 0) if is_summed(trace) else (only, len(waits))))


def _rows(at: Contexts) -> pd.DataFrame:
    """Of each row of the tree with time of its own where it stands in own code, how it waits, and its times by state with their squares."""
    tree = at.tree
    primitive, called, how = _below_own(at)
    own = at.own
    lines = tree["line"].to_numpy(np.int64)
    columns = {f"{state}_{what}": tree[f"self_{state}_{what}"].to_numpy() for state in _STATES for what in ("ns", "square")}
    table = pd.DataFrame({
        "pid": tree["pid"], "tid": tree["tid"], "own_func_id": at.own_function, "own_line": np.where(own >= 0, lines[own], NONE),
        "called": called, "primitive": primitive, "how": np.array(_HOW, object)[how], "on_loop": at.on_loop, "depth": np.where(own >= 0, at.depth[own], 0),
        "syscall": _innermost(at), "ns": tree["self_ns"], **columns,
    })  # fmt: skip
    return table[(tree["self_ns"] > 0) & (tree["depth"] >= 0)].reset_index(drop=True)


def _below_own(at: Contexts) -> tuple[Ints, Ints, Ints]:
    """By row: the outermost primitive and the first Python function that its own code called there (func_id, NONE), and the outermost that says how (_HOW)."""
    functions, tree = at.functions, at.tree
    size = int(functions["func_id"].max()) + 2 if len(functions) else 2  # the last: of an unknown function
    known, native, says = np.zeros(size, bool), np.zeros(size, bool), np.zeros(size, np.int64)
    ids = functions["func_id"].to_numpy(np.int64)
    known[primitives(functions).index.to_numpy(np.int64)] = True
    native[ids] = (functions["function_layer"] == NATIVE).to_numpy(bool)
    kinds = {name: number for number, kind in enumerate(_HOW) if kind for name in _WAIT_IN[kind]}
    says[ids] = functions["qualname"].map(kinds).fillna(0).to_numpy(np.int64)
    says[ids[functions["module"].isin(PROCESSES).to_numpy(bool)]] = _HOW.index("subprocess")
    function, parent = at.function, tree["parent_id"].to_numpy(np.int64)
    primitive, called, how = (np.full(len(tree), fill, np.int64) for fill in (NONE, NONE, 0))
    own = at.own == np.arange(len(tree))
    for here in levels(tree["depth"].to_numpy(np.int64) + 1):
        up, what = parent[here], function[here]
        inside = ~own[here]
        primitive[here] = np.where(inside, np.where(primitive[up] >= 0, primitive[up], np.where(known[what], what, NONE)), NONE)
        python = (what >= 0) & ~native[what]
        called[here] = np.where(inside, np.where(called[up] >= 0, called[up], np.where(python & (at.own[here] >= 0), what, NONE)), NONE)
        how[here] = np.where(inside, np.where(how[up] > 0, how[up], says[what]), 0)
    return primitive, called, how


def _innermost(at: Contexts) -> "pd.Series[Any]":
    """By row the name of the native function that it is, where that has one: what stands for the system call."""
    rows = at.functions[at.functions["function_layer"] == NATIVE].set_index("func_id")["qualname"]
    return pd.Series(at.function).map(rows[~rows.str.contains("+", regex=False)]).astype("object").set_axis(at.tree.index)


def _is_idle(rows: pd.DataFrame, at: Contexts) -> "pd.Series[bool]":
    """Which rows, as far as they are blocked, are of threads that have nothing to do: as in waited.py, by how they wait in place of for what."""
    names = primitives(at.functions)
    primitive, main, outermost = rows["primitive"].map(names), rows["tid"] == rows["pid"], rows["depth"] == 0
    for_others = (main & primitive.isin(FOR_OTHERS)) | (outermost & primitive.isin(WITHOUT_OTHERS))
    by_itself = outermost & ~rows["on_loop"] & ~main & rows["how"].isin(("sleep", "peer"))
    return (rows["own_func_id"] < 0) | (rows["how"] == _CLIENTS) | for_others | by_itself


def _waited(rows: pd.DataFrame) -> list[Found]:
    blocked = rows[rows["blocked_ns"] > 0]
    rule = blocked["how"].where(blocked["how"] != "", "wait")
    rule = rule.where((blocked["primitive"] < 0) | rule.isin(("subprocess",)), "queue")
    out = []
    for _, group in blocked.assign(rule=rule).groupby(["own_func_id", "on_loop", "rule", "primitive"]):
        out.append(_found(group, "blocked"))
    for _, group in rows[rows["gil_wait_ns"] > 0].assign(rule="gil").groupby("pid"):
        out.append(_found(group, "gil_wait"))
    return out


def _name_resources(found: list[Found], trace: Any) -> None:
    """What is behind the descriptor for which most of a finding's time was waited in its function."""
    waits = by_wait(trace)
    waits = waits[waits["resource"].notna() & (waits["primitive_func_id"] < 0)]
    for each in found:
        by_resource = waits[waits["func_id"] == each.own].groupby(["resource", "syscall", "kind"])["total_ns"].sum()
        if each.rule not in _OF_RESOURCES or not len(by_resource) or by_resource.max() < _MOSTLY * each.ns:
            continue
        each.resource, each.syscall, kind = by_resource.idxmax()
        each.evidence = "--by wait"
        if each.rule == "wait":
            row = pd.DataFrame({"resource": [each.resource], "syscall": [each.syscall], "kind": [kind]})
            each.rule = next((rule.name for rule in RULES if rule.name in ("peer", "file", "pipe") and rule.fits(row).all()), "wait")
        each.words = next(rule.waits for rule in RULES if rule.name == each.rule) if each.rule != "wait" else each.words


def _found(group: pd.DataFrame, state: str) -> Found:
    """What rows of one rule are."""
    time = f"{state}_ns"
    ns, first = int(group[time].sum()), group.loc[group[time].idxmax()]
    by_line = group.groupby(["own_func_id", "own_line", "called"])[time].sum()
    own, line, called = (int(each) for each in by_line.idxmax())
    calls = group.groupby("syscall")[time].sum()
    syscall = calls.idxmax() if len(calls) and calls.max() >= _MOSTLY * ns else None
    found = Found(
        rule=first["rule"],
        ns=ns,
        own=own,
        evidence="--by line",
        line=line if by_line.max() >= _MOSTLY * ns else NONE,
        called=called,
        words=_WORDS.get(first["rule"], "in {syscall}" if syscall else "for what no sample says"),
        kind=state.removesuffix("_wait"),
        syscall=syscall,
        primitive=int(first["primitive"]),
        whole_in_own=float(by_line.groupby("own_func_id").sum().max() / ns),
        on_loop=bool(first["on_loop"]),
        square=float(group[f"{state}_square"].sum()),
    )
    if found.on_loop and state == "blocked":
        found.rule, found.held, found.evidence = "event-loop", found.rule, "--by task"
    return found


def _computed(rows: pd.DataFrame, at: Contexts) -> list[Found]:
    own = rows[rows["own_func_id"] >= 0]
    modules = at.functions.set_index("func_id")["module"]
    imports = own["called"].map(modules).isin(OF_IMPORTS)
    groups = [("cores", "runq_wait", own), ("imports", "on_cpu", own[imports])]
    groups += [("computes", "on_cpu", group) for _, group in own[~imports].groupby("own_func_id")]
    out = []
    for rule, state, some in groups:
        if some[f"{state}_ns"].sum():
            found = _found(some.assign(rule=rule), state)
            found.evidence = "--by thread" if rule == "cores" else "--by function"
            out.append(found)
            called = some.groupby("called")["on_cpu_ns"].sum()
            found.called = int(called.idxmax()) if called.max() >= _MOSTLY * found.ns else NONE
    return out


def _with_errors(found: list[Found], period: int, of: int) -> None:
    """One standard error of each, in Found.error_ns: of what was on a core that of a count of `of`, of what was off it that of its squares."""
    on_cpu = np.array([each.ns if each.kind == "on_cpu" else 0 for each in found], np.int64)
    table = pd.DataFrame({"self_ns": [each.ns for each in found], "self_on_cpu_ns": on_cpu, "self_square": [each.square for each in found]})
    errors = with_errors(table.astype({"self_ns": "int64"}), period, of)["self_error_ns"].tolist() if found else []
    for each, error, off in zip(found, errors, on_cpu == 0, strict=True):
        each.error_ns = round(each.square**0.5) if off else int(error)
