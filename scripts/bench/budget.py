"""Whether a budget is kept: what a program's work costs it traced, and traced with `--budget`, against a copy of it that runs beside it untraced.

    fib       a loop over fib(18) alone, which does nothing but call
    service   the web service of service.py under load, by the request
    kim_cnn   the training of a text CNN, by the batch; needs `make torch`

Both copies run on; the tracer is attached to one and the other of them in turn. What counts is CPU time per piece of work, the program's own
and the tracer's, against that of the copy at the same time: whatever else the machine does meets both. The tracer's is counted from its first
line on. `untraced` says how far to trust the rest. A budget is held within a third of itself where the median cost of the rounds, program and
tracer, is at most four thirds of it.

    scripts/bench/budget.py [--python PATH] [--budget 5%] [--rounds 7] [--seconds 10] [--without fib|service|kim_cnn]
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from children.pytorch import KEEP_MEMORY, torch_python
from service import SERVICE, Clients

FIB = """
import mmap, os, sys
done = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 8)
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
def main():
    print("ready", flush=True)
    while True:
        fib(18)
        done[:] = (int.from_bytes(done, "little") + 1).to_bytes(8, "little")
main()
"""
BATCHES = Path(__file__).parent / "children" / "batches.py"
WAYS = ("untraced", "traced", "with budget")


def cpu_ns(pid: int) -> int:
    return time.clock_gettime_ns(~pid << 3 | 2)  # CPUCLOCK_SCHED of a process


class Tracer:
    """`pytrace-ebpf attach`, from its first line on until the end of the block; nothing where it is `untraced`."""

    def __init__(self, pid: int, way: str, budget: str, folder: str) -> None:
        self.process, self.cpu_ns = None, 0
        if way != "untraced":
            words = [sys.executable, "-m", "pytrace_ebpf", "attach", "--pid", str(pid), "-o", folder]
            words += ["--budget", budget] if way == "with budget" else []
            self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> "Tracer":
        if self.process and self.process.stderr:
            self.process.stderr.readline()
        return self

    def now_ns(self) -> int:
        return cpu_ns(self.process.pid) if self.process else 0

    def __exit__(self, *_: object) -> None:
        if self.process:
            self.process.send_signal(signal.SIGINT)
            said = self.process.communicate()[1]
            assert self.process.returncode == 0, said


@dataclass
class Copy:
    """One of two running copies of a program; `work()` counts the pieces of its work so far."""

    pid: int
    work: Callable[[], int]

    def now(self) -> tuple[int, int]:
        return cpu_ns(self.pid), self.work()


def side_by_side(copies: tuple[Copy, Copy], budget: str, rounds: int, seconds: float) -> None:
    """Print what a piece of work cost in each way, against the other copy meanwhile."""
    costs: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
    for number in range(rounds):
        traced, plain = copies[number % 2], copies[1 - number % 2]
        for way in WAYS:
            with tempfile.TemporaryDirectory() as folder, Tracer(traced.pid, way, budget, f"{folder}/trace") as tracer:
                before = (*traced.now(), *plain.now(), tracer.now_ns())
                time.sleep(seconds)
                now = (*traced.now(), *plain.now(), tracer.now_ns())
            program, done, plain_program, plain_done, own = (after - then for then, after in zip(before, now, strict=True))
            alone = plain_program / plain_done
            costs[way].append((program / done / alone, (program + own) / done / alone, done / plain_done))
    print(f"  {rounds} rounds of {seconds:g} s, against the other copy meanwhile; median, and quartiles of what is added")
    for way, found in costs.items():
        of_program, of_both, kept = (sorted(column) for column in zip(*found, strict=True))
        low, added, high = ((ratio - 1) * 100 for ratio in statistics.quantiles(of_both, n=4))
        print(
            f"  {way:12} CPU time of a piece of work {statistics.median(of_program):.3f} times; with the tracer's {added:+.1f} % "
            f"({low:+.1f} to {high:+.1f}); {statistics.median(kept) * 100:.0f} % of the work in the same time"
        )
    held = added <= percent(budget) * 4 / 3
    print(f"  --budget {budget}: {'held within a third' if held else 'NOT held'}")


def percent(budget: str) -> float:
    """`--budget` as a number."""
    return float(budget.removesuffix("%"))


@contextmanager
def counting(words: list[str], **environment: str) -> Iterator[Copy]:
    """A program that is given a file at the end of these words, says ready, and counts the pieces of its work there."""
    with tempfile.NamedTemporaryFile() as counter:
        counter.write(bytes(8))
        counter.flush()
        program = subprocess.Popen([*words, counter.name], stdout=subprocess.PIPE, text=True, env=os.environ | environment)
        try:
            assert program.stdout and program.stdout.readline()
            yield Copy(program.pid, lambda: int.from_bytes(os.pread(counter.fileno(), 8, 0), "little"))
        finally:
            program.kill()
            program.wait()


def fib(python: str) -> AbstractContextManager[Copy]:
    return counting([python, "-c", FIB])


@contextmanager
def service(python: str) -> Iterator[Copy]:
    program = subprocess.Popen([python, SERVICE], stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout
        clients = Clients(program.pid, int(program.stdout.readline()), 4)
        clients.over(1.0)
        yield Copy(program.pid, lambda: len(clients.answers))
    finally:
        program.kill()
        program.wait()


def kim_cnn(_python: str) -> AbstractContextManager[Copy]:
    # One thread: several that wait for each other on busy cores spin meanwhile.
    return counting([str(torch_python()), str(BATCHES)], **KEEP_MEMORY, OMP_NUM_THREADS="1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, type=lambda path: str(Path(path).absolute()))
    parser.add_argument("--budget", default="5%")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--without", choices=("fib", "service", "kim_cnn"), action="append", default=[])
    args = parser.parse_args()
    for program in (fib, service, kim_cnn):  # the last one where PyTorch is installed
        if program.__name__ not in args.without:
            print(f"{program.__name__}, --budget {args.budget}", flush=True)
            with program(args.python) as one, program(args.python) as other:
                side_by_side((one, other), args.budget, args.rounds, args.seconds)


if __name__ == "__main__":
    main()
