"""Check a trace against rules: what a program may call, in which order, how often, for how long, and what it may wait for.

    pytrace-ebpf check launched --rules rules.toml
    pytrace-ebpf check launched --rules asyncio
    pytrace-ebpf check launched --learn > rules.toml

A file of rules, or the name of one that comes with it. Each rule holds, is violated, or is unknown: where events
were lost, or what it is about was not recorded. docs/rules.md has the grammar.

Exit code 0 says that all rules hold, 1 that one is violated, 6 that none is but one is unknown.
"""

import argparse
import json
import sys
from typing import Any

from rich.text import Text

from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.options import option_rules, window
from pytrace_ebpf.rules import file, sentences
from pytrace_ebpf.rules.check import HOLDS, UNKNOWN, VIOLATED, Checked, check
from pytrace_ebpf.rules.learn import learned
from pytrace_ebpf.terminal.reading import answer
from pytrace_ebpf.terminal.screen import console

NAME = "check"
CODES = {HOLDS: 0, VIOLATED: 1, UNKNOWN: 6}
_STYLES = {HOLDS: "green", VIOLATED: "bold red", UNKNOWN: "yellow"}
_WIDTH = max(map(len, CODES))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `check`."""
    parser.add_argument("trace", metavar="TRACE", help="trace directory")
    parser.add_argument(
        "--rules",
        action="append",
        default=[],
        metavar="FILE",
        help=f"a file of rules, or one of those that come with it: {', '.join(file.shipped())}",
    )
    parser.add_argument(
        "--learn", action="store_true", help="print a file of rules that hold of this trace of a program that was right, to be cut down"
    )
    parser.add_argument("--all", action="store_true", help="a line for each call that violates a rule, not one for each path")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="lines to show of each rule; 0 for all (10)")
    parser.add_argument("--json", action="store_true", help="print JSON, all times in ns")
    option_rules.also(parser, window.add_arguments(parser), "--to")


def run(args: argparse.Namespace) -> int:
    """Print what becomes of each rule."""
    if args.top < 0:
        raise UsageError(f"--top {args.top} is negative; give the number of lines, or 0 for all.")
    if args.learn:
        _check_learning(args)
        sys.stdout.write(answer(args.trace, lambda trace: learned(window.windowed(trace, args))))
        return 0
    if not args.rules:
        raise UsageError(f"--rules is missing: name a file of rules, or one of {', '.join(file.shipped())}.")
    rules = [rule for named in args.rules for rule in file.read(named)]
    checked = answer(args.trace, lambda trace: check(window.windowed(trace, args), rules, each=args.all))
    if args.json:
        json.dump(_facts(args, checked), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        _print(args, checked)
    states = {verdict.state for verdict in checked.verdicts}
    return CODES[VIOLATED if VIOLATED in states else UNKNOWN if UNKNOWN in states else HOLDS]


def _check_learning(args: argparse.Namespace) -> None:
    given = [option for option, value in (("--rules", args.rules), ("--all", args.all), ("--json", args.json)) if value]
    if given:
        raise UsageError(f"--learn writes rules, and {given[0]} is of checking them; leave one of them out.")


def _print(args: argparse.Namespace, checked: Checked) -> None:
    screen = console()
    for verdict in checked.verdicts:
        screen.print(Text.assemble((f"{verdict.state:<{_WIDTH}}", _STYLES[verdict.state]), f"  {verdict.rule.name}: {verdict.rule.text}"))
        if judged := sentences.judged(verdict):
            screen.print(Text(f"{'':{_WIDTH}}  {judged}.", "dim"))
        rows = list(checked.violations[checked.violations["rule"] == verdict.rule.name].itertuples(index=False))
        shown = rows[: args.top or None]
        for row in shown:
            screen.print(Text(f"{'':{_WIDTH}}  {sentences.said(verdict.rule, row)}"))
            screen.print(Text(f"{'':{_WIDTH}}    {sentences.path(row)}", "dim"))
        if len(rows) > len(shown):
            screen.print(Text(f"{'':{_WIDTH}}  ... and {len(rows) - len(shown):,} more (--top 0)", "dim"))
    screen.print(Text(sentences.summary(checked.verdicts), "bold"))


def _facts(args: argparse.Namespace, checked: Checked) -> dict[str, Any]:
    rules = []
    for verdict in checked.verdicts:
        rows = checked.violations[checked.violations["rule"] == verdict.rule.name]
        told = [sentences.said(verdict.rule, row) for row in rows.itertuples(index=False)]
        plain = rows.drop(columns=["rule", "text"]).astype(object)
        records = plain.where(plain.notna(), None).to_dict("records")
        rules.append(
            {
                "rule": verdict.rule.name, "text": verdict.rule.text, "file": verdict.rule.where[0], "line": verdict.rule.where[1], "state": verdict.state,
                "calls": verdict.calls, "violations": verdict.violations, "unknown": list(verdict.unknown), "notes": list(verdict.notes),
                "found": [{"sentence": sentence, **record} for sentence, record in zip(told, records, strict=True)],
            }
        )  # fmt: skip
    return {"trace": args.trace, "rules": rules}
