"""A program that asks CPython for another allocator comes to its own end with the agent in it."""

import subprocess
from pathlib import Path

import pytest

from tests.agent_arena import Session
from tests.conftest import PATIENCE_S
from tests.unit.agent_pythons import PYTHONS, built, every_python

pytestmark = built


@every_python
@pytest.mark.parametrize("memory", [0, 1])
@pytest.mark.parametrize("allocator", ["dev", "debug", "malloc", "malloc_debug", "pymalloc", "pymalloc_debug"])
def test_memory_is_freed_by_the_allocator_that_it_is_from(interpreter: str, allocator: str, memory: int, tmp_path: Path) -> None:
    session = Session(tmp_path / "s", memory=memory)
    words = [PYTHONS[interpreter], *(["-X", "dev"] if allocator == "dev" else []), "-c", "import sys; f = lambda: sys.exit(10); f()"]
    environment = session.preloaded | ({} if allocator == "dev" else {"PYTHONMALLOC": allocator})
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (10, "", "")
    (arena,) = session.arenas()
    assert "<lambda>" in {function.name for function in arena.functions.values()}
