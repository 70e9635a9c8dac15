"""The cells of a page of the docs, run in order by a Jupyter kernel of this Python, as somebody would who copies them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE_S, REPOSITORY

SERVICE = REPOSITORY / "docs" / "how-to" / "service.py"


def cells(page: str, magic: bool = True) -> list[str]:
    """Its Python and, with `magic`, IPython."""
    found, inside = list[list[str]](), False
    for line in (REPOSITORY / page).read_text().splitlines(keepends=True):
        if line.startswith("```"):
            inside = line.strip() in ("```python", *(("```ipython",) if magic else ()))
            if inside:
                found.append([])
        elif inside:
            found[-1].append(line)
    return ["".join(cell) for cell in found]


def record(folder: Path, name: str, *options: str, seconds: str = "2.5") -> None:
    """A trace `name` of the program that the pages are about."""
    words = [sys.executable, "-m", "pytrace_ebpf", "run", *options, "-q", "-o", name, "--", sys.executable, str(SERVICE), seconds]
    subprocess.run(words, cwd=folder, env=environment(), check=True, timeout=PATIENCE_S)


def notebook_of(sources: list[str]) -> Any:
    """That has these cells, as nbformat knows it."""
    new = pytest.importorskip("nbformat").v4
    return new.new_notebook(cells=[new.new_code_cell(source) for source in sources])


def executed(sources: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> list[Any]:
    """The cells of a notebook in `folder` with what they put out. One that fails ends it, as *Run all* does, and is an error here unless it `fails`."""
    nbclient = pytest.importorskip("nbclient")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    notebook = notebook_of(sources)
    client = nbclient.NotebookClient(notebook, timeout=PATIENCE_S, resources={"metadata": {"path": str(folder)}})
    if fails:
        with pytest.raises(nbclient.exceptions.CellExecutionError):
            client.execute()
    else:
        client.execute()
    return [json.loads(json.dumps(cell)) for cell in notebook.cells]


def text_of(cell: Any) -> str:
    """What a cell put out, as text."""
    said = []
    for output in cell["outputs"]:
        said.append(output.get("text") or "")
        said.append((output.get("data") or {}).get("text/plain") or "")
        said.append(" ".join((output.get("ename") or "", output.get("evalue") or "")))
    return "\n".join(said)


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
