"""Names of asyncio's tasks: where an interpreter keeps which task runs, on every Python at hand, and what becomes of the bytes of a name."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from pytrace_ebpf.analyze.samples import by_task
from pytrace_ebpf.analyze.samples.weights import COLUMNS
from pytrace_ebpf.record.cpython.layout import layout_for, with_task_offsets
from pytrace_ebpf.record.cpython.running_tasks import find_running_tasks
from pytrace_ebpf.record.process.target import inspect
from pytrace_ebpf.record.sampling import tasks
from pytrace_ebpf.record.sampling.tasks import TaskNames, name_of
from tests.unit.live_pythons import interpreters, minor_of, running, started

PYTHONS = interpreters()
SOURCE = """
import _asyncio, time
print("ready", flush=True)
print(id(getattr(_asyncio, "_current_tasks", None)) if hasattr(_asyncio, "_current_tasks") else 0, flush=True)
time.sleep(100)
"""
FORGED = """
import sys, time, types
sys.modules["_asyncio"] = module = types.ModuleType("_asyncio")
module._current_tasks = %s
print("ready", flush=True)
time.sleep(100)
"""
WIDE = "\U0001f600" * 24


@pytest.mark.parametrize("name", PYTHONS)
def test_where_running_tasks_are_is_found(name: str) -> None:
    with started(PYTHONS[name], SOURCE) as process:
        assert process.stdout is not None
        current, target = int(process.stdout.readline()), inspect(process.pid)
        found = find_running_tasks(target)
    assert found is not None
    assert found.current == current
    assert (current == 0) == (minor_of(name) >= 14)
    assert found.layout == target.layout == layout_for((3, minor_of(name)))


@pytest.mark.parametrize("current", ["7", "None", "[]"])
def test_forged_running_tasks_are_none(current: str) -> None:
    name = next(name for name in PYTHONS if minor_of(name) < 14)
    with running(PYTHONS[name], FORGED % current) as pid:
        assert find_running_tasks(inspect(pid)) is None


def test_a_file_that_says_what_cannot_be_changes_nothing() -> None:
    known = layout_for((3, 14))
    assert known is not None
    for section in (b"", bytes(40), b"\xff" * 1024):
        assert with_task_offsets(known, section) == known
    moved = with_task_offsets(known, np.arange(0, 1300, 100, np.uint64).tobytes())
    assert (moved.task_name, moved.task_coro, moved.thread_task) == (100, 500, 1100)


@pytest.mark.parametrize(
    ("length", "width", "raw", "name"),
    [
        (7, 0, b"", "Task-7"),
        (1 << 59, 0, b"", f"Task-{1 << 59}"),
        (0, 1, b"", ""),
        (5, 1, b"n\xe4her", "näher"),
        (96, 1, b"x" * 96, "x" * 96),
        (97, 1, b"x" * 96, "x" * 96 + "..."),
        (2, 2, "待つ".encode("utf-16-le"), "待つ"),
        (24, 4, WIDE.encode("utf-32-le"), WIDE),
        (1000, 4, WIDE.encode("utf-32-le"), WIDE + "..."),
        (1, 2, b"\x00\xd8", "\\ud800"),
        (1, 4, b"\xff\xff\xff\xff", "\ufffd"),
        (1, 3, b"abc", "Task-1"),
    ],
)
def test_a_name_is_what_get_name_gives(length: int, width: int, raw: bytes, name: str) -> None:
    assert name_of(length, width, raw.ljust(96, b"\0")) == name


class Ring:
    def __init__(self) -> None:
        self.events: list[tuple[int, int, int, bytes]] = []

    def drain(self, take: Any) -> Any:
        taken = take(np.array(self.events, [("task", "u8"), ("length", "u8"), ("width", "u4"), ("name", "S96")]))
        self.events = []
        return taken


class Kernel:
    """What TaskNames sees of the programs."""

    def __init__(self) -> None:
        self.reported, self.known = Ring(), dict[int, int]()

    def ring(self, name: str, record: Any) -> Ring:
        return self.reported

    def map(self, name: str) -> "Kernel":
        return self

    def dtype(self, struct: str) -> None:
        return None

    def items(self) -> list[tuple[int, int]]:
        return list(self.known.items())

    def delete(self, key: int) -> None:
        del self.known[key]


def test_names_that_are_many_are_forgotten_but_those_still_to_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_MOST_NAMES", 10)
    kernel = Kernel()
    names = TaskNames(kernel)  # type: ignore[arg-type]
    kernel.reported.events, kernel.known = [(number, number, 0, b"") for number in range(1, 12)], dict.fromkeys(range(1, 12), 1)
    names.drain()
    assert names.of(np.array([3, 0, 11, 3])).tolist() == ["Task-3", None, "Task-11", "Task-3"]
    names.let_go(np.array([3]))
    assert names.of(np.array([3, 11])).tolist() == ["Task-3", None]
    assert kernel.known == {}  # it reports them again


def test_very_many_names_become_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_task, "_MOST_ROWS", 6)
    columns = by_task.named("total", "")
    table = pd.DataFrame({"func_id": [1] * 8, "task": [*"abcdefg", None], **{column: range(8, 0, -1) for column in columns}})
    assert len(COLUMNS) == len(columns)
    found = by_task._fewer(table, columns).table
    by_name = dict(zip(found["task"].fillna(""), found["total_ns"], strict=True))
    assert by_name == {"a": 8, "b": 7, "c": 6, by_task.OTHERS: 5 + 4 + 3 + 2, "": 1}
