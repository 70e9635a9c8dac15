"""Trace running Python processes from outside; Ctrl-C stops and finishes the trace, a second one ends at once.

    pytrace-ebpf attach 1234
    pytrace-ebpf attach 1234 1250 --duration 30
    pytrace-ebpf attach --match gunicorn

The processes run on untouched, during and after. Calls that were already open are in the trace with their names, marked
open_at_start. With a process its children are traced, those that it has and those that it starts. The recording ends
when all processes that were given have ended.
"""

import argparse
import re
import signal
import time
from dataclasses import replace

from pytrace_ebpf import priority
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.identity_patterns import HELP as WHO
from pytrace_ebpf.identity_patterns import Who
from pytrace_ebpf.options import option_rules, recording
from pytrace_ebpf.record import waiting
from pytrace_ebpf.record.process import descriptors
from pytrace_ebpf.record.source_selection.cpu_baseline import note_baseline
from pytrace_ebpf.runs import recorded, snapping, summing
from pytrace_ebpf.terminal import stopping
from pytrace_ebpf.trace.sampled import SAMPLES_ALONE
from pytrace_ebpf.units import nanoseconds

NAME = "attach"
_INSTEAD = "its stacks alone, by --rootless --sample, or all calls from its start, by pytrace-ebpf run --rootless -- COMMAND"

_ALL_CALLS = "attach --rootless samples stacks: give --sample, and no --source; all calls without privileges are recorded from a program's start: pytrace-ebpf run --rootless"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `attach`."""
    parser.add_argument("pids", type=process_ids, nargs="*", default=[], metavar="PID", help="process to trace; several, also joined by commas")
    parser.add_argument("-p", "--pid", type=process_ids, action="append", default=[], metavar="PID", help="the same as an option")
    parser.add_argument(
        "--match", type=pattern, metavar="PATTERN",
        help="trace every Python process whose command line has this regular expression in it, those that are started later too; "
        f"until Ctrl-C or --duration. One has to be there at the start. Or by who they are: {WHO}",
    )  # fmt: skip
    parser.add_argument("--duration", type=duration, metavar="S", help="stop after S seconds, or 90s, 1m30s (until Ctrl-C)")
    parser.add_argument(
        "--rootless",
        action="store_true",
        help="without eBPF and privileges, with --sample: stacks and what threads wait for, of processes of one's own",
    )
    recording.add_common_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Trace args.pids, args.pid and what args.match fits, until Ctrl-C, args.duration or their end."""
    waiting.tell(recorded.say, args.quiet)
    pids = list(dict.fromkeys(pid for each in (*args.pids, *args.pid) for pid in each))
    for pid in pids:
        note_baseline(pid)
    descriptors.allow_all()
    recording.prepare(option_rules.source(args))
    if not pids and args.match is None:
        raise UsageError("attach needs a process: its PID, or --match PATTERN for every matching Python process")
    option_rules.to_recording(args)
    if args.rootless and option_rules.source(args) != SAMPLES_ALONE:
        raise UsageError(_ALL_CALLS)
    with stopping.stop_signals(signal.SIGINT, *stopping.not_ignored(signal.SIGTERM, signal.SIGHUP)) as stopped, snapping.snap_requests(args) as asked:
        options = replace(
            recording.options(args), match=args.match, rootless=args.rootless, running=args.rootless, unasked=option_rules.may_leave_out(args)
        )
        session = recording.new_session(options, _INSTEAD)
        stopped.wake = session.wake
        try:
            with recorded.ticking("attaching", args.quiet):
                begun = session.start(*pids)
            priority.let_go()  # what is recorded is a program among the others
            recorded.beginning(begun, session.status().said, args.quiet)
            deadline = time.monotonic() + (args.duration or float("inf"))
            with (
                priority.first(args.duration or float("inf")),  # the end is due then, whatever is being written
                recorded.progress(args.quiet, "Ctrl-C stops and finishes the trace", recorded.cheaper(args)) as show,
                summing.beside(session, args.retain is not None or bool(args.trigger), show) as look,
            ):
                session.run(lambda: asked(session) or stopped() or time.monotonic() >= deadline, look)
            with priority.first(), recorded.ticking("finishing the trace", args.quiet):
                session.finish()
            recorded.closing(session, args.quiet)
        finally:
            session.close()
    return 0


def duration(text: str) -> float:
    """Seconds above 0. Raises ArgumentTypeError."""
    if not (seconds := nanoseconds(text) / 1e9):
        raise argparse.ArgumentTypeError(f"{text} is not a time: give one above 0")
    return seconds


def process_ids(text: str) -> list[int]:
    """The type of an option: numbers joined by commas."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a process id; give numbers, joined by commas") from None


def pattern(text: str) -> str:
    """The type of an option: a regular expression, or what identity_patterns.Who takes."""
    if Who.parsed(text):
        return text
    try:
        re.compile(text.encode())
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text} is not a regular expression: {error}") from None
    return text
