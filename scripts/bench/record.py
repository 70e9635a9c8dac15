"""What recording costs: the target per call against the floor of any tracer on these probes, and the collector per event.

The target runs fib in rounds; a round is without probes, with the floor (programs that do nothing on the same probes,
the same semaphores raised) or with the whole tracer, in turn. Quote the ratios; the times are this machine's.

    scripts/bench/record.py [--python /usr/bin/python3.11] [--rounds 9] [--json FILE]
"""

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from pytrace_ebpf.record.bpf import Programs
from pytrace_ebpf.record.session import Options, Session
from pytrace_ebpf.record.source_usdt import plan
from pytrace_ebpf.record.target import inspect

TARGET = Path(__file__).parent / "fib_rounds" / "fib.py"
N, CALLS = 20, 21891  # fib(20) makes 21,891 calls


class Fib:
    """A running target that times one round of fib whenever asked: ns per call."""

    def __init__(self, python: str) -> None:
        self.process = subprocess.Popen([python, str(TARGET), str(N)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.round()

    def round(self) -> float:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline()) / CALLS


def floor(fib: Fib, programs: Programs) -> float:
    target = inspect(fib.process.pid)
    assert target.layout
    points = plan(target.binary, target.layout).points
    held = [programs.attach_uprobe(p.program, target.binary_path, p.offset, target.pid, p.semaphore) for p in points]
    try:
        return fib.round()
    finally:
        for descriptor in held:
            programs.detach(descriptor)


def traced(fib: Fib, folder: Path, seconds: float = 0.0) -> dict[str, float]:
    """One round under the whole tracer; or, with `seconds`, rounds on end and the collector's own figures."""
    shutil.rmtree(folder, ignore_errors=True)
    session = Session(Options(folder), ["bench"])
    try:
        session.start(fib.process.pid)
        done = threading.Event()
        times: list[float] = []

        def work() -> None:
            end = time.monotonic() + seconds
            while not times or time.monotonic() < end:
                times.append(fib.round())
            done.set()

        worker = threading.Thread(target=work)
        worker.start()
        before, wall = time.process_time(), time.monotonic()
        session.run(done.is_set, lambda status: None)
        used, wall = time.process_time() - before, time.monotonic() - wall
        worker.join()
        session.finish()
        status = session.status()
    finally:
        session.close()
    on_disk = sum(part.stat().st_size for part in (folder / "events").glob("*.parquet"))
    events = status.calls
    return {
        "ns_per_call": statistics.median(times),
        "events": events,
        "events_per_second": events / wall,
        "collector_ns_per_event": used / events * 1e9,
        "lost": status.lost,
        "bytes_per_call": on_disk / (events / 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3.11")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the run that loads the collector")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    fib, programs = Fib(args.python), Programs("floor.c", {})
    plain, empty, ours = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            plain.append(fib.round())
            empty.append(floor(fib, programs))
            ours.append(traced(fib, Path(folder) / "trace")["ns_per_call"])
        load = traced(fib, Path(folder) / "trace", args.seconds)
    fib.process.kill()
    ratios = [a / b for a, b in zip(ours, empty, strict=True)]
    print(f"fib({N}) on {args.python}, medians of {args.rounds} rounds in turn")
    for name, values in (("without probes", plain), ("floor: empty programs", empty), ("pytrace-ebpf", ours)):
        print(f"  {name:24} {statistics.median(values):8.0f} ns a call   {min(values):6.0f} - {max(values):.0f}")
    print(f"  against the floor        {statistics.median(ratios):8.2f} times      {min(ratios):6.2f} - {max(ratios):.2f}")
    print(f"collector over {args.seconds:.0f} s of fib at full rate")
    print(f"  events                   {load['events']:8.0f}  ({load['events_per_second']:,.0f} a second), {load['lost']:.0f} lost")
    print(f"  CPU an event             {load['collector_ns_per_event']:8.0f} ns  (drain, cut, write, usage samples, all threads of the tracer)")
    print(f"  on disk a call           {load['bytes_per_call']:8.1f} bytes (events/)")
    if args.json:
        args.json.write_text(json.dumps({"plain": plain, "floor": empty, "traced": ours, "load": load}, indent=1))


if __name__ == "__main__":
    main()
