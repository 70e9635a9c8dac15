"""What `run` and `attach` share: options, and how a session begins."""

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytrace_ebpf import extras, units
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.options import option_rules, trigger
from pytrace_ebpf.record.filters import Filters, Observed, redacted
from pytrace_ebpf.record.flight.conditions import OF_SHARES
from pytrace_ebpf.record.options import Keep, Options
from pytrace_ebpf.trace.declared import STREAMS
from pytrace_ebpf.trace.stream import Option

if TYPE_CHECKING:  # they need packages that a mere reader of experiments may not have
    from pytrace_ebpf.record.session import Session

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
SOURCES = ("auto", "usdt", "agent")
_MOST_RING_MIB = 1 << 15
_MOST_DEPTH = 1 << 31
HZ, _MOST_HZ = 99.0, 10_000.0  # no divisor of what programs do at round intervals


def prepare(source: str = "agent") -> None:
    """Call before the recorders are imported: the parser processes start meanwhile, and Arrow does not import pandas.

    source  as asked for, where a running process is to be traced: the process that searches its names starts too, if they may matter
    """
    from pytrace_ebpf.record.kernel import host
    from pytrace_ebpf.record.parsing import sandbox

    host.require_machine()
    extras.require("psutil")
    sandbox.parsers.start()
    if source in ("auto", "usdt"):
        sandbox.searcher.start()
    _import_numpy_alone()
    from pytrace_ebpf.record.output import ready

    ready.forgo_pandas()


def _import_numpy_alone() -> None:
    """Without the threads of its OpenBLAS: nothing is computed with it, and they busy a core for as long as all this takes to start."""
    before = os.environ.get(_BLAS_THREADS)
    os.environ[_BLAS_THREADS] = "1"
    try:
        importlib.import_module("numpy")
    finally:  # it is not the program's
        del os.environ[_BLAS_THREADS]
        if before is not None:
            os.environ[_BLAS_THREADS] = before


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that `run` and `attach` have in common."""
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="trace directory to write (pytrace-DATE-TIME)")
    parser.add_argument("--source", choices=SOURCES, help="where function events come from (auto; with --sample nowhere)")
    parser.add_argument(
        "--sample", type=rate, nargs="?", const=HZ, metavar="HZ",
        help=f"sample the Python stacks of threads, HZ times a second ({HZ:g}), on a core and off it, instead of recording calls, or beside them with --source",
    )  # fmt: skip
    parser.add_argument(
        "--switches", action="store_true",
        help="with --sample alone, record every context switch and wake-up as well, as beside calls: for report --by wait, gil and core, exact times of threads, and timelines",
    )  # fmt: skip
    parser.add_argument(
        "--budget", type=_share, metavar="N%",
        help="let tracing cost at most N %% of the program's CPU time: functions that are called too often are left out for a time, which the trace records",
    )  # fmt: skip
    parser.add_argument("--no-follow", action="store_true", help="do not trace processes that the target starts")
    _add_filters(parser)
    for stream in STREAMS:
        for name, option in stream.options.items():
            _add_option(parser, option_rules.flag(name), option)
    parser.add_argument(
        "--ring-mib", type=_power_of_two, metavar="N",
        help="memory for function events that are not read yet, a power of two (usdt 64, agent 256 for each process)",
    )  # fmt: skip
    parser.add_argument(
        "--max-size", type=_size, metavar="SIZE",
        help="end the recording when the trace has this size, for example 500M or 20GiB (half of what is free on its disk)",
    )  # fmt: skip
    retain = parser.add_argument(
        "--retain", type=_keep, metavar="TIME|SIZE",
        help="drop what is older while it records: keep the last 30m (s, m, h, d), or at most 2GiB",
    )  # fmt: skip
    option_rules.also(parser, retain, "--keep")
    trigger.add_arguments(parser)
    parser.add_argument("--request", action="append", default=[], metavar="PATTERN", help=option_rules.REQUEST)
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")


def _add_filters(parser: argparse.ArgumentParser) -> None:
    """Options that say of which functions what is recorded."""
    parser.add_argument(
        "--include", action="append", default=[], metavar="PATTERN",
        help="record only calls of functions in this module, package or file, or __main__ (docs/patterns.md); may be given several times",
    )  # fmt: skip
    parser.add_argument("--exclude", action="append", default=[], metavar="PATTERN", help="leave these calls out; wins over --include")
    parser.add_argument("--max-depth", type=_depth, default=0, metavar="N", help="leave out calls more than N deep (agent)")


def _add_option(parser: argparse.ArgumentParser, flag: str, option: Option) -> None:
    """Add one of a stream's."""

    def parsed(text: str) -> Any:
        try:
            return option.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    if option.is_flag:
        parser.add_argument(flag, action="store_true", help=option.help)
    elif option.several:
        parser.add_argument(flag, action="append", default=[], type=parsed, metavar=option.metavar, help=option.help)
    elif option.choices:
        parser.add_argument(flag, choices=option.choices, help=option.help)
    else:
        alone: dict[str, Any] = {} if option.bare is None else {"nargs": "?", "const": option.bare}
        parser.add_argument(flag, type=parsed, metavar=option.metavar, help=option.help, **alone)


def _values(args: argparse.Namespace, field: str) -> dict[str, Any]:
    """Of the options of streams that Options has in this field."""
    given = {name: getattr(args, name) for stream in STREAMS if stream.values == field for name in stream.options}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _streams(args: argparse.Namespace) -> dict[str, Any]:
    """Those that are asked for, and those that come with them as far as they can."""
    asked = {name: value for name, value in _values(args, "streams").items() if value}
    for stream in STREAMS:
        for name, option in stream.more_options.items():
            if option.adds and name in asked:
                asked[stream.name] = tuple(dict.fromkeys((*asked.get(stream.name, ()), *option.adds)))
    brought = {name for stream in STREAMS if stream.name in asked for name in stream.brings}
    without_ebpf = getattr(args, "rootless", False)
    return {s.name: True for s in STREAMS if s.name in brought and not (s.needs_ebpf and without_ebpf)} | asked


def options(args: argparse.Namespace) -> Options:
    """The recording that the command line asks for."""
    asked = Options(
        args.output,
        option_rules.source(args),
        not args.no_follow,
        filters=Filters(
            tuple(args.include),
            tuple(args.exclude),
            args.max_depth,
            **_values(args, "filters"),
        ),
        observed=Observed(tuple(args.args), redacted(args.redact)),
        streams=_streams(args),
        max_size=args.max_size,
        keep=args.retain,
        sample=args.sample,
        switches=args.switches or any(condition.word in OF_SHARES for condition in args.trigger),
        requests=tuple(args.request),
        flight=trigger.flight(args),
        budget=args.budget,
    )
    if args.ring_mib is not None:
        asked = replace(asked, call_ring_pages=int(args.ring_mib * 256), arena_bytes=int(args.ring_mib * 1048576))
    return asked


def rate(text: str) -> float:
    """The type of an option: samples a second."""
    hz = float(text)
    if not 0.01 <= hz <= _MOST_HZ:
        raise argparse.ArgumentTypeError(f"{text} is not a rate; give samples a second, at most {_MOST_HZ:,.0f}")
    return hz


def new_session(options: Options, instead: str, command: Sequence[str] = ()) -> "Session":
    """A session that has not begun; `command`: the program that the command line ends with, after a -- or not.

    Raises HostError, which says what to do `instead` where this user or host cannot have eBPF.
    """
    from pytrace_ebpf.record.session import Session

    own = sys.argv[: max(len(sys.argv) - len(command), 0)]
    own = [*own, "--"] if command and own[-1:] != ["--"] else own
    try:
        return Session(options, [*own, *command])
    except HostError as error:
        if options.rootless:
            raise
        raise HostError(f"{error}; without eBPF and privileges: {instead}") from None


def _share(text: str) -> float:
    """A share: 5% or 0.5%."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", text)
    share = float(found[1]) / 100 if found else 0.0
    if not 0.001 <= share <= 10:
        raise argparse.ArgumentTypeError(f"{text} is not a share of the program's CPU time; give one like 5%")
    return share


def _depth(text: str) -> int:
    depth = int(text)
    if not 1 <= depth < _MOST_DEPTH:
        raise argparse.ArgumentTypeError(f"{text} is not a depth; give a number from 1")
    return depth


def _size(text: str) -> int:
    if not (size := units.size(text)):
        raise argparse.ArgumentTypeError(f"{text} is not a size; give one like 500M or 20GiB")
    return size


_LEAST_KEPT = 1 << 20


def _keep(text: str) -> Keep:
    """A time like 30m, or a size like 2GiB, whose B is needed: 30M and 30m would be too much alike."""
    if (seconds := units.seconds(text)) is not None:
        if seconds:
            return Keep(seconds=seconds)
    elif text.endswith("B") and (size := _size(text)):
        if size < _LEAST_KEPT:
            raise argparse.ArgumentTypeError(f"{text} is too little; give 1MiB at least")
        return Keep(size=size)
    raise argparse.ArgumentTypeError(f"{text} is neither a time nor a size; give one like 90s, 30m, 2h or 500MB, 2GiB")


def _power_of_two(text: str) -> float:
    value = float(text)
    pages = int(value * 256) if 0 < value <= _MOST_RING_MIB else 0
    if pages < 1 or pages != value * 256 or pages & (pages - 1):
        raise argparse.ArgumentTypeError(f"{text} MiB is not a power-of-two number of 4 KiB pages, or more than {_MOST_RING_MIB:,}")
    return value
