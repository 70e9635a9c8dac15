"""The places that calls were made from: numbers that a BPF program hands out become lines, once for each place."""

import numpy as np

from pytrace_ebpf.record.cpython.functions import UNKNOWN, ProbeIds, grown, no_func_ids
from pytrace_ebpf.record.cpython.lines import NO_LINE, line_at
from pytrace_ebpf.trace import schema

_IS_BEGINNING = np.isin(np.arange(256), schema.BEGINNINGS)  # by the kind of an event


class CallSites:
    """The line of each place that one BPF program reported, and the function that it is in."""

    def __init__(self, version: tuple[int, int], ids: ProbeIds) -> None:
        """`version`: of the Python whose line tables they are; `ids`: of the functions that they are in."""
        self._version, self._ids = version, ids
        self._lines, self._callers = no_func_ids(), no_func_ids()  # the latter the program's ids: some have no names yet

    def introduce(self, rows: np.ndarray) -> None:
        """Take in records of call sites with their line tables."""
        if not len(rows):
            return
        sites = rows["site"]
        largest = int(sites["number"].max())
        self._lines, self._callers = grown(self._lines, largest), grown(self._callers, largest)
        self._callers[sites["number"]] = sites["caller"]
        for (number, _, position, first_line, size), table in zip(
            sites.tolist(), rows["table"].tolist(), strict=True
        ):  # one step per place, not per call
            if size <= rows["table"].itemsize:
                self._lines[number] = line_at(self._version, table.ljust(size, b"\0"), first_line, position)  # NumPy drops zeros at its end

    def lines(self, kinds: np.ndarray, lines: np.ndarray, wanted: np.ndarray | None = None) -> np.ndarray:
        """The column `line` of `events`, of what call_event has there. `wanted`, by func_id: whether a caller is in the trace; others leave no line."""
        begins = _IS_BEGINNING[kinds]
        numbers = np.where(begins & (lines > 0) & (lines < len(self._lines)), lines, 0)  # 0 is no place's
        found = self._lines[numbers]
        if wanted is not None:
            callers = self._ids.func_ids(np.maximum(self._callers[numbers], 0))
            found[(callers == UNKNOWN) | ~wanted[callers]] = NO_LINE
        return np.where(begins, found, lines)
