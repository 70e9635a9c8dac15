"""Have flight recorders write what they hold: recordings that were started with --trigger.

    pytrace-ebpf snap
    pytrace-ebpf snap 4711

PID is that of a tracer, not of what it traces; without one all that run here are asked, and that you may ask: root those of all
users, others their own. The trace has the seconds before, and goes on for what --after says; the tracer says where it is.
"""

import argparse

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.runs import snapping

NAME = "snap"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `snap`."""
    parser.add_argument("pids", type=int, nargs="*", default=[], metavar="PID", help="process of a flight recorder (all)")


def run(args: argparse.Namespace) -> int:
    """Ask the flight recorders args.pids, or all, for a trace."""
    answers = dict(answer for name in snapping.names() if (answer := snapping.ask(name, args.pids)) is not None)
    for pid in args.pids:
        if pid not in answers:
            raise TargetError(f"process {pid} is no flight recorder that you may ask; pytrace-ebpf attach PID --trigger CONDITION is one")
    if not answers:
        raise TargetError("no flight recorder runs here that you may ask; pytrace-ebpf attach PID --trigger CONDITION is one")
    if refused := [pid for pid, noted in answers.items() if not noted]:
        raise TargetError(
            f"process {', '.join(map(str, refused))} did not answer; root may send it SIGUSR2: kill -USR2 {' '.join(map(str, refused))}"
        )
    for pid in answers:
        print(f"process {pid} writes a trace of what it holds")
    return 0
