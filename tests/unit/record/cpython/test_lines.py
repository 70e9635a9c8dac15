"""Lines of instructions, as each version of CPython has them in its tables, against what that version says itself."""

import json
import subprocess
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytrace_ebpf.record.cpython.lines import decoded, read_lines
from pytrace_ebpf.record.process.target import inspect
from tests.unit.live_pythons import interpreters, running

PYTHONS = interpreters()
# Prints of each code object of some modules: first line, table, (begin, end, line) of its instructions.
SAYS = """
import dis, inspect, json, sys, types
import argparse, dataclasses, tokenize, typing
def codes(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes(const)
def says(code):
    if sys.version_info >= (3, 10):
        return code.co_linetable, [(begin, end, -1 if line is None else line) for begin, end, line in code.co_lines()]
    starts = list(dis.findlinestarts(code))
    ends = [start for start, _ in starts[1:]] + [len(code.co_code)]
    return code.co_lnotab, [(begin, end, line) for (begin, line), end in zip(starts, ends)]
found = []
for module in (argparse, dataclasses, inspect, tokenize, typing):
    for code in codes(compile(open(module.__file__).read(), module.__file__, "exec")):
        table, ranges = says(code)
        found.append((code.co_firstlineno, table.hex(), ranges))
json.dump([sys.version_info[:2], found], sys.stdout)
"""
# A function that stands still where its address can be asked for.
STILL = """
import time
def odd(a,
        b):
    x = a

    return b
print("ready", flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize("name", PYTHONS)
def test_lines_are_those_that_the_interpreter_says(name: str) -> None:
    said = subprocess.run([*PYTHONS[name], "-c", SAYS], capture_output=True, text=True, check=True).stdout
    version, codes = json.loads(said)
    for first_line, table, ranges in codes:
        found = list(decoded(tuple(version), bytes.fromhex(table), first_line))
        begins = [begin for begin, _ in found]
        assert begins == sorted(begins)
        for begin, end, line in ranges:
            for position in range(begin, end, 2):
                assert found[bisect_right(begins, position) - 1][1] == line, (first_line, position)


@pytest.mark.parametrize("version", [(3, 8), (3, 10), (3, 11), (3, 15)])
@given(table=st.binary(max_size=200), first_line=st.integers(-1, 1 << 31))
def test_any_bytes_are_read_to_their_end(version: tuple[int, int], table: bytes, first_line: int) -> None:
    """What a target may have there; of one that breaks off the rest is left out."""
    found = []
    try:
        for each in decoded(version, table, first_line):
            found.append(each)
    except IndexError:
        assert version >= (3, 11)
    begins = [begin for begin, _ in found]
    assert begins == sorted(begins) and len(found) <= max(len(table), 1)


@pytest.mark.parametrize("name", PYTHONS)
def test_what_is_no_code_object_has_no_lines(name: str) -> None:
    with running(PYTHONS[name], STILL) as pid:
        target = inspect(pid)
        assert target.runtime is not None
        assert read_lines(target, [(target.runtime, 0), (8, 0), (1 << 62, 0), ((1 << 64) - 1, 5)]) == {}
