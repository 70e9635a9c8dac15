"""What `dump --json` prints: numbers of the kernel and of CPython in words."""

import platform
import re
from collections.abc import Iterable, Sequence
from typing import Any

from pytrace_ebpf.derive.scheduling import syscalls
from pytrace_ebpf.record.cpython.values import Value
from pytrace_ebpf.record.dump.deadlocks import deadlocks
from pytrace_ebpf.record.dump.objects import Variable
from pytrace_ebpf.record.dump.resources import Resources
from pytrace_ebpf.record.dump.threads import Task, Thread, Threads
from pytrace_ebpf.record.filters import Observed
from pytrace_ebpf.record.process.target import Target
from pytrace_ebpf.trace.libraries import in_library
from pytrace_ebpf.trace.observed import REDACTED
from pytrace_ebpf.trace.schema import WAIT_KINDS

# As PRIMITIVES of derive/calls/primitives.py: what a program waits through is what it called there.
_PRIMITIVES = re.compile(r".*/(threading|queue)\.py$|.*/(concurrent/futures|multiprocessing|asyncio)/[^/]+\.py$")
_POOL = re.compile(r".*/concurrent/futures/thread\.py$")


def described(target: Target, found: Threads, observed: Observed) -> dict[str, Any]:
    """The process, and of each thread and task its state, what it waits for and who has it, and frames, innermost first.

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
    return {
        "name": task.name,
        "thread": task.thread or None,
        "state": "running" if task.is_running else "waiting",
        "awaits": list(task.awaits),
        "primitive": None if task.is_running else _primitive(frames),
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
        if not _PRIMITIVES.match(frame["file"]):
            return called
        if called is None or not frame["function"].rpartition(".")[2].startswith("__"):  # __enter__ says less than what it calls
            called = frame["function"]
        if _POOL.match(frame["file"]) and called == "_worker":
            return "ThreadPoolExecutor"
    return None  # they called themselves


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
