"""Cells of the docs run in a notebook as they stand, on a recording of the program that they are about, made without privileges."""

from pathlib import Path

import pytest

from tests.notebook_cells import cells, executed, record, text_of
from tests.unit.agent_pythons import built

pytestmark = built


def test_the_cells_of_the_page_and_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, "trace", "--rootless", "--args", "sell", "--memory")
    (tmp_path / "launched").symlink_to("trace")
    sources = [*cells("docs/notebook.md", magic=False), *cells("README.md")]
    assert len(sources) >= 15
    ran = executed(sources, tmp_path, monkeypatch)
    by_query = next(cell for cell in ran if cell["source"].startswith("trace.sql("))
    assert "waker_tid" in text_of(by_query)  # also where Jupyter has no widgets
    assert "gil_wait_ns" in text_of(ran[-1])
    assert all("stderr" not in str(cell["outputs"]) for cell in ran)


def test_a_cell_that_cannot_be_recorded_stops_those_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, after = executed(["%load_ext pytrace_ebpf", "%%pytrace --duration soon\nraise SystemError", "1 + 1"], tmp_path, monkeypatch, fails=True)[
        1:
    ]
    assert "pytrace-ebpf: 'soon' is not a time" in text_of(refused) and "Traceback" not in text_of(refused)
    assert not after["outputs"]
