"""Write a trace for another viewer: perfetto (ui.perfetto.dev), speedscope (speedscope.app), folded stacks or an icicle.

perfetto holds calls and scheduling; speedscope the calls of each thread; folded the self
time of every distinct stack in nanoseconds, for flame graphs (--value says which time);
icicle is a page for any browser with the layers of one thread (--tid says which).
"""

import argparse
import sys
from pathlib import Path
from typing import BinaryIO

import pytrace_ebpf
from pytrace_ebpf.analyze import split
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.view.export import folded, icicle, perfetto, speedscope
from pytrace_ebpf.view.text import size

NAME = "export"
_FORMATS = {"perfetto": perfetto.SUFFIX, "speedscope": speedscope.SUFFIX, "folded": folded.SUFFIX, "icicle": icicle.SUFFIX}
_OPEN_WITH = {
    "perfetto": "open it at https://ui.perfetto.dev",
    "speedscope": "open it at https://www.speedscope.app",
    "folded": "feed it to flamegraph.pl --countname=ns or any flame graph viewer",
    "icicle": "open it in a browser",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `export`."""
    parser.add_argument("trace", metavar="TRACE", help="trace directory")
    parser.add_argument("--to", choices=tuple(_FORMATS), required=True, help="format")
    parser.add_argument("-o", "--output", metavar="FILE", help="file to write, - for standard output (TRACE's name with a suffix)")
    parser.add_argument("--value", choices=folded.VALUES, default="wall", help="folded: which self time, in ns (wall)")
    parser.add_argument("--tid", type=int, help="icicle: which thread (the one that was longest on a core)")


def run(args: argparse.Namespace) -> int:
    """Write args.trace as args.to."""
    trace = pytrace_ebpf.open(args.trace)
    if args.output == "-":
        _write(trace, args, sys.stdout.buffer)
        return 0
    path = Path(args.output or Path(args.trace).resolve().name + _FORMATS[args.to])
    try:
        with path.open("wb") as out:
            _write(trace, args, out)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); name another file with -o.") from None
    print(f"{path}: {size(path.stat().st_size)}; {_OPEN_WITH[args.to]}", file=sys.stderr)
    return 0


def _write(trace: Trace, args: argparse.Namespace, out: BinaryIO) -> None:
    if args.to == "perfetto":
        timeline = split.timeline(trace.sched(), trace.processes(), trace.end_ns, trace.losses())
        perfetto.write(trace, timeline, out)
    elif args.to == "speedscope":
        speedscope.write(trace, out)
    elif args.to == "icicle":
        icicle.write(trace, args.tid, out)
    else:
        folded.write(trace, args.value, out)
