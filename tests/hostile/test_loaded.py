"""What an unprivileged user's process says of the functions that it has loaded: root reads it without harm, whatever stands there."""

import os

import pytest

from pytrace_ebpf.patterns import Mains, nearest
from pytrace_ebpf.record.cpython.loaded import loaded_functions
from pytrace_ebpf.record.pattern_counts import fits, loaded
from pytrace_ebpf.record.process.target import inspect
from tests.hostile.test_parsing import folder, running

__all__ = ["folder"]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the tracer is root here, and its targets are not")

WAITS = "print('ready', flush=True); input()"
CYCLES = f"""
class A:
    def f(self): pass
class B: pass
A.other, B.other, A.own = B, A, A
globals()["__main__"] = A
{WAITS}
"""
MANY = f"""
code = (lambda: 1).__code__
class Many: pass
for number in range(60000):
    exec("def f(): pass", space := {{}})
    setattr(Many, "f%d" % number, space["f"])
    space["f"].__code__ = code.replace(co_qualname="long" * 10000 + str(number))
{WAITS}
"""
# The dict of a module, a function's code and a class's dict are what they are not (CPython 3.11).
FORGED = f"""
import ctypes, json, random
def put(thing, offset, address): ctypes.c_uint64.from_address(id(thing) + offset).value = address
def first(): pass
def second(): pass
class Third: pass
put(json, 16, id(first)); put(first, 48, id("no code")); put(second, 48, 0xdead0000); put(Third, 264, id(json))
{WAITS}
"""


@pytest.mark.parametrize(("program", "most"), [(CYCLES, 50_000), (MANY, 50_000), (FORGED, 50_000)], ids=["cycles", "many", "forged"])
def test_reading_ends_and_says_what_is_there(folder, program: str, most: int) -> None:
    with running(folder, program) as process:
        target = inspect(process.pid)
        found = loaded_functions(target)
        assert len(found.functions) <= most and sum(len(name) for _, name, _ in found.functions) < 32 << 20
        known = loaded(target)
        assert len(fits("--args", "f*", known, Mains([target.command]))) <= len(known) and len(nearest("wrok", known)) <= 3
        if program is CYCLES:
            assert [name for file, name, _ in found.functions if file == "<string>"] == ["A.f"]
        with running(folder, WAITS) as other:  # what reads such things serves others still
            assert loaded_functions(inspect(other.pid)).functions
