"""A session of which each segment is handed over while it goes on, on a real kernel."""

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from pytrace_ebpf.record.live.sink import Closed
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.session import Session
from tests.conftest import PATIENCE_S, Target


def test_samples_come_with_their_stacks_and_nothing_is_written(
    target: Callable[..., Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    process, closed = target("spinner", "30"), list[Closed]()
    session = Session(Options(None, source="sample", sample=99.0, segment_s=0.3), [], closed.append)
    deadline = time.monotonic() + PATIENCE_S
    try:
        session.start(process.pid)
        session.run(lambda: len(closed) >= 3 or time.monotonic() > deadline, lambda _: None)
        session.finish()
    finally:
        session.close()
    sampled = [each for each in closed if "samples" in each.tables]
    assert len(sampled) >= 2
    for each in sampled:
        known = set(each.tables["stacks"]["stack_id"].to_pylist())
        assert set(each.tables["samples"]["stack_id"].to_pylist()) <= known | {-1, -2}
    functions = pa.concat_tables(each.tables["functions"] for each in closed if "functions" in each.tables)
    assert len(set(functions["func_id"].to_pylist())) == len(functions), "a function is handed over once"
    assert closed[0].tables["processes"]["pid"].to_pylist() == [process.pid]
    assert closed[0].metadata["sampling"]["off_core"] in (0, 1)
    assert not list(tmp_path.iterdir())
