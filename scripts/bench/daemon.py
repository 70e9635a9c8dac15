"""What the daemon costs: CPU time of it and of the kernel's half, and its memory, with N processes at 99 Hz; beside other samplers of some of the same.

    scripts/bench/daemon.py [--processes 100] [--wakes 5] [--seconds 30] [--python PATH] [--root ROOT] [--py-spy PATH] [--own] [--others 10]

Each process is a small service: it wakes WAKES times a second, and computes for about half a millisecond. The daemon is given time to find all of them, then
its CPU time is taken for SECONDS, and given in percent of the host (all of its cores). That of its BPF programs is what the kernel counted, of the whole
host. `py-spy record` and, with --own, CPython 3.15's profiling.sampling (so --python must be one) look at one process each, so their CPU time is measured
for some of the processes, and multiplied. ROOT is a root filesystem that the services, and 3.15's sampler, run in.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from switches import run_times, run_times_counted

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PATIENCE_S = 240.0
SERVICE = """
import sys, time
def handle():
    total = 0
    for i in range(8000):
        total += i
    return total
def serve(wakes):
    while True:
        handle()
        time.sleep(1 / wakes)
serve(float(sys.argv[1]))
"""


def cpu_s(pid: int) -> float:
    """CPU time of a process and of its children that ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) * TICK_S


def family(pid: int) -> list[int]:
    """A process and its living children."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def rss(pid: int) -> int:
    """Its resident memory, and that of its children, in bytes."""
    return sum(int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in family(pid)) * os.sysconf("SC_PAGE_SIZE")


def bpf_s(pids: list[int]) -> float:
    """Seconds that the BPF programs of these processes ran so far, as the kernel counts."""
    return sum(each[1] for pid in pids for each in run_times(pid).values()) / 1e9


def measured(pids: list[int], seconds: float) -> tuple[float, float]:
    """CPU time of processes and of BPF programs in the next seconds, by second."""
    everybody = [each for pid in pids for each in family(pid)]
    before, bpf, began = {pid: cpu_s(pid) for pid in everybody}, bpf_s(pids), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return sum(cpu_s(pid) - before[pid] for pid in everybody if Path(f"/proc/{pid}").exists()) / took, (bpf_s(pids) - bpf) / took


def daemon(folder: Path, services: int, seconds: float) -> dict[str, float]:
    """Run it on the services that are there."""
    places = "".join(f'{key} = "{folder / key}"\n' for key in ("directory", "recordings", "run_directory"))
    (folder / "daemon.toml").write_text(places + 'otherwise = "ignore"\n[[rule]]\ncommand = "*def serve(wakes)*"\naction = "sample"\n')
    process = subprocess.Popen([sys.executable, "-m", "pytrace_ebpf", "daemon", "--config", str(folder / "daemon.toml")])
    try:
        began = time.monotonic()
        while json.loads(text(folder / "run_directory" / "status.json")).get("sampled", 0) < services:
            if process.poll() is not None or time.monotonic() - began > PATIENCE_S:
                sys.exit("the daemon did not find all processes")
            time.sleep(1)
        time.sleep(12)  # the first window
        cpu, bpf = measured([process.pid], seconds)
        found = {"cpu": cpu, "bpf": bpf, "rss": float(rss(process.pid))}
        status = json.loads(text(folder / "run_directory" / "status.json"))
        return found | {"samples": status["samples"], "lost": status["lost"], "bytes": status["bytes"]}
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def text(path: Path) -> str:
    """Its content, or that of an empty object."""
    return path.read_text() if path.exists() else "{}"


def other(command: Callable[[int, int], list[str]], pids: list[int], seconds: float) -> tuple[float, float]:
    """CPU time by second and memory of a sampler for each process, the mean; `command` makes its words, of a process and a time in s."""
    with ExitStack() as stack:
        samplers = []
        for pid in pids:
            samplers.append(subprocess.Popen(command(pid, int(seconds) + 60), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            stack.callback(samplers[-1].wait)
            stack.callback(samplers[-1].kill)
        time.sleep(8)
        if not all(each.poll() is None for each in samplers):
            sys.exit(f"{shlex.join(command(pids[0], 1))} does not sample these processes")
        cpu, _ = measured([each.pid for each in samplers], seconds)
        return cpu / len(pids), sum(rss(each.pid) for each in samplers) / len(pids)


def others(args: argparse.Namespace, folder: Path) -> dict[str, Callable[[int, int], list[str]]]:
    """The other samplers, by name: what starts them."""
    found: dict[str, Callable[[int, int], list[str]]] = {}
    if args.py_spy:
        to = str(folder / "spy")
        found["py-spy"] = lambda pid, length: [
            args.py_spy,
            "record",
            "-r",
            "99",
            "-n",
            "-f",
            "raw",
            "-d",
            str(length),
            "-o",
            f"{to}{pid}",
            "-p",
            str(pid),
        ]
    if args.own:
        words = [args.python, "-m", "profiling.sampling", "attach", "-a", "-r", "99", "--collapsed", "-o", "/tmp/own", "-d"]
        found["3.15's"] = lambda pid, length: [*(["nsenter", "-t", str(pid), "-m", "-r"] if args.root else []), *words, str(length), str(pid)]
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=100)
    parser.add_argument("--wakes", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--root")
    parser.add_argument("--py-spy", metavar="PATH")
    parser.add_argument("--own", action="store_true", help="3.15's sampler as well")
    parser.add_argument("--others", type=int, default=10, help="processes that other samplers look at")
    args = parser.parse_args()
    cores = os.cpu_count() or 1
    inside = [str(Path(__file__).parents[1] / "in-root.sh"), args.root] if args.root else []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, services = Path(name), []
        for _ in range(args.processes):
            services.append(subprocess.Popen([*inside, args.python, "-c", SERVICE, str(args.wakes)]))
            stack.callback(services[-1].wait)
            stack.callback(services[-1].kill)
        time.sleep(3)
        own = measured([each.pid for each in services], 5)[0]
        print(
            f"{args.processes} processes take {100 * own / cores:.1f} % of the host's {cores} cores; load average {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        with run_times_counted():
            found = daemon(folder, args.processes, args.seconds)
        print(
            f"daemon    {100 * found['cpu'] / cores:.2f} % of the host's CPU, and its BPF programs {100 * found['bpf'] / cores:.2f} %;"
            f" {found['rss'] / 1e6:.0f} MB; {found['samples']:,.0f} samples, {found['lost']:,.0f} events lost"
        )
        few = [each.pid for each in services[: args.others]]
        for name, command in others(args, folder).items():
            cpu, memory = other(command, few, min(args.seconds, 15))
            print(
                f"{name:9} {100 * cpu * args.processes / cores:.2f} % of the host's CPU, {memory * args.processes / 1e6:.0f} MB:"
                f" {args.processes} times that of each of {len(few)}"
            )


if __name__ == "__main__":
    main()
