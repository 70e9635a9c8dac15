"""What it costs to record memory: `--faults`, `--memory` and `--native-memory` beside the agent alone, for programs that use memory in different ways.

Processes of one interpreter do rounds of the same work in turn, each under a tracer of its own. CPU time of the program, and its ratio to
that with the agent alone. Quote the ratios; the times are this machine's.

    scripts/bench/memory.py [--python PATH] [--rounds 11] [--work fib,orders,blocks]
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from children.measuring import Measuring, in_turn
from record import Recording

CHILD = Path(__file__).parent / "children" / "allocating.py"
WAYS: dict[str, dict[str, Any] | None] = {
    "untraced": None,
    "agent": {},
    "--faults": {"streams": {"faults": True}},
    "--memory": {"streams": {"faults": True, "memory": True}},
    "--native-memory": {"streams": {"native_memory": 512 << 10}},
}


def measure(python: str, work: str, rounds: int) -> None:
    """Print the table of one kind of work."""
    children = {way: Measuring([python, str(CHILD), work]) for way in WAYS}
    with tempfile.TemporaryDirectory() as scratch:
        recordings = {way: Recording(children[way].pid, Path(scratch) / way, "agent", **more) for way, more in WAYS.items() if more is not None}
        taken = in_turn(children, rounds)
        ended = {way: recording.stop() for way, recording in recordings.items()}
    for child in children.values():
        child.close()
    print(f"{work} on {python}, medians of {rounds} rounds in turn")
    for way, own in taken.items():
        shares = [a / b for a, b in zip(own, taken["agent"], strict=True)]
        lost = f", {ended[way]['lost']:.0f} lost" if way in ended else ""
        print(f"  {way:15} {statistics.median(own) / 1e6:8.1f} ms of CPU, {statistics.median(shares):.3f} of the agent alone{lost}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3.11")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--work", default="fib,orders,blocks")
    args = parser.parse_args()
    for work in args.work.split(","):
        measure(args.python, work, args.rounds)


if __name__ == "__main__":
    main()
