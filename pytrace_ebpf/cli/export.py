"""Write a trace for another viewer.

Every call on its thread's track: perfetto (ui.perfetto.dev), with scheduling; chrome (chrome://tracing and what else reads its JSON);
speedscope (speedscope.app); firefox (profiler.firefox.com), with what each thread did as its categories.

Time summed by calling context: pprof (go tool pprof, Pyroscope, Parca) and otlp (an OpenTelemetry Collector), with wall time and each of its parts;
folded stacks, for flame graphs, in nanoseconds of self time (--value says which).

By function and who called whom: callgrind (KCachegrind), also by line where lines were recorded or sampled; pstats (Python's own, SnakeViz; --value).
"""

import argparse
import sys
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd

from pytrace_ebpf.analyze.requests.one_request import of_id
from pytrace_ebpf.analyze.samples.sampling import period_of
from pytrace_ebpf.derive.scheduling.trace_timeline import timelines
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.options import option_rules, window
from pytrace_ebpf.options.option_rules import has_answer
from pytrace_ebpf.printable import printable
from pytrace_ebpf.terminal.reading import opened, rights
from pytrace_ebpf.trace.files import whole
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.units import share_of
from pytrace_ebpf.view.export import callgrind, chrome, firefox, folded, otlp, perfetto, pprof, pstats, small, speedscope
from pytrace_ebpf.view.export.parts import VALUES
from pytrace_ebpf.view.text import size

NAME = "export"
_FEW = 5  # numbers that a message names
FORMATS = {
    "perfetto": perfetto.SUFFIX,
    "chrome": chrome.SUFFIX,
    "speedscope": speedscope.SUFFIX,
    "firefox": firefox.SUFFIX,
    "pprof": pprof.SUFFIX,
    "otlp": otlp.SUFFIX,
    "folded": folded.SUFFIX,
    "callgrind": callgrind.SUFFIX,
    "pstats": pstats.SUFFIX,
}
_OPEN_WITH = {
    "perfetto": "open it at https://ui.perfetto.dev",
    "chrome": "open it in chrome://tracing or at https://ui.perfetto.dev",
    "speedscope": "open it at https://www.speedscope.app",
    "firefox": "open it at https://profiler.firefox.com",
    "pprof": "open it with go tool pprof -http=: or at a Pyroscope or Parca server",
    "otlp": "send it with curl -H 'Content-Type: application/x-protobuf' --data-binary @FILE http://COLLECTOR:4318/v1development/profiles",
    "folded": "feed it to flamegraph.pl --countname=ns or any flame graph viewer",
    "callgrind": "open it with kcachegrind, qcachegrind or callgrind_annotate",
    "pstats": "open it with python3 -m pstats or snakeviz",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `export`."""
    parser.add_argument("trace", metavar="TRACE", help="trace directory")
    parser.add_argument("--to", type=_format, choices=tuple(FORMATS), required=True, help="format")
    parser.add_argument("-o", "--output", metavar="FILE", help="file to write, - for standard output (TRACE's name with a suffix)")
    parser.add_argument("--value", choices=VALUES, help="folded, pstats: which time (wall)")
    parser.add_argument(
        "--min",
        type=_share,
        metavar="SHARE",
        help=f"folded, callgrind: sum what takes less of all time as {small.OTHER_NAME} (all is written up to {size(small.MOST)}, else from 0.1%% on)",
    )
    parser.add_argument("--request-id", metavar="ID", help=f"otlp: {option_rules.REQUEST_ID}, each sample with a link to its span")
    window.add_arguments(parser)


def _share(word: str) -> float:
    return share_of("--min", word)


def _format(word: str) -> str:
    if word == "icicle":
        raise argparse.ArgumentTypeError(f"{word} is a view of a page, not a format; write the page with pytrace-ebpf report TRACE --html FILE")
    return word


def run(args: argparse.Namespace) -> int:
    """Write args.trace as args.to."""
    option_rules.to_answer(option_rules.EXPORT, args, "to")
    with opened(args.trace, "Writing") as whole_trace:
        trace = window.windowed(whole_trace, args)
        has_answer(trace, args.to)
        if args.to == "chrome" and period_of(trace):
            raise UsageError("chrome has calls, and this trace has samples alone; export --to firefox or speedscope instead.")
        if args.output == "-":
            if note := _write(trace, args, sys.stdout.buffer):
                print(note.removeprefix("; "), file=sys.stderr)
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


def _one(requests: pd.DataFrame) -> dict[str, Any]:
    """The only one. Raises UsageError where there are several."""
    if len(requests) > 1:
        numbers = ", ".join(map(str, requests["request_id"].tolist()[:_FEW]))
        raise UsageError(f"{len(requests):,} requests have this trace id; name one by its number: --request-id {numbers}.")
    found: dict[str, Any] = requests.to_dict("records")[0]
    return found


def _write(trace: Trace, args: argparse.Namespace, out: BinaryIO) -> str:
    """Returns a note on what was written, "" for none."""
    if args.to == "perfetto":
        perfetto.write(trace, timelines(trace), out)
    elif args.to in ("speedscope", "firefox"):
        of, most = {"speedscope": (speedscope, speedscope.MOST_CALLS), "firefox": (firefox, firefox.MOST)}[args.to]
        if not of.write(trace, out) and period_of(trace) is None:
            return f"; it has the paths of calls with their time: a window of at most {most:,} calls (--from, --until) has each call"
    elif args.to == "folded":
        return folded.write(trace, args.value or "wall", out, args.min)
    elif args.to == "callgrind":
        return callgrind.write(trace, out, args.min)
    elif args.to == "pstats":
        pstats.write(trace, args.value or "wall", out)
    elif args.request_id:
        otlp.write_request(trace, _one(of_id(trace.requests(), args.request_id)), out)
    else:
        {"chrome": chrome, "otlp": otlp, "pprof": pprof}[args.to].write(trace, out)
    return ""
