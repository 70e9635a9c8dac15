"""What sampling costs: the program, by its work per second of CPU time, and the sampler, in shares of a core; ours beside py-spy's and CPython 3.15's.

One program computes fib throughout. Each round runs every sampler for some seconds, in random order. Ratios are to the same round's
rate without a sampler; printed are medians over all rounds. py-spy stops the program for each sample, which its CPU time does not
show: so the work per second of wall time is printed too, which is less certain on a busy machine.

    scripts/bench/sample.py [--rounds 7] [--seconds 4] [--rates 99,999,4999] [--py-spy PATH] [--python COMMAND] [--own "nsenter -t {pid} -m -r python3.15"] [--threads 500]

`--own`: what starts a CPython 3.15 that can attach to the program, which has to be one too.
"""

import argparse
import json
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
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 20.0  # for the end of a sampler
READY_S = 8.0  # to begin takes CPU time of its own, on a busy machine for seconds
PROGRAM = """
import json, sys, threading, time
for _ in range(int(sys.argv[1])):
    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
def work(seconds):
    done, wall, cpu = 0, time.monotonic(), time.process_time()
    while time.monotonic() - wall < seconds:
        fib(16)
        done += 1
    return done, time.monotonic() - wall, time.process_time() - cpu
print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps(work(float(line))), flush=True)
"""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and the children that it waited for, and of its living children."""
    total = 0.0
    for folder in (Path(f"/proc/{pid}"), *(Path(f"/proc/{child}") for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11 : 15 if folder.name == str(pid) else 13])) * TICK_S
    return total


class Fib:
    """The program."""

    def __init__(self, command: list[str], threads: int) -> None:
        """`threads`: so many that only wait beside the one that works."""
        self.process = subprocess.Popen([*command, "-c", PROGRAM, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def work(self, seconds: float) -> tuple[float, float]:
        """Rounds per second of CPU time, and of wall time."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        done, wall, cpu = json.loads(self._answer())
        return done / cpu, done / wall


def measured(fib: Fib, command: list[str], seconds: float) -> tuple[float, float, float]:
    """The program's two rates beside a sampler, and the CPU time that this takes of a core."""
    sampler = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=REPOSITORY)
    try:
        time.sleep(READY_S)
        if sampler.poll() is not None:
            raise SystemExit(f"{command[0]} ended with {sampler.returncode} before anything was measured")
        before, began = cpu_seconds(sampler.pid), time.monotonic()
        rates = fib.work(seconds)
        share = (cpu_seconds(sampler.pid) - before) / (time.monotonic() - began)
    finally:
        sampler.send_signal(signal.SIGINT)
        try:
            sampler.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:  # 3.15's may not come to an end
            sampler.kill()
            sampler.wait()
    return *rates, share


def ways(pid: int, rates: list[int], py_spy: str | None, own: str, folder: str) -> dict[str, list[str]]:
    """Commands that sample a process until Ctrl-C, by name."""
    found = {}
    for hz in rates:
        for name, option in (("", []), ("--rootless ", ["--rootless"])):
            found[f"{name}--sample {hz}"] = [
                sys.executable, "-m", "pytrace_ebpf", "attach", "--pid", str(pid), "-q", *option, "--sample", str(hz),
                "-o", f"{folder}/{hz}-{random.random()}",
            ]  # fmt: skip
        if py_spy:
            found[f"py-spy {hz}"] = [py_spy, "record", "--pid", str(pid), "-r", str(hz), "-d", "3600", "-f", "raw", "-o", f"{folder}/raw"]
        if own:
            words = own.format(pid=pid).split()
            found[f"3.15's {hz}"] = [
                *words, "-m", "profiling.sampling", "attach", "-a", "-r", str(hz), "-d", "3600", "--collapsed", "-o", "/tmp/pytrace-bench-own", str(pid),
            ]  # fmt: skip
    return found


def main() -> None:
    """Measure, and print a table."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--seconds", type=float, default=4)
    arguments.add_argument("--rates", type=lambda text: [int(hz) for hz in text.split(",")], default=[99, 999, 4999])
    arguments.add_argument("--py-spy", default=shutil.which("py-spy"))
    arguments.add_argument("--python", default="/usr/bin/python3")
    arguments.add_argument("--own", default="")
    arguments.add_argument("--threads", type=int, default=0)
    args = arguments.parse_args()
    fib, measurements = Fib(args.python.split(), args.threads), defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            plain = [fib.work(args.seconds)]
            order = list(ways(fib.process.pid, args.rates, args.py_spy, args.own, folder).items())
            random.shuffle(order)
            found = {name: measured(fib, command, args.seconds) for name, command in order}
            plain.append(fib.work(args.seconds))
            cpu, wall = (statistics.mean(rates) for rates in zip(*plain, strict=True))
            measurements["none, twice"].append((plain[0][0] / plain[1][0], plain[0][1] / plain[1][1], 0.0))
            for name, (by_cpu, by_wall, share) in found.items():
                measurements[name].append((cpu / by_cpu, wall / by_wall, share))
    fib.process.kill()
    print(f"{'':23} {'CPU time':>9} {'wall time':>10} {'of a core':>10}   medians of {args.rounds} rounds")
    for name, rows in measurements.items():
        by_cpu, by_wall, share = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{name:23} {100 * (by_cpu - 1):+8.1f}% {100 * (by_wall - 1):+9.1f}% {100 * share:9.1f}%")


if __name__ == "__main__":
    main()
