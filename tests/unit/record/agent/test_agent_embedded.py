"""Programs that embed Python, once and several times: the agent begins when each interpreter runs the program's code; every Python that has a libpython."""

import functools
import json
import subprocess
from pathlib import Path

import pytest

from tests.agent_arena import Session
from tests.conftest import PATIENCE_S
from tests.unit.agent_pythons import MINOR, PYTHONS, TARGETS, built

WHERE = "import json, sys, sysconfig; print(json.dumps([sys.prefix, *map(str, sysconfig.get_config_vars('LIBDIR', 'MULTIARCH', 'INSTSONAME'))]))"


@functools.cache
def library_of(interpreter: str) -> tuple[str, Path | None]:
    """Its prefix, and its libpython; None where it has none."""
    prefix, folder, triplet, name = json.loads(subprocess.check_output([PYTHONS[interpreter], "-c", WHERE]))
    places = (Path(folder, name), Path(folder, triplet, f"libpython3.{MINOR[interpreter]}.so.1.0"))
    return prefix, next((place for place in places if ".so" in place.name and place.exists()), None)


pytestmark = [built, pytest.mark.parametrize("interpreter", [name for name in PYTHONS if library_of(name)[1]])]


LATE = """
#include <dlfcn.h>
int main(int count, char **words)
{
    void *python = count > 1 ? dlopen(words[1], RTLD_NOW | RTLD_LOCAL) : 0;
    if (!python || dlerror())
        return 2;
    ((void (*)(void))dlsym(python, "Py_Initialize"))();
    return ((int (*)(const char *))dlsym(python, "PyRun_SimpleString"))("def counted(n): return n\\nfor n in range(100): counted(n)\\n");
}
"""


@pytest.fixture
def embeds(interpreter: str, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A program that embeds this Python, and the variables that it needs."""
    prefix, library = library_of(interpreter)
    assert library is not None
    program = tmp_path / "embeds"
    subprocess.run(["cc", "-pthread", TARGETS / "embeds.c", library, f"-Wl,-rpath,{library.parent}", "-o", program], check=True)
    (tmp_path / "embedded.py").write_text("def counted(n): return n\nfor n in range(100): counted(n)\n")
    return program, {"PYTHONHOME": prefix, "PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize(("lives", "how"), [(3, "string"), (2, "module"), (2, "thread"), (1, "fork")])
def test_every_life_has_its_calls(lives: int, how: str, embeds: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    program, variables = embeds
    session = Session(tmp_path / "session")
    done = subprocess.run([program, str(lives), how], env=session.preloaded | variables, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    arenas = session.arenas()
    assert [sum(n for key, n in arena.counts().items() if ":counted:" in key) for arena in arenas] == [100] * lives
    assert not any("site.py" in function.file or function.file == "<frozen site>" for arena in arenas for function in arena.functions.values())


def test_a_python_that_a_program_loads_later_for_itself_alone(interpreter: str, tmp_path: Path) -> None:
    prefix, library = library_of(interpreter)
    program, session = tmp_path / "late", Session(tmp_path / "session")
    subprocess.run(["cc", "-x", "c", "-", "-ldl", "-o", program], input=LATE.encode(), check=True)
    done = subprocess.run([program, str(library)], env=session.preloaded | {"PYTHONHOME": prefix}, capture_output=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, b"")
    (arena,) = session.arenas()
    assert sum(n for key, n in arena.counts().items() if ":counted:" in key) == 100
