"""What a test that got slower does longer, in a sentence, from the calls in its windows of the traces."""

from collections.abc import Sequence

import pytrace_ebpf
from pytrace_ebpf.diff.causes import waited
from pytrace_ebpf.diff.changes import changes, whole_change
from pytrace_ebpf.diff.report import sentence as sentence_of
from pytrace_ebpf.diff.sides import both
from pytrace_ebpf.diff.tests import TRACE, Ran, Slower
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.view import text


def sentence(found: Slower) -> str:
    """How much longer it takes, in what, and the command that shows the rest."""
    value = found.by
    asked = {"by": "function", "sort": "self", "value": value, "per": "run"}
    sides = both(_windows(found.before), _windows(found.after), ("before", "after"), "run")[:2]
    table = changes(*sides, "function", "self", value)
    said = sentence_of(*sides, waited(*sides, table) if value == "wall" else table, whole_change(*sides, value), asked)
    for words, shorter in (("All calls together take", "it takes"), ("All calls together have", "it has")):
        said = said.replace(words, shorter, 1)
    return f"{found.test}: {said} {_look(found.after[-1])}"


def _windows(runs: Sequence[Ran]) -> list[Trace]:
    traces = [pytrace_ebpf.open(ran.run / TRACE) for ran in runs]
    return [trace.window(ran.start_ns, ran.end_ns, ran.pid, ran.tid) for trace, ran in zip(traces, runs, strict=True)]


def _look(ran: Ran) -> str:
    """Where the rest is to be seen."""
    directory = ran.run / TRACE
    start_ns = pytrace_ebpf.open(directory).start_ns
    first, last = ((ns - start_ns) / 1e9 for ns in (ran.start_ns, ran.end_ns))
    return f"({text.duration(ran.wall_ns)} in the last run: pytrace-ebpf report {directory} --from {first:.6f} --until {last:.6f} --tid {ran.tid})"
