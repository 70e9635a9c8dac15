"""Options that name a piece of a trace: from when to when, which process, which thread."""

import argparse
from typing import Any

from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.identity_patterns import HELP, Who
from pytrace_ebpf.trace.confidential import HELP as CONFIDENTIAL
from pytrace_ebpf.trace.confidential import Confidential
from pytrace_ebpf.trace.copying import Copied, OfProcesses
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.units import nanoseconds
from pytrace_ebpf.view.text import duration

_EXAMPLE = "seconds from the start of the recording, or 250ms, 90s, 1m30s"


def add_arguments(parser: argparse.ArgumentParser) -> argparse.Action:
    """--from, --until, --pid, --match, --tid and --confidential. Returns --until."""
    parser.add_argument("--from", dest="from_", metavar="S", help=f"leave out what was before: {_EXAMPLE}")
    until = parser.add_argument(
        "--until", metavar="S", help="leave out what was after, likewise; of a call that crosses an edge, what lies within counts"
    )
    parser.add_argument("--pid", type=int, help="this process alone")
    parser.add_argument("--match", metavar="WHO", help=f"the processes alone that are {HELP}")
    parser.add_argument("--tid", type=int, help="this thread alone")
    parser.add_argument("--confidential", action="store_true", help=CONFIDENTIAL)
    return until


def windowed(trace: Trace, args: argparse.Namespace) -> Trace:
    """The piece of `trace` that is asked for, or the trace; of several processes, and of a confidential one, of a copy. Raises UsageError."""
    trace, pid = _of_match(trace, args)
    asked = (args.from_, args.until, pid, args.tid)
    trace = Confidential(trace) if getattr(args, "confidential", False) else trace
    if asked == (None, None, None, None):
        return trace
    start, end = (None if said is None else nanoseconds(said, _EXAMPLE) for said in asked[:2])
    length = trace.end_ns - trace.start_ns
    if end is not None and (start or 0) >= end:
        raise UsageError(f"the window ends at {args.until} and begins at {args.from_ or 0}: give an end that is later.")
    if start is not None and start >= length:
        raise UsageError(f"the recording is {duration(length)} long, so nothing is left from {args.from_} on: begin earlier.")
    threads = trace.threads()
    for name, wanted in (("pid", asked[2]), ("tid", args.tid)):
        if wanted is not None and wanted not in set(threads[name]):
            few = ", ".join(map(str, threads[name].unique()[:10]))
            raise UsageError(f"--{name} {wanted} is not in this trace; name one that is: {few}.")
    start_ns, end_ns = (None if ns is None else trace.start_ns + ns for ns in (start, end))
    piece = trace.window(start_ns, end_ns, *asked[2:])
    piece.progress = trace.progress
    return piece


def _of_match(trace: Trace, args: argparse.Namespace) -> tuple[Trace, int | None]:
    """The trace, and the process that --match or --pid names, None for all; where several processes fit, but not all, a copy with these alone. Raises UsageError."""
    if (text := getattr(args, "match", None)) is None:
        return trace, args.pid
    wanted, rows = Who.parsed(text), trace.processes().drop_duplicates("pid", keep="last").to_dict("records")
    if wanted is None:
        raise UsageError(f"--match {text} says nothing of who a process is: write {HELP}.")
    fitting = [int(row["pid"]) for row in rows if wanted.fits(row) and args.pid in (None, int(row["pid"]))]
    if not fitting:
        raise UsageError(f"--match {text} fits no process of this trace; pytrace-ebpf info {args.trace} says which there are.")
    if len(fitting) == 1:
        return trace, fitting[0]
    return trace if len(fitting) == len(rows) else Copied(trace, OfProcesses(fitting)), None


def facts(trace: Trace) -> dict[str, Any] | None:
    """What report --json says of the window; None for the whole."""
    if trace.whole is trace:
        return None
    start = trace.whole.start_ns
    return {
        "from_ns": trace.start_ns - start, "to_ns": trace.end_ns - start, "of_ns": trace.whole.end_ns - start,
        "pid": getattr(trace, "pid", None), "tid": getattr(trace, "tid", None),
    }  # fmt: skip
