"""The findings of a trace: what the time of its threads at work goes to, the largest first."""

from dataclasses import replace
from typing import Any

import pandas as pd

from pytrace_ebpf.analyze.findings import sentences
from pytrace_ebpf.analyze.findings.asked import Asked
from pytrace_ebpf.analyze.findings.computed import OF_IMPORTS, at_work_ns, computed, many_calls
from pytrace_ebpf.analyze.findings.contexts import Contexts, contexts
from pytrace_ebpf.analyze.findings.pools import Pools
from pytrace_ebpf.analyze.findings.requests import Requests
from pytrace_ebpf.analyze.findings.rules import RULES, classified
from pytrace_ebpf.analyze.findings.sentences import Found, Names
from pytrace_ebpf.analyze.findings.steps import of_steps
from pytrace_ebpf.analyze.findings.thread_pools import RESULTS, full_pool
from pytrace_ebpf.analyze.findings.waited import SMALL_NS, Waited, waited
from pytrace_ebpf.analyze.functions.own_code import NONE
from pytrace_ebpf.analyze.samples.sampling import period_of
from pytrace_ebpf.analyze.waits.rivals import rivals

COLUMNS = ["rule", "share", "ns", "of", "of_share", "sentence", "function", "file", "line", "resource", "other", "command", "confidence", "error_ns"]
IDLE = "idle"
_PEER = "peer"
_ASKED = {_PEER, "database-lock", "dns"}
_LEAST = 0.02  # of the time at work
_MOSTLY, _MANY = 0.5, 0.2
_OFTEN, _IN_ALL = 10, 20  # calls within one of their caller's, and so many of them
_ONLY_WAITS = 0.9
_HELD_FOR = 0.3  # of the time that a lock is had: in what else its thread waits for, there is some of it computing and without a core, too
_HELD = {"gil": 0, "object-lock": 0, "memory": 0}  # what an event loop's thread waits for like any other


def findings(trace: Any, least: float = _LEAST) -> pd.DataFrame:
    """One row per finding of a pytrace_ebpf Trace with calls and scheduling: what steps of a training take (rule `step`), then the most time first.

    The last is what threads without work waited (rule `idle`).

    Columns: rule; share (float, of the time that threads were at work, in calls and not waiting for work, and requests that are coroutines
    suspended; of idle null) and ns; of (of which requests the
    sentence says it, null: of the time at work) and of_share, the share of that; sentence, which says it in
    English, names made printable; function (qualified name), file and line (Int64) of the program's own code, null where it is of no one place; resource and
    other, what was waited for and which function had it, null for none; command, which shows what it is made of; confidence (float), the chance that
    it truly is more than half as much, and error_ns (Int64), one standard error, both null where nothing is sampled.
    None where it is not known what threads waited for, and of less than the share `least` of the time. With `least` 0 also those that samples are too few for.
    """
    rows = []
    if (period := period_of(trace)) is not None:
        rows = _of_samples(trace, period, least)
    elif trace.scheduling["source"] == "bpf":
        trace.whole.derive("waits")
        rows = _rows(trace, least)
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.astype({"share": "Float64", "of_share": "Float64", "ns": "int64", "line": "Int64", "confidence": "Float64", "error_ns": "Int64"})


def _of_samples(trace: Any, period: int, least: float) -> list[dict[str, Any]]:
    from pytrace_ebpf.analyze.findings.sampled import sampled, worth  # what reads samples is not needed for calls

    some = sampled(trace, period)
    return _said(trace, worth(some, least), least, some.at_work_ns, some.idle_ns, (some.only, some.several))


def _rows(trace: Any, least: float) -> list[dict[str, Any]]:
    at = contexts(trace.tree(), trace.functions())
    requests = Requests(trace)
    waits = waited(trace, at, requests, with_loops=bool(len(requests.of_coroutines)))
    awaiting, awaiting_ns = _suspended(trace, requests, waits)
    rows = computed(at, requests.of_tree(at))
    idle_ns = int(waits.idle["ns"].sum())
    of_ns = at_work_ns(at) - idle_ns + awaiting_ns
    names = Names(trace.functions(), trace.call_sites)
    asked = Asked(trace)
    for each in awaiting:
        each.asked = asked.of_awaited(each, str(names.row(each.called).get("module")))
    found = [*_of_waits(at, waits, names, requests, asked, least * of_ns), *_of_cores(trace, rows, waits, requests, max(least, _LEAST) * of_ns)]
    found += [*_of_computing(at, rows, requests, least * of_ns), *awaiting]
    pools = Pools(trace)
    found = [_with_pool(each, pools) if each.ns >= least * of_ns else each for each in found]
    found = [replace(each, evidence="--by client") if each.asked or each.short else each for each in found]
    return [*of_steps(trace, of_ns), *_said(trace, found, least, of_ns, idle_ns, _idle(at, waits))]


def _suspended(trace: Any, requests: Requests, waits: Waited) -> tuple[list[Found], int]:
    """What requests that are coroutines await, and how long all of that is; most programs have none."""
    if not len(requests.of_coroutines):
        return [], 0
    from pytrace_ebpf.analyze.findings.suspended import suspended

    return suspended(trace, requests.of_coroutines, waits.loops)


def _with_pool(found: Found, pools: Pools) -> Found:
    """A wait for something of a pool as that."""
    pool = pools.of(found)
    return replace(found, rule="pool", held="", short=pool, other=pool.func_id) if pool else found


def _said(trace: Any, found: list[Found], least: float, of_ns: int, idle_ns: int, idle: tuple[int, int]) -> list[dict[str, Any]]:
    """The rows of those findings that are worth saying, the most time first, and of what threads without work waited; `idle`: how many do only that, of how many."""
    names = Names(trace.functions(), trace.call_sites)
    worth = [each for each in found if of_ns > 0 and least * of_ns <= each.ns <= of_ns]
    rows = [_row(trace, names, each, of_ns) for each in sorted(worth, key=lambda each: -each.ns)]
    if idle_ns:
        row = dict.fromkeys(COLUMNS) | {"rule": IDLE, "ns": idle_ns, "sentence": sentences.idle(*idle, idle_ns)}
        rows.append(row | {"command": f"pytrace-ebpf report {trace.directory} --by thread"})
    return rows


def _row(trace: Any, names: Names, found: Found, of_ns: int) -> dict[str, Any]:
    function = names.row(found.own)
    return {
        "rule": found.rule,
        "share": found.ns / of_ns,
        "ns": found.ns,
        "of": sentences.whose(found.of, names).replace("`", "") if found.of else None,
        "of_share": found.share(of_ns),
        "sentence": sentences.sentence(found, names, of_ns),
        "function": function.get("qualname"),
        "file": function.get("file"),
        "line": names.line(found),
        "resource": found.resource,
        "other": names.row(found.other).get("qualname"),
        "command": f"pytrace-ebpf report {trace.directory} {found.evidence}",
        "confidence": found.confidence,
        "error_ns": found.error_ns,
    }


def _of_waits(at: Contexts, waits: Waited, names: Names, requests: Requests, asked: Asked, least_ns: float) -> list[Found]:
    """Those of `least_ns` and more: what others are is not looked up."""
    rows = waits.rows.assign(
        called=names.of(waits.rows["own_called_func_id"], "name"), called_module=names.of(waits.rows["own_called_func_id"], "module")
    )
    number = classified(rows)
    out = []
    for at_rule, rule in enumerate(RULES):
        own = rows[number == at_rule]
        whole = ("pid",) if rule.name == "gil" else ("own_func_id", "on_loop", *rule.by)  # each process has one
        by_group = own.groupby(list(whole), dropna=False)
        for _, group in own[by_group["ns"].transform("sum") >= least_ns].groupby(list(whole), dropna=False):
            found = _found(waits, rule.name, rule.evidence, rule.waits, group)
            found.of = requests.of(group["ns"], group["endpoint"])
            if "sleep" in (found.rule, found.held):
                found.failing = asked.failing(found)
            if found.rule == "queue" and names.of_library(found.primitive).strip("`").endswith(RESULTS):
                found.pool = full_pool(at, waits, int(group["pid"].iloc[0]), found.own, found.primitive)
                found.rule = "thread-pool" if found.pool else found.rule
            out += [found] if _ASKED.isdisjoint((found.rule, found.held)) else _small_calls(at, found, asked)
    return out


def _found(waits: Waited, rule: str, evidence: str, words: str, group: pd.DataFrame) -> Found:
    """What one group of waits is."""
    first = group.loc[group["ns"].idxmax()]
    by_line = group.groupby(["own_func_id", "own_line", "own_called_func_id"])["ns"].sum()
    own, line, called = (int(each) for each in by_line.idxmax())
    ns, count = int(group["ns"].sum()), int(group["waits"].sum())
    found = Found(
        rule=rule,
        ns=ns,
        own=own,
        line=line if by_line.max() >= _MOSTLY * ns else NONE,
        evidence=evidence,
        words=words,
        waits=count,
        small=float(group["small_ns"].sum() / ns) if ns else 0.0,
        kind=first["kind"],
        syscall=None if pd.isna(first["syscall"]) else first["syscall"],
        resource=_main(group, "resource"),
        called=called,
        primitive=int(first["primitive_func_id"]),
        **_other(group, _MANY if rule == "gil" else _MOSTLY),
        whole_in_own=by_line.groupby("own_func_id").sum().max() / ns if ns else 0.0,
    )
    if first["on_loop"] and rule not in _HELD:
        found.rule, found.held, found.evidence = "event-loop", rule, "--by task"
    elif rule == "lock" and len(held := _while_held(waits.locks, found)):
        found.rule, found.meanwhile = "lock-held", held
    return found


def _other(group: pd.DataFrame, least: float) -> dict[str, Any]:
    """Found.other, who has it for most of the time of a group, and other_share, where that is the `least` share or more."""
    sums = group.groupby("other_func_id")["ns"].sum()
    share = sums.max() / group["ns"].sum() if len(sums) and group["ns"].sum() else 0.0
    return {"other": int(sums.idxmax()), "other_share": float(share)} if share >= least else {}


def _main(group: pd.DataFrame, column: str) -> Any:
    """What most of the time of a group is of; None for none, and where that is less than half of it."""
    sums = group.groupby(column)["ns"].sum()
    return sums.idxmax() if len(sums) and sums.max() >= _MOSTLY * group["ns"].sum() else None


def _small_calls(at: Contexts, found: Found, asked: Asked) -> list[Found]:
    """A wait for a peer, and apart from that what of it is many small calls of one function by another: how many waits are left is not known."""
    are_small = found.rule == _PEER and found.waits >= _IN_ALL and found.small >= _MOSTLY
    many = many_calls(at, found.own, found.called, _OFTEN) if are_small else None
    if not many or many.made < _IN_ALL or (ns := int(many.share * found.ns)) >= SMALL_NS * many.made:
        found.asked = asked.of(found)
        return [found]
    small = replace(found, rule="many-calls", ns=ns, own=many.caller, called=many.callee, each=many.each, waits=many.made, line=NONE)
    small.asked, small.evidence = asked.of(found, SMALL_NS, many.made), "--by function --sort total"
    return [small, replace(found, ns=found.ns - ns, waits=0, asked=asked.of(found, leave_out=small.asked))]


def _while_held(locks: pd.DataFrame, found: Found) -> dict[str, Any]:
    """What whoever has the lock waits for meanwhile, where that is much of the time, and share, how much; {} else."""
    rows = locks[(locks["own_func_id"] == found.own) & (locks["other_func_id"] == found.other)]
    if not len(rows) or rows["off_ns"].iloc[0] < _HELD_FOR * rows["held_ns"].iloc[0] or pd.isna(rows["kind"].iloc[0]):
        return {}
    held = {name: None if pd.isna(value) else value for name, value in rows.iloc[0][["kind", "syscall", "resource"]].items()}
    return held | {"share": float(rows["off_ns"].iloc[0] / rows["held_ns"].iloc[0])}


def _of_cores(trace: Any, rows: pd.DataFrame, waits: Waited, requests: Requests, least_ns: float) -> list[Found]:
    """Threads of own code that had no core, and who had it; apart from that the time in which their control group had no CPU quota left.

    Who had it is looked up where that is a finding: it takes a pass over all switches.
    """
    takers = waits.takers[waits.takers["own_func_id"] >= 0]
    out = []
    for rule, column, some in (("cores", "runq_ns", rows), ("cpu-quota", "throttled_ns", takers)):
        by_own = some.groupby("own_func_id")[column].sum()
        if ns := int(by_own.sum()):
            out.append(Found(rule=rule, ns=ns, own=int(by_own.idxmax()), evidence="--by core", whole_in_own=by_own.max() / ns))
            out[-1].of = requests.of(some[column], some["endpoint"])
            if rule == "cpu-quota" and (user := _main(rows.assign(ns=rows["on_cpu_ns"]), "own_func_id")) is not None:
                out[-1].other = int(user)
    for found in out[:1]:
        without = found.ns
        found.ns -= sum(quota.ns for quota in out[1:])
        if found.ns >= least_ns:
            found.meanwhile = _who_had_cores(trace, takers, without)
    return out


def _who_had_cores(trace: Any, takers: pd.DataFrame, ns: int) -> dict[str, Any]:
    """The share of the program's own threads, and the name of whoever else had them most; {} where that is not known of most of the time."""
    if trace.rivals_known:
        had = rivals(trace)
        had = had[had["tid"] != 0]
        ours, others = had.loc[had["traced"], "ns"].sum(), had[~had["traced"]].groupby("name")["ns"].sum()
        return {"ours": ours / had["ns"].sum(), "name": others.idxmax() if len(others) else None} if had["ns"].sum() else {}
    taken = int(takers["ns"].sum())
    if not taken or taken < _MOSTLY * ns:
        return {}
    ours = int(takers.loc[takers["waker_pid"].isin(trace.processes()["pid"]), "ns"].sum())
    names = trace.neighbours().drop_duplicates("tid").set_index("tid")["name"]
    others = takers.assign(name=takers["waker_tid"].map(names)).groupby("name")["ns"].sum()
    return {"ours": ours / taken, "name": others.idxmax() if len(others) else None}


def _of_computing(at: Contexts, rows: pd.DataFrame, requests: Requests, least_ns: float) -> list[Found]:
    """Those of `least_ns` and more."""
    modules = at.functions.set_index("func_id")["module"]
    out = []
    for imports, some in rows.groupby(rows["called_func_id"].map(modules).isin(OF_IMPORTS)):
        if imports:
            by_own = some.groupby("own_func_id")["on_cpu_ns"].sum()
            ns, own = int(by_own.sum()), int(by_own.idxmax())
            of = requests.of(some["on_cpu_ns"], some["endpoint"])
            out += [Found(rule="imports", ns=ns, own=own, evidence="--by function --imports", whole_in_own=by_own.max() / ns, of=of)] if ns else []
            continue
        of_own = some.groupby("own_func_id")["on_cpu_ns"]
        for own, group in some[of_own.transform("sum") >= least_ns].groupby("own_func_id"):
            by_called = group.groupby("called_func_id")["on_cpu_ns"].sum()
            ns, of = int(by_called.sum()), requests.of(group["on_cpu_ns"], group["endpoint"])
            called = int(by_called.idxmax()) if by_called.max() >= _MOSTLY * ns else NONE
            out.append(
                Found(rule="computes", ns=ns, own=int(own), called=called, evidence="--by function", on_loop=bool(group["on_loop"].any()), of=of)
            )
    return out


def _idle(at: Contexts, waits: Waited) -> tuple[int, int]:
    """How many threads do nothing but wait for work, of how many that do."""
    threads = at.tree.loc[at.tree["depth"] == -1, ["pid", "tid", "total_ns"]].merge(waits.idle.groupby(["pid", "tid"], as_index=False)["ns"].sum())
    return int((threads["ns"] >= _ONLY_WAITS * threads["total_ns"]).sum()), len(threads)
