"""Which time a format that has one alone is to show: --value."""

import pandas as pd

from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.trace.frames import values_and_mask
from pytrace_ebpf.trace.states import NAMES

VALUES = ("wall", *NAMES)


def part_of(tree: pd.DataFrame, value: str) -> str:
    """The part (parts.PARTS) of the times in `tree` that `value` names. Raises UsageError where that is not known of all calls."""
    part = "ns" if value == "wall" else f"{value}_ns"
    made = (tree["calls"] > 0).to_numpy()
    _, known = values_and_mask(tree["self_ns" if value == "wall" else f"self_{part}"])
    if made.any() and not known[made].any():
        raise UsageError(f"This trace has no scheduling events, so it has no {value}; export --value wall instead.")
    if not known[made & values_and_mask(tree["self_on_cpu_ns"])[1]].all():
        raise UsageError(f"This trace does not tell {value} of all its calls; export --value on_cpu or wall instead.")
    return part
