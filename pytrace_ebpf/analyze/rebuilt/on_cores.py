"""Which function was on which core, and how many cores its process had meanwhile: one pass, no rows of calls."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.rebuilt.passes import segments, shards_of
from pytrace_ebpf.analyze.rebuilt.read_ahead import PIECE
from pytrace_ebpf.analyze.rebuilt.riding import riding
from pytrace_ebpf.analyze.rebuilt.sums import begun
from pytrace_ebpf.analyze.time.cores import busy
from pytrace_ebpf.rebuild.engine import Ints
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.reader import Trace

_Found = tuple[npt.NDArray[np.void], npt.NDArray[np.void]]


def functions_on_cores(trace: Trace, timeline: pd.DataFrame) -> pd.DataFrame:
    """One row per function and core: func_id, cpu, self_on_cpu_ns (without the calls below), most first; and busy_cores.

    busy_cores (float, the same in a function's rows): mean cores that its process had within its outermost calls, null of an unknown function. `timeline`:
    analyze.time.split's. Calls whose scheduling is not known are left out. Memory is bounded by a segment, what is open, and the switches.
    Where the waits of a whole trace are not derived yet, they are, in the same pass.
    """
    wanted = _Cores({pid: (curve.when, curve.total, curve.slope) for pid, curve in busy(timeline).items()})
    if trace.whole is trace:
        with riding(trace, wanted):
            next(trace.waits_by_part(["kind"]), None)
    if not wanted.found:
        _pass(trace, wanted)
    return wanted.table()


class _Cores:
    """What engines are to find out, and what they `found`."""

    def __init__(self, curves: dict[int, tuple[Ints, Ints, Ints]]) -> None:
        self._curves, self.found = curves, list[_Found]()

    def begin(self, engines: Shards) -> None:
        for engine in engines.engines:
            engine.want_cores(self._curves)

    def end(self, engines: Shards) -> None:
        self.found = [engine.cores() for engine in engines.engines]

    def table(self) -> pd.DataFrame:
        on = pd.DataFrame(np.concatenate([cells for cells, _ in self.found]))
        table = on.groupby(["func_id", "cpu"], as_index=False)["ns"].sum().rename(columns={"ns": "self_on_cpu_ns"})
        wall, busy_ns = (np.sum([meanwhile[name] for _, meanwhile in self.found], axis=0) for name in ("wall", "busy"))
        rate = pd.Series(np.divide(busy_ns, wall, out=np.full(len(wall), np.nan), where=wall > 0))
        table["busy_cores"] = rate.reindex(table["func_id"]).to_numpy()
        table = table[table["self_on_cpu_ns"] != 0]
        return table.sort_values("self_on_cpu_ns", ascending=False, kind="stable", ignore_index=True)


def _pass(trace: Trace, wanted: _Cores) -> None:
    """Over the whole trace, or the window."""
    if trace.whole is trace:
        shards = shards_of(trace)
        parts = segments(trace, shards)
    else:
        engine, parts = begun(trace, rows=False)
        shards = Shards([engine])
    wanted.begin(shards)
    for events, end_ns in parts:
        shards.take(events, end_ns, PIECE)
    shards.finish(trace.end_ns)
    wanted.end(shards)
