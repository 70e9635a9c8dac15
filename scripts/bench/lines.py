"""What a line costs with `--lines exact`, side by side with what else records every line.

Processes of one interpreter run a loop of four lines in turn: alone, under the tracer with the agent, the same with --lines exact, with a function
of Python's own under sys.settrace that does nothing but count, under line_profiler. CPU time: on a core that others use too it
says the same. Quote the ratios of added time; the times are this machine's.

    scripts/bench/lines.py [--python PATH]... [--rounds 21]
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from agent import CHILD, fetched, version_of
from children.measuring import Measuring
from record import Recording

from pytrace_ebpf.record.filters import Filters

TRACED = {"agent": Filters(), "--lines": Filters(lines="exact")}


def measure(python: str, rounds: int) -> None:
    """Print the table of one interpreter."""
    version = version_of(python, None)
    packages = fetched(version, "line_profiler", "typing_extensions")
    modes = ["plain", *TRACED, "settrace", *(["line_profiler"] if packages else [])]
    environment = ["/usr/bin/env", f"PYTHONPATH={packages}"] if packages else []
    children = {mode: Measuring([*environment, python, str(CHILD), "plain" if mode in TRACED else mode, "lines"]) for mode in modes}
    with tempfile.TemporaryDirectory() as scratch:
        recordings = [Recording(children[mode].pid, Path(scratch) / mode, "agent", filters=filters) for mode, filters in TRACED.items()]
        taken: dict[str, list[float]] = {mode: [] for mode in modes}
        for _ in range(rounds):
            for mode in modes:
                taken[mode].append(children[mode].round())
        stopped = [recording.stop() for recording in recordings]
    for child in children.values():
        child.close()
    print(f"Python {version}, a loop of four lines, medians of {rounds} rounds in turn; {sum(each['lost'] for each in stopped):.0f} events lost")
    print(f"  on disk {stopped[-1]['bytes_per_call'] / 2:.1f} bytes a line")
    added = {mode: [a - b for a, b in zip(taken[mode], taken["plain"], strict=True)] for mode in modes}
    for mode in modes:
        line = f"  {mode:14} {statistics.median(taken[mode]):7.1f} ns a line, {statistics.median(added[mode]):7.1f} added"
        if mode in ("settrace", "line_profiler"):
            shares = [ours / theirs for ours, theirs in zip(added["--lines"], added[mode], strict=True)]
            line += f"   --lines adds {statistics.median(shares):.2f} of what it adds"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="interpreter; may be given several times (/usr/bin/python3.11)")
    parser.add_argument("--rounds", type=int, default=21)
    args = parser.parse_args()
    for python in args.python or ["/usr/bin/python3.11"]:
        measure(python, args.rounds)


if __name__ == "__main__":
    main()
