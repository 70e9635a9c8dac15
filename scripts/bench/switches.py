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
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from children.measuring import Measuring

from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.scheduling.sched import SchedProbes
from pytrace_ebpf.trace.schema import SchedKind

CHILD = Path(__file__).parent / "children" / "pingpong.py"
BPF, FD_BY_ID, INFO_BY_FD, ENABLE_STATS = 321, 13, 15, 32  # x86-64; of the last the attribute's only field, which statistics, is 0: run times
NAME_AT = 64  # in struct bpf_prog_info


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


def run_times(pid: int | str = "self") -> dict[str, tuple[int, int]]:
    """By name, of the BPF programs that a process holds: how often they have run and for how many ns, as far as that was counted."""
    found = {}
    for descriptor in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            text = descriptor.read_text()
        except OSError:
            continue
        if fields := re.search(r"prog_id:\t(\d+)\nrun_time_ns:\t(\d+)\nrun_cnt:\t(\d+)", text):
            number, ns, runs = map(int, fields.groups())
            found[number] = runs, ns
    named: dict[str, tuple[int, int]] = {}
    for number, (runs, ns) in found.items():
        name = program_name(number)
        before = named.get(name, (0, 0))
        named[name] = before[0] + runs, before[1] + ns
    return named


def program_name(number: int) -> str:
    """The name of the BPF program with this id."""
    system_call, attribute, info = ctypes.CDLL(None).syscall, ctypes.create_string_buffer(128), ctypes.create_string_buffer(80)
    struct.pack_into("<I", attribute, 0, number)
    descriptor = system_call(BPF, FD_BY_ID, attribute, len(attribute))
    try:
        struct.pack_into("<IIQ", attribute, 0, descriptor, len(info), ctypes.addressof(info))
        system_call(BPF, INFO_BY_FD, attribute, len(attribute))
    finally:
        os.close(descriptor)
    return info.raw[NAME_AT:].partition(b"\0")[0].decode()


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
            before = sum(ns for _, ns in run_times().values())
            pair.round()
            spent = sum(ns for _, ns in run_times().values()) - before
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
