"""What each way to look into a program costs it: every kind of recording there is here, beside the profilers that see the same.

Three programs, each started anew for every measurement, in turn: fib(18) again and again, which does nothing but call; orders of a small web service,
priced and written as JSON; batches of the text CNN's training, where PyTorch is installed. What counts is the program's own CPU time, and the wall time,
of a fixed amount of work once it is under way, against the same round's without a profiler. Quote the ratios.

    scripts/bench/options.py [--rounds 5] [--programs fib,orders,kim_cnn] [--only WAY,...] [--python PATH] [--root ROOT]

The profilers of others are installed from PyPI into .build/bench, for the version of `--python`; what cannot be had is left out, as is CPython 3.15's own
sampler before 3.15. In a root filesystem those of this host's own interpreter are tried: what is pure Python serves any.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from agent import PACKAGES, version_of
from children.measuring import IN_ROOT
from children.pytorch import KEEP_MEMORY, torch_python

WORK = Path(__file__).parent / "children" / "work.py"
HOST_PYTHON = "/usr/bin/python3.11"
LONGEST_S = 240  # from the program's start to its end
PIECES = {"fib": 250, "orders": 60, "kim_cnn": 12}
FUNCTIONS = {"fib": "work.fib", "orders": "orders.*", "kim_cnn": "kim_cnn.*"}  # for --args
FILES = {"fib": WORK, "orders": WORK.parent / "orders.py", "kim_cnn": WORK.parents[2] / "workloads" / "kim_cnn.py"}  # for line_profiler
OURS = {
    "calls": (),
    "calls, usdt": ("--source", "usdt"),
    "--args": ("--args", "{functions}"),
    "--args, usdt": ("--source", "usdt", "--args", "{functions}"),
    "--c-calls": ("--c-calls",),
    "--lines exact": ("--lines", "exact"),
    "--opcodes exact": ("--opcodes", "exact"),
    "--faults": ("--faults",),
    "--memory": ("--memory",),
    "--native-memory": ("--native-memory",),
    "--sample": ("--sample",),
}
PEERS = {  # what each adds to the interpreter's command line
    "VizTracer": ("-m", "viztracer", "--quiet", "-o", "{folder}/v.json", "--"),
    "cProfile": ("-m", "cProfile", "-o", "{folder}/c"),
    "pprofile": ("-m", "pprofile", "--out", "{folder}/p"),
    "line_profiler, of its own files": ("-m", "kernprof", "-q", "-l", "-o", "{folder}/l", "-p", "{file}"),
    "memray": ("-m", "memray", "run", "-q", "-o", "{folder}/m"),
    "memray, Python's allocators": ("-m", "memray", "run", "-q", "--trace-python-allocators", "-o", "{folder}/a"),
    "tracemalloc": ("-X", "tracemalloc"),
    "Scalene": ("-m", "scalene", "run", "-o", "{folder}/s.json"),
    "3.15's sampler, 99 Hz": ("-m", "profiling.sampling", "run", "-r", "99", "--collapsed", "-o", "{folder}/o"),
}
DISTRIBUTIONS = ("viztracer", "pprofile", "line_profiler", "memray", "scalene", "py-spy")  # the last one leaves what is in bin


def peers_for(python: str, root: str | None) -> Path:
    """A folder with the profilers of others for this interpreter, or for this host's own where it is in a root filesystem."""
    python = HOST_PYTHON if root else python
    folder = PACKAGES / f"peers-{version_of(python, None)}"
    for name in DISTRIBUTIONS if not folder.exists() else ():
        subprocess.run([python, "-m", "pip", "install", "-qq", "--upgrade", "--target", str(folder), name], stderr=subprocess.DEVNULL)
    return folder


def commands(python: str, root: str | None, program: str, folder: str) -> dict[str, list[str]]:
    """How to start the program, by way; what is missing here is to be left out by who tries it."""
    work = [str(WORK), program, str(PIECES[program]), f"{folder}/times"]
    fill = {"folder": folder, "functions": FUNCTIONS[program], "file": FILES[program]}
    shown = (str(WORK.parent), str(peers_for(python, root)), folder)
    start = [str(IN_ROOT), *(word for each in shown for word in ("--at", each)), root, python] if root else [python]
    found = {"plain": [*start, *work]}
    for number, (name, options) in enumerate(OURS.items()):
        words = [word.format_map(fill) for word in options]
        found[name] = [sys.executable, "-m", "pytrace_ebpf", "run", "-q", "-o", f"{folder}/{number}", *words, "--", *start, *work]
    found |= {name: [*start, *(word.format_map(fill) for word in options), *work] for name, options in PEERS.items()}
    found["py-spy, 99 Hz"] = [f"{peers_for(python, root)}/bin/py-spy", "record", "-r", "99", "-f", "raw", "-o", f"{folder}/r", "--", *start, *work]
    return found


def taken(way: str, python: str, root: str | None, program: str) -> tuple[float, float] | None:
    """Seconds of CPU and of wall time of the program's work; None where it could not be done that way."""
    with tempfile.TemporaryDirectory() as folder:
        environment = (
            os.environ | KEEP_MEMORY | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{peers_for(python, root)}:{os.environ.get('PYTHONPATH', '')}"}
        )
        words = ["timeout", "-s", "KILL", str(LONGEST_S), *commands(python, root, program, folder)[way]]  # kills what it has started, too
        done = subprocess.run(words, env=environment, capture_output=True, text=True, start_new_session=True)
        times = Path(folder) / "times"
        if done.returncode or not times.exists():
            said = f"not done after {LONGEST_S} s" if done.returncode == -signal.SIGKILL else done.stderr.strip() or "nothing was said"
            print(f"  {way} left out: {said.splitlines()[-1]}", flush=True)
            return None
        cpu, wall = map(float, times.read_text().split())
        return cpu, wall


def measure(program: str, python: str, root: str | None, only: set[str], rounds: int) -> None:
    """Print the table of one program."""
    found: dict[str, list[tuple[float, float]]] = {
        way: [] for way in commands(python, root, program, "") if not only or way in only or way == "plain"
    }
    for _ in range(rounds):
        for way in list(found):
            if times := taken(way, python, root, program):
                found[way].append(times)
            else:
                del found[way]
    alone = found.pop("plain")
    print(f"{program}: {statistics.median(cpu for cpu, _ in alone):.2f} s of CPU alone; times that, medians of {rounds} rounds")
    for way, times in found.items():
        cpu, wall = (statistics.median(mine[at] / plain[at] for mine, plain in zip(times, alone, strict=True)) for at in (0, 1))
        print(f"  {way:30} CPU time {cpu:6.2f}   wall time {wall:6.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--programs", type=lambda text: text.split(","), default=list(PIECES))
    parser.add_argument("--only", type=lambda text: set(text.split(",")), default=set())
    parser.add_argument("--python", default=HOST_PYTHON)
    parser.add_argument("--root", help="root filesystem that it is in")
    args = parser.parse_args()
    for program in args.programs:
        where = (str(torch_python()), None) if program == "kim_cnn" else (args.python, args.root)
        measure(program, *where, args.only, args.rounds)


if __name__ == "__main__":
    main()
