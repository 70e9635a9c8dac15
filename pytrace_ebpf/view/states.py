"""What a figure is split into, in a table or a bar: four states, or two where only eBPF could have told them apart."""

from typing import Any

import pandas as pd

from pytrace_ebpf.view import text

_TITLES = {
    "on_cpu_ns": (6, "on CPU"), "runq_wait_ns": (6, "run q."), "gil_wait_ns": (6, "GIL"), "blocked_ns": (7, "blocked"), "off_cpu_ns": (7, "off CPU"),
}  # fmt: skip


def states_of(facts: dict[str, Any]) -> text.States:
    """The states that the trace of view.summary's facts tells apart."""
    return text.STATES if facts["scheduling"]["source"] == "bpf" else text.TWO_STATES


def with_off(table: pd.DataFrame) -> pd.DataFrame:
    """`table` with off_cpu_ns and self_off_cpu_ns: the known time that was not on a core, null where none is known."""
    out = table.copy(deep=False)
    for prefix, total in (("", "total_ns"), ("", "wall_ns"), ("", "run_ns"), ("self_", "self_ns")):
        if total in table and f"{prefix}on_cpu_ns" in table:
            whole, on_cpu, unknown = (table[c].astype("Int64") for c in (total, f"{prefix}on_cpu_ns", f"{prefix}unknown_ns"))
            out[f"{prefix}off_cpu_ns"] = whole - on_cpu - unknown
    return out


def titles(states: text.States) -> list[tuple[int, str]]:
    """(cells, title) of a column for each state but "not recorded"."""
    return [_TITLES[key] for key, *_ in states[:-1]]


def figures(row: dict[str, Any], prefix: str, states: text.States) -> list[str]:
    """What stands in these columns: durations of the keys `prefix` + state."""
    return [text.duration(row[prefix + key]) for key, *_ in states[:-1]]
