"""Where the time went by core: how long each was busy with the traced threads, and with which."""

import pandas as pd

from pytrace_ebpf.derive.scheduling.split import on_cores


def by_core(timeline: pd.DataFrame, threads: pd.DataFrame) -> pd.DataFrame:
    """One row per core and thread that ran on it: cpu, pid, tid, name, busy_ns (int64), slices (times it got the core).

    `timeline` is that of derive.scheduling.split. Ordered by core, busiest thread first.
    """
    on = on_cores(timeline)
    on = on.assign(busy_ns=on["end_ns"] - on["start_ns"])
    out = on.groupby(["cpu", "pid", "tid"]).agg(busy_ns=("busy_ns", "sum"), slices=("busy_ns", "size")).reset_index()
    out = out.merge(threads[["pid", "tid", "name"]], how="left", on=["pid", "tid"])
    out = out.sort_values(["cpu", "busy_ns"], ascending=[True, False], ignore_index=True)
    return out[["cpu", "pid", "tid", "name", "busy_ns", "slices"]]
