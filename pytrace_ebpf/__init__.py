"""Where did the wall time of every Python call go: on a core, in the run queue, waiting for the GIL, or blocked."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytrace_ebpf.trace.reader import Trace

__version__ = "0.1.0"


def open(directory: str | PathLike[str]) -> Trace:
    """Open a trace directory. Raises errors.TraceError when it is none, is damaged, or of a newer format."""
    # Here and not above: recording needs neither pandas nor what analyses a trace.
    from pathlib import Path

    from pytrace_ebpf.analyze import calls, operators, tasks, waits
    from pytrace_ebpf.trace.reader import Trace

    derive = {"calls": calls.derive, "waits": waits.derive, "tasks": tasks.derive, "operators": operators.derive}
    return Trace(Path(directory), derive)
