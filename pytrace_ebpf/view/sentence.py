"""One sentence, as a person would say it, on where a function's time went; a plain one where nothing dominates."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeAlias

import pandas as pd

from pytrace_ebpf.analyze.waits.reasons import NOBODY, QUOTA, UNKNOWN
from pytrace_ebpf.view import text
from pytrace_ebpf.view.names import in_full

_OF_A_LOCK = 0.02  # of all time, in which idle threads count too
_OF_ALL = 0.1  # of all time: below it a function is not worth a sentence
_DOMINATES, _ALL = 0.5, 0.99
_COMPUTES = 0.7
_MATTERS = 0.3
_OFF = {"runq_wait": "in the run queue", "gil_wait": "waiting for the GIL", "blocked": "blocked"}
WAITING = {
    "lock": "waiting for a lock",
    "object-lock": "waiting for an object's own lock",
    "stop-the-world": "stopped, with all other threads",
    "sleep": "sleeping",
    "wait-child": "waiting for a child process",
    "page-fault": "waiting for memory to be read in",
    "other": "blocked",
}

Part = Mapping[str, Any]
Reasons: TypeAlias = Callable[[], Mapping[str, Sequence[Part]]]
Names: TypeAlias = "Mapping[int, str] | pd.Series[Any]"  # by func_id


def top_function(row: Part, all_ns: int, reasons: Reasons, names: Names) -> str:
    """The sentence for the function with the most self time; "" where nothing dominates or is known.

    `row`: its row of analyze.functions.by_function; all_ns: the time of all functions; `reasons` gives analyze.waits.reasons of it, and is asked only
    where the sentence needs them; `names`: what to call each func_id.
    """
    whole = int(row["self_ns"])
    parts = [row[f"self_{state}_ns"] for state in ("on_cpu", "runq_wait", "gil_wait", "blocked")]
    if whole < _OF_ALL * all_ns or not whole or not all(map(text.known, parts)):
        return ""
    return _where_it_goes(_quoted(names[int(row["func_id"])]), row, reasons, names)


def called_below(own: Any, row: Part, all_ns: int, reasons: Reasons, names: Names) -> str:
    """The sentence for a function of a library by the function of the program's own code that it was called through, `own` (a row of schema.FUNCTIONS).

    `row`: what of it lies below that (analyze.functions.own_code), with its func_id; the rest as of top_function().
    """
    if row["self_ns"] < _OF_ALL * all_ns or not all(text.known(row[f"self_{state}_ns"]) for state in ("on_cpu", "runq_wait", "gil_wait", "blocked")):
        return ""
    rest = _where_it_goes("that", row, reasons, names)
    doing = f"{_quoted(own['qualname'])} ({_place(own)}) spends {text.duration(row['self_ns'])} in {_quoted(names[int(row['func_id'])])}"
    return f"{doing}: {rest}" if rest else ""


def waits_for_work(share: float) -> str:
    """The sentence for the share of all time in which threads wait for work; "" where that is not much."""
    return f"Left out: threads that wait for work, {_part(share)} of the time." if share >= _OF_ALL else ""


def _where_it_goes(name: str, row: Part, reasons: Reasons, names: Names) -> str:
    """Where the self time of a row goes, whose subject is `name`."""
    whole = int(row["self_ns"])
    on_cpu, queued, gil, blocked = (int(row[f"self_{state}_ns"]) / whole for state in ("on_cpu", "runq_wait", "gil_wait", "blocked"))
    if gil >= _MATTERS and gil >= max(queued, blocked):
        return f"{_part(gil)} of {name} is waiting for the GIL{_holder(reasons()['gil'], int(row['func_id']), names)}."
    if blocked >= _DOMINATES:
        return _blocked(name, blocked, reasons()["blocked"], names)
    if on_cpu + queued >= _COMPUTES:
        return f"{name} computes{_rivals(queued, reasons, int(row['func_id']), names)}."
    return ""


def most_time(table: pd.DataFrame) -> str:
    """The sentence for any trace: which function has the most self time, and where that went; "" where no function is known.

    `table`: rows by function, of calls or samples. Of samples, functions of native code are named only where no other has any time.
    """
    named = table[table["func_id"] >= 0]
    if "native" in named and named.loc[named["native"] == 0, "self_ns"].sum():
        named = named[named["native"] == 0]
    if not named["self_ns"].sum():
        return ""
    top = named.loc[named["self_ns"].idxmax()]
    whole = int(top["self_ns"])
    if "self_error_ns" in table and top["self_error_ns"] > _DOMINATES * whole:
        return "There are too few samples to say where the time went."
    said = f"{_quoted(top['qualname'])} has the most self time, {_part(whole / table['self_ns'].sum())}"
    if not text.known(top["self_on_cpu_ns"]):
        return f"{said}."
    on_cpu, unknown = (int(top[f"self_{column}_ns"]) for column in ("on_cpu", "unknown"))
    off = {where: int(top[f"self_{state}_ns"]) for state, where in _OFF.items() if text.known(top[f"self_{state}_ns"])}
    if len(off) < len(_OFF):  # they are not told apart
        off = {"off the core": whole - on_cpu - unknown}
    parts = sorted({"on a core": on_cpu, **off, "not recorded": unknown}.items(), key=lambda part: -part[1])
    shares = [f"{_part(ns / whole)} {where}" for where, ns in parts if ns >= _OF_ALL * whole]
    if not shares:  # the sums are wrong
        return f"{said}."
    said += f", all of it {parts[0][0]}." if parts[0][1] >= _ALL * whole else f", of which {_listed(shares)}."
    busiest = named.loc[named["self_on_cpu_ns"].idxmax()]
    if on_cpu >= _DOMINATES * whole or busiest["func_id"] == top["func_id"] or not busiest["self_on_cpu_ns"]:
        return said
    return f"{said} Of the time on a core {_quoted(busiest['qualname'])} has the most, {_part(busiest['self_on_cpu_ns'] / table['self_on_cpu_ns'].sum())}."


def _listed(parts: Sequence[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]


def contended_lock(lock: Part, table: pd.DataFrame, functions: pd.DataFrame) -> str:
    """The sentence for the lock that is waited for longest (analyze.waits.locks); "" where that is little of its function's own time, or of all.

    `table`: analyze.functions.by_function's; `functions`: schema.FUNCTIONS.
    """
    own, all_ns = table.loc[table["func_id"] == lock["func_id"], "self_ns"].sum(), table["self_ns"].sum()
    if lock["ns"] < _MATTERS * own or lock["ns"] < _OF_A_LOCK * all_ns:
        return ""
    rows = functions.set_index("func_id")
    waiting, releasing = (rows.loc[lock[side]] for side in ("func_id", "waker_func_id"))
    whose = (
        "itself, in other threads, releases"
        if lock["func_id"] == lock["waker_func_id"]
        else f"{_quoted(releasing['qualname'])} ({_place(releasing)}) releases"
    )
    return f"{_quoted(waiting['qualname'])} waits {_part(lock['ns'] / own)} of its time, {text.duration(lock['ns'])}, for a lock that {whose}."


def called_to_wait(wait: Part, table: pd.DataFrame, functions: pd.DataFrame) -> str:
    """The sentence for what a function like Condition.wait waits for longest (derive.calls.primitives.main_wait); "" where that is little of its time.

    `table`: analyze.functions.by_function's; `functions`: schema.FUNCTIONS.
    """
    if wait["ns"] < _MATTERS * table.loc[table["func_id"] == wait["func_id"], "self_ns"].sum():
        return ""
    rows = functions.set_index("func_id")
    whole = table.loc[table["func_id"] == wait["caller_func_id"], "total_ns"].sum()
    share = f"{_part(wait['ns'] / whole)} of its time, " if whole else ""
    library = in_full(functions, pd.Series([wait["primitive_func_id"], wait["waker_primitive_func_id"]]))
    waiting, called = rows["qualname"].get(wait["caller_func_id"]), library.get(wait["primitive_func_id"])
    said = f"{_quoted(waiting)} waits {share}{text.duration(wait['ns'])}, in {_quoted(called)}"
    if wait["waker_ns"] < _DOMINATES * wait["ns"] or wait["waker_caller_func_id"] not in rows.index:
        return f"{said}."
    by = rows.loc[wait["waker_caller_func_id"]]
    through = f"{_quoted(library[wait['waker_primitive_func_id']])} by " if wait["waker_primitive_func_id"] in rows.index else ""
    return f"{said} for {through}{_quoted(by['qualname'])} ({_place(by)})."


def waited_for(pairs: Sequence[Part]) -> str:
    """The sentence for who waited longest for the GIL, and whose: `pairs` are rows of `report --by gil`; "" where it is not known."""
    first = next((row for row in pairs if row["held"] == "function" and text.known(row["waiting_qualname"])), None)
    if first is None or first["total_ns"] < _OF_ALL * sum(row["total_ns"] for row in pairs):
        return ""
    waiting, holding = (text.clean(first[f"{side}_qualname"]) for side in ("waiting", "holding"))
    whose = "itself in other threads" if waiting == holding else _quoted(holding)
    return f"{_quoted(waiting)} waited {text.duration(first['total_ns'])} for the GIL held by {whose}."


def _place(function: Any) -> str:
    return text.clean(f"{PurePath(str(function['file'])).name}:{function['first_line']}")


def _quoted(name: Any) -> str:
    return f"`{text.clean(name)}`"


def _part(share: float) -> str:
    return text.percent(min(share, 1.0), 1)


def _most(parts: Sequence[Part]) -> tuple[int, float]:
    """The func_id with the most time, and its share; UNKNOWN, 0 of nothing."""
    sums: dict[int, int] = {}
    for part in parts:
        sums[part["func_id"]] = sums.get(part["func_id"], 0) + part["ns"]
    if not sum(sums.values()):
        return UNKNOWN, 0.0
    most = max(sums, key=lambda func_id: sums[func_id])
    return most, sums[most] / sum(sums.values())


def _holder(parts: Sequence[Part], own: int, names: Names) -> str:
    most, share = _most([part for part in parts if part["func_id"] != NOBODY])
    if most not in names:
        return ""
    whose = "itself in other threads" if most == own else _quoted(names[most])
    return f", {'mostly' if share >= _DOMINATES else 'most often'} held by {whose}"


def _blocked(name: str, share: float, parts: Sequence[Part], names: Names) -> str:
    by = ("kind", "syscall", "resource")  # where one resource has most of it that is said, else of the system call
    main = _main(parts, by) or _main(parts, by[:2])
    if main is None:
        return f"{_part(share)} of {name} is waiting, for several things."
    kind, syscall, resource = (*main, None)[:3]
    if resource is not None:
        doing = f"waiting for {text.clean(resource)}" + (f" ({syscall})" if syscall else "")
    else:
        doing = WAITING.get(kind) or (f"waiting in {syscall} ({kind})" if syscall else f"waiting ({kind})")
    subject = f"{name} is" if share >= 0.95 else f"{_part(share)} of {name} is"
    if kind in ("sleep", "page-fault", "wait-child"):
        return f"{subject} {doing}."
    most, part_of = _most([part for part in parts if tuple(part[key] for key in by[: len(main)]) == main])
    if part_of < _DOMINATES or (most != NOBODY and most not in names) or (most == NOBODY and resource is not None):
        return f"{subject} {doing}."
    return f"{subject} {doing}, woken by {'no thread of this program' if most == NOBODY else _quoted(names[most])}."


def _main(parts: Sequence[Part], by: Sequence[str]) -> tuple[Any, ...] | None:
    """What most of the time is for; None where nothing has most."""
    sums: dict[tuple[Any, ...], int] = {}
    for part in parts:
        key = tuple(part[name] for name in by)
        sums[key] = sums.get(key, 0) + part["ns"]
    most = max(sums, key=lambda key: sums[key], default=None)
    return None if most is None or sums[most] < _DOMINATES * sum(sums.values()) else most


def _rivals(queued: float, reasons: Reasons, own: int, names: Names) -> str:
    if queued < 0.2:
        return ""
    much = "half" if 0.45 <= queued < 0.55 else _part(queued)
    lacks, parts = f"; {much} of its time it has no core", reasons()["runq"]
    most, share = _most(parts)
    if share < _DOMINATES or (most not in (NOBODY, QUOTA) and most not in names):
        return lacks
    if most == QUOTA:
        return f"{lacks}, as its control group has used up its CPU quota"
    if most == NOBODY:
        return f"{lacks}: {_others(parts)}"
    return f"{lacks}: {_quoted(names[most])} {'on other threads has' if most == own else 'has'} them"


def _others(parts: Sequence[Part]) -> str:
    """Which other program has the cores; all of them where none has most."""
    sums: dict[str, int] = {}
    for part in parts:
        if part["func_id"] == NOBODY and text.known(part.get("who")):
            sums[part["who"]] = sums.get(part["who"], 0) + part["ns"]
    most = max(sums, key=lambda who: sums[who], default="")
    if not most or sums[most] < _DOMINATES * sum(part["ns"] for part in parts):
        return "other programs have them"
    return f"{_quoted(most)}, another program, has them"
