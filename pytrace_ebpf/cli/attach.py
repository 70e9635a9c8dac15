"""Trace a running Python process from outside; Ctrl-C stops and finishes the trace.

The process runs on untouched, during and after. Calls that were already open are
in the trace with their names, marked open_at_start.
"""

import argparse
import signal
import sys
import time

from pytrace_ebpf.cli import recording
from pytrace_ebpf.errors import UsageError

NAME = "attach"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `attach`."""
    parser.add_argument("--pid", type=int, required=True, help="process to trace")
    parser.add_argument("--duration", type=float, metavar="S", help="stop after S seconds (until Ctrl-C)")
    recording.add_common_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Trace args.pid until Ctrl-C, args.duration or its end."""
    from pytrace_ebpf.record.session import Session

    if args.duration is not None and args.duration <= 0:
        raise UsageError(f"--duration {args.duration} is not a time; give seconds above 0")
    with recording.stop_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)) as stopped:
        options = recording.options(args)
        session = Session(options, sys.argv)
        try:
            why = session.start(args.pid)
            if not args.quiet:
                print(f"tracing process {args.pid} by {why}", file=sys.stderr, flush=True)
            deadline = time.monotonic() + (args.duration or float("inf"))
            with recording.progress(args.quiet, "Ctrl-C stops and finishes the trace") as show:
                session.run(lambda: stopped() or time.monotonic() >= deadline, show)
            session.finish()
            recording.closing(session.status(), options.output, args.quiet)
        finally:
            session.close()
    return 0
