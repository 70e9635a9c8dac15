"""The parts of time that a profile has a column for, those of which something is known; and which one a format with one alone is to show: --value."""

from typing import Any

import pandas as pd

from pytrace_ebpf.analyze.samples.weights import with_states
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.trace.frames import values_and_mask
from pytrace_ebpf.trace.states import NAMES, SPLIT

PARTS = ("ns", *SPLIT, "off_cpu_ns", "unknown_ns")
"""Wall time, the four ways, all of it off the core where these are not told apart, and what was not recorded."""
VALUES = ("wall", *NAMES)


def column(part: str, prefix: str) -> str:
    """The column of a part in schema.TREE: with the prefix "" of total time, with "self_" of own."""
    return f"{prefix or 'total_'}ns" if part == "ns" else prefix + part


def known(trace: Any, tree: pd.DataFrame) -> list[str]:
    """Of PARTS those of which something is known: the four ways, where eBPF or the samples tell them, else on and off the core, or wall time alone."""
    found = {part for part in PARTS if column(part, "") in tree and tree[column(part, "")].notna().any()}
    if trace.scheduling["source"] != "bpf" and not with_states(trace):
        found = found - {*SPLIT[1:]} | ({"off_cpu_ns"} if "on_cpu_ns" in found else set())
    if not (tree["unknown_ns"] > 0).any():
        found -= {"unknown_ns"}
    return [part for part in PARTS if part in found]


def part_of(tree: pd.DataFrame, value: str) -> str:
    """The part (of PARTS) of the times in `tree` that `value` names. Raises UsageError where that is not known of all calls."""
    part = "ns" if value == "wall" else f"{value}_ns"
    made = (tree["calls"] > 0).to_numpy()
    _, known = values_and_mask(tree["self_ns" if value == "wall" else f"self_{part}"])
    if made.any() and not known[made].any():
        raise UsageError(f"This trace has no scheduling events, so it has no {value}; export --value wall instead.")
    if not known[made & values_and_mask(tree["self_on_cpu_ns"])[1]].all():
        raise UsageError(f"This trace does not tell {value} of all its calls; export --value on_cpu or wall instead.")
    return part
