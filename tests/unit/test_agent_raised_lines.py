"""The line that an exception left a function from is the one in its traceback, also where the exception is raised anew by an instruction without a line."""

import json
from collections import Counter
from pathlib import Path

import pytest

from pytrace_ebpf.trace.schema import CallKind
from tests.agent_arena import Session
from tests.unit.agent_pythons import MINOR, built, run

pytestmark = built

PROGRAM = """
import json
class Swallows:
    def __enter__(self): return self
    def __exit__(self, *error): return False
def raises(): raise KeyError("x")
def passes(): raises()
def in_c(): return int("x")
def finally_():
    try:
        passes()
    finally:
        len("")
def in_except():
    try:
        raises()
    except KeyError:
        raise ValueError
def anew():
    try:
        raises()
    except KeyError as error:
        del error
        raise
def unmatched():
    try:
        raises()
    except (ValueError, OSError):
        pass
def with_():
    with Swallows():
        in_c()
def deep():
    try:
        finally_()
    finally:
        try:
            in_except()
        except ValueError:
            pass
def generates():
    try:
        yield 1
    finally:
        len("")
def thrown():
    running = generates()
    next(running)
    running.throw(OSError(1))
def without_traceback():
    try:
        raises()
    except KeyError as error:
        raise error.with_traceback(None)
seen = []
for each in (raises, passes, in_c, finally_, in_except, anew, unmatched, with_, deep, thrown, without_traceback):
    try:
        each()
    except Exception as error:
        entry = error.__traceback__.tb_next
        while entry:
            seen.append([entry.tb_frame.f_code.co_name, entry.tb_lineno])
            entry = entry.tb_next
print(json.dumps(seen))
"""


@pytest.mark.parametrize("interpreter", [name for name, minor in MINOR.items() if minor >= 12])
def test_lines_are_those_of_the_traceback(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "s")
    path = tmp_path / "s" / "lines.py"
    path.write_text(PROGRAM)
    told = Counter(map(tuple, json.loads(run(session, interpreter, str(path)))))
    (arena,) = session.arenas()
    left = arena.events[arena.events["kind"] == CallKind.UNWIND]
    names = [arena.functions[number] for number in left["function"].tolist()]
    found = Counter((each.name, line) for each, line in zip(names, left["line"].tolist(), strict=True) if each.file == str(path))
    assert not told - found, told - found
    assert not [each for each in found if each[1] == 0]
