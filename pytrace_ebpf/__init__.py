"""Where did the wall time of every Python call go: on a core, in the run queue, waiting for the GIL, or blocked."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from pytrace_ebpf.self_recording import SelfRecording
    from pytrace_ebpf.trace.reader import Trace

__version__ = "0.1.0"


def open(directory: str | PathLike[str]) -> Trace:
    """Open a trace directory, or a daemon's with the traces of many hours as one. Raises errors.TraceError when it is none, is damaged, or of a newer format."""
    # Here and not above: recording needs neither pandas nor what analyses a trace.
    from pathlib import Path

    from pytrace_ebpf.trace.joined import Joined, hours
    from pytrace_ebpf.trace.reader import Trace

    if names := hours(Path(directory)):
        return Joined(Path(directory), names, _Maker())
    return Trace(Path(directory), _Maker())


class _Maker:
    """As trace.deriving.Maker. What makes the tables is imported for that: a report of what is kept needs none."""

    def together(self, trace: Trace, name: str) -> Sequence[str]:
        return ("tree", "call_sites", "thread_times") if name == "tree" and not self._sampled(trace, name) else (name,)

    def make(self, trace: Trace, into: Mapping[str, Path], beside: Sequence[Any]) -> Mapping[str, Any]:
        from pytrace_ebpf.derive import tables

        of_samples = [name for name in into if self._sampled(trace, name)]
        for name in of_samples:
            from pytrace_ebpf.analyze.samples import tree

            tree.derive(trace, into[name])
        return tables.make(trace, {name: path for name, path in into.items() if name not in of_samples}, beside)

    def findings(self, trace: Trace) -> Any:
        from pytrace_ebpf.analyze.findings.findings import findings

        return findings(trace)

    def critical_path(self, trace: Trace, request_ids: Sequence[int] | None, function: str | None) -> Any:
        from pytrace_ebpf.analyze.critical_path.rows import critical_path

        return critical_path(trace, request_ids, function)

    def _sampled(self, trace: Trace, name: str) -> bool:
        """Whether a table is that of the sampled stacks: where no call was recorded."""
        from pytrace_ebpf.analyze.samples.sampling import period_of

        return name == "tree" and bool(period_of(trace))


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
    from pytrace_ebpf.notebook import load

    load(shell)
