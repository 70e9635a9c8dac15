"""`dump`: who has the locks that threads wait for, deadlocks, variables and tasks, against what the program itself knows."""

import json
import os
import random
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from pytrace_ebpf.cli import main
from pytrace_ebpf.record.cpython.layout import layout_for
from pytrace_ebpf.record.cpython.locks import LOCK, Locks, Waited
from pytrace_ebpf.record.cpython.task_locks import TaskLocks
from pytrace_ebpf.record.cpython.tasks import Tasks
from pytrace_ebpf.record.cpython.values import Values
from pytrace_ebpf.record.cpython.variables import Frames
from pytrace_ebpf.record.dump.cycles import cycles
from pytrace_ebpf.record.dump.deadlocks import deadlocks
from pytrace_ebpf.record.dump.threads import Thread
from pytrace_ebpf.record.process.memory import Memory, MemoryFault
from tests.conftest import PATIENCE_S, without_rights
from tests.unit.agent_pythons import BUILDS, TARGETS
from tests.unit.live_pythons import interpreters

PYTHONS = {name: [path] for name, path in BUILDS.items()} | {name: words for name, words in interpreters().items() if len(words) > 1}
NOBODY = 65534


@contextmanager
def standing(interpreter: str, *words: str) -> Iterator[tuple[int, str]]:
    """The id of a program that stands still, and the line that it has written."""
    process = subprocess.Popen([*PYTHONS[interpreter], "-I", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.pid, process.stdout.readline()
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def dumped(pid: int, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main.main(["dump", str(pid), "--json", *more]) == 0
    return dict(json.loads(capsys.readouterr().out))


# Of the threads of tests/targets/locked.py: what each waits for, what its code calls that, and who has it.
HOLDERS = {
    "holds": None,
    "lets_go": ("lock", "waiter", None),
    "holds_condition": None,
    "waits_with": ("lock", "it._lock", "holds"),
    "waits_acquire": ("lock", "shop._lock", "holds"),
    "waits_reentrant": ("rlock", "shop.reentrant", "holds"),
    "waits_class": ("lock", "Shop.of_class", "holds"),
    "waits_item": ("lock", "shop.by_name[...]", "holds"),
    "waits_nobody": ("lock", "shop.acquired", None),
    "waits_left": ("lock", "shop.left", None),
    "waits_cell": ("lock", "mine", "waits_cell"),
    "waits_timed": ("lock", "lock", "holds"),
    "waits_condition": ("lock", "shop.cond", "holds_condition"),
    "joins": ("thread", None, "holds"),
    "imports": None,
    "waits_import": ("import", "slowly", "imports"),
    "first": ("rlock", "other", "second"),
    "second": ("lock", "other", "first"),
    "waits_for_joiner": ("thread", None, "joins_back"),
    "joins_back": ("lock", "lock", "waits_for_joiner"),
}


@pytest.mark.parametrize("interpreter", PYTHONS)
def test_who_has_the_lock_that_a_thread_waits_for(interpreter: str, capsys: pytest.CaptureFixture[str]) -> None:
    with standing(interpreter, str(TARGETS / "locked.py")) as (pid, line):
        tids, until_s = json.loads(line), time.monotonic() + PATIENCE_S
        functions = {tid: name for name, tid in tids.items()}
        while True:
            found = dumped(pid, capsys)
            waits = {name: each["waits_on"] for each in found["threads"] if (name := each["name"]) in tids}
            told = {name: (on["kind"], on["name"], functions.get(on["holder"])) if on else None for name, on in waits.items()}
            if told == HOLDERS or time.monotonic() > until_s:  # a thread may not have come to its lock yet
                break
        assert main.main(["dump", str(pid)]) == 0
        said = capsys.readouterr().out
    assert told == HOLDERS
    assert {each["name"]: each["tid"] for each in found["threads"] if each["name"] in tids} == tids
    cycles = [("waits_cell",), ("first", "second"), ("waits_for_joiner", "joins_back")]
    assert {tuple(sorted(cycle)) for cycle in found["deadlocks"]} == {tuple(sorted(tids[name] for name in names)) for names in cycles}
    lines = said.splitlines()
    assert [line.startswith("Deadlock: ") for line in lines[1:5]] == [True] * 3 + [False]
    assert "waits for mine, which it has itself" in said
    joins = f"waits for the end of joins_back ({tids['joins_back']}); joins_back ({tids['joins_back']}), in joins_back "
    assert joins in said.replace("\n", " ")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_ordinary_users_see_who_has_the_locks_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    own = without_rights(NOBODY, str(TARGETS / "locked.py"))
    with subprocess.Popen(own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        tids = json.loads(process.stdout.readline())
        look = without_rights(NOBODY, "-m", "pytrace_ebpf", "dump", str(process.pid))
        said = subprocess.run(look, capture_output=True, text=True)
        process.communicate("\n")
    assert said.returncode == 0 and f"waiting for it._lock, which holds ({tids['holds']}) has" in said.stdout, said.stderr


MOVES = """
import sys, threading
first, second, third = threading.Lock(), threading.RLock(), threading.Condition(threading.Lock())
def moves():
    while True:
        with first:
            with second:
                sum(range(100000))
            with third:
                third.wait(0.001)
                third.notify()
for _ in range(6):
    threading.Thread(target=moves, daemon=True).start()
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("interpreter", PYTHONS)
def test_threads_in_motion_are_in_no_deadlock_and_wait_for_nobody_who_waits_for_them(interpreter: str, capsys: pytest.CaptureFixture[str]) -> None:
    seen, looks, until_s = set(), 0, time.monotonic() + PATIENCE_S
    with standing(interpreter, "-c", MOVES) as (pid, _):
        while looks < 12 or ("first" not in seen and time.monotonic() < until_s):
            looks += 1
            found = dumped(pid, capsys)
            assert found["deadlocks"] == []
            waits = {each["tid"]: on for each in found["threads"] if (on := each["waits_on"]) and on["kind"] != "gil"}
            assert not [tid for tid, on in waits.items() if on["holder"] == tid]
            seen |= {on["name"] for on in waits.values() if on["holder"]}
    assert "first" in seen


def waiting(tid: int, holder: int, *, is_still: bool = True, timeout: int = 0) -> Thread:
    return Thread(tid, "", "blocked", 202, (0x1000, 0, 0, timeout), 1.0, waited=Waited(LOCK, 1, [], holder), is_still=is_still)


def test_a_deadlock_is_a_cycle_of_threads_that_stand_still_for_ever() -> None:
    ring = [waiting(3, 1), waiting(1, 2), waiting(2, 3)]
    behind = [waiting(4, 1), waiting(5, 9), waiting(6, 0), waiting(7, 7)]
    assert deadlocks(ring + behind) == [[1, 2, 3], [7]]
    assert deadlocks([waiting(1, 2), waiting(2, 1, is_still=False)]) == []
    assert deadlocks([waiting(1, 2), waiting(2, 1, timeout=0x2000)]) == []
    assert deadlocks([Thread(1, "", "on_cpu", -1, (), None)]) == []


VARIABLES = {
    "number": ("int", "3", None, "complete"),
    "negative": ("int", str(-(1 << 40)), None, "complete"),
    "large": ("int", None, [2010], "cut"),
    "more": ("tuple", None, [2], "complete"),
    "flag": ("bool", "False", None, "complete"),
    "keywords": ("dict", None, [1], "complete"),
    "text": ("str", "plain", [5], "complete"),
    "wide": ("str", "grüße 名", [7], "complete"),
    "long": ("str", "x" * 160, [1000], "cut"),
    "raw": ("bytes", "a\\xff", [2], "complete"),
    "nothing": ("NoneType", "None", None, "complete"),
    "real": ("float", "2.5", None, "complete"),
    "level": ("Level", "7", None, "complete"),
    "cart": ("Cart", None, None, "complete"),
    "error": ("ValueError", "wrong", None, "complete"),
    "rows": ("list", None, [3], "complete"),
    "pair": ("tuple", None, [2], "complete"),
    "table": ("dict", None, [1], "complete"),
    "some": ("set", None, [3], "complete"),
    "password": ("str", None, None, "redacted"),
    "inner": ("int", "5", None, "complete"),
    "uses": ("function", None, None, "complete"),
}
ARGUMENTS = {"number", "negative", "large", "more", "flag", "keywords"}


@pytest.mark.parametrize("interpreter", PYTHONS)
def test_variables_are_what_the_program_has_in_them(interpreter: str, capsys: pytest.CaptureFixture[str]) -> None:
    with standing(interpreter, str(TARGETS / "bound.py")) as (pid, _):
        looks = {option: dumped(pid, capsys, option)["threads"][0]["frames"] for option in ("--locals", "--args")}
        bare = dumped(pid, capsys)["threads"][0]["frames"]
        open_keys = dumped(pid, capsys, "--args", "--redact", "none")["threads"][0]["frames"]
        assert main.main(["dump", str(pid), "--locals"]) == 0
        said = capsys.readouterr().out
    for option, frames in looks.items():
        found = {each["name"]: (each["type"], each["value"], each["shape"], each["status"]) for each in frames[0]["variables"]}
        assert found == {name: value for name, value in VARIABLES.items() if option == "--locals" or name in ARGUMENTS}
        assert {each["name"] for each in frames[0]["variables"] if each["argument"]} == ARGUMENTS
        assert [(each["name"], each["value"], each["status"]) for each in frames[1]["variables"]] == [("api_key", None, "redacted")]
    assert not any("variables" in frame for frame in bare)
    assert [(each["name"], each["value"]) for each in open_keys[1]["variables"]] == [("api_key", "abc")]
    assert "hunter2" not in said and "        password: str (redacted)\n" in said and "        text: str = 'plain'\n" in said


@pytest.mark.parametrize("interpreter", PYTHONS)
def test_tasks_are_asyncios_own(interpreter: str, capsys: pytest.CaptureFixture[str]) -> None:
    with standing(interpreter, str(TARGETS / "awaiting.py")) as (pid, line):
        known = json.loads(line)
        found = dumped(pid, capsys)
    tasks = {each["name"]: each for each in found["tasks"]}
    assert len(tasks) == len(found["tasks"]) and all(each["thread"] == pid for each in tasks.values())
    frames = {name: [[frame["function"].rpartition(".")[2], frame["line"]] for frame in each["frames"]] for name, each in tasks.items()}
    running = next(name for name, each in tasks.items() if each["state"] == "running")
    assert [name for name, _ in frames.pop(running)] == ["main"]
    assert [name for name, _ in frames.pop("iterates")] == ["sleep", "numbers", "iterates"]
    assert [name for name, _ in frames.pop("custom")] == ["sleep", "__await__", "custom"]
    assert frames == known
    by_function = {each["frames"][-1]["function"]: each for each in tasks.values()}
    assert by_function["awaits"]["awaits"] == ["grüße"]
    gathered = [each for name in by_function["gathers"]["awaits"] for each in frames[name][-1:]]
    assert [name for name, _ in gathered] == ["middle", "middle"]
    assert by_function["many"]["awaits_more"] == 7 and by_function["gathers"]["awaits_more"] == 0
    assert by_function["gets"]["primitive"] == "Queue.get" and by_function["locked"]["primitive"] == "Lock.acquire"
    assert by_function["future"]["primitive"] is None and "ends" not in by_function


@pytest.mark.parametrize("interpreter", PYTHONS)
def test_who_has_the_lock_that_a_task_awaits(interpreter: str, capsys: pytest.CaptureFixture[str]) -> None:
    with standing(interpreter, str(TARGETS / "awaiting_locks.py")) as (pid, line):
        known = json.loads(line)
        found = dumped(pid, capsys)
        assert main.main(["dump", str(pid)]) == 0
        said = capsys.readouterr().out
    names = {each["id"]: each["name"] for each in found["tasks"]}
    waits = {each["name"]: on for each in found["tasks"] if (on := each["waits_on"]) and each["name"] in known["waits"]}
    told = {name: [on["kind"], on["name"], sorted(names[each] for each in on["holders"])] for name, on in waits.items()}
    assert told == known["waits"]
    assert sorted(sorted(names[each] for each in cycle) for cycle in found["task_deadlocks"]) == sorted(known["deadlocks"])
    assert found["deadlocks"] == []
    flat = " ".join(said.split())
    for either, other in (
        ("awaits second, which first has", "awaits second, which second has"),
        ("awaits two; two, in awaits ", "awaits one; one, in awaits "),
    ):
        assert either in flat or other in flat
    for sentence in ("awaits lock, which it has itself.", "has shop.lock (2 wait for it)", "awaiting shop.lock, which holds has"):
        assert sentence in flat
    assert said.splitlines()[1].startswith("Deadlock: ") and "awaiting shop.slots, which slot 1 and slot 2 have" in flat


TASKS_MOVE = """
import asyncio, sys, threading
async def moves(first, second):
    while True:
        async with first:
            await asyncio.sleep(0)
            async with second:
                await asyncio.sleep(0.001)
async def backward(first, second):
    while True:
        async with second:
            await asyncio.sleep(0)
        async with first:
            await asyncio.sleep(0)
async def main():
    locks = asyncio.Lock(), asyncio.Lock()
    tasks = [asyncio.create_task(each(*locks)) for each in (moves, moves, moves, backward, backward)]
    print("ready", flush=True)
    await asyncio.gather(*tasks)
threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
sys.stdin.readline()
"""


@pytest.mark.parametrize("interpreter", PYTHONS)
def test_tasks_in_motion_are_in_no_deadlock(interpreter: str, capsys: pytest.CaptureFixture[str]) -> None:
    holders, until_s, looks = set(), time.monotonic() + PATIENCE_S, 0
    with standing(interpreter, "-c", TASKS_MOVE) as (pid, _):
        while looks < 8 or (not holders and time.monotonic() < until_s):
            looks += 1
            found = dumped(pid, capsys)
            assert found["task_deadlocks"] == []
            names = {each["id"]: each["frames"][-1]["function"] for each in found["tasks"]}
            holders |= {names.get(holder) for each in found["tasks"] if (on := each["waits_on"]) for holder in on["holders"]}
    assert holders & {"moves", "backward"}


def test_cycles_are_found_among_all_that_each_waits_for() -> None:
    assert cycles({1: [9, 2], 2: [3], 3: [1], 4: [1], 5: []}) == [[1, 2, 3]]
    assert cycles({number: [number + 1] for number in range(1, 30_000)}) == []
    assert cycles({number: [number % 20_000 + 1] for number in range(1, 20_001)}) == [[*range(1, 20_001)]]


FORGES = """
import ctypes, sys
def forge(thing, offset, word):
    ctypes.c_uint64.from_address(id(thing) + offset).value = word
def stands():
    text, number, many, raw, items = "abc" * 3, 1 << 70, [1, 2], b"xyz" * 3, {object()}
    kept = [ctypes.string_at(id(each), 72) for each in (text, number, many, raw)]
    forge(text, 16, 1 << 60)
    forge(number, 16, 1 << 62)
    forge(many, 16, 1 << 63)
    forge(raw, 16, 1 << 62)
    class Odd: pass
    odd = Odd()
    forge(odd, 8, 0x1234567)
    print("ready", flush=True)
    sys.stdin.readline()
stands()
"""


def test_a_forged_object_is_unread_or_cut_and_the_rest_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    with standing(next(iter(PYTHONS)), "-c", FORGES) as (pid, line):
        assert line == "ready\n"
        (thread,) = dumped(pid, capsys, "--locals")["threads"]
    found = {each["name"]: (each["value"], each["status"]) for each in thread["frames"][0]["variables"]}
    assert found["odd"] == (None, "unread") and found["number"] == (None, "cut")
    assert found["text"][1] in ("cut", "unread") and found["raw"][1] in ("cut", "unread") and found["many"] == (None, "complete")
    assert found["kept"] == (None, "complete")


class Nonsense(Memory):
    """Memory in which every read gives something, mostly what leads on."""

    def __init__(self, seed: int, names: tuple[bytes, ...]) -> None:
        self.pid, self._chance, self._names, self.reads = 1, random.Random(seed), names, 0

    def read(self, address: int, size: int) -> bytes:
        self.reads += 1
        if self._chance.random() < 0.02 or not 0 <= size <= 1 << 20:
            raise MemoryFault("nothing there")
        some = struct.pack("<Q", self._chance.choice((1, 2, 3, 1 << 20, self._chance.randrange(1, 1 << 47))))
        choices = (bytes(size), self._chance.choice(self._names).ljust(size, b"\0"), some * (size // 8 + 1))
        return self._chance.choice(choices)[:size]


TYPES = (
    b"code\0",
    b"cell\0",
    b"dict\0",
    b"set\0",
    b"list\0",
    b"coroutine\0",
    b"_thread.lock\0",
    b"_asyncio.Task\0",
    b"float\0",
    b"numpy.ndarray\0",
    b"__exit__\0",
)


@pytest.mark.parametrize("minor", range(8, 16))
def test_whatever_stands_there_every_look_ends(minor: int) -> None:
    layout = layout_for((3, minor))
    assert layout is not None
    most = 0
    for seed in range(150):
        memory = Nonsense(seed, TYPES)
        frames = Frames(memory, layout)
        looks: tuple[Callable[[], Any], ...] = (
            lambda frames=frames: Locks(frames).waited_for([(0x1000, 0x2000)] * 5, 0x3000),
            lambda frames=frames: Locks(frames).holders({0x3000}, {1: [(0x1000, 0x2000)] * 20}),
            lambda frames=frames: frames.variables(0x1000, 0x2000),
            lambda frames=frames: frames.below_handler(0x1000, 0x2000),
            lambda frames=frames: frames.suspended_top(0x1000, 0x2000),
            lambda frames=frames: list(Tasks(frames).all(0x4000)),
            lambda frames=frames: TaskLocks(frames).waited_for([(0x1000, 0x2000)] * 5),
            lambda frames=frames: TaskLocks(frames).holders({0x3000: LOCK}, {1: [(0x1000, 0x2000)] * 20}),
        )
        for look in looks:
            with suppress(MemoryFault):
                look()
        Values(frames).describe(0x1000)
        most = max(most, memory.reads)
    assert most < 1_000_000
