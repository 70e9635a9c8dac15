"""What attaching the agent does to its target: does it always work, by which way, how long does a thread stand still,
and is the target as fast afterwards as it was.

Each target is attached to and detached from again and again; it counts its work itself, per second of CPU time, before
the first time and after the last. Quote the ratios; the times are this machine's.

    scripts/bench/inject.py [--starting 11] [--times 200] [--targets busy,blocked,malloc,many] [--pythons NAME,NAME] [--list]
"""

import argparse
import collections
import contextlib
import mmap
import os
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import starting

from pytrace_ebpf.errors import PytraceError
from pytrace_ebpf.record.agent import arena
from pytrace_ebpf.record.agent.agent_library import Library, agent_library
from pytrace_ebpf.record.agent.directory import AgentDirectory
from pytrace_ebpf.record.agent.inject import Injection, begin
from pytrace_ebpf.record.process.pinned import Descriptor
from pytrace_ebpf.record.process.target import inspect
from tests.unit.live_pythons import interpreters

PATIENCE_S = 10.0
OPTIONS = [("clock", "tsc"), ("chunk_records", 16384), ("arena_bytes", 256 << 20), ("wait_ms", 0)]
# Every target counts its work into memory it shares with us, and ends well when its input does.
BEGINNING = """
import mmap, os, struct, sys, threading, time
shared = mmap.mmap({descriptor}, 4096)
stop = False
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
def work(slot, job):
    done = 0
    while not stop:
        job()
        done += 1
        struct.pack_into("<Q", shared, slot * 8, done)
def watch():
    global stop
    os.read(0, 1)
    stop = True
def go(threads, job):
    workers = [threading.Thread(target=work, args=(slot, job)) for slot in range(1, threads + 1)]
    for worker in workers: worker.start()
    print("ready", flush=True)
    return workers
"""
TARGETS = {
    # Only the main thread, which computes.
    "busy": "import select\nprint('ready', flush=True)\ndone = 0\n"
    "while not select.select([0], [], [], 0)[0]:\n    fib(10)\n    done += 1\n    struct.pack_into('<Q', shared, 0, done)\n",
    "blocked": "print('ready', flush=True)\nwatch()\n",
    "malloc": "workers = go(4, lambda: [bytearray(size) for size in range(600, 60000, 600)])\nwatch()\nfor worker in workers: worker.join()\n",
    "many": "workers = go(50, lambda: (fib(8), time.sleep(0.001)))\nwatch()\nfor worker in workers: worker.join()\n",
}


class Running:
    """A target and what it counts."""

    def __init__(self, command: list[str], kind: str) -> None:
        descriptor = os.memfd_create("count")
        os.truncate(descriptor, 4096)
        self.shared = mmap.mmap(descriptor, 4096)
        source = BEGINNING.format(descriptor=descriptor) + TARGETS[kind]
        self.process = subprocess.Popen([*command, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[descriptor])
        os.close(descriptor)
        assert self.process.stdout and self.process.stdout.readline() == b"ready\n"

    def speed(self) -> float:
        """Units of work a second of CPU time, the best of several quarters of a second: the rest of the machine is not in it."""
        best = 0.0
        for _ in range(8):
            before, began = self._work(), self._cpu_s()
            time.sleep(0.25)
            used = self._cpu_s() - began
            best = max(best, (self._work() - before) / used if used else 0.0)
        return best

    def ended_well(self) -> bool:
        try:
            self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self.process.wait() == 0

    def _cpu_s(self) -> float:
        used = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):  # the agent's thread, which has just left
                used += int((task / "schedstat").read_text().split()[0])
        return used / 1e9

    def _work(self) -> int:
        return sum(struct.unpack_from("<64Q", self.shared))


class Arenas:
    """The arena of the one target, as its agent makes it."""

    def __init__(self, directory: AgentDirectory, library: Library) -> None:
        self.directory, self.library = directory, library
        self.found: arena.Arena | None = None

    def active(self) -> bool:
        for _, file in self.directory.arenas() if self.found is None else ():
            with contextlib.suppress(arena.NotYet):
                assert isinstance(file, Descriptor), file
                self.found = arena.Arena(file, self.library.dtypes, self.directory.arena_bytes)
        return self._state() == arena.ACTIVE

    def leave(self) -> bool:
        assert self.found
        self.found.stop()
        end = time.monotonic() + PATIENCE_S
        while self._state() != arena.QUIET and time.monotonic() < end:
            time.sleep(0.0005)
        return self._state() == arena.QUIET

    def _state(self) -> int | None:
        if self.found is None:
            return None
        self.found.look()
        return self.found.state


def once(pid: int, library: Library) -> tuple[Injection, float]:
    """Attach and detach; returns how, and the seconds until the agent recorded."""
    target = inspect(pid)
    directory = AgentDirectory(OPTIONS, target.process)
    arenas = Arenas(directory, library)
    try:
        began = time.monotonic()
        injection = begin(target, directory, arenas.active, PATIENCE_S)
        ready = time.monotonic() - began
        time.sleep(0.002)
        if not arenas.leave():
            raise PytraceError("the agent did not leave")
        return injection, ready
    finally:
        directory.remove()


def row(name: str, command: list[str], kind: str, times: int, library: Library) -> str:
    target = Running(command, kind)
    before = target.speed()
    routes, stops, readies, failures = collections.Counter[str](), [], [], collections.Counter[str]()
    for _ in range(times):
        try:
            injection, ready = once(target.process.pid, library)
        except PytraceError as error:
            failures[str(error)] += 1
            continue
        routes[injection.how.replace("a thread blocked in ", "").replace("a pending call of the main thread", "pending call")] += 1
        stops.append(injection.stop_ns / 1e6)
        readies.append(ready * 1e3)
    speed = f"{target.speed() / before:.2f}" if before else "-"
    end = "ends well" if target.ended_well() else "DIED"
    stop = f"{statistics.median(stops):.2f} | {max(stops):.2f} | {statistics.median(readies):.0f}" if stops else "- | - | -"
    how = ", ".join(f"{route} {number}" for route, number in routes.most_common(3))
    why = "; ".join(f"{number}x {reason}" for reason, number in failures.items())
    return f"| {name} | {kind} | {len(stops)}/{times} | {stop} | {speed} | {end} | {how} {why}|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--pythons", default="3.9,3.11,3.13,3.14", help="parts of the names that --list shows")
    parser.add_argument("--list", action="store_true", help="name the interpreters at hand")
    parser.add_argument("--starting", type=int, default=0, metavar="ROUNDS", help="first print what scripts/bench/starting.py does")
    arguments = parser.parse_args()
    at_hand = interpreters()
    if arguments.list:
        print("\n".join(at_hand))
        return
    if arguments.starting:
        starting.show("/usr/bin/python3.11", arguments.starting)
    library = Library(agent_library())
    print("| Python | target | attached | stop, median ms | max ms | recording after, ms | speed after/before | end | how |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, command in at_hand.items():
        if any(part in name for part in arguments.pythons.split(",")):
            for kind in arguments.targets.split(","):
                print(row(name, command, kind, arguments.times, library), flush=True)


if __name__ == "__main__":
    main()
