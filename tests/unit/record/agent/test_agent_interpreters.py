"""Interpreters beside the main one, with the agent in their process: what is recorded of them, and what is not."""

import json
from pathlib import Path

import pytest

from tests.agent_arena import Session
from tests.unit.agent_pythons import MINOR, TARGETS, built, recorded, run

pytestmark = built
each_newer = pytest.mark.parametrize("interpreter", [name for name, minor in MINOR.items() if minor >= 12])
WORDS = [str(TARGETS / "interpreters.py"), "2", "40", "2"]


def expected(said: str) -> dict[str, int]:
    """What the target says of all interpreters, by the name of the function."""
    return {name: count for each in json.loads(said.splitlines()[-1].removeprefix("done "))["calls"].values() for name, count in each.items()}


@each_newer
def test_calls_of_interpreters_that_come_and_go_are_all_there(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session")
    wanted = expected(run(session, interpreter, *WORDS))
    (arena,) = session.arenas()
    counts = {key.split(":")[1]: count for key, count in arena.counts().items() if key.split(":")[1] in wanted}
    assert counts == wanted and arena.header["dropped"] == arena.header["unnamed"] == 0


@each_newer
@pytest.mark.parametrize("options", [{"main_only": 1}, {"memory": 1}, {"opcodes": 1}], ids=str)
def test_where_only_the_main_one_is_recorded(options: dict[str, int], interpreter: str, tmp_path: Path) -> None:
    arena = recorded(Session(tmp_path / "session", **options), interpreter, *WORDS)
    named = {function.name for function in arena.functions.values()}
    assert "several" in named and not any(name.startswith("work_") for name in named)


@each_newer
def test_lines_and_arguments_are_the_main_ones(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session", lines=1, args=["*"], c_calls=1)
    wanted = expected(run(session, interpreter, *WORDS))
    (arena,) = session.arenas()
    counts = {key.split(":")[1]: count for key, count in arena.counts().items() if key.split(":")[1] in wanted}
    assert counts == wanted
