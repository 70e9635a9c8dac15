"""What steps of a training take and most of that goes to, in a sentence."""

from typing import Any

import pandas as pd

from pytrace_ebpf.formatting import duration, percent
from pytrace_ebpf.trace.states import SPLIT

_SAID = {
    "data": "loading data",
    "loss": "the loss",
    "communication": "waiting for other ranks",
    "optimizer": "the optimizer",
    "other": "other code",
}
_HOW = {"runq_wait_ns": "without a core", "gil_wait_ns": "waiting for the GIL", "blocked_ns": "blocked"}
_WORKERS = "_MultiProcessingDataLoaderIter._next_data"
_LITTLE, _MOSTLY = 0.1, 0.5


def sentence(trace: Any, steps: pd.DataFrame, table: pd.DataFrame) -> str | None:
    """It, of `steps` (schema.STEPS) of a Trace and their by_step(); None where there are none."""
    if not len(table):
        return None
    whole, *phases = table.to_dict("records")
    phases = sorted((row for row in phases if row["run_ns"] >= _LITTLE * whole["run_ns"]), key=lambda row: -row["run_ns"])
    parts = [f"{percent(row['run_ns'], whole['run_ns'])} of it {_doing(trace, row)}" for row in phases[:1]]
    parts += [f"{percent(row['run_ns'], whole['run_ns'])} {_doing(trace, row)}" for row in phases[1:3]]
    ranks = steps["pid"].nunique()
    of = f" of {ranks} processes" if ranks > 1 else ""
    return f"A step takes {duration(whole['p50_ns'])} (median of {whole['steps']:,}{of}), {', '.join(parts)}."


def _doing(trace: Any, row: dict[str, Any]) -> str:
    """What a phase is, and how most of its time goes where that is not computing."""
    said = _SAID.get(row["phase"], row["phase"])
    blocked = not pd.isna(row["blocked_ns"]) and row["blocked_ns"] >= _MOSTLY * row["run_ns"]
    if row["phase"] == "data" and blocked and (trace.functions()["qualname"] == _WORKERS).any():
        return "`DataLoader.__next__` waiting for its workers"
    if row["phase"] == "communication" or pd.isna(row["on_cpu_ns"]):
        return said
    most = max(SPLIT, key=lambda name: row[name])
    how = f", mostly {_HOW[most]}" if most in _HOW and row[most] >= _MOSTLY * row["run_ns"] else ""
    return f"{said}{how}"
