"""What starting and stopping takes: `run` of a program that does nothing against the program alone, and `attach` to the first event.

All take turns, and so does another checkout where one is named. CPU time is that of all processes of the command, the traced
program among them; it says more than the other on a busy machine, as the least of many rounds does of an idle one.
Modules are compiled already, as they are where the package is installed: their bytecode is kept in a folder of this
command's alone. Quote medians; the times are this machine's.

    scripts/bench/starting.py [--rounds 11] [--python /usr/bin/python3.11] [--before CHECKOUT]
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import pytrace_ebpf
from pytrace_ebpf.trace.schema import CallKind

HERE = Path(__file__).parents[2]
TRACER = [sys.executable, "-m", "pytrace_ebpf"]
BUSY = "def f(): pass\nprint('ready', flush=True)\nwhile True: f()"


_bytecode = tempfile.TemporaryDirectory(prefix="bytecode-")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": _bytecode.name}


def took_s(words: list[str], checkout: Path) -> tuple[float, float]:
    """Seconds until a command has ended, and of CPU."""
    began, used = time.monotonic(), _used_s()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", env={**ENVIRONMENT, "PYTHONPATH": str(checkout)})
    return time.monotonic() - began, _used_s() - used


def _used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def first_event_s(pid: int, source: str, checkout: Path, trace: Path) -> float:
    """Seconds from the command to the first call that it recorded of a busy process."""
    began = time.monotonic_ns()
    took_s([*TRACER, "attach", "-q", "--pid", str(pid), "--source", source, "--duration", "0.5", "-o", str(trace)], checkout)
    events = pytrace_ebpf.open(trace).events()
    return float(events.loc[events["kind"] != CallKind.OPEN, "ts"].min() - began) / 1e9


def round_of_runs(python: str, checkouts: dict[str, Path], scratch: Path) -> dict[str, float]:
    """Seconds and CPU seconds of a program that does nothing, alone and traced."""
    taken: dict[str, float] = {}
    programs = {"the program alone": ([python, "-c", "pass"], HERE)}
    programs |= {
        f"run, {name}": ([*TRACER, "run", "-q", "-o", f"{scratch}/run {name}", "--", python, "-c", "pass"], of) for name, of in checkouts.items()
    }
    for name, (words, checkout) in programs.items():
        taken[name], taken[f"{name}, CPU"] = took_s(words, checkout)
    return taken


def round_of_attaching(python: str, checkouts: dict[str, Path], scratch: Path) -> dict[str, float]:
    """Seconds to the first event of a busy program."""
    with subprocess.Popen([python, "-c", BUSY], stdout=subprocess.PIPE) as busy:
        assert busy.stdout and busy.stdout.readline() == b"ready\n"
        taken = {
            f"attach --source {source} to the first event, {name}": first_event_s(busy.pid, source, of, scratch / f"{source} {name}")
            for name, of in checkouts.items()
            for source in ("agent", "usdt")
        }
        busy.kill()
    return taken


def measure(python: str, rounds: int, checkouts: dict[str, Path]) -> dict[str, list[float]]:
    """Seconds of each round, by what was done."""
    taken: dict[str, list[float]] = {}
    for number in range(-1, rounds):
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder)
            once = round_of_runs(python, checkouts, scratch) | round_of_attaching(python, checkouts, scratch)
        for name, seconds in once.items() if number >= 0 else ():  # in the first one programs may be compiled
            taken.setdefault(name, []).append(seconds)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--python", default="/usr/bin/python3.11")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="a checkout of another version, measured beside")
    args = parser.parse_args()
    show(args.python, args.rounds, args.before)


def show(python: str, rounds: int, before: Path | None = None) -> None:
    """Print the table."""
    checkouts = {"this version": HERE} | ({"the one before": before.resolve()} if before else {})
    print(f"seconds on {python}, medians of {rounds} rounds in turn, least and most; {os.getloadavg()[0]:.1f} processes want a core")
    for name, seconds in measure(python, rounds, checkouts).items():
        print(f"  {name:60} {statistics.median(seconds):6.2f}   {min(seconds):6.2f} - {max(seconds):.2f}")


if __name__ == "__main__":
    main()
