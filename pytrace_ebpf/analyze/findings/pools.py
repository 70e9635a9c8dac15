"""Which waits are for a connection of a pool, where that was recorded (`--clients`): how many were out, and who had them."""

from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd

from pytrace_ebpf.analyze.findings.sentences import Found

_MOSTLY = 0.5
WAITS = ("queue", "lock", "event-loop", "sleep", "lock-held")  # how one waits for a pool


class Pool(NamedTuple):
    """Of a `library`: its size, how many of it were out while one waited, and the line of own code (func_id, -1 not known) that had `share` of them."""

    library: str
    size: int
    out: float
    func_id: int
    line: int
    share: float


class Pools:
    """Of a pytrace_ebpf Trace, which is looked at when it is first asked for."""

    def __init__(self, trace: Any) -> None:
        self._trace = trace

    @cached_property
    def _rows(self) -> pd.DataFrame | None:
        if not any(segment["rows"].get("client_calls") for segment in self._trace.segments):
            return None
        from pytrace_ebpf.analyze.clients.pools import pools  # with all that derives, as in asked.py

        return pools(self._trace)

    def of(self, found: Found) -> Pool | None:
        """The pool that most of a finding's time was waited for; None for none."""
        if found.rule not in WAITS or self._rows is None:
            return None
        rows = self._rows
        rows = rows[(rows["own_func_id"] == found.own) & ((rows["own_line"] == found.line) | (found.line < 0))]
        if not len(rows) or rows["total_ns"].iloc[0] < _MOSTLY * found.ns:
            return None
        first = rows.iloc[0]
        return Pool(
            first["library"], int(first["size"]), float(first["out"]), int(first["had_func_id"]), int(first["had_line"]), float(first["had_share"])
        )
