"""What `run` and `attach` share: options, signals, progress, and the closing lines."""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pytrace_ebpf.record.filters import Filters
from pytrace_ebpf.record.options import LAYER_NAMES, Options
from pytrace_ebpf.record.session import Status

_SENTENCES = 3  # of processes without calls: more of them say the same
SOURCES = ("auto", "usdt", "agent")


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that `run` and `attach` have in common."""
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="trace directory to write (pytrace-DATE-TIME)")
    parser.add_argument("--source", choices=SOURCES, default="auto", help="where function events come from (auto)")
    parser.add_argument("--no-follow", action="store_true", help="do not trace processes that the target starts")
    parser.add_argument(
        "--include", action="append", default=[], metavar="PATTERN",
        help="record only calls of functions in this module or, with a slash, file; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--exclude", action="append", default=[], metavar="PATTERN", help="leave these calls out; wins over --include"
    )
    parser.add_argument("--max-depth", type=_depth, default=0, metavar="N", help="leave out calls more than N deep (agent)")
    parser.add_argument(
        "--layers", type=_layers, default=(), metavar="NAMES",
        help="record native calls below Python's as well: torch (PyTorch's operators), blas, cuda, joined by commas",
    )  # fmt: skip
    parser.add_argument(
        "--operators", action="append", default=[], metavar="PATTERN",
        help="of torch, these operators instead of about 250 usual ones: aten::conv*, or all; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--ring-mib", type=_power_of_two, metavar="N",
        help="memory for function events that are not read yet, a power of two (usdt 64, agent 256 for each process)",
    )  # fmt: skip
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")


def options(args: argparse.Namespace) -> Options:
    """The recording that the command line asks for."""
    output = args.output or Path(time.strftime("pytrace-%Y%m%d-%H%M%S"))
    asked = Options(
        output,
        args.source,
        not args.no_follow,
        filters=Filters(tuple(args.include), tuple(args.exclude), args.max_depth),
        layers=tuple(dict.fromkeys((*args.layers, *(("operator",) if args.operators else ())))),
        operators=tuple(args.operators),
    )
    if args.ring_mib is not None:
        asked = replace(asked, call_ring_pages=int(args.ring_mib * 256), arena_bytes=int(args.ring_mib * 1048576))
    return asked


def _depth(text: str) -> int:
    depth = int(text)
    if depth < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a depth; give a number from 1")
    return depth


def _layers(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in LAYER_NAMES:
            raise argparse.ArgumentTypeError(f"{name} is no layer; there are {', '.join(LAYER_NAMES)}")
    return tuple(dict.fromkeys(LAYER_NAMES[name] for name in names))


def _power_of_two(text: str) -> float:
    value = float(text)
    pages = int(value * 256)
    if pages < 1 or pages != value * 256 or pages & (pages - 1):
        raise argparse.ArgumentTypeError(f"{text} MiB is not a power-of-two number of 4 KiB pages")
    return value


class Stopped:
    """Whether one of the awaited signals has come; `clear` awaits the next."""

    def __init__(self) -> None:
        self._seen = False

    def __call__(self) -> bool:
        return self._seen

    def see(self, *_: object) -> None:
        """The signals' handler."""
        self._seen = True

    def clear(self) -> None:
        """Forget the one that came."""
        self._seen = False


@contextmanager
def stop_signals(numbers: tuple[int, ...]) -> Iterator[Stopped]:
    """Turn these signals into an answer to "shall it stop?", for as long as the block runs."""
    stopped = Stopped()
    before = {number: signal.signal(number, stopped.see) for number in numbers}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def progress(quiet: bool, hint: str) -> Iterator[Callable[[Status], None]]:
    """Show how the recording goes on stderr: one changing line in a terminal, else a plain line every ten seconds."""
    console = Console(stderr=True, highlight=False)
    if quiet:
        yield lambda status: None
    elif console.is_terminal:
        with Live(Text(hint, style="dim"), console=console, transient=True) as live:
            yield lambda status: live.update(Text.assemble((line(status), ""), ("  " + hint, "dim")))
    else:
        print(hint, file=sys.stderr, flush=True)
        yield _every_ten_seconds()


def line(status: Status) -> str:
    """One line of progress."""
    lost = f"{status.lost:,} LOST" if status.lost else "0 lost"
    return f"{status.seconds:6.1f} s  {status.calls:>12,} call events  {status.sched:>10,} scheduling events  {lost}"


def closing(status: Status, output: Path, quiet: bool) -> None:
    """Say what was recorded and how to look at it."""
    if not quiet:
        print(line(status), file=sys.stderr)
        if status.waited_ns:
            print(f"the program waited {status.waited_ns / 1e9:.2f} s for the tracer to read what it wrote", file=sys.stderr)
        for sentence in status.unserved[:_SENTENCES]:
            print(sentence, file=sys.stderr)
        print(f"trace in {output}    look at it: pytrace-ebpf report {output}", file=sys.stderr)


def _every_ten_seconds() -> Callable[[Status], None]:
    told = 0.0

    def tell(status: Status) -> None:
        nonlocal told
        if status.seconds - told >= 10:
            told = status.seconds
            print(line(status), file=sys.stderr, flush=True)

    return tell
