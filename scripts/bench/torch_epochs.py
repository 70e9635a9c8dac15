"""What it costs to trace the training of a text CNN, calls, scheduling and operators, beside torch.profiler and VizTracer.

Processes train the same network, an epoch in turn each: alone, traced from outside by either source with the default
operators, under torch.profiler (with stacks and shapes), under VizTracer. Quote the ratios. Needs `make torch`.

    scripts/bench/torch_epochs.py [--epochs 11] [-- OPTION of kim_cnn.py...]
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from agent import viztracer_for
from children.measuring import Measuring, in_turn
from children.pytorch import KEEP_MEMORY, torch_python
from record import Recording

CHILD = Path(__file__).parent / "children" / "epochs.py"
SOURCES = ("agent", "usdt")
INSIDE = ("profiler", "viztracer")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=11, help="of each process")
    parser.add_argument("options", nargs="*", default=["--batches", "16", "--threads", "1"], help="of the network")
    args = parser.parse_args()
    python = str(torch_python())
    packages = viztracer_for("3.11")
    modes = ["plain", *SOURCES, *INSIDE]
    variables = KEEP_MEMORY | ({"PYTHONPATH": str(packages)} if packages else {})
    environment = ["/usr/bin/env", *(f"{name}={value}" for name, value in variables.items())]
    children = {
        mode: Measuring([*environment, python, str(CHILD), mode if mode in INSIDE else "plain", *args.options])
        for mode in modes
        if mode != "viztracer" or packages
    }
    with tempfile.TemporaryDirectory() as scratch:
        recordings = [Recording(children[source].pid, Path(scratch) / source, source, ("operator",)) for source in SOURCES]
        taken = in_turn(children, args.epochs)
        collected = [recording.stop() for recording in recordings]
        for child in children.values():
            child.close()
    plain = statistics.median(taken["plain"])
    print(f"an epoch: {plain / 1e9:.2f} s of CPU, {args.epochs} of each; times that, median and quartiles of the rounds")
    for mode, times in taken.items():
        ratios = [time / alone for time, alone in zip(times, taken["plain"], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        print(f"  {mode:<10} {statistics.median(times) / plain:6.3f}   {low:6.3f} to {high:6.3f}")
    for source, figures in zip(SOURCES, collected, strict=True):
        print(f"  {source}: {figures['events']:,.0f} events of calls, {figures['lost']:.0f} lost")


if __name__ == "__main__":
    main()
