"""How right `report --what-if` is: changes that it judges by a recording are really made, and recorded too.

Of each the median of some rounds, in turn: what it is now, what would be, what is. All are recorded, so that what tracing costs is in all of them.
As root: the programs run at the highest usual priority (nice -20), so that others take less of their cores.

    scripts/bench/what_if.py [--python /usr/bin/python3.11] [--rounds 5]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import pytrace_ebpf
from pytrace_ebpf.analyze.critical_path.asked import of_calls
from pytrace_ebpf.analyze.what_if.change import parsed
from pytrace_ebpf.analyze.what_if.what_if import what_if

PROGRAM = Path(__file__).parent / "children" / "changes.py"
BOTH = ("0,1", "0,1")
# What is judged, by which change; the program, a function, its p50 or longest; and the words and cores that it is really changed by.
CHANGES = (
    ("a function twice as fast, the slowest stage of a pipeline", "pay 2x", "pipeline", "run", [], ["--speed", "2"], BOTH),
    ("a function twice as fast, where a lock decides: all", "pay 2x", "shop", "run", [], ["--speed", "2"], BOTH),
    ("the same: p50 of a request", "pay 2x", "shop", "request", [], ["--speed", "2"], BOTH),
    ("no lock: all", "lock", "shop", "run", [], ["--locked", "0"], BOTH),
    ("no lock: p50 of a request", "lock", "shop", "request", [], ["--locked", "0"], BOTH),
    ("a function twice as fast, two threads that compute", "heat 2x", "fight", "burn", [], ["--speed", "2"], BOTH),
    ("no GIL: processes for threads", "gil", "fight", "burn", [], ["--processes", "2"], BOTH),
    ("a second core for two processes", "cores 2", "fight", "run", ["--processes", "2"], ["--processes", "2"], ("0", "0,1")),
)


def recorded(python: str, folder: Path, cores: str, words: list[str]) -> "pytrace_ebpf.Trace":
    """The trace of one run."""
    command = [
        sys.executable,
        "-m",
        "pytrace_ebpf",
        "run",
        "-o",
        str(folder),
        "--",
        "nice",
        "-n",
        "-20",
        "taskset",
        "-c",
        cores,
        python,
        str(PROGRAM),
        *words,
    ]
    subprocess.run(command, check=True, capture_output=True)
    return pytrace_ebpf.open(folder)


def median(lengths: "np.ndarray") -> float:
    """ms of the median, which of one run is that."""
    return float(np.median(lengths)) / 1e6


def main() -> None:
    """Print a line for each change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3.11")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for title, change, program, function, words, changed, (cores, later) in CHANGES:
        now, said, real = [], [], []
        for _ in range(args.rounds):
            with tempfile.TemporaryDirectory() as folder:
                trace = recorded(args.python, Path(folder) / "now", cores, [program, *words])
                items = of_calls(trace, [f"*{function}"])
                outcome = what_if(trace, parsed(change), items)
                now.append(median(outcome.now))
                said.append(median(outcome.then))
                trace = recorded(args.python, Path(folder) / "then", later, [program, *changed])
                items = of_calls(trace, [f"*{function}"])
                real.append(median((items["end_ns"] - items["start_ns"]).to_numpy()))
        was, would, is_ = (statistics.median(each) for each in (now, said, real))
        print(f"{title:62} {change:8} now {was:7.1f} ms   said {would:7.1f}   is {is_:7.1f}   off by {100 * (would / is_ - 1):+.0f} %", flush=True)


if __name__ == "__main__":
    main()
