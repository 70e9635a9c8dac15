"""Lines of `--lines exact`: as often as sys.settrace says, and harmless to a program that traces its own."""

from pathlib import Path

import pytest

from tests.agent_arena import LINE, OPEN, QUIET, STANDS, Session, assert_balanced
from tests.unit.agent_pythons import MINOR, PYTHONS, TARGETS, attached, built, every_python, recorded, refused_for_a_tracer, run, truth

pytestmark = built
PROGRAMS = ["lines", "generators", "exceptions", "callbacks", "coroutines", "closures", "call_sites"]


@every_python
@pytest.mark.parametrize("program", PROGRAMS)
def test_they_are_those_that_settrace_reports(interpreter: str, program: str, tmp_path: Path) -> None:
    file = str(TARGETS / f"{program}.py")
    expected = truth(interpreter, "line_truth", file)
    assert expected
    found = recorded(Session(tmp_path / "session", lines=1), interpreter, file).lines(file)
    assert {key: (found[key], expected.get(key, 0)) for key in {*found, *expected} if found[key] != expected.get(key, 0)} == {}


@every_python
def test_without_the_option_there_are_none(interpreter: str, tmp_path: Path) -> None:
    arena = recorded(Session(tmp_path / "session"), interpreter, str(TARGETS / "lines.py"))
    assert not set(arena.events["kind"].tolist()) & {LINE, STANDS}


@every_python
def test_patterns_choose_functions_and_filters_hold(interpreter: str, tmp_path: Path) -> None:
    file = str(TARGETS / "lines.py")
    all_of = truth(interpreter, "line_truth", file)
    some = {key: count for key, count in all_of.items() if key.split(":")[0] in ("fib", "area")}
    patterns = {"lines_of": ["lines.fib", "lines.Shape.area"]}
    assert recorded(Session(tmp_path / "some", lines=1, **patterns), interpreter, file).lines(file) == some
    assert not recorded(Session(tmp_path / "none", lines=1, exclude="lines"), interpreter, file).lines(file)
    outermost = {key: count for key, count in all_of.items() if key.startswith("<module>:")}
    assert recorded(Session(tmp_path / "deep", lines=1, max_depth=1), interpreter, file).lines(file).keys() - {"worker:103:104"} >= outermost.keys()


STEPS = """
def step(n):
    total = 0
    for k in range(n):
        total += k
    return total
def waits():
    n = 3
    serve()
    n += 1
    return step(n)
waits()
"""


@every_python
def test_attached_in_the_middle_each_open_frame_stands_at_its_line(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session", lines=1)
    with attached(interpreter, STEPS) as process:
        process.load(session)
        assert process.ask("step(2)") == "1"
    (arena,) = session.wait(QUIET)
    assert_balanced(arena)
    places = {}
    for before, event in zip(arena.events, arena.events[1:], strict=False):
        if event["kind"] == STANDS and before["kind"] == OPEN:
            assert event["frame"] == before["frame"]
            places[arena.functions[int(event["function"])].name] = int(event["line"])
    first = next(function.first_line for function in arena.functions.values() if function.name == "step")
    assert (places["waits"], places["<module>"]) == (first + 7, first + 10)
    found = {key: count for key, count in arena.lines("<string>").items() if key.split(":")[0] in ("step", "waits")}
    step, waits = f"step:{first}", f"waits:{first + 5}"
    assert found == {
        f"{step}:{first + 1}": 2,
        f"{step}:{first + 2}": 8,
        f"{step}:{first + 3}": 6,
        f"{step}:{first + 4}": 2,
        f"{waits}:{first + 8}": 1,
        f"{waits}:{first + 9}": 1,
    }


@every_python
def test_it_leaves_no_trace_function_behind(interpreter: str, tmp_path: Path) -> None:
    program = """
import sys, threading
def step(n):
    return n
def hooks():
    found = [sys.gettrace(), sys.getprofile(), threading._trace_hook]
    if sys.version_info >= (3, 12):
        found += [name for name in map(sys.monitoring.get_tool, range(6)) if name]
    return found
serve()
"""
    session = Session(tmp_path / "session", lines=1)
    with attached(interpreter, program) as process:
        process.load(session)
        assert process.ask("step(1)") == "1"
        session.command_stop()
        session.wait(QUIET)
        before = len(session.arenas()[0].events)
        assert process.ask("step(1)") == "1"
        assert process.ask("hooks()") == "[None, None, None]"
    assert len(session.arenas()[0].events) == before


@every_python
def test_a_forked_child_goes_on(interpreter: str, tmp_path: Path) -> None:
    program = "import os\ndef step():\n    a = 1\n    return a\nstep()\nif os.fork():\n    os.wait()\nelse:\n    step()\n    step()\n"
    session = Session(tmp_path / "session", lines=1)
    run(session, interpreter, "-c", program)
    found = [arena.lines("<string>")["step:2:4"] for arena in session.arenas() if arena.lines("<string>")]
    assert sorted(found) == [1, 2]


OWN = """
import sys
seen = []
def own(frame, event, argument):
    if frame.f_code.co_name == "step":
        seen.append(event)
        return own
def step():
    a = 1
    return a
def traced():
    sys.settrace(own)
    step()
    sys.settrace(None)
    step()
step()
traced()
step()
assert seen == ["call", "line", "line", "return"], seen
print("fine")
"""


@every_python
def test_a_tracer_of_the_programs_own_is_not_disturbed(interpreter: str, tmp_path: Path) -> None:
    """Up to 3.11 there can be but one: while it is the program's, frames are said to stand at no known line."""
    session = Session(tmp_path / "session", lines=1)
    assert run(session, interpreter, "-c", OWN) == "fine\n"
    (arena,) = session.arenas()
    assert_balanced(arena)
    found = {key: count for key, count in arena.lines("<string>").items() if key.startswith("step")}
    standing = arena.events[(arena.events["kind"] == STANDS) & (arena.events["line"] == 0)]
    unknown = {arena.functions[number].name for number in standing["function"].tolist()}
    if MINOR[interpreter] >= 12:
        assert found == {"step:8:9": 4, "step:8:10": 4}
        assert not unknown
    else:
        assert found == {"step:8:9": 3, "step:8:10": 3}
        assert unknown == {"step", "traced"}


@pytest.mark.parametrize("interpreter", [name for name in PYTHONS if MINOR[name] < 12])
def test_a_tracer_that_was_there_first_is_named(interpreter: str, tmp_path: Path) -> None:
    assert b"leave out --lines" in refused_for_a_tracer(Session(tmp_path / "session", lines=1), interpreter)
