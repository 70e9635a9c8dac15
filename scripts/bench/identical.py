"""How often `diff --fail-over`, or pytest with `--pytrace-fail`, fails where nothing differs: pairs of one and the same short program, or test suite, recorded in turns.

    scripts/bench/identical.py [--pairs 30] [--runs 3] [--fail-over 1%] [--parallel 1] [--load 0] [--pytest]

--parallel records so many pairs at a time, each being the others' load; --load starts so many processes that compute beside them.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from math import comb
from multiprocessing import get_context
from pathlib import Path

import pytrace_ebpf
from pytrace_ebpf.diff import tests
from pytrace_ebpf.diff.judge import judge
from pytrace_ebpf.diff.sides import both, traces_in
from pytrace_ebpf.diff.verdict import RATE
from pytrace_ebpf.units import share_of

PROGRAM = """
import threading, time
def score(k): return sum(i * i % 7 for i in range(k))
def parse(k): return [str(i) for i in range(k)]
def work():
    for _ in range(20): score(2000); parse(2000)
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
time.sleep(0.01)
"""
SUITE = """
import pytest
@pytest.mark.parametrize("number", range(20))
def test_it(number):
    for _ in range(10 + number): sum(i * i % 7 for i in range(2000))
"""
PACKAGE = {"PYTHONPATH": str(Path(pytrace_ebpf.__file__).parents[1])}
VALUES = ("on_cpu", "wall")

Told = tuple[bool, bool, int]
"""Whether it is said to be slower, whether the means alone would say so, and of how many things."""


def order(run: int) -> str:
    """Of the two sides in a round, as `diff --until-sure` has it."""
    return "ba" if run % 2 else "ab"


def of_programs(folder: Path, runs: int, share: float) -> Iterator[Told]:
    """Of two times so many runs of the program, by each of VALUES."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    for run in range(runs):
        for side in order(run):
            (folder / side).mkdir(exist_ok=True)
            words = [sys.executable, "-m", "pytrace_ebpf", "run", "-q", "-o", folder / side / str(run), "--", sys.executable, "-I", "-S", program]
            subprocess.run(words, env=os.environ | PACKAGE, check=True)
    for value in VALUES:
        traces = [[pytrace_ebpf.open(path) for path in traces_in(folder / side)] for side in ("a", "b")]
        judged = judge(*both(*traces, ("a", "b"), "run")[:2], "function", "self", value, share)
        yield judged.slower, judged.found, judged.compared


def of_suites(folder: Path, runs: int, share: float) -> Iterator[Told]:
    """Of two times so many runs of the tests; what is compared is what --pytrace-fail goes by."""
    (folder / "test_it.py").write_text(SUITE)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytrace_ebpf.diff.pytest_plugin", "test_it.py"]
    environment = os.environ | PACKAGE | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    for run in range(runs):
        for side in order(run):
            subprocess.run([*words, "--pytrace", side], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    before, after = (tests.recorded_in(folder / side) for side in "ab")
    for value in VALUES:
        slower = tests.slower(before, after, share, value)
        yield any(each.sure for each in slower), bool(slower), len(before)


def pair(number: int, runs: int, share: float, suites: bool) -> tuple[list[Told], float]:
    """What is said of one, and the machine's load then."""
    with tempfile.TemporaryDirectory() as folder:
        return list((of_suites if suites else of_programs)(Path(folder), runs, share)), os.getloadavg()[0]


def as_many(pairs: int, failed: int) -> float:
    """How often, of so many pairs, so many fail or more where each does at RATE: under 1 % says that the rate is more."""
    return sum(comb(pairs, k) * RATE**k * (1 - RATE) ** (pairs - k) for k in range(failed, pairs + 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--fail-over", help="1%%; 20%% with --pytest")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--pytest", action="store_true")
    args = parser.parse_args()
    limit = args.fail_over or ("20%" if args.pytest else "1%")
    counts, loads = {value: [0, 0] for value in VALUES}, []
    with ExitStack() as stack:
        for _ in range(args.load):
            stack.callback(subprocess.Popen([sys.executable, "-c", "while True: pass"]).kill)
        pool = stack.enter_context(get_context("spawn").Pool(args.parallel))
        told = partial(pair, runs=args.runs, share=share_of("--fail-over", limit), suites=args.pytest)
        for done, (sides, load) in enumerate(pool.imap_unordered(told, range(args.pairs)), 1):
            loads.append(load)
            for (value, count), (sure, found, compared) in zip(counts.items(), sides, strict=True):
                count[0] += sure
                count[1] += found
                verdict = f"{'FAILS' if sure else 'passes'}; the means alone {'fail' if found else 'pass'}"
                print(f"pair {done}, {value}: {verdict}; {compared} compared; load {load:.1f}", flush=True)
    what = "suite" if args.pytest else "program"
    print(f"\n{args.pairs} pairs of {args.runs} runs each of one {what}, {args.parallel} at a time beside {args.load} busy processes, over {limit};")
    print(f"load of the machine {min(loads):.1f} to {max(loads):.1f}, in the middle {sorted(loads)[len(loads) // 2]:.1f}:")
    for value, (sure, found) in counts.items():
        print(
            f"  by {value}: {sure} fail ({sure / args.pairs:.0%}; where it is {RATE:.0%} so many or more do with {as_many(args.pairs, sure):.0%}); by the means alone {found}"
        )


if __name__ == "__main__":
    main()
