"""Say what is in a trace: tables, sources, losses, whether it is complete.

Nothing is computed from the events: `info` is quick also on a large trace.
"""

import argparse
import json
import sys

from pytrace_ebpf.cli.reading import opened
from pytrace_ebpf.cli.screen import console
from pytrace_ebpf.view.contents import contents
from pytrace_ebpf.view.info import info
from pytrace_ebpf.view.report import width_of

NAME = "info"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `info`."""
    parser.add_argument("trace", metavar="TRACE", help="trace directory")
    parser.add_argument("--json", action="store_true", help="print JSON, all times in ns")


def run(args: argparse.Namespace) -> int:
    """Print what is in args.trace."""
    with opened(args.trace) as trace:
        facts = contents(trace)
    if args.json:
        json.dump(facts, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return 0
    screen = console()
    screen.print(info(facts, width_of(screen)))
    return 0
