"""Open frames of live processes against the frames each thread itself sees, on every Python at hand."""

import pytest

from pytrace_ebpf.record.cpython.frames import CodeInfo, OpenFrame, open_frames, read_code
from pytrace_ebpf.record.process.memory import MemoryFault
from pytrace_ebpf.record.process.target import Target, inspect
from tests.unit.live_pythons import builds, minor_of, running, started

PYTHONS = builds()
SOURCE = """
import sys, threading, time
sys.setrecursionlimit(10000)

def recurse(n, done):
    if n:
        return recurse(n - 1, done)
    done.set(); time.sleep(100)

class Outer:
    def __init__(self, done):
        self.method(done)
    def method(self, done):
        def inner(_):
            done.set(); time.sleep(100)
        list(map(inner, [1]))

class Calls:
    def __init__(self, function):
        function()

def make(function):
    return Calls(function)

def specialised(done):
    for _ in range(300):
        make(int)
    make(lambda: (done.set(), time.sleep(100)))

def generator(done):
    yield 1
    done.set(); time.sleep(100)

def generators(done):
    suspended = generator(done)
    next(suspended)
    for _ in generator(done):
        pass

def \u540d\u524d(done):
    done.set(); time.sleep(100)

for function, arguments in (
    (recurse, (500,)), (Outer, ()), (specialised, ()), (generators, ()), (\u540d\u524d, ()),
):
    done = threading.Event()
    threading.Thread(target=function, args=(*arguments, done), daemon=True).start()
    done.wait()

def main():
    print("ready", flush=True)
    time.sleep(100)

main()
"""
BOOT = ["_bootstrap", "_bootstrap_inner", "run"]
STACKS = [
    ["<module>", "main"],
    BOOT + ["recurse"] * 501,
    [*BOOT, "__init__", "method", "inner"],
    [*BOOT, "specialised", "make", "__init__", "<lambda>"],
    [*BOOT, "generators", "generator"],
    [*BOOT, "名前"],
]


def _codes(target: Target, stack: list[OpenFrame]) -> list[CodeInfo]:
    assert target.layout is not None
    return [read_code(target.memory, target.layout, frame.code_address) for frame in stack]


@pytest.mark.parametrize("name", PYTHONS)
def test_every_threads_stack_is_read_outermost_first(name: str) -> None:
    with running(PYTHONS[name], SOURCE, PYTHONIOENCODING="utf-8") as pid:
        target = inspect(pid)
        stacks = open_frames(target)
        assert set(stacks) == set(target.threads)
        named = {tid: _codes(target, stack) for tid, stack in stacks.items()}
    assert [[code.name for code in named[tid]] for tid in sorted(named)] == STACKS
    assert len({frame.frame_address for stack in stacks.values() for frame in stack}) == sum(map(len, STACKS))
    recurse = named[sorted(named)[1]][-1]
    assert (recurse.file, recurse.first_line) == ("<string>", 5)
    assert recurse.flags & 0x3 == 0x3
    inner = named[sorted(named)[2]][-1]
    assert inner.qualname == ("Outer.method.<locals>.inner" if minor_of(name) >= 11 else None)
    assert named[sorted(named)[4]][-1].flags & 0x20  # CO_GENERATOR


@pytest.mark.parametrize("name", PYTHONS)
def test_a_stack_in_motion_gives_only_frames_that_are_its_own(name: str) -> None:
    source = """
import threading
def count(n):
    for i in range(n):
        yield i
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
def main():
    if threading.current_thread() is threading.main_thread():
        print("ready", flush=True)
    while True:
        fib(10)
        for _ in count(20): pass
threading.Thread(target=main, daemon=True).start()
main()
"""
    seen = 0
    with running(PYTHONS[name], source) as pid:
        target = inspect(pid)
        for _ in range(200):
            for tid, stack in open_frames(target).items():
                names = [code.name for code in _codes(target, stack)]
                root = ["<module>", "main"] if tid == pid else [*BOOT, "main"]
                assert names[: len(root)] == root[: len(names)]
                assert set(names[len(root) :]) <= {"fib", "count"}
                assert len(names) <= len(root) + 10
                seen += len(names) >= len(root)
    assert seen >= 200  # of 400: the outermost frames stand still


@pytest.mark.parametrize("name", PYTHONS)
def test_a_code_object_that_was_freed_is_not_read(name: str) -> None:
    source = """
import gc
code = compile("'a text'; " * 20 + "x = 1", "a file", "exec")
print("ready", flush=True)
print(id(code), id(open), flush=True)
input()
del code
gc.collect()  # without a GIL a code object that has no more references dies then
print("freed", flush=True)
input()
"""
    with started(PYTHONS[name], source) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        target = inspect(process.pid)
        assert target.layout is not None
        code, builtin = map(int, process.stdout.readline().split())
        assert read_code(target.memory, target.layout, code).file == "a file"
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"freed\n"
        for address in (code, builtin):
            with pytest.raises(MemoryFault):
                read_code(target.memory, target.layout, address)


def test_a_process_that_is_gone_has_no_frames() -> None:
    with running(next(iter(PYTHONS.values())), "print('ready', flush=True); input()") as pid:
        target = inspect(pid)
    assert open_frames(target) == {}
    assert target.gil_range() == (0, 0) or minor_of(next(iter(PYTHONS))) < 12


@pytest.mark.parametrize("address", [0, -8, 1, 1 << 47, 1 << 63, (1 << 64) - 8])
def test_an_unmapped_address_is_a_fault(address: int) -> None:
    with running(next(iter(PYTHONS.values())), "print('ready', flush=True); input()") as pid:
        memory = inspect(pid).memory
        for read in (memory.u8, memory.i32, memory.u64):
            with pytest.raises(MemoryFault):
                read(address)


@pytest.mark.parametrize("name", PYTHONS)
@pytest.mark.parametrize("text", ["plain", "é" * 20, "ж" * 20, "😀" * 20, "x" * 3000])
def test_names_of_every_width(name: str, text: str) -> None:
    source = f"""
import time
code = compile("print('ready', flush=True)\\nimport time; time.sleep(100)", {text!a}, "exec")
exec(code)
"""
    with running(PYTHONS[name], source) as pid:
        target = inspect(pid)
        files = [code.file for code in _codes(target, open_frames(target)[pid])]
    assert files == ["<string>", text]
