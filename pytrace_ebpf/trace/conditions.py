"""Which rows are asked for, as Arrow's expressions: terms that all have to hold."""

import functools
import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import pandas as pd
import pyarrow.compute as pc


def all_of(terms: Sequence[pc.Expression]) -> pc.Expression | None:
    """That all of them hold; None for no term."""
    return functools.reduce(operator.and_, terms) if terms else None


Wanted: TypeAlias = int | tuple[int, ...] | None  # one, some, or any


def equal(**wanted: str | Wanted) -> list[pc.Expression]:
    """Terms for columns that are to have a value, or one of several; of None there is none."""
    some = {name: value for name, value in wanted.items() if value is not None}
    return [pc.field(name).isin(value) if isinstance(value, tuple) else pc.field(name) == value for name, value in some.items()]


def are(column: "pd.Series[Any]", wanted: str | Wanted) -> "pd.Series[bool]":
    """The same of a column in memory: which of its values are wanted."""
    return column.isin(wanted if isinstance(wanted, tuple) else (wanted,)) if wanted is not None else pd.Series(True, column.index)


def bounds_of(wanted: Wanted) -> tuple[int | None, int | None]:
    """The least and the largest of some ids; None for any."""
    return (min(wanted), max(wanted)) if isinstance(wanted, tuple) else (wanted, wanted)


def overlap(start_ns: int | None, end_ns: int | None) -> list[pc.Expression]:
    """Terms for what lies, in part, in the window [start_ns, end_ns)."""
    after = [] if start_ns is None else [(pc.field("end_ns") > start_ns) | (pc.field("start_ns") >= start_ns)]
    return after if end_ns is None else [*after, pc.field("start_ns") < end_ns]


def began(column: str, start_ns: int | None, end_ns: int | None) -> list[pc.Expression]:
    """Terms for what began, by this column, in the window [start_ns, end_ns)."""
    after = [] if start_ns is None else [pc.field(column) >= start_ns]
    return after if end_ns is None else [*after, pc.field(column) < end_ns]


def between(ids: tuple[int, int] | None) -> list[pc.Expression]:
    """Terms for call_ids from the first to the last of `ids`."""
    return [] if ids is None else [pc.field("call_id") >= ids[0], pc.field("call_id") <= ids[1]]


def overlapping(start_ns: int | None, end_ns: int | None) -> dict[str, tuple[int | None, int | None]]:
    """Bounds of the columns of what overlap() selects."""
    return {"end_ns": (start_ns, None), "start_ns": (None, None if end_ns is None else end_ns - 1)}
