"""What a call of a C function costs with `--c-calls`, side by side with the profilers that record such calls too.

Processes of one interpreter call len() in a loop in turn: alone, under the tracer with the agent, the same with --c-calls, under
VizTracer, under cProfile. Quote the ratios of added time; the times are this machine's.

    scripts/bench/c_calls.py [--python PATH]... [--rounds 21]
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from agent import CHILD, version_of, viztracer_for
from children.measuring import Measuring
from record import Recording

from pytrace_ebpf.record.filters import Filters

TRACED = {"agent": Filters(), "--c-calls": Filters(c_calls=True)}


def measure(python: str, rounds: int) -> None:
    """Print the table of one interpreter."""
    version = version_of(python, None)
    packages = viztracer_for(version)
    modes = ["plain", *TRACED, *(["viztracer"] if packages else []), "cprofile"]
    environment = ["/usr/bin/env", f"PYTHONPATH={packages}"] if packages else []
    children = {mode: Measuring([*environment, python, str(CHILD), "plain" if mode in TRACED else mode, "len"]) for mode in modes}
    with tempfile.TemporaryDirectory() as scratch:
        recordings = [Recording(children[mode].pid, Path(scratch) / mode, "agent", filters=filters) for mode, filters in TRACED.items()]
        taken: dict[str, list[float]] = {mode: [] for mode in modes}
        for _ in range(rounds):
            for mode in modes:
                taken[mode].append(children[mode].round())
        lost = sum(recording.stop()["lost"] for recording in recordings)
    for child in children.values():
        child.close()
    print(f"Python {version}, len() in a loop, medians of {rounds} rounds in turn; {lost:.0f} events lost")
    added = {mode: [a - b for a, b in zip(taken[mode], taken["plain"], strict=True)] for mode in modes}
    for mode in modes:
        line = f"  {mode:10} {statistics.median(taken[mode]):7.1f} ns a call, {statistics.median(added[mode]):7.1f} added"
        if mode in ("viztracer", "cprofile"):
            shares = [ours / theirs for ours, theirs in zip(added["--c-calls"], added[mode], strict=True)]
            line += f"   --c-calls adds {statistics.median(shares):.2f} of what it adds"
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
