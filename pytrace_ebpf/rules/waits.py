"""The waits that rules are about, from the table of waits: those of some kinds that are too long."""

import pandas as pd
import pyarrow.compute as pc

from pytrace_ebpf.rules.rule import Rule
from pytrace_ebpf.trace.reader import Trace

_COLUMNS = ("pid", "tid", "call_id", "func_id", "start_ns", "blocked_until_ns", "end_ns", "kind")
_KEPT = ["pid", "tid", "start_ns", "call_id", "func_id", "ns"]


def too_long(trace: Trace, rule: Rule) -> pd.DataFrame:
    """call_id and func_id (-1 none, or unknown) and ns of the waits that the rule is about, one row of each. Their number bounds the memory."""
    found = [pd.DataFrame({name: pd.Series(dtype="int64") for name in _KEPT})]
    for waits in trace.waits_by_part(_COLUMNS, pc.field("kind").isin(rule.kinds)):
        until = waits["blocked_until_ns"].where(waits["kind"] != "preempted").fillna(waits["end_ns"])
        waits = waits.assign(ns=(until - waits["start_ns"]).astype("int64"))
        found.append(waits.loc[waits["ns"] > rule.limit_ns, _KEPT].astype("int64"))
    return pd.concat(found).drop_duplicates(_KEPT[:3], ignore_index=True)  # a part may come twice
