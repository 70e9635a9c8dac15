"""Say what a process does right now: the stack of each of its threads and tasks, what they wait for, who has it, and for how long already.

    pytrace-ebpf dump 4711
    pytrace-ebpf dump 4711 --locals
    pytrace-ebpf dump 4711 --json

No eBPF, no waiting, nothing changes in the process: it runs on while it is looked at. Frames of the program's own code are marked
with >. Named are the file, the address and process at the other end of a connection or pipe, the child; the lock and the thread that has it.
Threads that wait for each other come first, in a sentence. Root looks at any process, others at their own.
"""

import argparse
import json
import platform
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from pytrace_ebpf.derive.scheduling import syscalls
from pytrace_ebpf.record.cpython.values import Value
from pytrace_ebpf.record.dump.deadlocks import deadlocks
from pytrace_ebpf.record.dump.resources import Resources
from pytrace_ebpf.record.dump.threads import Task, Thread, Threads, look
from pytrace_ebpf.record.dump.variables import Variable
from pytrace_ebpf.record.filters import Observed, redacted
from pytrace_ebpf.record.process.target import Target, inspect
from pytrace_ebpf.terminal.screen import console, width_of
from pytrace_ebpf.trace.libraries import in_library
from pytrace_ebpf.trace.observed import REDACTED
from pytrace_ebpf.trace.schema import WAIT_KINDS
from pytrace_ebpf.view.dump import dump

NAME = "dump"

# As PRIMITIVES of derive/calls/primitives.py: what a program waits through is what it called there.
_PRIMITIVES = re.compile(r".*/(threading|queue)\.py$|.*/(concurrent/futures|multiprocessing|asyncio)/[^/]+\.py$")
_BEGINS = ("Thread.run", "Thread._bootstrap_inner", "Thread._bootstrap")  # what calls a thread's function
_POOL = re.compile(r".*/concurrent/futures/thread\.py$")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `dump`."""
    parser.add_argument("pid", type=int, metavar="PID", help="process")
    parser.add_argument("--all", action="store_true", help="print all frames of deep stacks, and the names of all threads that do the same")
    parser.add_argument(
        "--args",
        action="store_const",
        const="args",
        dest="variables",
        help="print what the functions of the stacks were given, as far as `--args` of run and attach would: numbers, texts, sizes, types",
    )
    parser.add_argument("--locals", action="store_const", const="locals", dest="variables", help="the same of all their variables")
    parser.add_argument(
        "--redact",
        action="append",
        default=[],
        metavar="NAME",
        help="of variables of this name print only the type, in addition to *password*, *token*, *secret*, key and the like; none: without these",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, all times in ns")


def run(args: argparse.Namespace) -> int:
    """Print what process args.pid does."""
    target = inspect(args.pid)
    found = described(target, look(target, args.variables), Observed(redact=redacted(args.redact)))
    if args.json:
        json.dump(found, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return 0
    screen = console()
    screen.print(dump(found, width_of(screen), args.all))
    return 0


def described(target: Target, found: Threads, observed: Observed) -> dict[str, Any]:
    """What --json prints: the process, and of each thread and task its state, what it waits for and who has it, and frames, innermost first.

    `observed`: which variables are redacted.
    """
    resources = Resources(target.process, target.memory)
    return {
        "pid": target.pid,
        "command": target.command,
        "python": target.version_text,
        "gil_holder": found.gil_holder or None,
        "deadlocks": deadlocks(found.threads),
        "threads": [_thread(each, found.gil_holder, resources, observed) for each in found.threads],
        "left_out": list(found.left_out),
        "tasks": [_task(each, observed) for each in sorted(found.tasks, key=lambda task: (len(task.name), task.name))],
        "task_deadlocks": [list(cycle) for cycle in found.task_deadlocks],
    }


def _thread(thread: Thread, gil_holder: int, resources: Resources, observed: Observed) -> dict[str, Any]:
    called = syscalls.name(thread.syscall, platform.machine()) or None
    objects = resources.of(called, thread.arguments) if called and thread.state == "blocked" else []
    frames = _frames(thread, observed)
    return {
        "tid": thread.tid,
        "name": thread.name,
        "state": thread.state,
        "waits_for": _waits_for(thread, called),
        "syscall": called,
        "resources": objects,
        "primitive": _primitive(frames) if thread.state == "blocked" else None,
        "waits_on": _waits_on(thread, frames, gil_holder),
        "off_cpu_ns": None if thread.for_s is None else round(thread.for_s * 1e9),
        "frames": frames,
    }


def _task(task: Task, observed: Observed) -> dict[str, Any]:
    frames = _frames(task, observed)
    on = task.waits_on
    return {
        "id": task.address,
        "name": task.name,
        "thread": task.thread or None,
        "state": "running" if task.is_running else "waiting",
        "awaits": list(task.awaits),
        "awaits_more": task.awaits_more,
        "primitive": None if task.is_running else _primitive(frames),
        "awaited": list(task.awaited),
        "waits_on": {"kind": on.kind, "name": _called(on.names, frames), "address": on.address, "holders": on.holders}
        if on and not task.is_running
        else None,
        "frames": frames,
    }


def _frames(of: Thread | Task, observed: Observed) -> list[dict[str, Any]]:
    return [
        {
            "function": frame.function,
            "file": frame.file,
            "first_line": frame.first_line,
            "line": frame.line or None,
            "own": not in_library(frame.file),
            **({"variables": [_variable(each, observed) for each in of.variables[at]]} if of.variables else {}),
        }
        for at, frame in enumerate(of.frames)
    ]


def _waits_for(thread: Thread, called: str | None) -> str | None:
    """The kind of a wait, as reports have it (schema.WAIT_KINDS); None of a thread that runs, or could."""
    if thread.state != "blocked":
        return "gil" if thread.state == "gil_wait" else None
    if called in syscalls.SLEEPS_ON_NOTHING and thread.arguments[0] == 0:
        return "sleep"
    return WAIT_KINDS[syscalls.KIND_OF[called]] if called in syscalls.KIND_OF else "other"


def _primitive(frames: Sequence[dict[str, Any]]) -> str | None:
    """The function of threading, queue and the like that the program called, below which this stands; None where it called none."""
    called = None
    for frame in frames:
        if frame["function"] in _BEGINS or not _PRIMITIVES.match(frame["file"]):
            return called
        if called is None or not frame["function"].rpartition(".")[2].startswith("__"):  # __enter__ says less than what it calls
            called = frame["function"]
        if _POOL.match(frame["file"]) and called == "_worker":
            return "ThreadPoolExecutor"
    return called


def _waits_on(thread: Thread, frames: Sequence[dict[str, Any]], gil_holder: int) -> dict[str, Any] | None:
    """The lock, thread or import that it waits for, with the thread that has it; None where neither is known."""
    if thread.state == "gil_wait":
        return {"kind": "gil", "name": None, "address": None, "holder": gil_holder} if gil_holder else None
    waited = thread.waited
    if waited is None:
        return None
    return {
        "kind": waited.kind,
        "name": _called(waited.names, frames),
        "address": waited.address or None,
        "holder": waited.holder or None,
    }


def _called(names: Iterable[tuple[int, str]], frames: Sequence[dict[str, Any]]) -> str | None:
    """What the innermost function of the program's own calls it, else the innermost one that does."""
    known = [(name, at < len(frames) and frames[at]["own"]) for at, name in names]
    return next((name for name, own in known if own), known[0][0] if known else None)


def _variable(variable: Variable, observed: Observed) -> dict[str, Any]:
    hidden = observed.hides(variable.name)
    value = Value(variable.value.type, status=REDACTED) if hidden else variable.value
    return {
        "name": variable.name,
        "argument": variable.is_argument,
        "type": value.type or None,
        "value": value.value,
        "shape": value.shape,
        "dtype": _dtype(value),
        "status": value.status,
    }


def _dtype(value: Value) -> str | None:
    if not value.array:
        return None
    from pytrace_ebpf.record.output.observed_rows import element_type  # imports NumPy and Arrow

    return element_type(value.array == "tensor", value.dtype)
