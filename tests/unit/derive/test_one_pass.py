"""Several tables and answers in one pass over a trace: what each makes is what it makes alone, and everything is read once."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.derive import one_pass, streams
from pytrace_ebpf.derive.one_pass import run
from pytrace_ebpf.derive.sink import Needs, RowsOf, Sink
from pytrace_ebpf.derive.sinks.cores import OnCores, core_sums
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.trace.files import Files
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.view import cores
from tests.unit.derive.test_calls_properties import SCENARIOS, seeds, story
from tests.unit.synthetic import sample, write_trace

TOGETHER = ("calls", "waits", "tasks", "tree", "call_sites", "thread_times")


class Passes:
    """Counts the passes that are made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sinks: list[list[str]] = []
        over = one_pass._Pass.over

        def counted(self_: Any, *where: Any) -> None:
            self.sinks.append([type(sink).__name__ for sink in self_._sinks])
            over(self_, *where)

        monkeypatch.setattr(one_pass._Pass, "over", counted)


class Counted(Sink):
    """How many calls ended in each segment, and how many events it has."""

    def __init__(self, trace: Trace, needs: Needs) -> None:
        super().__init__(trace)
        self._needs = needs
        self.calls, self.events_of = Counter[int](), Counter[int]()
        self._place = 0

    def needs(self) -> Needs:
        return self._needs

    def events(self, place: int, switches: pa.Table | None, events: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for batch in events:
            self.events_of[place] += len(batch)
            yield batch

    def rows(self, engine: Engine, rows: pa.Table) -> None:
        self.calls[self._place] += len(rows)

    def taken(self, place: int) -> None:
        self._place = place + 1


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from(SCENARIOS))
def test_tables_that_are_asked_for_at_once_are_those_that_each_is_alone(tmp_path_factory: pytest.TempPathFactory, seed: int, scenario: str) -> None:
    folder = tmp_path_factory.mktemp("together")
    alone, together = (pytrace_ebpf.open(write_trace(folder / name, **story(seed, scenario))) for name in ("alone", "together"))
    together.derive(*TOGETHER)
    for name in TOGETHER:
        found = getattr(pytrace_ebpf.open(together.directory), name)()
        pd.testing.assert_frame_equal(found, getattr(alone, name)())


def test_what_can_share_a_pass_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, passes = pytrace_ebpf.open(sample(tmp_path)), Passes(monkeypatch)
    trace.derive("calls", "waits")
    assert passes.sinks == [["Calls", "Waits", "Keeper"]]
    trace.derive("calls", "waits", "tree")  # made of what was kept meanwhile
    assert len(passes.sinks) == 1 and len(trace.tree())
    trace.derive("lines")
    assert passes.sinks[1:] == [["Lines"]]


def test_answers_share_a_pass_where_one_engine_serves_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, passes = pytrace_ebpf.open(sample(tmp_path)), Passes(monkeypatch)
    every, one, other = (
        Counted(trace, needs) for needs in (Needs(rows=True), Needs(rows_of=RowsOf(np.array([0]))), Needs(rows_of=RowsOf(np.array([1]))))
    )
    run(trace, every, one, other)
    assert passes.sinks == [["Counted", "Counted"], ["Counted"]]
    calls, events = trace.calls(), {place: len(trace.part("events", segment["index"])) for place, segment in enumerate(trace.segments)}
    assert every.calls.total() == len(calls) > 0 and other.calls.total() == (calls["func_id"] == 1).sum() > 0
    assert [dict(+each.events_of) for each in (every, one, other)] == [{place: count for place, count in events.items() if count}] * 3
    assert len(streams.calls_of(trace, np.array([0]), ["call_id"])) == (calls["func_id"] == 0).sum()


def test_no_engines_serve_what_contradicts_itself() -> None:
    rows, lines, tree = Needs(rows_of=RowsOf(np.array([0]))), Needs(lines=True), Needs(nodes=5)
    assert rows.with_(rows) is None and lines.with_(tree) is None and tree.with_(lines) is None and tree.with_(tree) is None
    both = rows.with_(tree)
    assert both is not None and both.rows_of is rows.rows_of and both.nodes == 5


def test_of_a_directory_that_nothing_can_be_kept_in_it_is_found_once_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sample(tmp_path / "trace")
    before = sorted(each.name for each in path.iterdir())
    monkeypatch.setattr(Files, "ours", property(lambda self: not self.directory.is_relative_to(path)))
    trace = pytrace_ebpf.open(path)
    cores.before(trace)
    passes = Passes(monkeypatch)
    assert len(core_sums(trace).threads) and len(trace.waits()) and len(trace.tree())
    assert passes.sinks == [] and sorted(each.name for each in path.iterdir()) == before
    assert OnCores(trace).found is None
