"""The waits of a recording that goes on, from its segments as they are closed, for as long as it may last."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.analyze.samples.weights import Intervals
from pytrace_ebpf.derive.scheduling.off_core import SCHED, WAIT, Rows, Waits
from pytrace_ebpf.derive.scheduling.switches import GONE
from pytrace_ebpf.trace.schema import LOSSES, TABLES, WAIT_KINDS

_GIL = WAIT_KINDS.index("gil")
_LATE_NS = 10**9  # a sample comes at most a segment after its wait has ended, and then soon
_TIDY = 1024  # threads that have ended are forgotten when there are as many more


class LiveWaits:
    """Waits, some segments at a time, as waits.off_core has them of a trace. Memory is bounded by the threads that live and one segment's rows."""

    def __init__(self, start_ns: int, machine: str) -> None:
        """When recording began, and what `uname -m` says."""
        self._start_ns, self._machine = start_ns, machine
        self._gil: dict[int, tuple[int, int]] = {}
        self._losses = [LOSSES.arrow.empty_table()] * 2  # of the last two segments
        self._waits = Waits(self._processes(), self._lost(), start_ns, machine)
        self._recent = np.zeros(0, WAIT)
        self._tidied = 0

    def take(self, tables: Mapping[str, pa.Table], end_ns: int) -> Intervals:
        """The waits that samples of the next segment can have been taken after; `tables`: schema.SCHED, PROCESSES and LOSSES, those that there are."""
        self._learn(tables)
        sched = tables.get("sched", TABLES["sched"].arrow.empty_table()).select(SCHED)
        ended = self._waits.take([sched], [end_ns])
        rows = np.concatenate((self._recent, ended, self._waits.open(end_ns)))
        self._recent = np.concatenate((self._recent, ended))
        self._recent = self._recent[self._recent["end_ns"] > end_ns - _LATE_NS]
        return _intervals(rows)

    def _learn(self, tables: Mapping[str, pa.Table]) -> None:
        before = dict(self._gil)
        for row in tables["processes"].select(["pid", "gil_start", "gil_end", "end_ns"]).to_pylist() if "processes" in tables else []:
            self._gil[row["pid"]] = row["gil_start"], row["gil_end"]
            if row["end_ns"] is not None:
                del self._gil[row["pid"]]
        lost = tables.get("losses", LOSSES.arrow.empty_table())
        changed = len(lost) or len(self._losses[-1]) or len(self._losses[-2]) or self._gil.items() - before.items()
        self._losses = [self._losses[-1], lost]
        if changed or len(self._waits.state()["keys"]) > 2 * self._tidied + _TIDY:
            self._renew()

    def _renew(self) -> None:
        """Begin anew with what goes on, without the threads that have ended: the GILs and losses of Waits are those that it began with."""
        state = self._waits.state()
        kept = state["known"] != GONE
        kept[state["going_on"]["thread"]] = True
        number = np.cumsum(kept) - 1
        going_on = state["going_on"].copy()
        going_on["thread"] = number[going_on["thread"]]
        self._waits = Waits(self._processes(), self._lost(), self._start_ns, self._machine)
        self._waits.resume({"keys": state["keys"][kept], "known": state["known"][kept], "passed": np.zeros(1, np.int64), "going_on": going_on})
        self._tidied = int(kept.sum())

    def _processes(self) -> pd.DataFrame:
        rows = [(pid, *addresses) for pid, addresses in self._gil.items()]
        return pd.DataFrame(np.array(rows, np.int64).reshape(-1, 3), columns=["pid", "gil_start", "gil_end"])

    def _lost(self) -> pd.DataFrame:
        rows = pa.concat_tables(self._losses).to_pydict()
        return pd.DataFrame(
            {name: np.array(rows[name], object if name == "class" else np.int64) for name in ("class", "start_ns", "end_ns", "count")}
        )


def _intervals(waits: Rows) -> Intervals:
    order = np.lexsort((waits["start_ns"], waits["key"]))
    key, start, until, end, kind = (waits[name][order] for name in ("key", "start_ns", "blocked_until_ns", "end_ns", "kind"))
    gil: npt.NDArray[np.bool_] = kind == _GIL
    return Intervals(key, start, until, end, gil)
