"""Whether the price of a call is the same on a busy host: as a recording measures it, on cores with nothing else to do and beside busy processes.

scripts/bench/price.py [--python /usr/bin/python3.11] [--rounds 5] [--busy 20]
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from pytrace_ebpf.record.agent.calls import AgentCalls
from pytrace_ebpf.record.cpython.functions import Functions
from pytrace_ebpf.record.filters import Filters
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.process.target import inspect
from pytrace_ebpf.record.source import CallSource, Recording
from pytrace_ebpf.record.usdt.calls import UsdtCalls

WAITS = "import time; print('ready', flush=True); time.sleep(600)"
LOOPS = "while True: pass"
MOST_S = 60  # at a time


@contextmanager
def busy(number: int) -> Iterator[None]:
    """So many processes that want a core each, for MOST_S at most."""
    loops = [subprocess.Popen(["timeout", str(MOST_S), sys.executable, "-c", LOOPS]) for _ in range(number)]
    try:
        time.sleep(1.0)
        yield
    finally:
        for loop in loops:
            loop.terminate()
            loop.wait()


def price(source: CallSource) -> float:
    """ns of a call."""
    measured = source.cost_per_call()
    assert measured is not None
    return measured[1] - measured[0]


def said(prices: Sequence[float]) -> str:
    return f"{statistics.median(prices):6.0f} ns ({min(prices):.0f} to {max(prices):.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3.11")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", type=int, default=20)
    args = parser.parse_args()
    program = subprocess.Popen([args.python, "-c", WAITS], stdout=subprocess.PIPE)
    assert program.stdout and program.stdout.readline()
    try:
        recording, target = Recording(Functions(), Processes()), inspect(program.pid)
        agent = AgentCalls(recording, 256 << 20, Filters(), follow=False, launches=False)
        with closing(agent), closing(UsdtCalls(recording, 1024, Filters(), follow=False)) as usdt:
            for source in (agent, usdt):
                source.prepare(target)
                quiet = [price(source) for _ in range(args.rounds)]
                with busy(args.busy):
                    beside = [price(source) for _ in range(args.rounds)]
                ratio = statistics.median(beside) / statistics.median(quiet)
                print(f"{source.name:6} alone {said(quiet)}, beside {args.busy} busy processes {said(beside)}: {ratio:.2f} times")
    finally:
        program.kill()
        program.wait()


if __name__ == "__main__":
    main()
