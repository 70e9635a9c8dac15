"""Run one program under several settings, trace every run, and show what more cores or threads gained.

    pytrace-ebpf experiment --cpus 0 --cpus 0,1 --repeat 5 -o scaling -- python3 program.py
    pytrace-ebpf experiment --report scaling --by function

A setting is each combination of --cpus (as of taskset -c) and --threads (OMP_NUM_THREADS and its
like, which torch obeys too). Runs of all settings take turns. The first setting is what the
others are compared with. docs/experiments.md explains the report and the data set.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytrace_ebpf
from pytrace_ebpf.analyze import compare
from pytrace_ebpf.analyze.experiment import TRACES, Experiment, open_experiment
from pytrace_ebpf.cli import recording
from pytrace_ebpf.cli import run as run_command
from pytrace_ebpf.cli.screen import ascii_only, console
from pytrace_ebpf.errors import HostError, PytraceError, TargetError, UsageError
from pytrace_ebpf.record.settings import Setting, settings
from pytrace_ebpf.record.user import hand_over
from pytrace_ebpf.view import experiment as view
from pytrace_ebpf.view.experiment_plot import draw
from pytrace_ebpf.view.report import width_of

NAME = "experiment"
_START = "import sys; sys.path.insert(0, sys.argv[1]); sys.argv[:2] = ['pytrace-ebpf']; from pytrace_ebpf.cli.main import main; sys.exit(main())"
_ERROR = "pytrace-ebpf: "
_LEVELS = ("function", "operator", "module")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `experiment`: its own, and those of `run`."""
    own = parser.add_argument_group("settings")
    own.add_argument("--cpus", action="append", default=[], metavar="LIST", help="cores to run on, as of taskset -c (0 or 0-3); give it for each setting")
    own.add_argument("--threads", action="append", type=_number, default=[], metavar="N", help="threads of OpenMP, MKL, OpenBLAS, torch; give it for each setting")
    own.add_argument("--repeat", type=_number, default=3, metavar="N", help="runs of each setting (3)")
    shown = parser.add_argument_group("report")
    shown.add_argument("--report", type=Path, metavar="DIR", help="run nothing, but show the experiment in this directory")
    shown.add_argument("--by", choices=tuple(compare.KEYS), help="what a row is (function, operator and module, each in turn); a module is PyTorch's, or Python's where none was called")
    shown.add_argument("--sort", choices=tuple(compare.SORTS), default="self", help="time without or with the calls below (self)")
    shown.add_argument("--top", type=int, default=8, metavar="N", help="rows of a table; 0 for all (8)")
    shown.add_argument("--json", action="store_true", help="print JSON, all times in ns, null for what was not recorded")
    shown.add_argument("--plot", type=Path, metavar="DIR", help="where to draw the pictures (after the runs the experiment's own directory; else none)")
    before = len(parser._actions)
    run_command.add_arguments(parser)
    for action in parser._actions[before:]:
        if action.dest != "output":
            action.type = None  # it is passed on as it was written


def run(args: argparse.Namespace) -> int:
    """Do the experiment that args ask for, or show one."""
    if args.top < 0:
        raise UsageError(f"--top {args.top} is negative; give the number of rows, or 0 for all.")
    if args.report is not None:
        if args.command or args.cpus or args.threads:
            raise UsageError("--report shows an experiment that was done; leave the settings and the command out.")
        experiment = open_experiment(args.report)
    else:
        experiment = _carry_out(args)
    _show(experiment, args)
    return 0


def _number(written: str) -> int:
    number = int(written)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{written} is no number from 1")
    return number


def _carry_out(args: argparse.Namespace) -> Experiment:
    """All runs, in turns (a b a b), each an ordinary `run` of its own process. Raises PytraceError."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("experiment needs a program to start: pytrace-ebpf experiment --cpus 0 --cpus 0,1 -- python3 program.py")
    if shutil.which(command[0]) is None:
        raise TargetError(f"cannot run {command[0]}: there is no such program.")
    options, chosen = _again(args), settings(args.cpus, args.threads)
    directory = args.output or Path(time.strftime("experiment-%Y%m%d-%H%M%S"))
    _claim(directory)
    rows = [{"setting": s.name, "cpus": s.cpus and list(s.cpus), "threads": s.threads, "cores": s.cores} for s in chosen]
    experiment = Experiment(directory, list(command), rows, [])
    with recording.stop_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)) as stopped:
        try:
            _take_turns(experiment, chosen, args.repeat, options, stopped, args.quiet)
        except (PytraceError, KeyboardInterrupt):
            if experiment.runs and not args.quiet:
                print(_look_again(directory), file=sys.stderr)
            raise
        finally:
            hand_over(directory)
    return experiment


def _take_turns(
    experiment: Experiment, chosen: Sequence[Setting], repeats: int, options: list[str], stopped: recording.Stopped, quiet: bool
) -> None:
    """The runs, a b a b, so that what else goes on meets all settings alike; `options` are words of `run`."""
    turns = [(repeat, setting) for repeat in range(1, repeats + 1) for setting in chosen]
    for number, (repeat, setting) in enumerate(turns, 1):
        if stopped():
            raise KeyboardInterrupt
        folder = experiment.directory / TRACES / setting.folder
        folder.mkdir(parents=True, exist_ok=True)
        trace, log = folder / str(repeat), folder / f"{repeat}.log"
        _record(setting, experiment.command, [*options, "-q", "-o", str(trace)], log, stopped)
        experiment.add(pytrace_ebpf.open(trace), setting.name, repeat, log)
        if not quiet:
            print(f"{number}/{len(turns)}  {setting.name}  {experiment.runs[-1]['wall_ns'] / 1e9:.2f} s", file=sys.stderr, flush=True)


def _look_again(directory: Path) -> str:
    return f"experiment in {directory}    look at it: pytrace-ebpf experiment --report {directory}"


def _claim(directory: Path) -> None:
    """Make the directory of the experiment; it must not hold anything yet."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise UsageError(f"{directory} is not empty; name another directory with -o.")
    except OSError as error:
        raise UsageError(f"{directory} cannot be made: {error.strerror}; name another directory with -o.") from None


def _again(args: argparse.Namespace) -> list[str]:
    """The words of `run`'s options in `args`, but for where to and how loud; says what is wrong with them and exits where something is."""
    parser, words = argparse.ArgumentParser(prog=f"pytrace-ebpf {NAME}", add_help=False), list[str]()
    run_command.add_arguments(parser)
    for action in parser._actions:
        value = getattr(args, action.dest)
        if action.option_strings and value != action.default and action.dest not in ("output", "quiet"):
            flag = action.option_strings[-1]
            words += [flag] if value is True else [word for each in ([value] if isinstance(value, str) else value) for word in (flag, each)]
    parser.parse_args(words)
    return words


def _record(setting: Setting, command: Sequence[str], options: list[str], log: Path, stopped: recording.Stopped) -> None:
    """One recorded run, its output in `log`. Raises PytraceError where the program did not end well, KeyboardInterrupt when stopped."""
    package = str(Path(pytrace_ebpf.__file__).parents[1])
    # -I: as the installed command is started; nothing in the program's directory is taken for a part of the tracer.
    words = [sys.executable, "-I", "-c", _START, package, "run", *options, "--", *setting.command(command)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **setting.environment}
        )
        told = False
        while process.poll() is None:
            if stopped() and not told:  # the recorder passes it on to the program, and finishes
                process.terminate()
                told = True
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
    if stopped():
        raise KeyboardInterrupt
    if process.returncode:
        raise _failure(setting, process.returncode, log)


def _failure(setting: Setting, code: int, log: Path) -> PytraceError:
    """What went wrong in a run that ended with `code`: the tracer's own sentence, else that the program failed."""
    said = log.read_text(errors="replace").strip().splitlines()
    last = said[-1] if said else "nothing"
    if last.startswith(_ERROR):
        return (HostError if code == HostError.exit_code else TargetError)(last.removeprefix(_ERROR))
    return TargetError(f"the program ended with exit code {code} under {setting.name}, so there is nothing to compare; its output ({last[:80]}) is in {log}.")


def _show(experiment: Experiment, args: argparse.Namespace) -> None:
    """Print the report, and draw its pictures where that is wanted."""
    levels = (args.by,) if args.by else _LEVELS
    runs = compare.whole_runs(experiment)
    tables = {by: compare.compare(experiment, by, args.sort) for by in levels}
    tables = {by: table for by, table in tables.items() if len(table) or by == args.by}
    only = compare.only_in_some(experiment)
    if args.json:
        json.dump(view.facts(experiment, args.sort, runs, tables, only), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        screen = console()
        screen.print(view.report(experiment, args.sort, runs, tables, only, width_of(screen), ascii_only(), args.top))
    pictures = args.plot if args.report is not None else args.plot or experiment.directory
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
        drawn = [path for by, table in tables.items() for path in draw(experiment, by, args.sort, runs, table, args.top, pictures)]
        if not args.quiet:
            print(f"pictures: {' '.join(map(str, drawn))}", file=sys.stderr)
    if args.report is None:
        hand_over(experiment.directory)
        if not args.quiet:
            print(_look_again(experiment.directory), file=sys.stderr)
