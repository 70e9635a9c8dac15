"""The findings of samples: what threads were at when they were looked at, by their stacks and the state that each sample says.

A sample says what is behind the descriptor that a thread waits for, and not for whom it waits. How it waits says the outermost function below the
program's own code that is known to wait for one kind of thing: libc's `recv` names the rule.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.findings.computed import OF_IMPORTS
from pytrace_ebpf.analyze.findings.contexts import Contexts, Ints, contexts
from pytrace_ebpf.analyze.findings.rules import LOOK_UPS, PROCESSES, RULES, TO_DISK
from pytrace_ebpf.analyze.findings.sentences import Found
from pytrace_ebpf.analyze.findings.waited import FOR_OTHERS, OWN_SIGNALS, WITHOUT_OTHERS, primitives
from pytrace_ebpf.analyze.functions.own_code import NONE
from pytrace_ebpf.analyze.samples.by_wait import WaitSums
from pytrace_ebpf.analyze.samples.errors import with_errors
from pytrace_ebpf.analyze.samples.paths import NO_FRAMES, segments
from pytrace_ebpf.analyze.samples.sampling import is_summed
from pytrace_ebpf.derive.added import Added
from pytrace_ebpf.derive.calls.nesting import levels
from pytrace_ebpf.trace.sampled import NATIVE

_MOSTLY, _ONLY_WAITS = 0.5, 0.9
_SURE = 0.9  # the least confidence
_CLIENTS = "clients"  # a listening socket: no rule, as nobody who works waits there
# By what is known of a function that waits, the names of functions: of libc, OpenSSL, the interpreter, and the standard library where no native frame is known.
_WAIT_IN = {
    "sleep": ("clock_nanosleep", "nanosleep", "sleep", "usleep", "time_sleep"),
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
_OF_RESOURCES = ("peer", "tls", "fsync")
_SAID_BY_RESOURCES = {"peer": ("database-lock",), "wait": ("database-lock", "peer", "file", "pipe")}  # which rules a resource can make of one
_FOR_CLIENTS = ("clients of", "listening")  # labels of resources that a server waits at for work
_OF_KIND = {"sleep": "sleep", "lock": "lock", "net": "peer", "wait-child": "subprocess"}
_POLLS = ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait")
_CALL_OF_KIND = {"io-read": "read", "io-write": "write", "poll": "poll"}
_NAMED = {rule.name: rule.waits for rule in RULES}  # where it is known for what
_WORDS = {name: words for name, words in _NAMED.items() if name != "wait"} | {
    "peer": "for a connection ({syscall})",
    "tls": "for a connection in TLS handshakes",
}


KEY = ["pid", "tid", "own_func_id", "own_line", "called", "primitive", "how", "on_loop", "depth", "syscall", "resource"]
"""What samples are added up by: thread, own code and its line (NONE for none), what else is known of where they stand, as of Standing; and what they wait
for, in words, where samples say that themselves, else ""."""
_TIMES = {f"{state}_{what}": "sum" for state in ("on_cpu", "runq_wait", "gil_wait", "blocked") for what in ("ns", "square")}
_SUMS = {"ns": "sum", "idle_ns": "sum"} | _TIMES


class Sampled(NamedTuple):
    """The findings, what they are shares of, ns, and how long threads had nothing to do: `only` so many just that, of `several` (0: not known)."""

    found: list[Found]
    at_work_ns: int
    idle_ns: int
    only: int
    several: int


def sampled(trace: Any, period: int) -> Sampled:
    """Of a pytrace_ebpf Trace of samples alone, each of `period` ns on a core. Memory is bounded by the different rows of KEY, and a segment."""
    functions = trace.functions()
    nothing = pd.DataFrame(columns=[*KEY, *_SUMS]).astype(dict.fromkeys(("pid", "tid", "own_func_id", *_SUMS), "int64"))
    rows, waits = Added(KEY, _SUMS), WaitSums(trace)
    rows.add(nothing)
    for samples, stacks in segments(trace):
        rows.add(summed(samples, Standing(stacks, functions)))
        waits.take(samples, stacks)
    some = in_rows(rows.table, functions, period, is_summed(trace))
    _name_resources(some.found, waits.table())
    clients = [each for each in some.found if str(each.resource).startswith(_FOR_CLIENTS)]
    idle_ns = sum(each.ns for each in clients)
    return some._replace(
        found=[each for each in some.found if each not in clients], at_work_ns=some.at_work_ns - idle_ns, idle_ns=some.idle_ns + idle_ns
    )


def summed(samples: pd.DataFrame, standing: "Standing") -> pd.DataFrame:
    """Samples (samples.weights.weighed) by KEY: ns and that by state, the squares of these; idle_ns: of that, blocked without anything to do.

    Those without frames are nobody's.
    """
    rows = samples[samples["stack_id"] != NO_FRAMES]
    columns = ["pid", "tid", *_TIMES, *(["resource"] if "resource" in rows else [])]
    rows = pd.concat([rows[columns].assign(ns=rows["total_ns"]), standing.of(rows)], axis=1)
    rows = rows.assign(idle_ns=rows["blocked_ns"].where(standing.idle(rows), 0))
    return rows.assign(resource=rows.get("resource", "")).groupby(KEY, as_index=False, dropna=False).agg(_SUMS)


def in_rows(rows: pd.DataFrame, functions: pd.DataFrame, period: int, of_processes: bool = False) -> Sampled:
    """The findings of rows of summed(), each of `period` ns on a core. `of_processes`: no threads are known."""
    per_thread = rows.groupby(["pid", "tid"])[["ns", "idle_ns"]].sum()
    waits = per_thread[per_thread["idle_ns"] > 0]
    only = int((waits["idle_ns"] >= _ONLY_WAITS * waits["ns"]).sum())
    idle_ns, all_ns = int(rows["idle_ns"].sum()), int(rows["ns"].sum())
    own = rows[rows["own_func_id"] >= 0]
    found = [*_waited(own), *_computed(own, functions)]
    _with_errors(found, period, int(rows["on_cpu_ns"].sum()) // period)
    return Sampled(found, all_ns - idle_ns, idle_ns, *((0, 0) if of_processes else (only, len(waits))))


def worth(some: Sampled, least: float) -> list[Found]:
    """Those of the share `least` of the time at work or more that there are samples enough for, the most time first; with 0 all of them."""
    found = [
        each for each in some.found if some.at_work_ns and each.ns >= least * some.at_work_ns and (not least or (each.confidence or 0.0) >= _SURE)
    ]
    return sorted(found, key=lambda each: -each.ns)


class Standing:
    """Where in own code stacks are, and how they wait."""

    def __init__(self, stacks: pd.DataFrame, functions: pd.DataFrame) -> None:
        """`stacks` are schema.STACKS, in which a caller comes first; `functions`: schema.FUNCTIONS."""
        self._rows = pd.Series(np.arange(len(stacks)), stacks["stack_id"].to_numpy())
        parent = stacks["parent_id"].map(self._rows).fillna(NONE).to_numpy(np.int64)
        depth = np.zeros(len(stacks), np.int64)
        for row, above in enumerate(parent.tolist()):
            depth[row] = depth[above] + 1 if above >= 0 else 0
        func_id = stacks["func_id"].to_numpy(np.int64)
        func_id = np.where(np.isin(func_id, functions["func_id"].to_numpy(np.int64)), func_id, NONE)  # of those that are live some are named later
        self._at = contexts(pd.DataFrame({"func_id": func_id, "parent_id": parent, "depth": depth}), functions)
        primitive, called, how = _below_own(self._at)
        own, lines = self._at.own, stacks["line"].to_numpy(np.int64)
        table = pd.DataFrame({
            "own_func_id": self._at.own_function, "own_line": np.where(own >= 0, lines[own], NONE) if len(own) else own,
            "called": called, "primitive": primitive, "how": np.array(_HOW, object)[how], "on_loop": self._at.on_loop,
            "depth": np.where(own >= 0, self._at.depth[own], 0) if len(own) else own, "syscall": _innermost(self._at),
        })  # fmt: skip
        unread = pd.DataFrame({name: [fill] for name, fill in zip(table, (NONE, NONE, NONE, NONE, "", False, 0, None), strict=True)})
        self._table = pd.concat([table, unread], ignore_index=True) if len(table) else unread
        self._names = primitives(functions)

    @property
    def tree(self) -> pd.DataFrame:
        """The stacks by stack_id: func_id, NONE where that is not known, parent_id (a row's number, NONE) and depth."""
        return self._at.tree.set_index(self._rows.index)

    def of(self, samples: pd.DataFrame) -> pd.DataFrame:
        """Of each sample (by its stack_id): own_func_id and own_line, called, primitive, how, on_loop, depth, syscall.

        Where samples have a `kind` (of schema.WAIT_KINDS), that says what a stack does not.
        """
        row = samples["stack_id"].map(self._rows).fillna(len(self._table) - 1).to_numpy(np.int64)
        out = self._table.iloc[row].set_index(samples.index)
        if "kind" not in samples:
            return out
        how, call = (samples["kind"].map(names) for names in (_OF_KIND, _CALL_OF_KIND))
        return out.assign(how=out["how"].where(out["how"] != "", how.fillna("")), syscall=out["syscall"].where(out["syscall"].notna(), call))

    def idle(self, rows: pd.DataFrame) -> "pd.Series[bool]":
        """Which rows (of(), with pid and tid), as far as they are blocked, are of threads that have nothing to do.

        As in waited.py, by how they wait and, where rows say in `resource` for what, by that.
        """
        primitive, main, outermost = rows["primitive"].map(self._names), rows["tid"] == rows["pid"], rows["depth"] == 0
        for_others = (main & primitive.isin(FOR_OTHERS)) | (outermost & primitive.isin(WITHOUT_OTHERS))
        alone = outermost & ~rows["on_loop"].astype(bool)
        by_itself, for_clients = alone & ~main & rows["how"].isin(("sleep", "peer")), rows["how"] == _CLIENTS
        if "resource" in rows:
            by_itself |= alone & rows["syscall"].isin(_POLLS) & rows["resource"].isin(("", *OWN_SIGNALS))
            for_clients |= rows["resource"].str.startswith(_FOR_CLIENTS)
        return (rows["own_func_id"] < 0) | for_clients | for_others | by_itself


def _below_own(at: Contexts) -> tuple[Ints, Ints, Ints]:
    """By row: the outermost primitive and the first Python function that its own code called there (func_id, NONE), and the outermost that says how (_HOW)."""
    functions, tree = at.functions, at.tree
    size = int(functions["func_id"].max()) + 2 if len(functions) else 2  # the last: of an unknown function
    known, native, says = np.zeros(size, bool), np.zeros(size, bool), np.zeros(size, np.int64)
    ids = functions["func_id"].to_numpy(np.int64)
    known[primitives(functions).index.to_numpy(np.int64)] = True
    native[ids] = (functions["function_layer"] == NATIVE).to_numpy(bool)
    kinds = {name: number for number, kind in enumerate(_HOW) if kind for name in _WAIT_IN[kind]}
    named = native[ids] | functions["qualname"].str.contains(".", regex=False).to_numpy(bool) | (functions["module"] == "socket").to_numpy(bool)
    says[ids] = np.where(named, functions["qualname"].map(kinds).fillna(0), 0).astype(np.int64)  # others may call a function of Python `sync`
    says[ids[functions["module"].isin(PROCESSES).to_numpy(bool)]] = _HOW.index("subprocess")
    function, parent = at.function, tree["parent_id"].to_numpy(np.int64)
    own, what = at.own == np.arange(len(tree)), function
    primitive = np.where(known[what] & ~own, what, NONE)
    called = np.where(~native[what] & (what >= 0) & (at.own >= 0) & ~own, what, NONE)
    how = np.where(own, 0, says[what])
    for here in levels(tree["depth"].to_numpy(np.int64)):
        up, inside = parent[here], ~own[here]
        for of, none in ((primitive, NONE), (called, NONE), (how, 0)):
            of[here] = np.where(inside & (of[up] != none), of[up], of[here])
    return primitive, called, how


def _innermost(at: Contexts) -> "pd.Series[Any]":
    """By row the name of the native function that it is, where that has one: what stands for the system call."""
    rows = at.functions[at.functions["function_layer"] == NATIVE].set_index("func_id")["qualname"]
    return pd.Series(at.function).map(rows[~rows.str.contains("+", regex=False)]).astype("object").set_axis(at.tree.index)


def _waited(rows: pd.DataFrame) -> list[Found]:
    blocked = rows[(rows["blocked_ns"] > 0) & (rows["idle_ns"] == 0)]
    rule = blocked["how"].where(blocked["how"] != "", "wait")
    rule = rule.where((blocked["primitive"] < 0) | rule.isin(("subprocess",)), "queue")
    out = []
    for _, group in blocked.assign(rule=rule).groupby(["own_func_id", "on_loop", "rule", "primitive"]):
        out.append(_found(group, "blocked"))
    for _, group in rows[rows["gil_wait_ns"] > 0].assign(rule="gil").groupby("pid"):
        out.append(_found(group, "gil_wait"))
    return out


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
    by_resource = group[group["resource"] != ""].groupby("resource")[time].sum()
    if found.rule in _OF_RESOURCES and len(by_resource) and by_resource.max() >= _MOSTLY * ns:
        found.resource = by_resource.idxmax()
        found.rule = _named_rule(found)
        found.words = _NAMED[found.rule]
    if found.on_loop and state == "blocked":
        found.rule, found.held, found.evidence = "event-loop", found.rule, "--by task"
    return found


def _name_resources(found: list[Found], waits: pd.DataFrame) -> None:
    """What is behind the descriptor for which most of a finding's time was waited in its function; `waits`: samples.by_wait's."""
    faults = waits[waits["kind"] == "page-fault"].groupby("func_id")["total_ns"].sum()
    waits = waits[waits["resource"].notna() & (waits["primitive_func_id"] < 0)]
    for each in found:
        if each.rule == "wait" and faults.get(each.own, 0) >= _MOSTLY * each.ns:
            each.rule, each.words, each.evidence = "memory", _WORDS["memory"], "--by wait"
            continue
        by_resource = waits[waits["func_id"] == each.own].groupby(["resource", "syscall", "kind"])["total_ns"].sum()
        if each.rule not in (*_OF_RESOURCES, "wait") or not len(by_resource) or by_resource.max() < _MOSTLY * each.ns:
            continue
        each.resource, each.syscall, kind = by_resource.idxmax()
        each.evidence = "--by wait"
        each.kind = kind if each.rule == "wait" else each.kind
        each.rule = _named_rule(each)
        each.words = _NAMED[each.rule] if each.rule != "wait" else each.words


def _named_rule(found: Found) -> str:
    """The rule of a wait of which the resource is known by now: the same where that says no more."""
    more = _SAID_BY_RESOURCES.get(found.rule, ())
    row = pd.DataFrame({"resource": [found.resource], "syscall": [found.syscall], "kind": [found.kind]})
    return next((each.name for each in RULES if each.name in more and each.fits(row).all()), found.rule)


def _computed(own: pd.DataFrame, functions: pd.DataFrame) -> list[Found]:
    modules = functions.set_index("func_id")["module"]
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
