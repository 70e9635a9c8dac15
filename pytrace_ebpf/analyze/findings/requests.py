"""Which requests the time of a finding lies in: where nearly all of it does, it is said as a share of theirs."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.findings.contexts import Contexts, Ints
from pytrace_ebpf.analyze.functions.own_code import NONE
from pytrace_ebpf.derive.calls.entry_points import kinds
from pytrace_ebpf.derive.calls.nesting import levels
from pytrace_ebpf.derive.scheduling.last_at import last_at, thread_keys

_NEARLY_ALL = 0.9
_COLUMNS = ("request_id", "pid", "tid", "endpoint_func_id", "start_ns", "end_ns", "wall_ns", "awaited_ns")


class Of(NamedTuple):
    """So many requests took `ns` together; of one endpoint (func_id), or NONE for all. `part`: of the finding's time in them."""

    endpoint: int
    requests: int
    ns: int
    part: float


class Requests:
    """The requests of a pytrace_ebpf Trace or window that were answered by one thread each: those of coroutines share theirs.

    of_coroutines: those that were suspended, and lie in the window whole; _COLUMNS.
    """

    def __init__(self, trace: Any) -> None:
        asked = bool(trace.request_patterns) or bool(len(kinds(trace.functions())))
        rows = trace.requests(_COLUMNS) if asked else pd.DataFrame(columns=_COLUMNS, dtype=np.int64)
        within = (rows["start_ns"] >= trace.start_ns) & (rows["end_ns"] <= trace.end_ns)
        self.of_coroutines = rows[(rows["awaited_ns"] > 0) & within].drop_duplicates("request_id")
        rows = rows[(rows["awaited_ns"] == 0) & (rows["start_ns"] < trace.end_ns) & (rows["end_ns"] > trace.start_ns)]
        key = thread_keys(rows["pid"].to_numpy(np.int64), rows["tid"].to_numpy(np.int64))
        order = np.lexsort((rows["start_ns"].to_numpy(np.int64), key))
        self._key = key[order]
        self._start, self._end, self._endpoint = (rows[name].to_numpy(np.int64)[order] for name in ("start_ns", "end_ns", "endpoint_func_id"))
        ns = np.minimum(self._end, trace.end_ns) - np.maximum(self._start, trace.start_ns)
        self._by_endpoint = pd.DataFrame({"requests": 1, "ns": ns}, index=self._endpoint).groupby(level=0).sum()

    def of_moments(self, pid: Ints, tid: Ints, ts: Ints) -> Ints:
        """The endpoint (func_id) of the request that each thread answers at a moment; NONE for none."""
        if not len(self._key):
            return np.full(len(ts), NONE)
        at = last_at(self._key, self._start, thread_keys(pid, tid), ts)
        return np.where((at >= 0) & (self._end[at] > ts), self._endpoint[at], NONE)

    def of_tree(self, at: Contexts) -> Ints:
        """The same of each row of a tree: the outermost endpoint that it is or is below, of own code where there is one. A server's function, which is that of
        requests without own code, is called by all others too."""
        is_endpoint = np.isin(at.function, self._by_endpoint.index)
        parent = at.tree["parent_id"].to_numpy(np.int64)
        of_any, of_own = (np.where(mask, at.function, NONE) for mask in (is_endpoint, is_endpoint & (at.own == np.arange(len(parent)))))
        for here in levels(at.tree["depth"].to_numpy(np.int64)):
            for out in (of_any, of_own):
                above = np.where(parent[here] >= 0, out[parent[here]], NONE)
                out[here] = np.where(above >= 0, above, out[here])
        return np.where(of_own >= 0, of_own, of_any)

    def of(self, time: "pd.Series[int]", endpoint: "pd.Series[int]") -> Of | None:
        """The requests that nearly all of a finding's time lies in, which `time` and `endpoint` divide: of one endpoint, else of all; None for no such."""
        sums = time.groupby(endpoint).sum()
        whole, known = sums.sum(), sums[sums.index.isin(self._by_endpoint.index)]
        if not whole or known.sum() < _NEARLY_ALL * whole:
            return None
        most = int(known.idxmax())
        alone = known.max() >= _NEARLY_ALL * whole
        of = self._by_endpoint.loc[most] if alone else self._by_endpoint.sum()
        return Of(most if alone else NONE, int(of["requests"]), int(of["ns"]), float((known.max() if alone else known.sum()) / whole))
