"""Say what a process does right now: the stack of each of its threads, what it waits for, and for how long already.

    pytrace-ebpf dump 4711
    pytrace-ebpf dump 4711 --json

No eBPF, no waiting, nothing changes in the process: it runs on while it is looked at. Frames of the program's own code are marked
with >. What a thread waits for is named where the kernel tells: the file, the address and process at the other end of a connection or pipe, the child.
Root looks at any process, others at their own.
"""

import argparse
import json
import platform
import sys
from typing import Any

from pytrace_ebpf.derive.scheduling import syscalls
from pytrace_ebpf.record.dump.resources import Resources
from pytrace_ebpf.record.dump.threads import Thread, Threads, look
from pytrace_ebpf.record.process.target import Target, inspect
from pytrace_ebpf.terminal.screen import console, width_of
from pytrace_ebpf.trace.libraries import in_library
from pytrace_ebpf.trace.schema import WAIT_KINDS
from pytrace_ebpf.view.dump import dump

NAME = "dump"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `dump`."""
    parser.add_argument("pid", type=int, metavar="PID", help="process")
    parser.add_argument("--all", action="store_true", help="print all frames of deep stacks, and the names of all threads that do the same")
    parser.add_argument("--json", action="store_true", help="print JSON, all times in ns")


def run(args: argparse.Namespace) -> int:
    """Print what process args.pid does."""
    target = inspect(args.pid)
    found = described(target, look(target))
    if args.json:
        json.dump(found, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return 0
    screen = console()
    screen.print(dump(found, width_of(screen), args.all))
    return 0


def described(target: Target, found: Threads) -> dict[str, Any]:
    """What --json prints: the process, and of each thread its state, system call, what it waits for, and frames, innermost first."""
    resources = Resources(target.process, target.memory)
    return {
        "pid": target.pid,
        "command": target.command,
        "python": target.version_text,
        "gil_holder": found.gil_holder or None,
        "threads": [_thread(each, resources) for each in found.threads],
    }


def _thread(thread: Thread, resources: Resources) -> dict[str, Any]:
    called = syscalls.name(thread.syscall, platform.machine()) or None
    objects = resources.of(called, thread.arguments) if called and thread.state == "blocked" else []
    return {
        "tid": thread.tid,
        "name": thread.name,
        "state": thread.state,
        "waits_for": _waits_for(thread, called),
        "syscall": called,
        "resources": objects,
        "off_cpu_ns": None if thread.for_s is None else round(thread.for_s * 1e9),
        "frames": [
            {
                "function": frame.function,
                "file": frame.file,
                "first_line": frame.first_line,
                "line": frame.line or None,
                "own": not in_library(frame.file),
            }
            for frame in thread.frames
        ],
    }


def _waits_for(thread: Thread, called: str | None) -> str | None:
    """The kind of a wait, as reports have it (schema.WAIT_KINDS); None of a thread that runs, or could."""
    if thread.state != "blocked":
        return "gil" if thread.state == "gil_wait" else None
    if called in syscalls.SLEEPS_ON_NOTHING and thread.arguments[0] == 0:
        return "sleep"
    return WAIT_KINDS[syscalls.KIND_OF[called]] if called in syscalls.KIND_OF else "other"
