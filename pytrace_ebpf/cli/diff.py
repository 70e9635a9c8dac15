"""Compare two traces of a program, or two sets of traces: what got slower, by which of the four ways, and how sure that is.

    pytrace-ebpf diff before after
    pytrace-ebpf diff main branch --fail-over 5%

Each side is a trace, or a directory with traces right below it, which are repeated runs: with two or more
on each side the report says what is more than chance. Functions are matched by module and name, so that
lines may have moved. Recordings of a piece of a program's life are compared by the second.

Exit code 1 says that something got slower by more than --fail-over.
"""

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pytrace_ebpf.cli.reading import opened, rights
from pytrace_ebpf.cli.screen import ascii_only, console
from pytrace_ebpf.diff import page
from pytrace_ebpf.diff import report as view
from pytrace_ebpf.diff.changes import BY, VALUES, changes, names_of, over, whole_change
from pytrace_ebpf.diff.report import share_of
from pytrace_ebpf.diff.sides import PER, both, traces_in
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.experiment.compare import SORTS
from pytrace_ebpf.printable import printable
from pytrace_ebpf.trace.files import whole as whole_file
from pytrace_ebpf.view.report import width_of
from pytrace_ebpf.view.text import duration, percent

NAME = "diff"
SLOWER = 1  # exit code
_NAMED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `diff`."""
    parser.add_argument("before", metavar="A", help="trace directory, or a directory with several: what is compared with")
    parser.add_argument("after", metavar="B", help="trace directory, or a directory with several: what is compared")
    parser.add_argument("--by", choices=BY, default="function", help="what a row is (function)")
    parser.add_argument("--sort", choices=tuple(SORTS), default="self", help="time without or with the calls below (self)")
    parser.add_argument("--value", choices=VALUES, default="wall", help="which time is compared (wall)")
    parser.add_argument("--per", choices=PER, help="time of a whole run, or of a second of it (run where all traces are whole runs, else second)")
    parser.add_argument(
        "--fail-over",
        metavar="SHARE",
        help="exit with code 1 where all calls together, or one row, take longer by more than this share of all time before, for example 5%%",
    )
    parser.add_argument("--top", type=int, default=20, metavar="N", help="rows to show; 0 for all (20)")
    parser.add_argument("--html", metavar="FILE", help="write a page with a differential flame graph, too")
    parser.add_argument("--json", action="store_true", help="print JSON, all times in ns, null for what was not recorded")


def run(args: argparse.Namespace) -> int:
    """Print what differs between args.before and args.after."""
    if args.top < 0:
        raise UsageError(f"--top {args.top} is negative; give the number of rows, or 0 for all.")
    limit = None if args.fail_over is None else share_of("--fail-over", args.fail_over)
    asked = {"by": args.by, "sort": args.sort, "value": args.value, "per": args.per}
    with ExitStack() as stack:
        before, after = ([stack.enter_context(opened(str(path))) for path in traces_in(Path(side))] for side in (args.before, args.after))
        old, new, asked["per"] = both(before, after, (args.before, args.after), args.per)
        table, whole = changes(old, new, args.by, args.sort, args.value), whole_change(old, new, args.value)
    if args.html is not None:
        path = Path(args.html)
        try:
            with whole_file(path, rights()) as out:
                page.write(old, new, view.sentence(old, new, table, whole, asked), out)
        except OSError as error:
            raise UsageError(f"{path} cannot be written ({error.strerror}); name another file.") from None
        print(printable(f"{path}: open it in a browser"), file=sys.stderr)
    if args.json:
        json.dump(view.facts(old, new, table, whole, asked, args.top), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        screen = console()
        screen.print(view.report(old, new, table, whole, asked, width_of(screen), ascii_only(), args.top))
    if limit is None:
        return 0
    together, rows = over(old, table, whole, args.value, limit)
    if not together and not len(rows):
        return 0
    first = rows.head(_NAMED)
    named = [("all calls together", whole["change_ns"])] if together else []
    named += list(zip(names_of(old, new, first, args.by), first["change_ns"], strict=True))
    more = f" and {len(rows) - _NAMED:,} more" if len(rows) > _NAMED else ""
    print(f"pytrace-ebpf: slower by more than {percent(limit, 1)}: {', '.join(_named(*each) for each in named)}{more}.", file=sys.stderr)
    return SLOWER


def _named(name: str, ns: Any) -> str:
    return f"{printable(name)} (+{duration(ns)})"
