"""The derived tables, and what makes each: a line here, and a file in sinks/. Its module is imported as the table is made.

Most are sinks of a pass; what the sums of the calls say is made of these, which are kept (sums.py); operators of the table of calls.
"""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from pytrace_ebpf.derive.one_pass import run, run_kept
from pytrace_ebpf.derive.sink import Sink
from pytrace_ebpf.derive.sums import sums_of
from pytrace_ebpf.trace.derived import Settled
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import TABLES
from pytrace_ebpf.trace.segments import part_name
from pytrace_ebpf.trace.writing import write

SINKS = {
    "calls": "Calls",
    "lines": "Lines",
    "waits": "Waits",
    "tasks": "Tasks",
    "requests": "Requests",
    "values": "Values",
    "statements": "Statements",
    "memory": "Memory",
}
"""By table the class in the file of its name."""
OF_SUMS = ("call_sites", "thread_times", "tree")
"""Each has of_sums(trace, sums), which gives the table."""
OF_TABLES = ("operators", "rivals", "steps")
"""Each has derive(trace, into), which writes the table."""


def make(trace: Trace, into: Mapping[str, Path], beside: Sequence[Sink] = ()) -> dict[str, Settled | None]:
    """Write derived tables, by name, of a trace or a window of it, in as few passes as can be; what no later segment changes of each.

    `beside`: what goes along with the passes over a whole trace.
    """
    sinks: list[Sink] = [getattr(_module(name), SINKS[name])(trace, into[name]) for name in into if name in SINKS]
    settled: dict[str, Settled | None] = {}
    if trace.whole is trace:
        settled |= run_kept(trace, sinks, beside)
    else:
        run(trace, *sinks)
    settled |= {name: _module(name).derive(trace, into[name]) for name in into if name in OF_TABLES}
    if of_sums := [name for name in OF_SUMS if name in into]:
        sums = sums_of(trace)
        for name in of_sums:
            write(TABLES[name], _module(name).of_sums(trace, sums), into[name] / part_name(0))
    return settled


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"pytrace_ebpf.derive.sinks.{name}")
