"""Times as people write them: 12, 12.5, 250ms, 90s, 1m30s."""

import re

from pytrace_ebpf.errors import UsageError

_UNITS = {"h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "µs": 10**3, "ns": 1}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|h|m|s)", re.ASCII)


def nanoseconds(said: str, example: str = "seconds, or 250ms, 90s, 1m30s") -> int:
    """Nanoseconds of "12", "12.5", "250ms", "90s" or "1m30s". Raises UsageError, which says to give `example`."""
    written = said + "s" if re.fullmatch(r"\d+(\.\d+)?", said, re.ASCII) else said
    amounts = _AMOUNT.findall(written)
    if not amounts or "".join(number + unit for number, unit in amounts) != written or len(written) > 40:
        raise UsageError(f"{said!r} is not a time: give {example}.")
    return sum(round(float(number) * _UNITS[unit]) for number, unit in amounts)
