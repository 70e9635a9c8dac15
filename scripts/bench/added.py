"""What a kind of recording adds to a piece of work, side by side with what else records it: the table that some of these benchmarks print."""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from agent import CHILD, version_of
from children.measuring import Measuring, in_turn
from record import Recording

from pytrace_ebpf.record.filters import Filters


def compare(python: str, rounds: int, work: str, option: str, filters: Filters, others: Sequence[str], packages: Path | None) -> dict[str, float]:
    """Print what a piece of `work` of children/rounds.py takes alone, under the tracer with the agent, the same with `option`, which is
    `filters`, and in each of the modes `others`, for which `packages` is imported from. Returns Recording.stop() of the one with `option`.
    """
    traced = {"agent": Filters(), option: filters}
    modes = ["plain", *traced, *others]
    environment = ["/usr/bin/env", f"PYTHONPATH={packages}"] if packages else []
    children = {mode: Measuring([*environment, python, str(CHILD), "plain" if mode in traced else mode, work]) for mode in modes}
    with tempfile.TemporaryDirectory() as scratch:
        recordings = [Recording(children[mode].pid, Path(scratch) / mode, "agent", filters=own) for mode, own in traced.items()]
        taken = in_turn(children, rounds)
        stopped = [recording.stop() for recording in recordings]
    for child in children.values():
        child.close()
    print(
        f"Python {version_of(python, None)}, {work} in a loop, medians of {rounds} rounds in turn; {sum(each['lost'] for each in stopped):.0f} events lost"
    )
    added = {mode: [a - b for a, b in zip(taken[mode], taken["plain"], strict=True)] for mode in modes}
    for mode in modes:
        line = f"  {mode:14} {statistics.median(taken[mode]):7.1f} ns each, {statistics.median(added[mode]):7.1f} added"
        if mode in others:
            shares = [ours / theirs for ours, theirs in zip(added[option], added[mode], strict=True)]
            line += f"   {option} adds {statistics.median(shares):.2f} of what it adds"
        print(line)
    return stopped[-1]


def main(description: str, measure: Callable[[str, int], None]) -> None:
    """Run `measure(python, rounds)` for each interpreter that the command line names."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="interpreter; may be given several times (/usr/bin/python3.11)")
    parser.add_argument("--rounds", type=int, default=21)
    args = parser.parse_args()
    for python in args.python or ["/usr/bin/python3.11"]:
        measure(python, args.rounds)
