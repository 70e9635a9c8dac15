"""What the agent adds to a call, side by side with VizTracer and cProfile; then the whole tracer at the agent's full rate.

Processes of one interpreter run fib(24) in turn: alone, under the tracer with the agent, the same with --args (one argument and one
result a call, both int), under VizTracer, under cProfile. Quote the ratios of added time; the times are this machine's.

    scripts/bench/agent.py [--python PATH]... [--root DIR] [--rounds 21] [--seconds 5]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from children.measuring import Measuring, in_turn
from record import Recording

from pytrace_ebpf.record.filters import Observed

CHILD = Path(__file__).parent / "children" / "rounds.py"
PACKAGES = Path(__file__).parents[2] / ".build" / "bench"
TRACED = ("agent", "values")
MODES = ("plain", *TRACED, "viztracer", "cprofile")


def fib(python: str, root: str | None, mode: str, packages: Path | None) -> Measuring:
    """A process that runs rounds of fib in a mode."""
    command = [python, str(CHILD), "plain" if mode in TRACED else mode]
    if packages is None:
        return Measuring(command, root, CHILD.parent)
    return Measuring(["/usr/bin/env", f"PYTHONPATH={packages}", *command], root, CHILD.parent, packages)


def version_of(python: str, root: str | None) -> str:
    """Such as 3.12."""
    command = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.check_output([*(["chroot", root] if root else []), *command], text=True).strip()


def viztracer_for(version: str) -> Path | None:
    """A folder with VizTracer for this version of Python, None where there is none to be had."""
    return fetched(version, "viztracer", "objprint")


def fetched(version: str, package: str, *others: str) -> Path | None:
    """A folder with a package for this version of Python, and what it needs; None where there is none to be had."""
    folder = PACKAGES / f"{package}-{version}"
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "install", "-qq", "--target", str(folder), "--python-version", version]
        subprocess.run([*command, "--only-binary=:all:", "--no-deps", package, *others], stderr=subprocess.DEVNULL)
    return folder if (folder / package).exists() else None


def measure(python: str, root: str | None, rounds: int, seconds: float) -> None:
    """Print the table of one interpreter."""
    version = version_of(python, root)
    packages = viztracer_for(version)
    modes = [mode for mode in MODES if packages or mode != "viztracer"]
    children = {mode: fib(python, root, mode, packages if mode == "viztracer" else None) for mode in modes}
    with tempfile.TemporaryDirectory() as scratch:
        traced = children["agent"].pid
        recording = Recording(traced, Path(scratch) / "cost", "agent")
        with_values = Recording(children["values"].pid, Path(scratch) / "values", "agent", observed=Observed(("rounds.fib",)))
        taken = in_turn(children, rounds)
        figures, of_values = recording.stop(), with_values.stop()
        recording = Recording(traced, Path(scratch) / "load", "agent")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            children["agent"].round()
        load = recording.stop()
    for child in children.values():
        child.close()
    print(f"Python {version}, fib(24), medians of {rounds} rounds in turn; {figures['lost']:.0f} events, {of_values['lost']:.0f} values lost")
    added = {mode: [a - b for a, b in zip(taken[mode], taken["plain"], strict=True)] for mode in modes}
    for mode in modes:
        ns = statistics.median(taken[mode])
        line = f"  {mode:10} {ns:7.1f} ns a call  {ns / statistics.median(taken['plain']):5.2f} times"
        if mode == "values":
            more = [(ours - theirs) / 2 for ours, theirs in zip(added["values"], added["agent"], strict=True)]
            line += f"   {statistics.median(more):.0f} ns a value"
        elif mode not in ("plain", "agent"):
            shares = [ours / theirs for ours, theirs in zip(added["agent"], added[mode], strict=True)]
            line += f"   the agent adds {statistics.median(shares):.2f} of what it adds"
        print(line)
    print(
        f"  at full rate for {seconds:.0f} s: {load['events_per_second'] / 1e6:.1f} M events a second, {load['lost']:.0f} lost, "
        f"{load['collector_ns_per_event']:.0f} ns of the tracer's CPU an event, {load['bytes_per_call']:.1f} bytes a call"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="interpreter; may be given several times (/usr/bin/python3.11)")
    parser.add_argument("--root", help="root filesystem that they are in")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of the run at full rate")
    args = parser.parse_args()
    for python in args.python or ["/usr/bin/python3.11"]:
        measure(python, args.root, args.rounds, args.seconds)


if __name__ == "__main__":
    main()
