"""Show where the time went: by function, module, thread or core, by coroutine or operator, what was waited for, who waited for whose GIL.

Each figure is split four ways: on a core, in the run queue, waiting for the GIL, blocked.
"-" stands for what was not recorded. docs/reading-a-report.md explains every line.
"""

import argparse
import json
import sys
from typing import Any

import pandas as pd

import pytrace_ebpf
from pytrace_ebpf.analyze import by_function as functions
from pytrace_ebpf.cli.screen import ascii_only, console
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.view import summary
from pytrace_ebpf.view.by import BY
from pytrace_ebpf.view.report import report, width_of

NAME = "report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `report`."""
    parser.add_argument("trace", metavar="TRACE", help="trace directory")
    parser.add_argument("--by", choices=BY, default="function", help="what a row is (function)")
    parser.add_argument("--errors", action="store_const", dest="by", const="errors", help="which operators failed, with their shapes and lines")
    parser.add_argument("--shapes", action="store_true", help="by operator: a row for each different shapes of its tensors")
    parser.add_argument("--sort", choices=("self", "total"), default="self", help="time without or with the calls below (self)")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="rows to show; 0 for all (20)")
    parser.add_argument("--json", action="store_true", help="print JSON, all times in ns, null for what was not recorded")
    parser.add_argument("--compensate", action="store_true", help="take off the callers what tracing the calls below them cost, and off native calls what lies within them")


def run(args: argparse.Namespace) -> int:
    """Print the report of args.trace."""
    if args.top < 0:
        raise UsageError(f"--top {args.top} is negative; give the number of rows, or 0 for all.")
    trace = pytrace_ebpf.open(args.trace)
    facts = summary.summary(trace)
    by = BY[args.by]
    calls = trace.calls(columns=list(dict.fromkeys([*functions.COLUMNS, "depth", "layer", *by.columns])))
    facts |= {"calls": len(calls), "cost": summary.cost(trace, calls)}
    facts |= {"compensated": args.compensate, "shapes": args.shapes, "by": args.by, "sort": args.sort if args.by in functions.KEYS else None}
    if args.compensate:
        if not facts["cost"]:
            raise UsageError("--compensate needs the measured cost of a call, which this trace does not have; leave the option out.")
        calls = functions.compensate(calls, *summary.costs(calls, trace.manifest["cost"]))
    facts |= {"split": functions.overall(calls), "sentence": None}
    table, more = by.found(trace, calls, facts)
    facts |= more
    top = args.top or len(table)
    if args.json:
        facts["rows"] = records(table.head(top))
        json.dump(facts, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return 0
    screen = console()
    screen.print(report(facts, table, width_of(screen), ascii_only(), top))
    return 0


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON has them: integers, strings, null."""
    plain = table.astype(object).where(table.notna(), None)
    return [{k: v if v is None or isinstance(v, str) else int(v) for k, v in row.items()} for row in plain.to_dict("records")]
