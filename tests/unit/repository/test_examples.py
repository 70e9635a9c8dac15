"""The examples of docs/examples answer on a recording of a how-to's program, as they stand there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.conftest import REPOSITORY
from tests.unit.agent_pythons import built

EXAMPLES = REPOSITORY / "docs" / "examples"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}

pytestmark = built


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without privileges, so that it is there on any machine."""
    folder = tmp_path_factory.mktemp("examples")
    words = [
        sys.executable,
        "-m",
        "pytrace_ebpf",
        "run",
        "--rootless",
        "-q",
        "-o",
        "convoy",
        "--",
        sys.executable,
        REPOSITORY / "docs/how-to/convoy.py",
        "0.2",
    ]
    subprocess.run(words, cwd=folder, env=ENVIRONMENT, check=True)
    return folder / "convoy"


def said(path: Path, trace: Path) -> str:
    done = subprocess.run([sys.executable, path, trace], env=ENVIRONMENT, check=True, capture_output=True, text=True)
    assert not done.stderr
    return done.stdout


def test_the_slowest_call_comes_first(trace: Path) -> None:
    read = pytrace_ebpf.open(trace)
    slowest = read.calls().nlargest(1, "wall_ns").iloc[0]
    row = said(EXAMPLES / "slowest_calls.py", trace).splitlines()[1]
    assert row.split()[0] == read.functions().set_index("func_id")["qualname"][slowest["func_id"]] and f"{slowest['wall_ns'] / 1e6:.3f}" in row


def test_what_took_most_of_a_tenth_of_a_second_is_named(trace: Path) -> None:
    read = pytrace_ebpf.open(trace)
    calls = read.calls()
    calls = calls[calls["status"] == "complete"]
    busy = calls.groupby([(calls["start_ns"] - read.start_ns) // 100_000_000, "func_id"])["self_wall_ns"].sum()
    assert f" {read.functions().set_index('func_id')['qualname'][busy.idxmax()[1]]} " in said(EXAMPLES / "calls_over_time.py", trace)


def test_no_program_is_without_a_test() -> None:
    source = Path(__file__).read_text()
    assert all(f'"{path.name}"' in source for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.sql")), ids=lambda path: path.name)
def test_a_query_has_as_many_calls_as_the_trace(trace: Path, path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    read = pytrace_ebpf.open(trace)
    answer = read.sql(path.read_text()).set_index(["caller", "called"])
    functions = read.functions().set_index("func_id")["qualname"]
    assert answer.loc[("serve", "read_block"), "calls"] == (read.calls()["func_id"].map(functions) == "read_block").sum()
    assert capfd.readouterr().out == ""  # no bar of its progress


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_draws_its_pictures(trace: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    for name, value in (ENVIRONMENT | {"TRACE": str(trace)}).items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(path, as_version=4)
    drawn_there, sources = pictures(notebook), [cell.source for cell in notebook.cells]
    nbclient.NotebookClient(notebook, timeout=300).execute()
    assert pictures(notebook) == drawn_there and len(drawn_there) == 3
    assert [cell.source for cell in notebook.cells] == sources and not any("stderr" in str(cell.get("outputs")) for cell in notebook.cells)


def pictures(notebook: object) -> list[int]:
    """Which cells have one."""
    cells = enumerate(notebook.cells)  # type: ignore[attr-defined]
    return [number for number, cell in cells if any("image/png" in output.get("data", {}) for output in cell.get("outputs", []))]
