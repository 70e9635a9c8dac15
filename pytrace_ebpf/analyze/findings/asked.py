"""What a line that waits for a peer asks it for, where that was recorded (`--clients`)."""

from functools import cached_property
from typing import Any

import pandas as pd

from pytrace_ebpf.analyze.findings.sentences import Found

_MOSTLY = 0.5


class Asked:
    """Of a pytrace_ebpf Trace, which is looked at when it is first asked for."""

    def __init__(self, trace: Any) -> None:
        self._trace = trace

    @cached_property
    def _rows(self) -> pd.DataFrame | None:
        rows = self._all
        return None if rows is None else rows[rows["statement"].notna()]

    @cached_property
    def _all(self) -> pd.DataFrame | None:
        if not any(segment["rows"].get("client_calls") for segment in self._trace.segments):
            return None
        from pytrace_ebpf.analyze.clients.by_client import by_client  # with all that derives: a report that has its tables needs nothing of that

        return by_client(self._trace)

    def failing(self, found: Found) -> tuple[str, int, bool] | None:
        """What the function of a finding asked for and did not get about as often as it waits, how often, and whether there was no connection; None for none."""
        if self._all is None:
            return None
        rows = self._all
        rows = rows[(rows["own_func_id"] == found.own) & rows["statement"].notna() & (rows["failed"] > 0)]
        if not len(rows) or rows["failed"].max() < _MOSTLY * found.waits:
            return None
        first = rows.loc[rows["failed"].idxmax()]
        return str(first["statement"]), int(first["failed"]), bool(first["unconnected"] >= _MOSTLY * first["failed"])

    def of(self, found: Found, each_ns: int | None = None, made: int = 0, leave_out: str | None = None) -> str | None:
        """The statement for which most of the time is waited for found.resource at found's line; None where no one is that.

        `each_ns`, `made`: of those that take less, half as often or more. `leave_out`: but for that one.
        """
        if self._rows is None:
            return None
        rows = self._rows[self._rows["waited_ns"] > 0]
        rows = rows[(rows["own_func_id"] == found.own) & ((rows["own_line"] == found.line) | (found.line < 0)) & (rows["resource"] == found.resource)]
        rows = rows[rows["statement"] != leave_out]
        if each_ns is not None:
            rows = rows[(rows["each_ns"] < each_ns) & (rows["count"] >= _MOSTLY * made)]
        sums = rows.groupby("statement")["waited_ns"].sum()
        return str(sums.idxmax()) if len(sums) and sums.max() >= _MOSTLY * sums.sum() else None

    def of_awaited(self, found: Found, module: str) -> str | None:
        """The statement that most of the time is which `found.own` awaits in a library's function of that module; None where no one is that."""
        if self._rows is None:
            return None
        library = self._rows["library"].astype("string").str.partition(" ")[0]
        rows = self._rows[(self._rows["own_func_id"] == found.own) & (library == module.partition(".")[0])]
        sums = rows.groupby("statement")["total_ns"].sum()
        return str(sums.idxmax()) if len(sums) and sums.max() >= _MOSTLY * max(sums.sum(), found.ns) else None
