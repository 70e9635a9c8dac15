"""Whether the sums of a report hold: what must be true of its figures whatever was recorded, and which of it is not."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pytrace_ebpf.trace.states import SPLIT

_PARTS = ("self_ns", "longest_ns", "queued_ns", "func_ns", "partner_ns")  # of a row's total_ns
_SPLIT_OF = (("total_ns", ""), ("self_ns", "self_"), ("wall_ns", ""), ("run_ns", ""))  # a time, and the prefix of what it is split into


@dataclass(frozen=True)
class Wrong:
    """A rule that does not hold: in how many rows, and by how much at most, in `unit` "ns" or "calls"."""

    rule: str
    rows: int
    off: int
    unit: str


def wrong_sums(table: pd.DataFrame, whole: dict[str, int | None], calls: int, estimated: bool = False) -> list[Wrong]:
    """The rules that the rows of a report break; none, where all is well.

    `table`: the rows by anything (view.by), all of them. `whole`: by_function.overall of the same `calls` many calls. `estimated`: times on a core
    are estimates from CPU time (rebuild/curve.c), so those of callers and callees need not fit. Not for calls less what tracing them cost:
    by_function.compensate takes an average, off no call more than it has.
    """
    states = () if estimated else tuple(name for name in SPLIT if whole[name] is not None)
    off = {("the time of all calls is that of its four parts", "ns"): pd.Series([_rest(whole)])}
    off |= {(rule, "ns"): values for rule, values in _row_rules(table, states)}
    if {"hits", "self_ns"} <= set(table):  # by line, of functions whose lines were recorded
        own = pd.Series([int(table["self_ns"].sum())])
        off["self times are within the time of all calls", "ns"] = _excess(own, pd.Series([whole["wall_ns"] or 0]))
    elif {"total_ns", "self_ns", "unknown_ns"} <= set(table):  # by function, module or line: every call is in one row
        off |= {(rule, "ns"): values for rule, values in _column_rules(table, whole, states)}
    if {"calls", "unknown_ns"} <= set(table):
        off["every call is in one row", "calls"] = pd.Series([int(table["calls"].sum()) - calls])
    return [Wrong(rule, int((by != 0).sum()), int(by.abs().max()), unit) for (rule, unit), by in off.items() if (by != 0).any()]


def _row_rules(table: pd.DataFrame, states: tuple[str, ...]) -> Iterator[tuple[str, "pd.Series[Any]"]]:
    """Rules of each row by itself, with how far it is from keeping them."""
    for name in table:
        if str(name).endswith("_ns") and name not in ("start_ns", "end_ns"):
            yield f"no {_words(name)} is below zero", _excess(0 * _known(table[name]), table[name])
    for part in _PARTS:
        if {"total_ns", part} <= set(table):
            yield f"a row's {_words(part)} is within its total", _excess(table[part], table["total_ns"])
    for of, prefix in _SPLIT_OF if states == SPLIT else ():
        parts = [prefix + name for name in (*SPLIT, "unknown_ns")]
        if {of, *parts} <= set(table):
            yield f"a row's {_words(of)} is that of its four parts", _excess(sum(_known(table[part]) for part in parts), table[of], both=True)
    if {"total_ns", "unknown_ns"} <= set(table):
        whole = table[_known(table["unknown_ns"]) == 0]
        for name in states if "self_on_cpu_ns" in table else ():
            yield f"a row's self {_words(name)} is within that of its total", _excess(whole[f"self_{name}"], whole[name])


def _column_rules(table: pd.DataFrame, whole: dict[str, int | None], states: tuple[str, ...]) -> Iterator[tuple[str, "pd.Series[Any]"]]:
    """Rules of all rows together."""
    yield "self times add up to the time of all calls", pd.Series([int(table["self_ns"].sum()) - int(whole["wall_ns"] or 0)])
    yield "a row's total is within the time of all calls", _excess(table["total_ns"], pd.Series(whole["wall_ns"], table.index))
    for name in states if "self_on_cpu_ns" in table and not whole["unknown_ns"] else ():
        if table[f"self_{name}"].notna().all():
            yield f"self {_words(name)} adds up to that of all calls", pd.Series([int(table[f"self_{name}"].sum()) - int(whole[name] or 0)])


def _rest(whole: dict[str, int | None]) -> int:
    """What is left of all calls' time without its parts; 0 where one of these is not known."""
    parts = [whole[name] for name in (*SPLIT, "unknown_ns")]
    return int(whole["wall_ns"] or 0) - sum(part or 0 for part in parts) if None not in parts else 0


def _known(column: "pd.Series[Any]") -> "pd.Series[Any]":
    return column.astype("Int64")


def _excess(part: Any, of: "pd.Series[Any]", both: bool = False) -> "pd.Series[Any]":
    """How much more `part` is than `of`, or less where `both` must be the same; 0 where either is null."""
    more = (_known(part) - _known(of)).fillna(0)
    return more if both else more.clip(lower=0)


def _words(column: object) -> str:
    return str(column).removesuffix("_ns").replace("_", " ")
