"""What calls were given, and which exception left them, as far as it was recorded (`--args`), and whether that is as a rule says."""

import builtins
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import pandas as pd

from pytrace_ebpf.rules.rule import Form, Rule
from pytrace_ebpf.trace.observed import COMPLETE, REDACTED
from pytrace_ebpf.trace.reader import Trace

_COLUMNS = ("call_id", "name", "type", "value", "status")


def of(trace: Trace, rule: Rule) -> tuple[pd.DataFrame, Callable[[pd.DataFrame], "pd.Series[Any]"]]:
    """The values that the rule is about, one row of each call, and what judges them: True, False, or NA where that is not recorded."""
    what = "raised" if rule.form is Form.RAISES else "argument"
    rows = trace.values(list(_COLUMNS), what=what).astype({"name": object, "type": object, "value": object, "status": object})
    if rule.form is Form.GETS:
        rows = rows[rows["name"] == rule.argument]
    judged = _is_raised if rule.form is Form.RAISES else _is_given

    def by_row(values: pd.DataFrame) -> "pd.Series[Any]":
        of_distinct: dict[Any, bool | None] = {}
        keys = list(zip(*(values[name].where(values[name].notna(), None) for name in ("type", "value", "status")), strict=True))
        for key in keys:
            if key not in of_distinct:
                of_distinct[key] = judged(rule, *key)
        return pd.Series([of_distinct[key] for key in keys], dtype="boolean")

    return rows.drop_duplicates("call_id"), by_row


def _is_raised(rule: Rule, type_: str | None, _value: str | None, _status: str) -> bool | None:
    """Whether an exception of this type is one that F may raise; of the interpreter's, those below count, too."""
    if type_ is None:
        return None
    mro = [each.__name__ for each in getattr(builtins, type_, object).__mro__] if isinstance(getattr(builtins, type_, None), type) else [type_]
    return any(fnmatchcase(name, pattern) for name in mro for pattern in rule.exceptions)


def _is_given(rule: Rule, type_: str | None, value: str | None, status: str) -> bool | None:
    if rule.type:
        return None if type_ is None else fnmatchcase(type_, rule.type)
    if status == REDACTED or type_ is None:
        return None
    if rule.values is not None:
        return _is_within(rule.values, type_, value, status)
    if value is None:
        return None
    if status == COMPLETE:
        return fnmatchcase(value, rule.matching)
    return None


def _is_within(values: tuple[float | None, float | None], type_: str, value: str | None, status: str) -> bool | None:
    if value is None or status != COMPLETE:
        return None
    try:
        number = float({"True": "1", "False": "0"}.get(value, value) if type_ == "bool" else value)
    except ValueError:
        return False
    least, most = values
    return (least is None or number >= least) and (most is None or number <= most)
