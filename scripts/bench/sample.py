"""What sampling costs a program and the sampler, in the steady state: ours beside py-spy's and CPython 3.15's, in one run.

The programs are fib, a web service under load, and processes that wait. Each sampler is given time until what it takes stays the same, then some seconds
are measured, and the program works without one before and after. Printed is by how many percent more CPU time and wall time the program takes for the same work, against
the mean of the two; and the CPU time that the sampler takes, of a core. The row without a sampler says how much two such measurements differ. py-spy
stops the program for each sample, which its CPU time does not show. Of ours it is also printed what the kernel counted of each BPF program: runs a
second, and how long one takes; that depends little on what else the machine does. This is of the whole host, and without the interruptions themselves.
What ours costs the program at the first rate is also measured in pairs of short slices (paired.py), of --copies recordings at once, with the error of their median.
With --rounds 0 that alone, for all of --minutes.

    scripts/bench/sample.py [--programs fib,service,idle] [--rates 99,999,4999] [--seconds 5] [--rounds 1] [--pairs 80] [--copies 8] [--python PATH] [--root ROOT]
                            [--py-spy PATH] [--threads 0] [--processes 100] [--clients 4] [--rootless] [--minutes 10]

3.15's sampler is measured where the programs run on CPython 3.15. It serves one process: of those that wait its CPU time is measured for one, and multiplied.
After --minutes what was not begun is left out, and named: the highest rates, which come last.
"""

import argparse
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from children.measuring import IN_ROOT
from paired import median, slowdown
from service import Clients
from switches import run_times, run_times_counted

REPOSITORY, CHILDREN = Path(__file__).parents[2], Path(__file__).parent / "children"
PATIENCE_S = 20.0  # for the end of a sampler
BEGINNING_S, STEADY_S, MOST_BEGINNING_S = 3.0, 1.5, 9.0  # to begin takes CPU time of its own, on a busy machine for long
STEADY = 1.3  # times as much CPU time in one such interval as in the next, and 1 % of a core
PLAIN_S = 2.0  # without a sampler, between two
SLICE_S = {"fib": 0.25, "service": 0.5}  # of a pair: some ten samples, and as much work as makes one request more or less not count
PAIRS_S = 50.0  # for all pairs of a program, where samplers are compared too
WITH_PAIRS = 1.35  # times as long as a program without them
COUNTED_S = 1.5  # for which the kernel counts how long BPF programs run
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
Rates = tuple[float, float]  # work per second of CPU time, and of wall time; nan: it does none


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, of its living children, and of those that it waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    total = sum(map(int, fields[13:15])) * TICK_S
    for each in (pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
        with suppress(OSError):  # it has ended meanwhile
            total += time.clock_gettime(~each << 3 | 2)  # CPUCLOCK_SCHED of a process
    return total


class Sampled:
    """A program of children/sampled.py."""

    def __init__(self, python: list[str], kind: str, number: int) -> None:
        """`number`: of its threads or processes that wait."""
        command = [*python, str(CHILDREN / "sampled.py"), kind, str(number)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.pid, self.processes = self.process.pid, number if kind == "idle" else 1
        self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def work(self, seconds: float) -> Rates:
        """Its rates for so long."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        done, wall, cpu = json.loads(self._answer())
        return (done / cpu, done / wall) if done else (math.nan, math.nan)


class Service:
    """The web service of service.py, and its clients, who go on asking."""

    processes = 1

    def __init__(self, python: list[str], clients: int) -> None:
        self.process = subprocess.Popen([*python, str(CHILDREN / "shop.py")], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.pid = self.process.pid
        self._clients = Clients(self.pid, int(self.process.stdout.readline()), clients)
        self._clients.over(1.0)

    def work(self, seconds: float) -> Rates:
        """Its rates for so long."""
        answers, _, cpu_ms = self._clients.over(seconds)
        return 1e3 / cpu_ms, answers


Program = Sampled | Service


@dataclass
class Measured:
    """What was measured of a program beside a sampler."""

    rates: Rates
    core: float  # share that the sampler took
    programs: dict[str, tuple[float, float]]  # of ours, by BPF program: runs a second, ns of one


def begin(program: Program, sampler: "subprocess.Popen[bytes]", name: str) -> None:
    """Let the program work until the sampler takes the same share of a core from one interval to the next."""
    program.work(BEGINNING_S)
    before, end_s = math.inf, time.monotonic() + MOST_BEGINNING_S
    while time.monotonic() < end_s:
        if sampler.poll() is not None:
            raise SystemExit(f"{name} ended with {sampler.returncode} before anything was measured")
        used = cpu_seconds(sampler.pid)
        program.work(STEADY_S)
        used = cpu_seconds(sampler.pid) - used
        if before <= STEADY * used + 0.01 * STEADY_S:
            return
        before = used


def measured(program: Program, command: list[str], seconds: float, many: int = 1) -> Measured:
    """`many`: one of so many samplers that would be needed."""
    is_ours = "pytrace_ebpf" in command
    sampler = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE if is_ours else subprocess.DEVNULL, cwd=REPOSITORY)
    counted = {}
    try:
        if is_ours and sampler.stderr is not None:
            sampler.stderr.readline()  # it says that it has begun; the others do not
        begin(program, sampler, command[0])
        before, began = cpu_seconds(sampler.pid), time.monotonic()
        rates = program.work(seconds)
        core = many * (cpu_seconds(sampler.pid) - before) / (time.monotonic() - began)
        if is_ours and "--rootless" not in command:
            with run_times_counted():
                before_ns, began = run_times(sampler.pid), time.monotonic()
                program.work(COUNTED_S)
                after_ns, took = run_times(sampler.pid), time.monotonic() - began
            for name, (runs, ns) in after_ns.items():
                earlier = before_ns.get(name, (0, 0))
                if runs > earlier[0]:
                    counted[name] = (runs - earlier[0]) / took, (ns - earlier[1]) / (runs - earlier[0])
    finally:
        sampler.send_signal(signal.SIGINT)
        try:
            sampler.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:  # 3.15's may not come to an end
            sampler.kill()
            sampler.wait()
    return Measured(rates, core, counted)


def ways(program: Program, hz: int, args: argparse.Namespace, folder: str) -> dict[str, tuple[list[str], int]]:
    """By name: a command that samples the program until Ctrl-C, and how many such samplers it would take."""
    pid, ours = str(program.pid), [sys.executable, "-m", "pytrace_ebpf", "attach", "--sample", str(hz), "-o", f"{folder}/{random.random()}"]
    found = {"--sample": ([*ours, "--pid", pid], 1)}
    if args.rootless:
        found["--rootless --sample"] = [*ours, "--rootless", "--pid", pid], 1
    if args.py_spy:
        more = ["-s"] if program.processes > 1 else []
        found["py-spy"] = [args.py_spy, "record", *more, "--pid", pid, "-r", str(hz), "-d", "3600", "-f", "raw", "-o", f"{folder}/raw"], 1
    if args.python.endswith("3.15"):
        inside = ["nsenter", "-t", pid, "-m", "-r"] if args.root else []
        one = pid if program.processes == 1 else Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
        own = [
            args.python,
            "-m",
            "profiling.sampling",
            "attach",
            "-a",
            "-r",
            str(hz),
            "-d",
            "3600",
            "--collapsed",
            "-o",
            "/tmp/pytrace-bench-own",
            one,
        ]
        found["3.15's"] = [*inside, *own], program.processes
    return found


def rounds(program: Program, args: argparse.Namespace, folder: str, end_s: float) -> tuple[dict[str, list[Measured]], list[Rates]]:
    """What was measured by sampler and rate until then, its rates against those without a sampler; and of these one against the next."""
    found, twice = defaultdict[str, list[Measured]](list), list[Rates]()
    plain = program.work(PLAIN_S)
    for _, hz in product(range(args.rounds), args.rates):
        order = [(f"{name} {hz}", *way) for name, way in ways(program, hz, args, folder).items()]
        random.shuffle(order)
        for name, command, many in order:
            if time.monotonic() > end_s:
                print(f"  {name}: left out, there was no time", file=sys.stderr)
                continue
            one, before = measured(program, command, args.seconds, many), plain
            plain = program.work(PLAIN_S)
            one.rates = tuple((a + b) / 2 / rate for a, b, rate in zip(before, plain, one.rates, strict=True))
            found[name].append(one)
            twice.append(tuple(max(a, b) / min(a, b) for a, b in zip(before, plain, strict=True)))
            print(f"  {name}: {' '.join(f'{100 * (rate - 1):+.1f} %' for rate in one.rates)}, {100 * one.core:.2f} % of a core", file=sys.stderr)
    return found, twice


def percent(value: float) -> str:
    return "" if math.isnan(value) else f"{100 * value:+.1f} %"


def show(title: str, args: argparse.Namespace, found: dict[str, list[Measured]], twice: list[Rates]) -> None:
    """The tables of one program."""
    print(f"\n{title}: medians of {args.rounds} of {args.seconds:g} s each\n{'':24} {'CPU time':>9} {'wall time':>10} {'of a core':>10}")
    again = [statistics.median(column) - 1 for column in zip(*twice, strict=True)]
    print(f"{'none, twice, differ by':24} {percent(again[0]):>9} {percent(again[1]):>10}")
    for name in sorted(found, key=lambda name: (int(name.split()[-1]), name)):
        by_cpu, by_wall = (statistics.median(column) - 1 for column in zip(*(each.rates for each in found[name]), strict=True))
        print(f"{name:24} {percent(by_cpu):>9} {percent(by_wall):>10} {100 * statistics.median(each.core for each in found[name]):8.2f} %")
    for name, each in found.items():
        if counted := each[-1].programs:
            whole = sum(runs * ns for runs, ns in counted.values()) / 1e7
            print(
                f"BPF programs, {name}: {whole:.2f} % of a core; "
                + ", ".join(f"{key} {ns:.0f} ns × {runs:.0f}/s" for key, (runs, ns) in counted.items())
            )


def show_pairs(title: str, program: Program, args: argparse.Namespace, slice_s: float, most_s: float) -> None:
    """How much of its time ours costs the program."""
    ratios = slowdown(program.pid, program.work, args.rates[0], args.pairs, slice_s, most_s, args.copies)
    said = []
    for column, what in zip(zip(*ratios, strict=True), ("CPU time", "wall time"), strict=True):
        middle, error = median(column)
        said.append(f"{100 * (middle - 1):+.2f} ± {100 * error:.2f} % {what}")
    one = f", one of {args.copies} recordings at once" if args.copies > 1 else ""
    print(
        f"{title}: --sample {args.rates[0]} in {len(ratios)} pairs of {slice_s:g} s{one}: {', '.join(said)} (median, one standard error)", flush=True
    )


def options() -> argparse.Namespace:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--programs", type=lambda text: text.split(","), default=["fib", "service", "idle"])
    arguments.add_argument("--rates", type=lambda text: [int(hz) for hz in text.split(",")], default=[99, 999, 4999])
    arguments.add_argument("--rounds", type=int, default=1)
    arguments.add_argument("--seconds", type=float, default=5)
    arguments.add_argument("--pairs", type=int, default=80)
    arguments.add_argument("--copies", type=int, default=8)
    arguments.add_argument("--minutes", type=float, default=10)
    arguments.add_argument("--python", default="/usr/bin/python3.11")
    arguments.add_argument("--root", help="a root filesystem that it is in")
    arguments.add_argument("--py-spy", default=shutil.which("py-spy"))
    arguments.add_argument("--threads", type=int, default=0)
    arguments.add_argument("--processes", type=int, default=100)
    arguments.add_argument("--clients", type=int, default=4)
    arguments.add_argument("--rootless", action="store_true")
    return arguments.parse_args()


def main() -> None:
    """Measure, and print the tables."""
    args = options()
    python = [str(IN_ROOT), "--at", str(CHILDREN), args.root, args.python] if args.root else [args.python]
    makers = {
        "fib": (f"fib, {args.threads} threads that wait", lambda: Sampled(python, "fib", args.threads)),
        "service": (f"a web service, {args.clients} clients", lambda: Service(python, args.clients)),
        "idle": (f"{args.processes} processes that wait", lambda: Sampled(python, "idle", args.processes)),
    }
    began_s = end_s = time.monotonic()
    weights = {kind: 1.0 if kind == "idle" else WITH_PAIRS for kind in args.programs}
    for kind in args.programs:
        title, make = makers[kind]
        program = make()
        try:
            with tempfile.TemporaryDirectory() as folder:
                end_s += 60 * args.minutes * weights[kind] / sum(weights.values())
                last_s = end_s - args.seconds - MOST_BEGINNING_S - (PAIRS_S if kind in SLICE_S else 0.0)
                if args.rounds:
                    show(title, args, *rounds(program, args, folder, last_s))
            if kind in SLICE_S and args.pairs:
                show_pairs(title, program, args, SLICE_S[kind], PAIRS_S if args.rounds else end_s - time.monotonic())
        finally:
            program.process.kill()
            program.process.wait()
    print(f"\nThis took {(time.monotonic() - began_s) / 60:.1f} minutes.")


if __name__ == "__main__":
    main()
