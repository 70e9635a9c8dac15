"""What recording costs: the target per call against empty programs on the same probes, and the collector per event.

Three copies of one interpreter run fib in turn: one without probes, one with empty programs (which do nothing on the
same probes, the same semaphores raised), one under the whole tracer. Quote the ratios; the times are this machine's.

    scripts/bench/record.py [--python /usr/bin/python3.11] [--root DIR] [--rounds 41]
"""

import argparse
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from children.measuring import Measuring

import pytrace_ebpf
from pytrace_ebpf.record.filters import NOTHING, Filters, Observed
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.kernel.uprobes import Uprobes
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.process.target import inspect
from pytrace_ebpf.record.session import Session
from pytrace_ebpf.record.usdt.probes import plan

TARGET = Path(pytrace_ebpf.__file__).parent / "record" / "source_selection" / "fib_child.py"
N = 20

EVERYTHING = Filters()


def fib(python: str, root: str | None) -> Measuring:
    """A process that runs rounds of fib."""
    return Measuring([python, str(TARGET), str(N)], root, TARGET.parent)


def attach_empty(pid: int) -> Programs:
    """Put empty programs on the probes of a process; they go when this one ends."""
    programs, target = Programs("empty.c"), inspect(pid)
    assert target.layout
    points = plan(target.binary, target.layout).points
    probed = [point for point in points if point.program.startswith("function_")]  # collections and imports: none in fib
    Uprobes(programs, probed, follow=True).attach(target.pid, target.binary_file.path)
    return programs


class Recording:
    """The whole tracer on a process, in the background, until stop()."""

    def __init__(
        self,
        pid: int,
        folder: Path,
        source: str = "usdt",
        layers: tuple[str, ...] = (),
        observed: Observed = NOTHING,
        filters: Filters = EVERYTHING,
        **more: Any,
    ) -> None:
        """`more`: further fields of Options."""
        more["streams"] = {**more.get("streams", {}), **({"layers": layers} if layers else {})}
        self.folder, self._stop = folder, threading.Event()
        self.session = Session(Options(folder, source, observed=observed, filters=filters, **more), ["bench"])
        self.session.start(pid)
        self._thread = threading.Thread(target=self.session.run, args=(self._stop.is_set, lambda status: None))
        self._used, self._start = time.process_time(), time.monotonic()
        self._thread.start()

    def stop(self) -> dict[str, float]:
        """End the recording; the collector's figures."""
        used, wall = time.process_time() - self._used, time.monotonic() - self._start
        self._stop.set()
        self._thread.join()
        events = self.session.status().calls
        self.session.finish()
        self.session.close()
        on_disk = sum(part.stat().st_size for part in (self.folder / "events").glob("*.parquet"))
        return {
            "events": events,
            "cpu_share": used / wall,
            "events_per_second": events / wall,
            "collector_ns_per_event": used / max(events, 1) * 1e9,
            "lost": self.session.status().lost,
            "bytes_per_call": on_disk / max(events / 2, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3.11")
    parser.add_argument("--root", help="root filesystem that the Python is in")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the run that loads the collector")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        copy = args.python
        if not args.root:  # a file of its own, so that the kernel keeps the empty programs' uprobes apart from the tracer's
            copy = shutil.copy(args.python, folder / Path(args.python).name)
        without, with_empty, with_tracer = (fib(python, args.root) for python in (args.python, copy, args.python))
        held = attach_empty(with_empty.pid)
        recording = Recording(with_tracer.pid, folder / "cost")
        plain, empty, ours = [], [], []
        for _ in range(args.rounds):
            plain.append(without.round())
            empty.append(with_empty.round())
            ours.append(with_tracer.round())
        recording.stop()
        recording = Recording(with_tracer.pid, folder / "load")
        end = time.monotonic() + args.seconds
        while time.monotonic() < end:
            with_tracer.round()
        load = recording.stop()
        recording = Recording(with_tracer.pid, folder / "rest")
        time.sleep(args.seconds / 2)
        rest = recording.stop()["cpu_share"]
        for each in (without, with_empty, with_tracer):
            each.close()
        held.close()
    ratios = [a / b for a, b in zip(ours, empty, strict=True)]
    print(f"fib({N}) on {args.python}, medians of {args.rounds} rounds in turn")
    for name, values in (("without probes", plain), ("empty programs", empty), ("pytrace-ebpf", ours)):
        print(f"  {name:24} {statistics.median(values):8.0f} ns a call   {min(values):6.0f} - {max(values):.0f}")
    print(f"  against empty programs   {statistics.median(ratios):8.2f} times      {min(ratios):6.2f} - {max(ratios):.2f}")
    print(f"collector over {args.seconds:.0f} s of fib at full rate")
    print(f"  events                   {load['events']:8.0f}  ({load['events_per_second']:,.0f} a second), {load['lost']:.0f} lost")
    print(f"  CPU an event             {load['collector_ns_per_event']:8.0f} ns  (drain, cut, write, usage samples, all threads of the tracer)")
    print(f"  on disk a call           {load['bytes_per_call']:8.1f} bytes (events/)")
    print(f"  tracer at rest           {rest * 100:8.1f} % of a core")


if __name__ == "__main__":
    main()
