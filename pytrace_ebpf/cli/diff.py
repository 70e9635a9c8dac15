"""Compare two traces of a program, or two sets of traces: what got slower, in which state, and with what confidence.

    pytrace-ebpf diff before after
    pytrace-ebpf diff main branch --fail-over 5%
    pytrace-ebpf diff --until-sure --fail-over 5% -- python3 old.py -- python3 new.py

Each side is a trace, or a directory with traces right below it, which are repeated runs: with two or more
on each side the report says what is more than chance. Functions are matched by module and name, so that
lines may have moved. Recordings of a piece of a program's life are compared by the second.

Exit code 1 says that something got slower by more than --fail-over, and not by chance: with three or more
runs of each side at most 5 % of comparisons of one and the same program say so, however many functions
it has. What is judged is time on a core, which other programs disturb least, unless --value is given.
--until-sure records runs of two command lines in turn until it can tell.
"""

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path

from pytrace_ebpf.diff import page
from pytrace_ebpf.diff import report as view
from pytrace_ebpf.diff.causes import waited
from pytrace_ebpf.diff.changes import BY, VALUES, changes, names_of, whole_change
from pytrace_ebpf.diff.findings import changed
from pytrace_ebpf.diff.judge import VALUE, Judgement, judge
from pytrace_ebpf.diff.report import phrase_of
from pytrace_ebpf.diff.sides import PER, Side, both, traces_in
from pytrace_ebpf.diff.verdict import LEAST_RUNS, RATE
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.experiment.compare import SORTS
from pytrace_ebpf.printable import printable
from pytrace_ebpf.terminal.reading import opened, rights
from pytrace_ebpf.terminal.screen import ascii_only, console, width_of
from pytrace_ebpf.trace.files import whole as whole_file
from pytrace_ebpf.units import share_of
from pytrace_ebpf.view.text import duration, percent

NAME = "diff"
SLOWER = 1  # exit code
_NAMED = 3
_RUNS = 20  # of each program, at most
_SHARE = 0.05  # what --until-sure is to be sure of where nobody says


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `diff`."""
    parser.add_argument(
        "traces", nargs="*", metavar="A B", help="trace directories, or directories with several: what is compared with, and what is compared"
    )
    parser.add_argument("--by", choices=BY, default="function", help="what a row is (function)")
    parser.add_argument("--sort", choices=tuple(SORTS), default="self", help="time without or with the calls below (self)")
    parser.add_argument("--value", choices=VALUES, help="which time is compared (shown is wall, and on_cpu judged)")
    parser.add_argument("--per", choices=PER, help="time of a whole run, or of a second of it (run where all traces are whole runs, else second)")
    parser.add_argument(
        "--fail-over",
        metavar="SHARE",
        help="exit with code 1 where all calls together, or one row, surely take longer by more than this share of all time before, for example 5%%",
    )
    parser.add_argument("--single-run", action="store_true", help="with --fail-over, exit with code 1 also where there are too few runs to be sure")
    parser.add_argument(
        "--until-sure",
        action="store_true",
        help="record runs of two programs in turn, until it is sure whether B is slower: -- COMMAND A -- COMMAND B",
    )
    parser.add_argument("--runs", type=int, metavar="N", help=f"with --until-sure, runs of each at most ({_RUNS})")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="with --until-sure, where the traces go (a new directory here)")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="rows to show; 0 for all (20)")
    parser.add_argument("--html", metavar="FILE", help="write a page with a differential flame graph, too")
    parser.add_argument("--json", action="store_true", help="print JSON, all times in ns, null for what was not recorded")


def run(args: argparse.Namespace) -> int:
    """Print what differs between the two sides that args name, or have recorded."""
    programs = _check(args)
    limit = None if args.fail_over is None else share_of("--fail-over", args.fail_over)
    share, rate = _SHARE if limit is None else limit, RATE
    if programs is not None:
        from pytrace_ebpf.runs import until_sure

        def is_sure(sides: tuple[Path, Path], chance: float) -> bool:
            nonlocal rate
            rate = chance
            with ExitStack() as stack:
                old, new, _ = _sides(stack, sides, args.per)
                judged = _judged(old, new, args, share, rate)
            return judged.slower or judged.none

        args.traces = [str(side) for side in until_sure.record(programs, args.output, _RUNS if args.runs is None else args.runs, is_sure)]
    return _compare(args, limit, share, rate)


def _compare(args: argparse.Namespace, limit: float | None, share: float, rate: float) -> int:
    """Show what differs; the exit code."""
    asked = {"by": args.by, "sort": args.sort, "value": args.value or "wall", "per": args.per}
    with ExitStack() as stack:
        old, new, asked["per"] = _sides(stack, tuple(map(Path, args.traces)), args.per)
        table, whole = changes(old, new, args.by, args.sort, asked["value"]), whole_change(old, new, asked["value"])
        if asked["value"] == "wall" and (args.by, args.sort) == ("function", "self"):
            table = waited(old, new, table)
        found = changed(old, new)
        judged = None if limit is None and not args.until_sure else _judged(old, new, args, share, rate)
    if args.html is not None:
        path = Path(args.html)
        try:
            with whole_file(path, rights()) as out:
                page.write(old, new, view.sentence(old, new, table, whole, asked), out)
        except OSError as error:
            raise UsageError(f"{path} cannot be written ({error.strerror}); name another file.") from None
        print(printable(f"{path}: open it in a browser"), file=sys.stderr)
    if args.json:
        json.dump(view.facts(old, new, table, whole, found, asked, args.top), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        screen = console()
        screen.print(view.report(old, new, table, whole, found, asked, width_of(screen), ascii_only(), args.top))
    if judged is None:
        return 0
    fails, said = _verdict(old, new, judged, args, share)
    if said:
        print(f"pytrace-ebpf: {said}", file=sys.stderr)
    return SLOWER if fails and limit is not None else 0


def _check(args: argparse.Namespace) -> tuple[list[str], list[str]] | None:
    """The programs to record, None where traces were named. Raises UsageError for what does not go together."""
    if args.top < 0:
        raise UsageError(f"--top {args.top} is negative; give the number of rows, or 0 for all.")
    if args.single_run and args.fail_over is None:
        raise UsageError("--single-run has no effect without --fail-over; leave it out.")
    if not args.until_sure:
        if given := [name for name in ("runs", "output") if getattr(args, name) is not None]:
            raise UsageError(f"--{given[0]} has no effect without --until-sure, which records; leave it out.")
        if len(args.traces) != 2:
            raise UsageError(
                f"diff compares two sides, and {len(args.traces)} {'was' if len(args.traces) == 1 else 'were'} named: pytrace-ebpf diff A B"
            )
        return None
    from pytrace_ebpf.runs import until_sure

    if args.single_run:
        raise UsageError("--single-run cannot go with --until-sure, which makes as many runs as it needs; leave one of them out.")
    if args.runs is not None and args.runs < LEAST_RUNS:
        raise UsageError(f"--runs {args.runs} are too few to be sure of anything; give {LEAST_RUNS} or more.")
    return until_sure.commands(args.words)


def _sides(stack: ExitStack, named: tuple[Path, ...], per: str | None) -> tuple[Side, Side, str]:
    before, after = ([stack.enter_context(opened(str(path))) for path in traces_in(side)] for side in named)
    return both(before, after, (str(named[0]), str(named[1])), per)


def _judged(old: Side, new: Side, args: argparse.Namespace, share: float, rate: float) -> Judgement:
    judged = judge(old, new, args.by, args.sort, args.value or VALUE, share, rate)
    if not judged.known:
        raise UsageError(
            f"{phrase_of(judged.value)} was not recorded in all of these traces, so nothing is judged by it; --value names another time."
        )
    return judged


def _verdict(old: Side, new: Side, judged: Judgement, args: argparse.Namespace, share: float) -> tuple[bool, str]:
    """Whether it is slower, and a sentence that says so, or why that is not said."""
    by = f"by more than {percent(share, 1)} of all {phrase_of(judged.value)}"
    if judged.slower:
        known = f"of comparisons of one and the same program at most {percent(RATE, 1)} say so"
        return True, f"slower {by}: {_named(old, new, judged.certain(), args.by)}; {known}."
    few = f"fewer than {LEAST_RUNS} runs of each side cannot tell that from chance"
    if judged.found and judged.sure is None:
        said = f"slower {by}: {_named(old, new, judged, args.by)}; {few}"
        return args.single_run, f"{said}." if args.single_run else f"{said}, so it does not count: record more runs in turn, or say --single-run."
    if judged.found:
        return False, f"{_named(old, new, judged, args.by)} {by}, which may be chance: runs of one and the same program differ as much."
    if args.until_sure:
        return (
            False,
            f"nothing is slower {by}." if judged.none else f"nothing is seen to be slower {by}, but the runs differ too much to rule it out.",
        )
    return False, ""


def _named(old: Side, new: Side, judged: Judgement, by: str) -> str:
    first = judged.rows.head(_NAMED)
    named = [("all calls together", judged.change_ns)] if judged.together else []
    named += list(zip(names_of(old, new, first, by), first["change_ns"], strict=True))
    more = f" and {len(judged.rows) - _NAMED:,} more" if len(judged.rows) > _NAMED else ""
    return ", ".join(f"{printable(name)} (+{duration(ns)})" for name, ns in named) + more
