"""All cells of docs/notebook.md, and those that record, as root runs them: in environments with what the page says they need."""

import os
import subprocess
from pathlib import Path

import nbformat
import pytest

from tests.conftest import PATIENCE_S
from tests.environments import build, clean, pythons, source_in, the_wheel
from tests.notebook_cells import SERVICE, cells, executed, notebook_of, text_of

NAMES = "print(*_pytrace.calls(columns=['func_id']).merge(_pytrace.functions(), on='func_id')['qualname'].unique())"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, quick_compiler: str) -> Path:
    built = build(source := source_in(tmp_path_factory.mktemp("source")), quick_compiler)
    assert built.returncode == 0, built.stderr
    return the_wheel(source / "wheels")


@pytest.mark.parametrize("version", ["3.11", "3.13"])
def test_every_cell_of_the_pages_runs_where_jupyter_alone_was_installed(version: str, wheel: Path, tmp_path: Path) -> None:
    interpreter = next((path for path in pythons() if path.name == f"python{version}"), None)
    if interpreter is None:
        pytest.skip(f"no Python {version} is here that was built with pyenv")
    commands = clean(interpreter, wheel, tmp_path / "environment", "[record]", "jupyter")
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    words: list[str | Path] = ["run", "-q", "--args", "sell", "--memory", "-o", "trace", "--", commands / "python", SERVICE, "2.5"]
    subprocess.run([commands / "pytrace-ebpf", *words], cwd=tmp_path, env=own, check=True, timeout=PATIENCE_S)
    (tmp_path / "launched").symlink_to("trace")
    file = tmp_path / "cells.ipynb"
    nbformat.write(notebook_of([*cells("docs/notebook.md"), NAMES, *cells("README.md")]), file)
    told = subprocess.run(
        [commands / "jupyter", "execute", "--inplace", f"--timeout={PATIENCE_S}", file], cwd=tmp_path, env=own, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr[-5000:]
    ran = nbformat.read(file, 4).cells
    recorded = next(cell for cell in ran if cell["source"].startswith("%%pytrace --c-calls"))
    assert "Functions by self time" in text_of(recorded) and "<iframe" in str(recorded["outputs"])
    by_query = next(cell for cell in ran if cell["source"].startswith("trace.sql("))
    assert "waker_tid" in text_of(by_query)
    names = next(cell for cell in ran if cell["source"] == NAMES)
    assert {"<module>", "sorted"} <= set(text_of(names).split())  # a function of C's, which the agent alone records


def test_a_recorded_cell_that_fails_is_shown_and_stops_those_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = "%%pytrace\ndef work():\n    return sum(range(10))\nwork()\n1 / 0"
    failed, after = executed(["%load_ext pytrace_ebpf", failing, "1 + 1"], tmp_path, monkeypatch, fails=True)[1:]
    assert "Functions by self time" in text_of(failed) and "UsageError: the recorded cell failed: ZeroDivisionError" in text_of(failed)
    assert not after["outputs"]
