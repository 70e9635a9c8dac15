"""Where did the wall time of every Python call go: on a core, in the run queue, waiting for the GIL, or blocked."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from pytrace_ebpf.self_recording import SelfRecording
    from pytrace_ebpf.trace.reader import Trace

__version__ = "0.1.0"

# Each has `derive`, which rebuilds the table of its name, and is imported for that: a report of what is kept needs none.
_DERIVED = (
    *(f"rebuilt.{name}" for name in ("calls", "tree", "call_sites", "lines", "thread_times")),
    *("waits.waits", "tasks.tasks", "requests.requests", "native.operators", "observed.values", "memory.memory"),
)


def open(directory: str | PathLike[str]) -> Trace:
    """Open a trace directory, or a daemon's with the traces of many hours as one. Raises errors.TraceError when it is none, is damaged, or of a newer format."""
    # Here and not above: recording needs neither pandas nor what analyses a trace.
    from functools import partial
    from pathlib import Path

    from pytrace_ebpf.trace.joined import Joined, hours
    from pytrace_ebpf.trace.reader import Trace

    derive = {module.rpartition(".")[2]: partial(_derive, module) for module in _DERIVED}
    if names := hours(Path(directory)):
        return Joined(Path(directory), names, derive)
    return Trace(Path(directory), derive)


def _derive(module: str, trace: Trace, into: Path) -> Any:
    import importlib

    return importlib.import_module(f"pytrace_ebpf.analyze.{module}").derive(trace, into)


def recording(directory: str | PathLike[str], options: Sequence[str] = ()) -> SelfRecording:
    """A recording of this process, as a context manager; its `trace` is what was recorded meanwhile.

    As root of every call, else of sampled stacks, unless `options`, words of `pytrace-ebpf attach`, say otherwise; with `--daemon` of every call by the
    daemon, and `options` are words of `pytrace-ebpf request`. Raises errors.HostError where nothing can be recorded.
    """
    from pathlib import Path

    from pytrace_ebpf.self_recording import SelfRecording

    return SelfRecording(Path(directory), options)


def load_ipython_extension(shell: Any) -> None:
    """What IPython's %load_ext pytrace_ebpf does: there is %%pytrace then."""
    from pytrace_ebpf.cli.notebook import load

    load(shell)
