"""Say what a process does right now: the stack of each of its threads and tasks, what they wait for, who has it, and for how long already.

    pytrace-ebpf dump 4711
    pytrace-ebpf dump 4711 --locals
    pytrace-ebpf dump 4711 --json

No eBPF, no waiting, nothing changes in the process: it runs on while it is looked at. Frames of the program's own code are marked
with >. Named are the file, the address and process at the other end of a connection or pipe, the child; the lock and the thread that has it.
Threads that wait for each other come first, in a sentence. Root looks at any process, others at their own.
"""

import argparse
import json
import sys

from pytrace_ebpf.record.dump.described import described
from pytrace_ebpf.record.dump.threads import look
from pytrace_ebpf.record.filters import Observed, redacted
from pytrace_ebpf.record.process.target import inspect
from pytrace_ebpf.terminal.screen import console, width_of
from pytrace_ebpf.view.dump import dump

NAME = "dump"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `dump`."""
    parser.add_argument("pid", type=int, metavar="PID", help="process")
    parser.add_argument("--all", action="store_true", help="print all frames of deep stacks, and the names of all threads that do the same")
    parser.add_argument(
        "--args",
        action="store_const",
        const="args",
        dest="variables",
        help="print what the functions of the stacks were given, as far as `--args` of run and attach would: numbers, texts, sizes, types",
    )
    parser.add_argument("--locals", action="store_const", const="locals", dest="variables", help="the same of all their variables")
    parser.add_argument(
        "--redact",
        action="append",
        default=[],
        metavar="NAME",
        help="of variables of this name print only the type, in addition to *password*, *token*, *secret*, key and the like; none: without these",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, all times in ns")


def run(args: argparse.Namespace) -> int:
    """Print what process args.pid does."""
    target = inspect(args.pid)
    found = described(target, look(target, args.variables), Observed(redact=redacted(args.redact)))
    if args.json:
        json.dump(found, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return 0
    screen = console()
    screen.print(dump(found, width_of(screen), args.all))
    return 0
