"""Run one program under several settings, trace every run, and show what more cores or threads gained.

    pytrace-ebpf experiment --cpus 0 --cpus 0,1 --repeat 5 -o scaling -- python3 program.py
    pytrace-ebpf experiment --report scaling --by function

A setting is each combination of --cpus (as for taskset -c), --threads (OMP_NUM_THREADS and its
like, which torch obeys too) and --gil (of a build of CPython that can do without). Runs of all settings take turns. The first setting is what the
others are compared with. docs/experiments.md explains the report and the data set.
"""

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import pandas as pd

import pytrace_ebpf
from pytrace_ebpf import extras
from pytrace_ebpf.cli import run as run_command
from pytrace_ebpf.errors import HostError, PytraceError, TargetError, UsageError
from pytrace_ebpf.experiment import compare
from pytrace_ebpf.experiment import report as view
from pytrace_ebpf.experiment.data import TRACES, Experiment, open_experiment
from pytrace_ebpf.experiment.sentence import sentences
from pytrace_ebpf.experiment.settings import Setting, settings
from pytrace_ebpf.options import option_rules
from pytrace_ebpf.record.output.directory import Output
from pytrace_ebpf.record.rights.user import as_caller
from pytrace_ebpf.runs import repeated
from pytrace_ebpf.terminal import progress, stopping
from pytrace_ebpf.terminal.reading import damage_reported
from pytrace_ebpf.terminal.screen import ascii_only, console, width_of
from pytrace_ebpf.view.text import duration

NAME = "experiment"
_REPEATS, _TOP = 3, 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `experiment`: its own, and those of `run`."""
    own = parser.add_argument_group("settings")
    own.add_argument(
        "--cpus", action="append", default=[], metavar="LIST", help="cores to run on, as for taskset -c (0 or 0-3); give it for each setting"
    )
    own.add_argument(
        "--threads", action="append", type=_number, default=[], metavar="N", help="threads of OpenMP, MKL, OpenBLAS, torch; give it for each setting"
    )
    own.add_argument(
        "--gil", action="append", choices=("on", "off"), default=[], help="of a free-threaded Python (3.13t, 3.14t); give it for each setting"
    )
    own.add_argument("--repeat", type=_number, metavar="N", help=f"runs of each setting ({_REPEATS})")
    shown = parser.add_argument_group("report")
    shown.add_argument("--report", type=Path, metavar="DIR", help="run nothing, but show the experiment in this directory")
    shown.add_argument(
        "--by",
        choices=tuple(compare.KEYS),
        help="what a row is (function, operator and nn.Module or, of a program that calls none, module, each in turn)",
    )
    shown.add_argument("--sort", choices=tuple(compare.SORTS), default="self", help="time without or with the calls below (self)")
    shown.add_argument("--top", type=int, metavar="N", help=f"rows of a table; 0 for all ({_TOP}); with --json of the pictures alone")
    shown.add_argument("--json", action="store_true", help="print JSON, all times in ns, null for what was not recorded")
    shown.add_argument(
        "--plot", type=Path, metavar="DIR", help="where to draw the pictures (after the runs the experiment's own directory; else none)"
    )
    before = len(parser._actions)
    run_command.add_arguments(parser)
    for action in parser._actions[before:]:
        if action.dest != "output":
            action.type = None  # it is passed on as it was written


def run(args: argparse.Namespace) -> int:
    """Carry out the experiment that args ask for, or show one."""
    _check(args)
    if args.plot is not None:
        _drawing()  # raises before anything is run
    if args.report is not None:
        experiment = open_experiment(args.report)
    else:
        experiment = _carry_out(args)
    with damage_reported(experiment.directory):
        _show(experiment, args)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raise UsageError for options without effect; `top` gets its default."""
    if args.report is not None and (
        words := [*(option_rules.flag(name) for name in option_rules.RUNS if option_rules.given(args, name)), *_again(args)[:1]]
    ):
        raise UsageError(f"{words[0]} has no effect with --report, which shows an experiment that was done; leave it out.")
    if args.report is not None and args.json and args.plot is None and args.top is not None:
        raise UsageError("--top has no effect with --json, which has all rows; leave it out.")
    option_rules.to_recording(args)
    args.top = _TOP if args.top is None else args.top
    if args.top < 0:
        raise UsageError(f"--top {args.top} is negative; give the number of rows, or 0 for all.")


def _drawing() -> Callable[..., list[Path]]:
    """What draws the pictures. Raises HostError where the package for it is missing."""
    try:
        from pytrace_ebpf.experiment.plot import draw
    except ModuleNotFoundError as error:
        if (said := extras.missing(error)) is None:
            raise
        raise said from None
    return draw


def _number(written: str) -> int:
    number = int(written)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{written} is not a number from 1 on")
    return number


def _carry_out(args: argparse.Namespace) -> Experiment:
    """All runs, in turns (a b a b), each an ordinary `run` of its own process. Raises PytraceError."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("experiment needs a program to start: pytrace-ebpf experiment --cpus 0 --cpus 0,1 -- python3 program.py")
    if shutil.which(command[0]) is None:
        raise TargetError(f"cannot run {command[0]}: there is no such program.")
    options, chosen = _again(args), settings(args.cpus, args.threads, args.gil)
    with as_caller():
        made = Output(args.output, "experiment")
        made.close()
    directory = made.path
    rows = [{"setting": s.name, "cpus": s.cpus and list(s.cpus), "threads": s.threads, "cores": s.cores} for s in chosen]
    experiment = Experiment(directory, list(command), rows, [])
    with stopping.stop_signals(signal.SIGINT, *stopping.not_ignored(signal.SIGTERM, signal.SIGHUP)) as stopped:
        try:
            _take_turns(experiment, chosen, args.repeat or _REPEATS, options, stopped, args.quiet)
        except (PytraceError, KeyboardInterrupt):
            if experiment.runs and not args.quiet:
                print(_look_again(directory), file=sys.stderr)
            raise
    return experiment


def _take_turns(experiment: Experiment, chosen: Sequence[Setting], repeats: int, options: list[str], stopped: stopping.Stopped, quiet: bool) -> None:
    """The runs, a b a b, so that what else goes on meets all settings alike; `options` are words of `run`."""
    turns = [(repeat, setting) for repeat in range(1, repeats + 1) for setting in chosen]
    began, said = time.monotonic(), f"{len(turns)} runs, in turns: {', '.join(setting.name for setting in chosen)}"
    with nullcontext(_silent) if quiet else progress.turns(len(turns)) as begin:
        for number, (repeat, setting) in enumerate(turns, 1):
            begin(f"{setting.name}, repeat {repeat} of {repeats}", said)
            if stopped():
                raise KeyboardInterrupt
            _turn(experiment, setting, repeat, options, stopped)
            left = duration((time.monotonic() - began) / number * (len(turns) - number) * 1e9)
            more = f"   about {left} left" if number < len(turns) else ""
            said = f"{number}/{len(turns)}  {setting.name}  {experiment.runs[-1]['wall_ns'] / 1e9:.2f} s{more}"
        begin("", said)


def _silent(_what: str, _before: str) -> None:
    pass


def _turn(experiment: Experiment, setting: Setting, repeat: int, options: list[str], stopped: stopping.Stopped) -> None:
    """One run, recorded and added to the data set."""
    folder = experiment.directory / TRACES / setting.folder
    with as_caller():
        folder.mkdir(parents=True, exist_ok=True)
    trace, log = folder / str(repeat), folder / f"{repeat}.log"
    repeated.record(setting.command(experiment.command), [*options, "-q", "-o", str(trace)], log, stopped, setting.name, setting.environment)
    with as_caller():
        experiment.add(pytrace_ebpf.open(trace), setting.name, repeat, log)


def _look_again(directory: Path) -> str:
    return f"experiment in {directory}    look at it: pytrace-ebpf experiment --report {directory}"


def _again(args: argparse.Namespace) -> list[str]:
    """The words of `run`'s options in `args`, but for --output and --quiet. Raises UsageError."""
    parser, words = argparse.ArgumentParser(prog=f"pytrace-ebpf {NAME}", add_help=False), list[str]()
    run_command.add_arguments(parser)
    for action in parser._actions:
        value = getattr(args, action.dest)
        if action.option_strings and value != action.default and action.dest not in ("output", "quiet"):
            flag = action.option_strings[-1]
            words += [flag] if value is True else [word for each in ([value] if isinstance(value, str) else value) for word in (flag, each)]
    parser.parse_args(words)
    return words


def _compared(experiment: Experiment, by: str | None, sort: str) -> tuple[pd.DataFrame, dict[str, pd.DataFrame], pd.DataFrame, list[str]]:
    """experiment.compare's whole runs, tables, and paths that only some settings have; and the sentences on them."""
    runs, levels = compare.whole_runs(experiment), compare.levels(experiment)
    own = {level: compare.compare(experiment, level, "self") for level in levels}
    asked = (by,) if by else levels
    tables = {level: own[level] if level in own and sort == "self" else compare.compare(experiment, level, sort) for level in asked}
    shown = {level: table for level, table in tables.items() if len(table) or level == by}
    return runs, shown, compare.only_in_some(experiment), sentences(experiment, runs, own)


def _show(experiment: Experiment, args: argparse.Namespace) -> None:
    """Print the report, and draw its pictures where that is wanted."""
    with progress.shown("Comparing"):
        runs, tables, only, said = _compared(experiment, args.by, args.sort)
    if args.json:
        json.dump(view.facts(experiment, args.sort, runs, tables, only, said), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        screen = console()
        screen.print(view.report(experiment, args.sort, runs, tables, only, said, width_of(screen), ascii_only(), args.top))
    pictures = args.plot if args.report is not None else args.plot or experiment.directory
    try:
        draw = _drawing() if pictures is not None else None
    except HostError as error:  # nobody asked for them
        draw = None
        print(f"no pictures: {error}", file=sys.stderr)
    if draw is not None and pictures is not None:
        with as_caller():
            pictures.mkdir(parents=True, exist_ok=True)
        with progress.shown("Drawing"):
            drawn = [path for by, table in tables.items() for path in draw(experiment, by, args.sort, runs, table, args.top, pictures, as_caller)]
        if not args.quiet:
            print(f"pictures: {' '.join(map(str, drawn))}", file=sys.stderr)
    if args.report is None and not args.quiet:
        print(_look_again(experiment.directory), file=sys.stderr)
