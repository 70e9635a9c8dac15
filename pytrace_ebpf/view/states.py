"""What a figure is split into, in a table or a bar: its states, or only on and off the CPU where eBPF did not record the rest."""

from typing import Any

import pandas as pd

from pytrace_ebpf.trace.states import STATES
from pytrace_ebpf.view import text

_LEAST = 6  # cells of a column: a duration has as many
_TITLES = {f"{state.name}_ns": state.title for state in STATES} | {"off_cpu_ns": "off CPU"}


def states_of(facts: dict[str, Any]) -> text.States:
    """The states that the trace of view.summary's facts distinguishes."""
    return text.STATES if facts["scheduling"]["source"] == "bpf" or samples_tell(facts) else text.TWO_STATES


def samples_tell(facts: dict[str, Any]) -> bool:
    """Whether the times are those of samples, which distinguish states themselves."""
    return any((facts.get(name) or {}).get("states") for name in ("sampled", "of_samples"))


def unrecorded(facts: dict[str, Any]) -> str:
    """What the trace lacks for answers that need each switch, as the end of a sentence."""
    if facts["scheduling"]["source"] is None and samples_tell(facts):
        return "every context switch: record with --sample --switches"
    return "eBPF"


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
    return [(max(_LEAST, len(_TITLES[key])), _TITLES[key]) for key, *_ in states[:-1]]


def figures(row: dict[str, Any], prefix: str, states: text.States) -> list[str]:
    """What stands in these columns: durations of the keys `prefix` + state."""
    return [text.duration(row[prefix + key]) for key, *_ in states[:-1]]
