"""What a flight recorder costs the collector: an event judged by conditions and held in memory, beside one that is written.

The events are those of fib, some segments of a second's, as the collector has them when it closes a segment. Each way takes its turn with
the same segments; the medians of the rounds, CPU time of all threads, and the ratios to writing within each round.

    scripts/bench/flight.py [--events 1000000] [--segments 4] [--rounds 11]
"""

import argparse
import io
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from pytrace_ebpf.record.flight.conditions import Condition, Flight
from pytrace_ebpf.record.flight.held import Held, Segment
from pytrace_ebpf.record.flight.watch import Watch
from pytrace_ebpf.record.options import Keep
from pytrace_ebpf.record.output.events_part import write_events
from pytrace_ebpf.record.output.horizon import Horizon
from pytrace_ebpf.record.output.ready import keep_freed_memory
from pytrace_ebpf.trace.schema import EVENTS, FUNCTIONS

N = 20
CALL = Condition("call shop.other > 200ms", "call", "shop.other", 200_000_000)
OF_ALL = Condition("call * > 200ms", "call", "*", 200_000_000)
GIL = Condition("gil > 30%", "gil", "", 300_000_000, 1_000_000_000)


def fib(events: int) -> np.ndarray:
    """Whether each event of fib is an entry."""
    entries: list[bool] = []

    def call(n: int) -> None:
        entries.append(True)
        if n >= 2:
            call(n - 1)
            call(n - 2)
        entries.append(False)

    call(N)
    return np.resize(np.array(entries), events)


def segments(events: int, count: int) -> list[Segment]:
    """Segments of so many events each."""
    entry = fib(events)
    depth = np.where(entry, np.cumsum(np.where(entry, 1, -1)), np.cumsum(np.where(entry, 1, -1)) + 1)
    functions = pa.table(
        [pa.array([each], column.arrow) for each, column in zip((0, "/fib.py", "fib", "fib", 1, "fib", 0, "python"), FUNCTIONS.columns, strict=True)],
        schema=FUNCTIONS.arrow,
    )
    made = []
    for number in range(count):
        start = number * 10**9
        columns = {
            "ts": start + np.arange(events) * (10**9 // events), "pid": np.full(events, 7), "tid": np.full(events, 7), "kind": np.where(entry, 0, 1),
            "func_id": np.zeros(events), "frame": 4096 + 80 * depth, "line": np.full(events, 3),
        }  # fmt: skip
        table = pa.table([pa.array(columns[field.name].astype(field.type.to_pandas_dtype())) for field in EVENTS.arrow], schema=EVENTS.arrow)
        made.append(Segment(start, start + 10**9, {"events": table} | ({} if number else {"functions": functions})))
    return made


def cpu_time(step: Callable[[], Any]) -> float:
    """Seconds of all threads."""
    before = time.process_time()
    step()
    return time.process_time() - before


def watch(made: list[Segment], *conditions: Condition) -> None:
    watching = Watch(Flight(conditions, 2, 60, 10))
    for segment in made:
        assert not watching.take(segment)


def hold(made: list[Segment]) -> None:
    """All but the last one are dropped again."""
    held = Held(Keep(seconds=1.0))
    for segment in made:
        held.add(Segment(segment.start_ns, segment.end_ns, segment.tables))


def keep_up(made: list[Segment]) -> None:
    """What --keep does beside writing."""
    horizon = Horizon()
    for segment in made:
        horizon.take(segment.tables)


def write(made: list[Segment]) -> None:
    for segment in made:
        write_events(io.BytesIO(), segment.tables["events"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--segments", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    keep_freed_memory()
    made = segments(args.events, args.segments)
    ways: dict[str, Callable[[], None]] = {
        "written as Parquet": lambda: write(made),
        "judged: a call of another function": lambda: watch(made, CALL),
        "judged: a call of this one": lambda: watch(made, OF_ALL),
        "judged: the GIL alone": lambda: watch(made, GIL),
        "held": lambda: hold(made),
        "--keep, beside writing": lambda: keep_up(made),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.rounds):
        for name, way in ways.items():
            taken[name].append(cpu_time(way) / (args.events * args.segments) * 1e9)
    print(f"fib({N}), {args.segments} segments of {args.events:,} events, medians of {args.rounds} rounds in turn")
    written = taken["written as Parquet"]
    for name, ns in taken.items():
        ratio = statistics.median(a / b for a, b in zip(ns, written, strict=True))
        print(f"  {name:36} {statistics.median(ns):6.2f} ns an event   {ratio:5.2f} of writing it")


if __name__ == "__main__":
    main()
