"""Lines of source files that a trace names, as they are now where the report is made."""

import os
import stat
from pathlib import Path

_LARGEST = 4 << 20


def lines_of(file: str) -> list[str] | None:
    """The lines of a file; None where it cannot be read, is no regular file, or too large to be a source."""
    if not Path(file).is_absolute():  # of the traced program's working directory
        return None
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
    except (OSError, ValueError):
        return None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as opened:
        return opened.read().decode(errors="replace").splitlines()


def line_of(source: list[str] | None, number: int) -> str:
    """One of lines_of(), from 1 on; empty for one that there is not."""
    if source is None:
        return "(its source is not here)"
    return source[number - 1].expandtabs(4) if 0 < number <= len(source) else ""
