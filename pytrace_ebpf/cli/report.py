"""Show where the time went: by function, module, thread or core, by request, step or rank of a training, coroutine or operator, what was waited for, and who waited for whose GIL.

By path: which chain of work and waits determined how long it took.

Each figure is split four ways: on a core, in the run queue, waiting for the GIL, blocked.
"-" stands for what was not recorded. docs/reading-a-report.md explains every line.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from pytrace_ebpf.analyze.functions import by_function as functions
from pytrace_ebpf.analyze.what_if import change
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.options import option_rules, window
from pytrace_ebpf.options.option_rules import has_answer
from pytrace_ebpf.printable import printable
from pytrace_ebpf.terminal.reading import answer, damage_reported, rights
from pytrace_ebpf.terminal.screen import Screen, ascii_only, console, width_of
from pytrace_ebpf.trace.files import whole as whole_file
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.view import order, summary
from pytrace_ebpf.view.by import BY
from pytrace_ebpf.view.only import HELP, of_calls, of_threads, only
from pytrace_ebpf.view.records import records
from pytrace_ebpf.view.report import report

NAME = "report"
_MOST_OF_A_TRACE = 10  # requests of one trace id that are shown
_EARLIER = {"errors": "error"}  # names of --by
_NARROWED = ("function", "module", "thread", "wait", "error")  # by their own `found`


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `report`."""
    parser.add_argument("trace", metavar="TRACE", help="trace directory")
    parser.add_argument(
        "--by",
        type=lambda name: _EARLIER.get(name, name),
        choices=BY,
        help="what a row is (function); error: which exceptions left which functions, which operators failed, with their shapes and lines",
    )
    parser.add_argument("--errors", action="store_true", help=argparse.SUPPRESS)  # as it was called
    parser.add_argument("--request", action="append", default=[], metavar="PATTERN", help=option_rules.REQUESTS_ALONE)
    parser.add_argument("--request-id", metavar="ID", help="by request: " + option_rules.REQUEST_ID)
    parser.add_argument("--step", action="append", default=[], metavar="PATTERN", help=option_rules.STEP)
    parser.add_argument("--slowest", type=int, metavar="N", help="by request, path, step and rank: show why the N slowest ones were slow (1)")
    parser.add_argument("--function", action="append", default=[], metavar="PATTERN", help=option_rules.PATH_OF)
    parser.add_argument("--what-if", metavar="CHANGE", help=change.HELP)
    parser.add_argument("--shapes", action="store_true", help="by operator: a row for each different shapes of its tensors")
    parser.add_argument("--only", metavar="WHAT", help=HELP)
    parser.add_argument("--imports", action="store_true", help="show what is called in imports function by function, not as one")
    parser.add_argument("--sort", metavar="COLUMN", help=order.HELP)
    parser.add_argument("--top", type=int, default=20, metavar="N", help="rows to show; 0 for all (20)")
    parser.add_argument("--json", action="store_true", help="print JSON, all times in ns, null for what was not recorded")
    parser.add_argument(
        "--html", metavar="FILE", help="write a page with all of it, too: timeline, flame graph, functions, waits, GIL, cores, requests"
    )
    option_rules.also(parser, window.add_arguments(parser), "--to")
    parser.add_argument(
        "--compensate",
        action="store_true",
        help="subtract tracing overhead from callers, and from native calls what lies within them",
    )


def run(args: argparse.Namespace) -> int:
    """Print the report of args.trace."""
    if args.slowest is not None and args.slowest < 0:
        raise UsageError(f"--slowest {args.slowest} is negative; give the number of those to show.")
    if args.top < 0:
        raise UsageError(f"--top {args.top} is negative; give the number of rows, or 0 for all.")
    if args.step and args.by is None and not args.errors:
        args.by = "step"
    if (args.request or args.request_id or args.slowest is not None) and args.by is None and not args.errors:
        args.by = "path" if args.what_if or args.function else "request"
    if (args.what_if or args.function) and args.by is None and not args.errors:
        args.by = "path"
    if args.what_if:
        change.parsed(args.what_if)
    if args.errors and args.by not in (None, "error"):
        raise UsageError(f"--errors and --by {args.by} are two reports; ask for one of them.")
    args.by = "error" if args.errors else args.by or "function"
    option_rules.to_answer(option_rules.REPORT, args, "by")
    only(args.only, args.by)
    if args.html and args.compensate:
        raise UsageError("--compensate has no effect on the page of --html, which shows what was recorded; leave one of them out.")
    facts, table = answer(args.trace, lambda trace: _answered(of_threads(window.windowed(trace, args), args.only, args.by), args))
    top = args.top or len(table)
    if args.json:
        facts["rows"] = records(table.head(top))
        json.dump(facts, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        _print(args, facts, table, console())
    if args.html:
        print(printable(f"{args.html}: open it in a browser"), file=sys.stderr)
    return 0


def show(args: argparse.Namespace, screen: Screen) -> dict[str, Any]:
    """Print the report of args.trace by function on `screen`; returns what it says."""
    args.by = "function"
    facts, table = answer(args.trace, lambda trace: _found(window.windowed(trace, args), args))
    _print(args, facts, table, screen)
    return facts


def _print(args: argparse.Namespace, facts: dict[str, Any], table: pd.DataFrame, screen: Screen) -> None:
    with damage_reported(args.trace):
        screen.print(report(facts, table, width_of(screen), ascii_only(), args.top or len(table)))


def _answered(trace: Trace, args: argparse.Namespace) -> tuple[dict[str, Any], pd.DataFrame]:
    """_found(), and the page where one is asked for."""
    found = _found(trace, args)
    if args.html:
        from pytrace_ebpf.view.page import page

        path, facts, view = Path(args.html), found[0], "summary"
        if args.by == "request":  # its page begins with them, and has all the rest
            facts, view = _found(trace, argparse.Namespace(**{**vars(args), "by": "function"}))[0] | {"requests": args.request}, "requests"
        try:
            with whole_file(path, rights()) as out:
                page.write(trace, facts, out, view)
        except OSError as error:
            raise UsageError(f"{path} cannot be written ({error.strerror}); name another file.") from None
    return found


def _on_cpu_ns(tree: pd.DataFrame) -> int | None:
    """In all calls together; None where it is not known of some."""
    split = functions.overall_of_tree(tree)
    return None if split["unknown_ns"] else split["on_cpu_ns"]


def _found(trace: Trace, args: argparse.Namespace) -> tuple[dict[str, Any], pd.DataFrame]:
    """What the report says, and its rows."""
    has_answer(trace, args.by)
    by = BY[args.by]
    facts = summary.summary(trace)
    facts |= {
        "window": window.facts(trace),
        "compensated": args.compensate,
        "shapes": args.shapes,
        "by": args.by,
        "sort": order.self_or_total(args.sort, args.by),
        "sorted_by": args.sort,
        "only": getattr(args, "only", None),
        "imports": getattr(args, "imports", False),
    }
    if not args.json:
        facts |= {"at_most": args.top or None}  # plain values of a million functions would be a gigabyte
    if args.by in ("request", "path"):
        default = _MOST_OF_A_TRACE if args.request_id else 1
        facts |= {"requests": args.request, "slowest": default if args.slowest is None else args.slowest, "request_id": args.request_id}
        facts |= {"functions": args.function, "what_if": args.what_if} if args.by == "path" else {}
    if args.by in ("step", "rank"):
        facts |= {"step": args.step, "slowest": 1 if args.slowest is None else args.slowest}
    if args.html:  # the page needs them, and the pass for them keeps what the tree is made of
        trace.whole.derive("waits")
    if by.before:
        by.before(trace)
    tree = trace.tree()
    tree["layer"] = tree["func_id"].map(trace.functions().set_index("func_id")["function_layer"]).astype(object).fillna("python")
    counts = tree["calls"].groupby(tree["layer"]).sum()
    facts |= {"calls": 0 if facts["sampled"] else int(counts.sum()), "cost": summary.cost(trace, counts, _on_cpu_ns(tree))}
    if args.compensate and not facts["cost"]:
        raise UsageError("--compensate needs the measured cost of a call, which this trace does not have; leave the option out.")
    if args.compensate and facts["cost"]["lines"] is not None:
        raise UsageError("--compensate takes off what calls cost, and this trace has lines too; leave the option out.")
    if args.compensate:
        from pytrace_ebpf.analyze.functions.compensated import compensated

        tree = compensated(tree, *summary.costs(tree, trace.manifest))
    facts |= {"split": functions.overall_of_tree(tree), "sentence": None}
    if args.compensate and by.of_compensated:  # what a call's own costs depends on all that lie below it
        from pytrace_ebpf.analyze.native.around import calls_within

        calls = calls_within(trace, [*functions.COLUMNS, "layer"])
        tree = functions.compensate(calls, *summary.costs(calls, trace.manifest))
    trace.progress("Summing", None)
    table, more = by.found(trace, tree, facts)
    if (chosen := of_calls(facts["only"], args.by)) and args.by not in _NARROWED:
        table = chosen.rows(trace, table)
    table = order.ordered(table, facts)
    facts |= more
    facts["wrong_sums"] = [] if args.compensate or facts["only"] else summary.wrong_sums(trace, table, facts)
    return facts, table
