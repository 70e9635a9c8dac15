"""Calls of what is written in C: as many as the interpreter counts, under its names, in the order in which they nest."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pytrace_ebpf.trace.schema import CallKind
from tests.agent_arena import ENTRY, Arena, Session, assert_balanced
from tests.conftest import PATIENCE_S
from tests.unit.agent_pythons import MINOR, PYTHONS, TARGETS, attached, built, every_python, run

pytestmark = built
RETURN, UNWIND = CallKind.RETURN.value, CallKind.UNWIND.value
LAYER = -6  # first_line of its functions: LAYER_C of probes/events.h


def c_calls(arena: Arena, file: str) -> dict[str, int]:
    """Calls of layer c from functions of `file`, as c_truth.py keys them."""
    found = {}
    for site, count in arena.sites().items():
        caller, _, called = site.partition(" > ")
        where, name, _, line = caller.rsplit(":", 3)
        if where == file and called.endswith(f":{LAYER}"):
            found[f"{name.rpartition('.')[2]}:{line} {called.split(':')[1]}"] = count
    return found


@every_python
@pytest.mark.parametrize("program", ["c_calls", "exceptions", "callbacks", "generators"])
def test_they_are_those_that_the_interpreter_reports(interpreter: str, program: str, tmp_path: Path) -> None:
    file = str(TARGETS / f"{program}.py")
    words = [PYTHONS[interpreter], str(TARGETS / "c_truth.py"), file]
    done = subprocess.run(words, capture_output=True, check=True, timeout=PATIENCE_S)
    expected = json.loads(done.stdout.splitlines()[-1])
    session = Session(tmp_path / "session", c_calls=1)
    run(session, interpreter, file)
    (arena,) = session.arenas()
    assert arena.header["dropped"] == arena.header["unnamed"] == 0
    assert_balanced(arena)
    assert expected
    assert c_calls(arena, file) == expected


@every_python
def test_without_the_option_there_are_none(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session")
    run(session, interpreter, str(TARGETS / "c_calls.py"))
    (arena,) = session.arenas()
    assert not {function.name for function in arena.functions.values() if function.first_line == LAYER}


@every_python
def test_an_exception_ends_them_as_it_ends_a_function(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session", c_calls=1)
    run(session, interpreter, str(TARGETS / "c_calls.py"))
    (arena,) = session.arenas()
    kinds = {}
    for number, function in arena.functions.items():
        of, counts = np.unique(arena.events["kind"][arena.events["function"] == number], return_counts=True)
        kinds[function.qualname] = dict(zip(of.tolist(), counts.tolist(), strict=True))
    assert kinds["list.pop"][UNWIND] == 7 == kinds["list.pop"][ENTRY] - kinds["list.pop"].get(RETURN, 0)
    assert kinds["sorted"][UNWIND] == 5
    assert kinds["divide"] == {ENTRY: 5, UNWIND: 5}
    assert kinds["time.sleep"] == {ENTRY: 1, RETURN: 1}


@every_python
def test_callers_that_are_not_recorded_have_none(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session", c_calls=1, exclude="<between>")
    program = """names = {}
exec(compile("def between(f): return abs(f())", "<between>", "exec"), names)
def inner(): return divmod(7, 2)[0]
names["between"](inner)
"""
    run(session, interpreter, "-c", program)
    counts = session.arenas()[0].counts()
    assert counts[f":divmod:{LAYER}"] == 1
    assert not counts[f":abs:{LAYER}"]


@every_python
def test_what_was_open_when_recording_began_or_was_left_out_has_no_end(interpreter: str, tmp_path: Path) -> None:
    program = """
import time
def nap():
    time.sleep(0.01)
    return len("abc")
serve()
"""
    session = Session(tmp_path / "session", c_calls=1)
    with attached(interpreter, program) as process:
        process.load(session)
        process.ask("nap()")
        session.leave_out("time.sleep")
        process.ask("nap()")
        session.leave_out(everything=True)
        process.ask("nap()")
        session.leave_out()
        process.ask("nap()")
    (arena,) = session.arenas()
    ended = {RETURN: 0, ENTRY: 0}
    for number, function in arena.functions.items():
        if function.first_line == LAYER:
            events = arena.events[arena.events["function"] == number]
            if function.qualname == "time.sleep":
                ended = {kind: int((events["kind"] == kind).sum()) for kind in ended}
            assert (events["kind"] == ENTRY).sum() == (events["kind"] != ENTRY).sum(), function.qualname
    assert ended == {RETURN: 2, ENTRY: 2}


@every_python
def test_depth_counts_them(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session", c_calls=1, max_depth=2)
    run(session, interpreter, "-c", "def f(): len('a'); g()\ndef g(): len('a')\nlen('a')\nf()\n")
    (arena,) = session.arenas()
    assert_balanced(arena)
    assert c_calls(arena, "<string>") == {"<module>:3 len": 1}


@pytest.mark.parametrize("interpreter", [name for name in PYTHONS if MINOR[name] != 12])
def test_many_that_are_open_at_a_time(interpreter: str, tmp_path: Path) -> None:
    """Each level calls the next one from within sorted(): more than one page of open calls. 3.12 itself does not go so deep."""
    depth = 700
    program = f"import sys\nsys.setrecursionlimit(10000)\ndef f(n): return sorted([n], key=lambda n: f(n - 1)) if n else 0\nf({depth})\n"
    session = Session(tmp_path / "session", c_calls=1)
    run(session, interpreter, "-c", program)
    (arena,) = session.arenas()
    assert_balanced(arena)
    assert arena.counts()[f":sorted:{LAYER}"] == depth
