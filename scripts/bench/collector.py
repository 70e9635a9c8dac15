"""What an event of the agent's costs the collector, from the chunk in shared memory to the Parquet part: CPU time, all threads.

A program fills an arena and then stands still; what lies there is collected over and over by the code that a recording runs.
Of each step the fastest round counts, since whatever else the machine does can only add to it. Another checkout, where one is
named, takes turns with this one.

    scripts/bench/collector.py [--python /usr/bin/python3.11] [--rounds 21] [--before CHECKOUT]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pytrace_ebpf
from pytrace_ebpf.record.agent import arena
from pytrace_ebpf.record.agent.agent_library import TSC, Clock, Library, agent_library, best_clock
from pytrace_ebpf.record.agent.arena import Arena, Mapping
from pytrace_ebpf.record.agent.directory import AgentDirectory
from pytrace_ebpf.record.output import tables, writer
from pytrace_ebpf.record.output.events_part import write_events
from pytrace_ebpf.record.output.ready import keep_freed_memory

HERE = Path(__file__).parents[2]
FIB = Path(pytrace_ebpf.__file__).parent / "record" / "source_selection" / "fib_child.py"
N, PLAYED, ARENA_BYTES = 20, 6, 64 << 20
BATCH = 500_000  # events, as in record/agent/calls.py
ALL = "from chunk to part"


def cpu_time(step: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of all threads, and what the step returns."""
    before = time.process_time()
    result = step()
    return time.process_time() - before, result


def collect(file: Any, library: Library, clock: Clock, folder: Path) -> tuple[int, dict[str, float]]:
    """Once: the number of events, and seconds by step."""
    found = Arena(file, library.dtypes, ARENA_BYTES)
    pieces = found.news()
    functions = max(function.id for function in found.new_functions())
    mapping = Mapping(1, {piece.tid: piece.tid for piece in pieces}, np.arange(functions + 1, dtype=np.int32), (0, time.monotonic_ns()))
    taken = {"of that read": cpu_time(lambda: [found.events(piece) for piece in pieces])[0]}
    batches = arena.batches(sorted(pieces, key=lambda piece: piece.tid), BATCH)
    taken["read and decode"], columns = cpu_time(lambda: [arena.columns(found, batch, clock, mapping) for batch in batches])

    def write() -> None:
        cut, _ = tables.cut_at(columns, time.monotonic_ns())
        table = tables.events_table(cut)
        writer._line(0, 0, 0, {"events": table})
        with (folder / "part.parquet").open("wb") as part:
            write_events(part, table)

    taken["cut and write"] = cpu_time(write)[0]
    taken[ALL] = taken["read and decode"] + taken["cut and write"]
    return sum(piece.size for piece in pieces), taken


def serve(python: str) -> None:
    """For each line of stdin one round: its events, seconds by step and bytes of the part, as JSON."""
    keep_freed_memory()
    library = Library(agent_library())
    clock = Clock(library, best_clock())
    directory = AgentDirectory([("clock", "tsc" if clock.number == TSC else "monotonic"), ("chunk_records", 8192), ("arena_bytes", ARENA_BYTES)])
    environment = {**os.environ, **directory.environment}
    try:
        with (
            subprocess.Popen([python, FIB, str(N)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as child,
            tempfile.TemporaryDirectory() as folder,
        ):
            assert child.stdin and child.stdout
            for _ in range(PLAYED):
                child.stdin.write("\n")
                child.stdin.flush()
                child.stdout.readline()
            ((_, file),) = directory.arenas()
            clock.tick()
            for _ in sys.stdin:
                round_ = collect(file, library, clock, Path(folder))
                print(json.dumps((*round_, (Path(folder) / "part.parquet").stat().st_size)), flush=True)
            child.stdin.close()
    finally:
        directory.remove()


def measure(checkouts: dict[str, Path], python: str, rounds: int) -> dict[str, list[Any]]:
    """The rounds of each checkout, in turn."""
    words = [sys.executable, __file__, "--serve", "--python", python]
    children = {
        name: subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(of)})
        for name, of in checkouts.items()
    }
    taken: dict[str, list[Any]] = {name: [] for name in children}
    for _ in range(rounds):
        for name, child in children.items():
            assert child.stdin and child.stdout
            child.stdin.write("\n")
            child.stdin.flush()
            taken[name].append(json.loads(child.stdout.readline()))
    for child in children.values():
        child.communicate()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3.11")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--before", type=Path, help="a checkout of another version, built")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.python)
        return
    taken = measure({"this": HERE} | ({"before": args.before.resolve()} if args.before else {}), args.python, args.rounds)
    print(f"fib({N}) on {args.python}, the fastest of {args.rounds} rounds, CPU time of all threads")
    for name, rounds in taken.items():
        print(f"{name}: {rounds[0][0]:,} events, {statistics.median(size / events for events, _, size in rounds) * 2:.2f} bytes a call")
        for step in reversed(rounds[0][1]):
            print(f"  {step:20} {min(seconds[step] / events for events, seconds, _ in rounds) * 1e9:6.1f} ns an event")
    if args.before:
        ns = {name: [seconds[ALL] / events for events, seconds, _ in rounds] for name, rounds in taken.items()}
        ratio = statistics.median(a / b for a, b in zip(ns["this"], ns["before"], strict=True))
        print(f"{ALL}: {ratio:.2f} of before, the median of the rounds")


if __name__ == "__main__":
    main()
