"""Which function was on which core, call by call: what the compiled pass is compared with."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.scheduling.curve import Curve
from pytrace_ebpf.derive.scheduling.split import on_cores

Ints = npt.NDArray[np.int64]


def busy_ns(calls: pd.DataFrame, timeline: pd.DataFrame) -> Ints:
    """CPU time of the whole process, all its threads together, within each call."""
    found, slices, pid = np.zeros(len(calls), np.int64), on_cores(timeline), calls["pid"].to_numpy()
    for process, own in slices.groupby("pid"):
        curve = Curve.of(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
        mine = np.flatnonzero(pid == process)
        found[mine] = curve.at(calls["end_ns"].to_numpy()[mine]) - curve.at(calls["start_ns"].to_numpy()[mine])
    return found


def by_function(calls: pd.DataFrame, timeline: pd.DataFrame) -> pd.DataFrame:
    """As derive.sinks.cores: func_id, cpu, self_on_cpu_ns, busy_cores; of calls (schema.CALLS) whose scheduling is known."""
    known = calls[calls["self_on_cpu_ns"].notna() & calls["first_cpu"].notna()]
    slices = on_cores(timeline)
    cells: dict[tuple[int, int], int] = {}
    of_id: dict[int, Any] = {row.call_id: row for row in known.itertuples()}
    for call in known.itertuples():
        own = slices[(slices["pid"] == call.pid) & (slices["tid"] == call.tid)]
        ns = (own["end_ns"].clip(upper=call.end_ns) - own["start_ns"].clip(lower=call.start_ns)).clip(lower=0)
        for cpu, spent in ns.groupby(own["cpu"]).sum().items():
            if spent:
                cells[call.func_id, cpu] = cells.get((call.func_id, cpu), 0) + int(spent)
                if call.parent_id in of_id:
                    above = of_id[call.parent_id].func_id
                    cells[above, cpu] = cells.get((above, cpu), 0) - int(spent)
    outer = known[known["outermost"].to_numpy(bool)]
    busy = outer[["func_id", "wall_ns"]].assign(ns=busy_ns(outer, timeline)).groupby("func_id").sum()
    rate = (busy["ns"] / busy["wall_ns"].where(busy["wall_ns"] > 0)).rename("busy_cores")
    rows = [(func, cpu, ns) for (func, cpu), ns in cells.items() if ns]
    table = pd.DataFrame(rows, columns=["func_id", "cpu", "self_on_cpu_ns"]).merge(rate, how="left", on="func_id")
    return table.sort_values("self_on_cpu_ns", ascending=False, ignore_index=True)
