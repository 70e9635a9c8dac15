"""How single amounts and names are said: 1.23ms, 12 %, a name without what could move a terminal's cursor."""

from typing import Any

from pytrace_ebpf.printable import printable

NOTHING = "-"
_UNITS = ((1_000, "µs"), (1_000_000, "ms"), (1_000_000_000, "s"))


def known(value: Any) -> bool:
    """False for None, NaN and NA."""
    if value is None or isinstance(value, int | float | str):  # most are; pandas takes long to import
        return value is not None and value == value
    import pandas as pd

    return not pd.isna(value)


def duration(ns: Any) -> str:
    """Nanoseconds in at most 6 cells with three figures ("1.23ms"); "-" for null."""
    if not known(ns):
        return NOTHING
    ns = int(ns)
    if ns >= 999.5 * 10**9:
        minutes = round(ns / (60 * 10**9))
        return f"{minutes}min" if minutes < 1_000 else f"{minutes / 60:.0f}h" if minutes < 60_000 else f"{minutes / 1440:.0f}d"
    if ns < 1_000:
        return f"{ns}ns" if ns else "0"
    scale, unit = next((s, u) for s, u in _UNITS if float(three(ns / s)) < 1_000)
    return three(ns / scale) + unit


def three(value: float) -> str:
    """With three figures, where it is below 1,000."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def percent(part: float, whole: float) -> str:
    """`part` of `whole`: "12 %", "0.3 %", "-" of nothing."""
    if not whole:
        return NOTHING
    share = 100 * part / whole
    return "0 %" if share == 0 else "<0.1 %" if share < 0.05 else f"{share:.1f} %" if share < 9.95 else f"{share:.0f} %"


def clean(name: Any) -> str:
    """A name from the trace without what could move a terminal's cursor."""
    return printable(str(name)) if known(name) else "?"
