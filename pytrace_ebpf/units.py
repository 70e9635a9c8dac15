"""Sizes, long times, shares and counts as people write them: 500M, 20GiB; 90s, 30m, 2h, 7d; 5%; 1 thread, 2,000 threads."""

import re

from pytrace_ebpf.errors import UsageError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_UNITS = {"h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "µs": 10**3, "ns": 1}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|h|m|s)", re.ASCII)
_MOST, _MOST_S = 1 << 63, 1 << 33  # what a file, and a clock in ns, can have


def size(text: str) -> int:
    """Bytes of 500, 500M (decimal) or 20GiB (powers of 1024); 0 for what is no size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:([kMGT])(i?))?B?", text, re.ASCII)
    number, letter, binary = found.groups() if found else ("0", None, None)
    bytes_ = float(number) * (1024 if binary else 1000) ** (" kMGT".index(letter or " "))
    return int(bytes_) if bytes_ < _MOST else 0


def seconds(text: str) -> float | None:
    """Seconds of 90s, 30m, 2h or 7d; None for what is no such time."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([smhd])", text, re.ASCII)
    found_s = float(found[1]) * _SECONDS[found[2]] if found else None
    return found_s if found_s is not None and found_s < _MOST_S else None


def nanoseconds(said: str, example: str = "seconds, or 250ms, 90s, 1m30s") -> int:
    """Nanoseconds of "12", "12.5", "250ms", "90s" or "1m30s". Raises UsageError, which says to give `example`."""
    written = said + "s" if re.fullmatch(r"\d+(\.\d+)?", said, re.ASCII) else said
    amounts = _AMOUNT.findall(written)
    if not amounts or "".join(number + unit for number, unit in amounts) != written or len(written) > 40:
        raise UsageError(f"{said!r} is not a time: give {example}.")
    return sum(round(float(number) * _UNITS[unit]) for number, unit in amounts)


def share_of(option: str, written: str) -> float:
    """What `option` was given, "5%", "5 %" or "0.05", as a share. Raises UsageError."""
    try:
        share = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise UsageError(f"{option} {written} is not a share; give one such as 5%.")
    return share


def plural(number: int, one: str) -> str:
    """So many of what `one` of is called that: 1 process, 2,000 processes."""
    return f"{number:,} {one}" + ("" if number == 1 else "es" if one.endswith("s") else "s")
