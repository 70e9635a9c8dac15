"""Where asyncio keeps which task runs, for the kernel half: a dict of `_asyncio` up to 3.13, then the state of each thread.

What the process and its files say is read in a process without rights (sandbox.py).
"""

import re
import struct
from dataclasses import dataclass
from typing import Any

from pytrace_ebpf.record.cpython.frames import BudgetedMemory, SpentError
from pytrace_ebpf.record.cpython.layout import Layout, with_task_offsets
from pytrace_ebpf.record.cpython.objects import Objects
from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.parsing.shape import decode, encode
from pytrace_ebpf.record.process import asking
from pytrace_ebpf.record.process.memory import MemoryFault
from pytrace_ebpf.record.process.target import Target, mapped_file, parse_mappings

_BUDGET_S, _PATIENCE_S = 0.2, 5.0  # of processor time; until the process that reads is given up
_MODULE = re.compile(r"_asyncio\.[^/]*\.so")
_SECTION = ".AsyncioDebug"


@dataclass(frozen=True)
class RunningTasks:
    """`layout`: with what `_asyncio` itself says of its tasks; `current`: the address of its dict of running tasks, 0 where there is none."""

    layout: Layout
    current: int


def find_running_tasks(target: Target) -> RunningTasks | None:
    """None where the process has no asyncio, or it cannot be read. Nothing is raised."""
    process, layout = target.process, target.layout
    if layout is None or target.runtime is None:
        return None
    try:
        if layout.thread_task is not None:
            module = next((each for each in parse_mappings(process.read("maps")) if _MODULE.fullmatch(each.path.rpartition("/")[2])), None)
            file = mapped_file(process, module) if module else target.binary_file
            section = sandbox.parsers.ask("section", {"name": _SECTION}, [file], bytes, _PATIENCE_S, ("section", *process.key))
            return RunningTasks(with_task_offsets(layout, section), 0) if section else None
        given = {"pid": target.pid, "layout": layout, "runtime": target.runtime}
        current = asking.ask(sandbox.parsers, "running_tasks", given, process, int, _PATIENCE_S, "running_tasks")
    except (ValueError, OSError):
        return None
    return RunningTasks(layout, current) if current > 0 else None


def walk_running_tasks(given: dict[str, Any], files: list[int]) -> Any:
    """The address of _asyncio._current_tasks, 0 where there is none."""
    layout = decode(Layout, given["layout"])
    objects = Objects(BudgetedMemory(given, files, _BUDGET_S), layout)
    try:
        interpreter = objects.memory.u64(given["runtime"] + layout.runtime_main_interpreter)
        modules = objects.items(objects.memory.u64(interpreter + layout.interpreter_modules))
        current = objects.value(objects.items(objects.module_dict(objects.value(modules, "_asyncio"))), "_current_tasks")
        objects.items(current)  # it is a dict
    except (MemoryFault, SpentError, struct.error):
        current = 0
    return encode(current)
