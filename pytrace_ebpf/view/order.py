"""`report --sort`: the rows of any report by one of their columns."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.formatting import clean

HELP = (
    "by function, module, line and operator self or total, time without or with the calls below (self); or, in any report, a column of its rows as "
    "--json names them, without _ns: the largest first, names from A to Z"
)
SELF_OR_TOTAL = ("function", "module", "line", "operator")
"""The kinds of report (view.by.BY) whose rows have both."""
_TIMES, _NUMBERS = ("self", "total"), ("_id", "_address")


def self_or_total(said: str | None, by: str) -> str | None:
    """Which of both a report shows first; None for one that has not both."""
    return (said if said in _TIMES else _TIMES[0]) if by in SELF_OR_TOTAL else None


def ordered(table: pd.DataFrame, facts: Mapping[str, Any]) -> pd.DataFrame:
    """The rows in the order that facts["sorted_by"], what `--sort` was given, asks for; null last. Raises UsageError where they have no such column."""
    said = facts.get("sorted_by")
    if said is None or (said in _TIMES and facts["by"] in SELF_OR_TOTAL) or not len(table):
        return table
    of = {column.removesuffix("_ns"): column for column in table.columns if not column.endswith(_NUMBERS)}
    column = of.get(said.removesuffix("_ns"))
    if column is None:
        raise UsageError(f"--sort {clean(said)} is no column of --by {facts['by']}: give one of {', '.join(of)}.")
    as_number = pd.api.types.is_numeric_dtype(table[column])
    return table.sort_values(column, ascending=not as_number, kind="stable", ignore_index=True)
