"""All cells of docs/notebook.md, and those that record, as root runs them."""

from pathlib import Path

import pytest

from tests.notebook_cells import cells, executed, record, text_of

NAMES = "print(*_pytrace.calls(columns=['func_id']).merge(_pytrace.functions(), on='func_id')['qualname'].unique())"


def test_every_cell_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, "trace", "--args", "sell", "--memory")
    ran = executed([*cells("docs/notebook.md"), NAMES], tmp_path, monkeypatch)
    recorded = next(cell for cell in ran if cell["source"].startswith("%%pytrace --c-calls"))
    assert "Functions by self time" in text_of(recorded) and "<iframe" in str(recorded["outputs"])
    assert {"<module>", "sorted"} <= set(text_of(ran[-1]).split())  # a function of C's, which the agent alone records


def test_a_recorded_cell_that_fails_is_shown_and_stops_those_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = "%%pytrace\ndef work():\n    return sum(range(10))\nwork()\n1 / 0"
    failed, after = executed(["%load_ext pytrace_ebpf", failing, "1 + 1"], tmp_path, monkeypatch, fails=True)[1:]
    assert "Functions by self time" in text_of(failed) and "UsageError: the recorded cell failed: ZeroDivisionError" in text_of(failed)
    assert not after["outputs"]
