"""Say what is in a trace: tables, sources, losses, whether it is complete.

Nothing is computed from the events: `info` is quick also on a large trace.
"""

import argparse
import json
import sys

from pytrace_ebpf.terminal.reading import opened
from pytrace_ebpf.terminal.screen import console, width_of
from pytrace_ebpf.trace.manifest import open_directory
from pytrace_ebpf.trace.verifying import Verified, verify
from pytrace_ebpf.units import plural
from pytrace_ebpf.view.contents import contents
from pytrace_ebpf.view.info import info

NAME = "info"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `info`."""
    parser.add_argument("trace", metavar="TRACE", help="trace directory")
    parser.add_argument("--verify", action="store_true", help="read all of it, and compare it with the checksums of when it was recorded")
    parser.add_argument("--json", action="store_true", help="print JSON, all times in ns")


def run(args: argparse.Namespace) -> int:
    """Print what is in args.trace."""
    with opened(args.trace) as trace:
        facts = contents(trace)
        verified = verify(open_directory(trace.directory), trace.manifest)._asdict() if args.verify else None
    if verified is not None:
        facts["verified"] = verified
    if args.json:
        json.dump(facts, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return 0
    if verified is not None:
        print(_said(Verified(**verified)))
    screen = console()
    screen.print(info(facts, width_of(screen)))
    return 0


def _said(found: Verified) -> str:
    if found.unsealed:
        return f"{plural(found.unsealed, 'part')} of {found.parts:,} cannot be verified: a trace from before there were checksums has none."
    return f"{plural(found.parts, 'part')}, {found.bytes / 1e6:,.1f} MB: all of it is as it was recorded."
