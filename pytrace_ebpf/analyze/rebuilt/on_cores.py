"""Which function was on which core, and how many cores its process had meanwhile: one pass, no rows of calls."""

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.rebuilt.passes import segments, shards_of
from pytrace_ebpf.analyze.rebuilt.read_ahead import PIECE
from pytrace_ebpf.analyze.rebuilt.sums import begun
from pytrace_ebpf.analyze.time.cores import busy
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.trace.reader import Trace


def functions_on_cores(trace: Trace, timeline: pd.DataFrame) -> pd.DataFrame:
    """One row per function and core: func_id, cpu, self_on_cpu_ns (without the calls below), most first; and busy_cores.

    busy_cores (float, the same in a function's rows): mean cores that its process had within its outermost calls, null of an unknown function. `timeline`:
    analyze.time.split's. Calls whose scheduling is not known are left out. Memory is bounded by a segment, what is open, and the switches.
    """
    found = [engine.cores() for engine in _passed(trace, timeline)]
    on = pd.DataFrame(np.concatenate([cells for cells, _ in found]))
    table = on.groupby(["func_id", "cpu"], as_index=False)["ns"].sum().rename(columns={"ns": "self_on_cpu_ns"})
    wall, busy_ns = (np.sum([meanwhile[name] for _, meanwhile in found], axis=0) for name in ("wall", "busy"))
    rate = pd.Series(np.divide(busy_ns, wall, out=np.full(len(wall), np.nan), where=wall > 0))
    table["busy_cores"] = rate.reindex(table["func_id"]).to_numpy()
    table = table[table["self_on_cpu_ns"] != 0]
    return table.sort_values("self_on_cpu_ns", ascending=False, kind="stable", ignore_index=True)


def _passed(trace: Trace, timeline: pd.DataFrame) -> list[Engine]:
    """Engines that have taken the whole trace, or the window."""
    curves = {pid: (curve.when, curve.total, curve.slope) for pid, curve in busy(timeline).items()}
    if trace.whole is trace:
        shards = shards_of(trace)
        for engine in shards.engines:
            engine.want_cores(curves)
        for events, end_ns in segments(trace, shards):
            shards.take(events, end_ns, PIECE)
        shards.finish(trace.end_ns)
        return list(shards.engines)
    engine, parts = begun(trace, rows=False)
    engine.want_cores(curves)
    for events, end_ns in parts:
        for _ in engine.take(events, end_ns, PIECE):
            pass
    engine.finish(trace.end_ns)
    return [engine]
