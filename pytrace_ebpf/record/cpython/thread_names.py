"""The names that Python's `threading` has for the threads of a process, read from outside: sys.modules, threading, _active, Thread._name.

Reading happens in a process without rights (sandbox.py), while the target runs on: a name counts where two walks agree on the
thread's object and on the name. _active lists a thread until it ends, so an object that both walks find there lived in between.
"""

import struct
import time
from dataclasses import dataclass
from typing import Any

from pytrace_ebpf.record.cpython.frames import BudgetedMemory, SpentError, Walk, host_tids
from pytrace_ebpf.record.cpython.layout import Layout
from pytrace_ebpf.record.cpython.objects import Objects
from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.parsing.shape import decode, encode
from pytrace_ebpf.record.process import asking
from pytrace_ebpf.record.process.memory import MemoryFault
from pytrace_ebpf.record.process.target import Target

_BUDGET_S, _PATIENCE_S = 0.5, 5.0  # of processor time; until the process that reads is given up
MOST_CHARACTERS = 200
_AT_ONCE = 500  # threads between two looks at who is still listed


@dataclass(frozen=True)
class ThreadNames:
    """`names` by thread id, as texts; `active`: where the interpreter's list of threads is, 0 where that was not found; `spent_ns` of processor time."""

    names: dict[str, str]
    active: int
    spent_ns: int


def read_names(target: Target, active: int = 0) -> tuple[dict[int, str], int, float]:
    """(host thread id -> name, what to give as `active` the next time, seconds of processor time that it took).

    Without those that cannot be read. Nothing is raised.
    """
    if target.layout is None or target.runtime is None:
        return {}, 0, 0.0
    process, tids = target.process, host_tids(target.pid)
    given = {"pid": target.pid, "layout": target.layout, "runtime": target.runtime, "tids": list(tids.items()), "active": active}
    try:
        answer = asking.ask(sandbox.parsers, "thread_names", given, process, ThreadNames, _PATIENCE_S, "names")
    except ValueError:
        return {}, 0, _BUDGET_S
    known = {str(tid): tid for tid in tids.values()}
    names = {known[tid]: name for tid, name in answer.names.items() if tid in known and 0 < len(name) <= MOST_CHARACTERS}
    return names, answer.active, min(max(answer.spent_ns / 1e9, 0.0), _BUDGET_S)


def walk_names(given: dict[str, Any], files: list[int]) -> Any:
    """What read_names() asks for."""
    began_ns, layout = time.process_time_ns(), decode(Layout, given["layout"])
    memory = BudgetedMemory(given, files, _BUDGET_S)
    objects, walk = Objects(memory, layout), Walk(memory, layout)
    active, names = 0, dict[str, str]()
    try:
        active = given["active"] or _active(objects, layout, given["runtime"])
        listed = list(objects.items(active))
        tids = _by_ident(walk, given["runtime"], dict(given["tids"]))
        for at in range(0, len(listed), _AT_ONCE):
            once = _names(objects, layout, listed[at : at + _AT_ONCE])
            still = set(objects.items(active))
            again = _names(objects, layout, [entry for entry in once if entry in still])
            names |= {str(tids[ident]): name for entry, (ident, name) in again.items() if ident in tids and (ident, name) == once[entry]}
    except (MemoryFault, SpentError, struct.error):
        pass  # what was read so far counts
    return encode(ThreadNames(names, active if names else 0, time.process_time_ns() - began_ns))


def _active(objects: Objects, layout: Layout, runtime: int) -> int:
    """The dict threading._active."""
    interpreter = objects.memory.u64(runtime + layout.runtime_main_interpreter)
    modules = objects.items(objects.memory.u64(interpreter + layout.interpreter_modules))
    return objects.value(objects.items(objects.module_dict(objects.value(modules, "threading"))), "_active")


def _names(objects: Objects, layout: Layout, listed: list[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, str]]:
    """By entry of the list, an identifier and a Thread object, the number that the identifier is and the thread's name."""
    found = {}
    for entry in listed:
        try:
            name = objects.attribute(entry[1], "_name")
            if objects.type_name(name) == b"str":
                found[entry] = objects.integer(entry[0]), objects.memory.text(layout, name)[:MOST_CHARACTERS]
        except MemoryFault:
            continue  # it ended or began meanwhile
    return found


def _by_ident(walk: Walk, runtime: int, tids: dict[int, int]) -> dict[int, int]:
    """The host thread id by the identifier that threading has for a thread."""
    found = {}
    for state in walk.thread_states(runtime):
        tid = walk.thread_id(state, tids)
        try:
            if tid:
                found[walk.memory.u64(state + walk.layout.thread_pthread)] = tid
        except MemoryFault:
            continue
    return found
