"""Write a trace for another viewer: perfetto (ui.perfetto.dev), speedscope (speedscope.app), KCachegrind (callgrind), folded stacks or an icicle.

perfetto holds calls and scheduling; speedscope the calls of each thread; folded the self
time of every distinct stack in nanoseconds, for flame graphs (--value says which time);
callgrind the time of every function, and of every line where lines were recorded or sampled, and who called whom from which line;
icicle is a page for any browser with the calls of one thread, a row for each level (--tid says which; else the one that was longest on a core).
"""

import argparse
import sys
from pathlib import Path
from typing import BinaryIO

from pytrace_ebpf.analyze.time.trace_timeline import timelines
from pytrace_ebpf.cli import applies, window
from pytrace_ebpf.cli.reading import opened, rights
from pytrace_ebpf.cli.summed import has_answer
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.printable import printable
from pytrace_ebpf.trace.files import whole
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.view.export import callgrind, folded, icicle, perfetto, speedscope
from pytrace_ebpf.view.text import size

NAME = "export"
FORMATS = {
    "perfetto": perfetto.SUFFIX,
    "speedscope": speedscope.SUFFIX,
    "callgrind": callgrind.SUFFIX,
    "folded": folded.SUFFIX,
    "icicle": icicle.SUFFIX,
}
_OPEN_WITH = {
    "perfetto": "open it at https://ui.perfetto.dev",
    "speedscope": "open it at https://www.speedscope.app",
    "callgrind": "open it with kcachegrind, qcachegrind or callgrind_annotate",
    "folded": "feed it to flamegraph.pl --countname=ns or any flame graph viewer",
    "icicle": "open it in a browser",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `export`."""
    parser.add_argument("trace", metavar="TRACE", help="trace directory")
    parser.add_argument("--to", choices=tuple(FORMATS), required=True, help="format")
    parser.add_argument("-o", "--output", metavar="FILE", help="file to write, - for standard output (TRACE's name with a suffix)")
    parser.add_argument("--value", choices=folded.VALUES, help="folded: which self time, in ns (wall)")
    window.add_arguments(parser, "--until")


def run(args: argparse.Namespace) -> int:
    """Write args.trace as args.to."""
    applies.to_answer(applies.EXPORT, args, "to")
    with opened(args.trace, "Writing") as whole_trace:
        trace = window.windowed(whole_trace, args)
        has_answer(trace, args.to)
        if args.output == "-":
            _write(trace, args, sys.stdout.buffer)
            return 0
        path = Path(args.output or Path(args.trace).resolve().name + FORMATS[args.to])
        try:
            with whole(path, rights()) as out:
                note = _write(trace, args, out)
                written = out.tell() if out.seekable() else None
        except OSError as error:
            raise UsageError(f"{path} cannot be written ({error.strerror}); name another file with -o.") from None
    how_large = f"{size(written)}; " if written is not None else ""
    print(printable(f"{path}: {how_large}{_OPEN_WITH[args.to]}{note}"), file=sys.stderr)
    return 0


def _write(trace: Trace, args: argparse.Namespace, out: BinaryIO) -> str:
    """Returns a note on what was written, "" for none."""
    if args.to == "perfetto":
        perfetto.write(trace, timelines(trace), out)
    elif args.to == "speedscope":
        if not speedscope.write(trace, out):
            return f"; it has the paths of calls with their time: a window of at most {speedscope.MOST_CALLS:,} calls (--from, --until) has each call"
    elif args.to == "callgrind":
        callgrind.write(trace, out)
    elif args.to == "icicle":
        icicle.write(trace, args.tid, out)
    else:
        folded.write(trace, args.value or "wall", out)
    return ""
