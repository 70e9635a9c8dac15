"""How the processes that were traced ended, a sentence for each."""

import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

COLUMNS = ("pid", "command", "exit_code", "exit_signal", "oom_killed", "memory_limit_bytes")
"""Columns of schema.PROCESSES that are needed."""
_MIB = 1 << 20


def sentences(rows: Sequence[Mapping[str, Any]], most: int) -> list[str]:
    """Of processes (COLUMNS, null as None) that ended, and are known to have; of several that ended alike, one sentence for all, and at most so many."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if how := _how(row):
            found.setdefault(how, []).append(f"{row['pid']} ({_name(row['command'])})")
    lines = [f"Process{'es' if len(of) > 1 else ''} {', '.join(of[:most])}{_more(len(of) - most)} {_verb(how, len(of))}" for how, of in found.items()]
    return lines[:most]


def _how(row: Mapping[str, Any]) -> str:
    """ "" where that is not known."""
    if row["oom_killed"]:
        limit = row["memory_limit_bytes"]
        return "was killed by the kernel: out of memory" + (f" (its control group's limit is {limit / _MIB:,.0f} MiB)" if limit is not None else "")
    if row["exit_signal"]:
        return f"was ended by {_signal(int(row['exit_signal']))}"
    return "" if row["exit_code"] is None else f"ended with exit code {int(row['exit_code'])}"


def _verb(how: str, count: int) -> str:
    return how.replace("was ", "were ", 1).replace("its control", "their control", 1) if count > 1 else how


def _more(count: int) -> str:
    return f" and {count:,} more" if count > 0 else ""


def _signal(number: int) -> str:
    with suppress(ValueError):
        return f"signal {number} ({signal.Signals(number).name})"
    return f"signal {number}"


def _name(command: str) -> str:
    """What people call a program: its script or module, else itself."""
    try:
        words = shlex.split(command) or ["?"]
    except ValueError:
        words = command.split() or ["?"]
    if PurePosixPath(words[0]).name.startswith("python") and "-c" not in words[:-1]:
        words = [word for word in words[1:] if not word.startswith("-")] or words
    return PurePosixPath(words[0]).name[:40] or "?"
