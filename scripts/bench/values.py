"""What a value costs the program, side by side by BPF and by the agent.

Copies of one interpreter run fib in turn: alone, under the tracer by probes and by the agent, and by each with fib's argument and result
recorded. Quote the differences; the times are this machine's. CPU time, with what BPF does in the program, and of each the least of its
rounds, since others may use the cores.

    scripts/bench/values.py [--python /usr/bin/python3.11] [--root DIR] [--rounds 21]
"""

import argparse
import tempfile
from pathlib import Path

from record import Recording, fib

import pytrace_ebpf
from pytrace_ebpf.record.filters import NOTHING, Observed
from pytrace_ebpf.record.process.target import inspect

FIB = Observed(("fib_child.fib",))
TRACED = {"usdt": NOTHING, "usdt --args": FIB, "agent": NOTHING, "agent --args": FIB}
VALUES = 2  # of a call: its argument and what it returns
CALLS = 5 * 21_891  # of a round of record.fib: five times fib(20)


def cpu_ns(pid: int) -> int:
    """CPU time that a process of one thread has used."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3.11", help="interpreter (in the root, if there is one)")
    parser.add_argument("--root", help="root filesystem of the interpreter")
    parser.add_argument("--rounds", type=int, default=21)
    args = parser.parse_args()
    children = {mode: fib(args.python, args.root) for mode in ("plain", *TRACED)}
    version = inspect(children["plain"].pid).version_text
    taken: dict[str, list[float]] = {mode: [] for mode in children}
    with tempfile.TemporaryDirectory() as scratch:
        recordings = [Recording(children[mode].pid, Path(scratch) / mode, mode.split()[0], observed=observed) for mode, observed in TRACED.items()]
        for _ in range(args.rounds):
            for mode, child in children.items():
                before = cpu_ns(child.pid)
                child.round()
                taken[mode].append((cpu_ns(child.pid) - before) / CALLS)
        for recording in recordings:
            recording.stop()
        lost = {mode: int(pytrace_ebpf.open(Path(scratch) / mode).losses()["count"].sum()) for mode in TRACED}
    for child in children.values():
        child.close()
    least = {mode: min(times) for mode, times in taken.items()}
    print(f"Python {version}, fib, least of {args.rounds} rounds in turn; plain {least['plain']:.0f} ns a call")
    for mode in TRACED:
        without = mode.split()[0]
        each = f", {(least[mode] - least[without]) / VALUES:6.0f} for a value" if mode != without else ""
        print(f"  {mode:12} {least[mode]:7.0f} ns a call{each}; {lost[mode]:,} lost")


if __name__ == "__main__":
    main()
