"""Which columns of one table name a row of another: made from the columns' names, which mean the same in every table."""

from collections.abc import Iterator
from typing import NamedTuple

from pytrace_ebpf.trace.schema import TABLES
from pytrace_ebpf.trace.table import Table


class Join(NamedTuple):
    """`table.columns` equal `other.other_columns` of one row, or of none where they say so: -1, and for threads 0, stand for no row."""

    table: str
    columns: tuple[str, ...]
    other: str
    other_columns: tuple[str, ...]


_CALLS = ("call_id", "last_descendant_id", "next_sibling_id", "holder_call_id", "longest_call_id")
_TASKS = ("coroutine_id", "task_id")
_FUNCTIONS = ("caller_id",)  # and whatever ends in func_id
_PARENTS = {"calls": "call_id", "operators": "call_id", "tree": "node_id", "stacks": "stack_id", "tasks": "coroutine_id", "profile": "node_id"}
_WINDOW = ("start_ns", "pid")  # within which a node of `profile` has its number
# A thread is a pid and a tid; where the pid stands elsewhere, by the column of its tid.
_PIDS = {"tid": "pid", "other_tid": "other_pid", "waker_tid": "waker_pid", "holder_tid": "pid", "allocated_tid": "pid"}


def joins() -> list[Join]:
    """Those of all tables, table by table in the order of the columns."""
    return [join for table in TABLES.values() for join in _of(table)]


def _of(table: Table) -> Iterator[Join]:
    names = [column.name for column in table.columns]
    for name in names:
        if name.endswith("func_id") or name in _FUNCTIONS:
            yield Join(table.name, (name,), "functions", ("func_id",))
        elif name in _CALLS:
            yield Join(table.name, (name,), "calls", ("call_id",))
        elif name in _TASKS:
            yield Join(table.name, (name,), "tasks", ("coroutine_id",))
        elif name == "request_id":
            yield Join(table.name, (name,), "calls", ("call_id",))
        elif name == "resource_id":
            yield Join(table.name, (name,), "resources", ("resource_id",))
        elif name == "stack_id":
            yield Join(table.name, (name,), "stacks", ("stack_id",))
        elif name == "parent_id" and table.name == "profile":
            yield Join(table.name, (*_WINDOW, name), "profile", (*_WINDOW, _PARENTS["profile"]))
        elif name == "parent_id":
            other = "calls" if table.name == "operators" else table.name
            yield Join(table.name, (name,), other, (_PARENTS[table.name],))
        elif name in _PIDS and _PIDS[name] in names:
            yield Join(table.name, (_PIDS[name], name), "threads", ("pid", "tid"))
        elif name in ("pid", "ppid"):
            yield Join(table.name, (name,), "processes", ("pid",))
