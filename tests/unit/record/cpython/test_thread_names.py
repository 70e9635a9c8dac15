"""Names of threads, read from outside, against those that the threads gave themselves, on every Python at hand."""

import random
import re
import struct
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from pytrace_ebpf.record.cpython.layout import layout_for
from pytrace_ebpf.record.cpython.objects import Objects
from pytrace_ebpf.record.cpython.thread_names import MOST_CHARACTERS, read_names
from pytrace_ebpf.record.process.memory import Memory, MemoryFault
from pytrace_ebpf.record.process.target import inspect
from tests.unit.live_pythons import builds, running

PYTHONS = builds()
SOURCE = """
import os, threading, time

class Worker(threading.Thread):
    def __init__(self, name):
        self.before = 1
        super().__init__(name=name, daemon=True)
        self.after = 2

class Slotted(threading.Thread):
    __slots__ = ("own",)

def wait(begun):
    begun.set()
    time.sleep(100)

def start(thread):
    begun.wait()
    begun.clear()

begun = threading.Event()
named = threading.Thread(target=wait, args=(begun,), name="named", daemon=True)
wide = Worker("gr\u00fc\u00dfe \u540d\u524d \U0001f40d")
wide._target, wide._args = wait, (begun,)
with_dict = threading.Thread(target=wait, args=(begun,), name="has a dict", daemon=True)
vars(with_dict)["more"] = 1
renamed = Slotted(target=wait, args=(begun,), daemon=True)
long = threading.Thread(target=wait, args=(begun,), name="x" * 1000, daemon=True)
many = threading.Thread(target=wait, args=(begun,), name="many", daemon=True)
for number in range(100):
    setattr(many, "attribute%d" % number, number)
for thread in (named, wide, with_dict, renamed, long, many):
    thread.start()
    begun.wait()
    begun.clear()
renamed.name = "renamed"
print("ready", flush=True)
time.sleep(100)
"""
NAMES = ["MainThread", "named", "grüße 名前 \U0001f40d", "has a dict", "renamed", "x" * MOST_CHARACTERS, "many"]


@pytest.mark.parametrize("name", PYTHONS)
def test_every_thread_has_the_name_that_it_was_given(name: str) -> None:
    with running(PYTHONS[name], SOURCE) as pid:
        target = inspect(pid)
        found, active, _ = read_names(target)
        again, _, _ = read_names(target, active)
        tids = sorted(int(task.name) for task in Path(f"/proc/{target.pid}/task").iterdir())
    assert [found.get(tid) for tid in tids] == NAMES
    assert again == found and active


@pytest.mark.parametrize("name", PYTHONS)
def test_threads_that_come_and_go_have_no_other_names(name: str) -> None:
    source = """
import threading
def churn():
    while True:
        for number in range(30):
            threading.Thread(target=len, args=("",), name="short %d" % number).start()
threading.Thread(target=churn, name="churn", daemon=True).start()
print("ready", flush=True)
churn()
"""
    with running(PYTHONS[name], source) as pid:
        target, active, seen = inspect(pid), 0, set()
        for _ in range(40):
            found, active, _ = read_names(target, active)
            seen |= set(found.values())
    assert {"MainThread", "churn"} <= seen
    assert all(re.fullmatch(r"MainThread|churn|short \d\d?", each) for each in seen)


def test_without_threading_there_are_none() -> None:
    with running(
        next(iter(PYTHONS.values())), "import sys, time\nassert 'threading' not in sys.modules\nprint('ready', flush=True)\ntime.sleep(100)"
    ) as pid:
        assert read_names(inspect(pid))[:2] == ({}, 0)


@pytest.mark.parametrize("active", [1, 8, 1 << 62, 0x10000])
def test_a_wrong_place_is_none(active: int) -> None:
    with running(next(iter(PYTHONS.values())), SOURCE) as pid:
        assert read_names(inspect(pid), active)[:2] == ({}, 0)


class Nonsense(Memory):
    """Memory in which every read gives something, mostly what leads on."""

    def __init__(self, seed: int) -> None:
        self.pid, self._chance = 1, random.Random(seed)

    def read(self, address: int, size: int) -> bytes:
        if self._chance.random() < 0.05:
            raise MemoryFault("nothing there")
        choices = (bytes(size), b"dict\0".ljust(size, b"\0")[:size], struct.pack("<Q", self._chance.randrange(1, 1 << 47)) * (size // 8 + 1))
        return self._chance.choice(choices)[:size]


@pytest.mark.parametrize("minor", range(8, 16))
def test_whatever_stands_there_a_walk_ends_and_says_so(minor: int) -> None:
    found = layout_for((3, minor))
    assert found is not None
    for seed in range(300):
        objects = Objects(Nonsense(seed), found)
        for read in (objects.items, objects.integer, objects.module_dict, partial(objects.attribute, name="_name")):
            with suppress(MemoryFault):
                read(0x1000)
