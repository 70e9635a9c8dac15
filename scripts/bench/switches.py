"""What the scheduling probes cost a program that does nothing but switch: two threads, or two processes, play ping-pong.

They share one core, so that each byte is a switch to the other one, and take their turns without the probes, beside
a recording of another program (the probes sit on the whole host), and recorded themselves; no function is traced.
The times are of CPU. Quote the ratios; the times are this machine's.

    scripts/bench/switches.py [--python /usr/bin/python3.11] [--rounds 11]
"""

import argparse
import ctypes
import os
import re
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from children.measuring import Measuring

from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.scheduling.sched import SchedProbes
from pytrace_ebpf.trace.schema import SchedKind

CHILD = Path(__file__).parent / "children" / "pingpong.py"
BPF, ENABLE_STATS = 321, 32  # x86-64; the attribute's only field, which statistics, is 0: run times


def family(pid: int) -> list[int]:
    """A process and its children."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


@contextmanager
def run_times_counted() -> Iterator[None]:
    """The kernel counts how long BPF programs run, which itself takes its time."""
    attribute = ctypes.create_string_buffer(128)
    descriptor = ctypes.CDLL(None).syscall(BPF, ENABLE_STATS, attribute, len(attribute))
    try:
        yield
    finally:
        os.close(descriptor)


def in_programs_ns() -> int:
    """How long the programs of this process have run, as far as that was counted."""
    found = {}
    for descriptor in Path("/proc/self/fdinfo").iterdir():
        try:
            text = descriptor.read_text()
        except OSError:
            continue
        if fields := re.search(r"prog_id:\t(\d+)\nrun_time_ns:\t(\d+)", text):
            found[fields[1]] = int(fields[2])
    return sum(found.values())


def measure(python: str, kind: str, rounds: int) -> None:
    """Print the table of one kind of pair."""
    pair = Measuring([python, str(CHILD), kind])
    taken: dict[str, list[float]] = {"without the probes": [], "beside a recording": [], "recorded": []}
    in_programs, lost = [], 0
    for _ in range(rounds):
        taken["without the probes"].append(pair.round())
        probes = SchedProbes(Options(Path()).sched_ring_pages, follow=True)
        taken["beside a recording"].append(pair.round())
        for pid in family(pair.pid):
            probes.add(pid)
        probes.drain()
        taken["recorded"].append(pair.round())
        probes.drain()
        with run_times_counted():
            before = in_programs_ns()
            pair.round()
            spent = in_programs_ns() - before
        switches = int((probes.drain()["sched"][0]["kind"] == SchedKind.OUT).sum())
        in_programs.append(spent / switches)
        lost += int(probes.losses().sum())
        probes.close()
    pair.close()
    print(f"two {kind}, medians of {rounds} rounds in turn; {lost} events lost")
    plain = statistics.median(taken["without the probes"])
    for name, values in taken.items():
        ratios = [a / b for a, b in zip(values, taken["without the probes"], strict=True)]
        ns = statistics.median(values)
        print(f"  {name:20} {ns:7.0f} ns a switch  {statistics.median(ratios):5.2f} times  {ns - plain:+6.0f} ns")
    print(f"  in the programs      {statistics.median(in_programs):7.0f} ns a switch (wake-up, out, in), by the kernel's count")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3.11")
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    for kind in ("processes", "threads"):
        measure(args.python, kind, args.rounds)


if __name__ == "__main__":
    main()
