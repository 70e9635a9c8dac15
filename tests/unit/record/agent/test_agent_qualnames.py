"""The qualified names that the agent itself reports: up to 3.10 it reads them out of the code that makes the functions, of which no source need be there."""

import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent_arena import ENTRY, Session
from tests.unit.agent_pythons import MINOR, attached, built, every_python, recorded, run

pytestmark = built

EVERY_KIND = """
import functools
def deco(function):
    @functools.wraps(function)
    def wrapper(*given): return function(*given)
    return wrapper
class Outer:
    class Inner:
        def deep(self):
            def below(): return (lambda: 1)()
            return below()
    @deco
    def method(self): return sum(each for each in range(3))
    @staticmethod
    def __private():
        class Local:
            def method(self): return 1
        return Local().method()
    def call(self): return self.__private()
def make():
    global made
    def made(): return 2
    return made()
def empty(): pass
Outer().method(); Outer.Inner().deep(); Outer().call(); make(); empty()
"""
# Code objects die, others come to be where they were, and their first lines and names are the same.
TEMPLATES = """
import gc
for number in range(400):
    text = "class Class%d:\\n    def method(self): return [lambda: 1]\\nClass%d().method()\\n" % (number, number)
    exec(compile(text, "template.py", "exec"), {})
    gc.collect() if number % 100 == 0 else None
"""


def qualnames(code: types.CodeType) -> Iterator[str]:
    """Those of a code object and of all that it makes."""
    yield code.co_qualname
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from qualnames(constant)


@every_python
def test_they_are_the_compilers(interpreter: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(EVERY_KIND)
    arena = recorded(Session(tmp_path / "s"), interpreter, str(program))
    own = [function.qualname for function in arena.functions.values() if function.file.endswith("program.py")]
    assert sorted(own) == sorted(qualnames(compile(EVERY_KIND, "program.py", "exec")))


@every_python
def test_those_of_a_file_that_is_executed_again_with_other_names_in_it(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "s")
    run(session, interpreter, "-c", TEMPLATES)
    (arena,) = session.arenas()
    counts = {
        name: count for name, count in arena.counts(ENTRY, qualified=True).items() if name.startswith("template.py:") and name.endswith(".method:2")
    }
    assert counts == {f"template.py:Class{number}.method:2": 1 for number in range(400)}


BEFORE_3_11 = [name for name, minor in MINOR.items() if minor < 11]
CLASS = "class A:\\n    def f(self): return 1\\n    def g(self): return [each for each in range(2)]\\n"


@pytest.mark.parametrize("interpreter", BEFORE_3_11)
@pytest.mark.parametrize("runs", [False, True])
def test_of_code_that_ran_before_the_agent_came_it_says_what_other_code_shows(interpreter: str, runs: bool, tmp_path: Path) -> None:
    """What made the functions is gone, or is the program itself, which still runs."""
    session = Session(tmp_path / "s")
    program = CLASS.replace("\\n", "\n") if runs else f"exec(compile('{CLASS}', 'other.py', 'exec'))\n"
    with attached(interpreter, f"{program}serve()\nA().f()\nA().g()\n") as process:
        process.load(session)
    (arena,) = session.arenas()
    own = {function.name: function.qualname for function in arena.functions.values() if function.name in ("f", "g")}
    assert own == {"f": "A.f" if runs else "f", "g": "A.g"}  # g's comprehension says whose it is
