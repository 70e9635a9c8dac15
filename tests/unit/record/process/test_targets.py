"""The targets do what they say: their closed formulas agree with the count from inside."""

from collections import Counter
from collections.abc import Callable

import pytest

PROGRAMS = (
    "fib",
    "generators",
    "coroutines",
    "exceptions",
    "threads",
    "many_threads",
    "closures",
    "generated",
    "callbacks",
)


# recursion is not among them: at the limit there is no frame left for the counting function.


@pytest.mark.parametrize("program", PROGRAMS)
def test_says_as_many_calls_as_are_counted(program: str, python, target: Callable, truth: Callable) -> None:
    said, counted = Counter(), Counter()
    qualified = python.version != "3.9"  # code objects know their qualified names from 3.11 on
    for name, count in target(program, python=python).done()["calls"].items():
        said[name if qualified else plain(name)] += count
    for (_, name, _), count in truth(program, python=python).items():
        counted[name if name in said else plain(name)] += count
    assert said and {name: counted[name] for name in said} == dict(said)


def plain(name: str) -> str:
    return name.rpartition(".")[2]


def test_children_and_exec_say_what_they_did(python, target: Callable) -> None:
    forks = target("forks", python=python).done()
    assert forks["exit_codes"] == [0, 0] and len(forks["steps"]) == 6
    execs = target("execs", python=python)
    assert execs.done()["pid"] == execs.pid


def test_a_target_waits_for_its_work_to_be_wanted(python, target: Callable) -> None:
    fib = target("fib", "--wait", "--hold", python=python)
    fib.go()
    assert fib.done()["calls"] == {"fib": 1973}
    assert fib.process.poll() is None
    fib.go()
    assert fib.wait() == 0
