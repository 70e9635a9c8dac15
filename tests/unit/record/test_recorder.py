"""A made-up stream beside the others: one class, one line of registration, and a table; without privileges and without a program to trace."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pytrace_ebpf
from pytrace_ebpf.record import recorders, session
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.output import writer
from pytrace_ebpf.record.output.collect import Collector
from pytrace_ebpf.record.recorder import Recorder, Rows
from pytrace_ebpf.record.session import Session
from pytrace_ebpf.trace import schema
from pytrace_ebpf.trace.schema import LOSS_CLASSES, TABLES
from pytrace_ebpf.trace.table import Column, Table

BEATS = Table("beats", "One row per beat.", (), (Column("ts", "int64", "ns", "when"), Column("number", "int32", "", "which")))


class Beats(Recorder):
    """Yields a row at every drain, and keeps what it was asked for."""

    interval_s = 0.005

    def __init__(self) -> None:
        self.added: list[int] = []
        self.asked: list[str] = []
        self.yielded = 0

    def add(self, pid: int) -> None:
        self.added.append(pid)

    def drain(self) -> Rows:
        if "stop" in self.asked:
            return {}
        self.yielded += 1
        return {"beats": [{"ts": np.array([time.monotonic_ns()]), "number": np.array([self.yielded])}]}

    def losses(self) -> np.ndarray:
        lost = super().losses()
        lost[LOSS_CLASSES.index("argument_ring")] = 3
        return lost

    def metadata(self) -> dict[str, Any]:
        return {"beats": {"every_s": self.interval_s}}

    def missing(self) -> tuple[str, ...]:
        return ("nobody counts the bars",)

    def cost(self) -> dict[str, Any]:
        return {"beat_ns": 1.5}

    def stop(self) -> None:
        self.asked.append("stop")

    def leave(self) -> int:
        self.asked.append("leave")
        return 0

    def close(self) -> None:
        self.asked.append("close")


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> Iterator[Beats]:
    """The stream, registered."""
    made, registered = Beats(), recorders.recorders
    monkeypatch.setattr(session, "recorders", lambda *of: [*registered(*of), made])
    monkeypatch.setitem(TABLES, "beats", BEATS)
    monkeypatch.setattr(writer, "_FOLDERS", (*writer._FOLDERS, "beats"))
    yield made


def test_a_new_stream_is_a_class_and_a_line(beats: Beats, tmp_path: Path) -> None:
    session = Session(Options(tmp_path / "trace", source="agent", rootless=True, segment_s=0.05), ["made", "up"])
    try:
        pid = session.launch(["/bin/sleep", "60"])
        session.run(lambda: beats.yielded > 20, lambda _: None)
        assert session.status().unserved == ("nobody counts the bars",)
        session.finish()
        os.kill(pid, signal.SIGKILL)
        assert session.wait(lambda: False) == 128 + signal.SIGKILL
    finally:
        session.close()
    assert beats.added == [pid] and beats.asked == ["stop", "leave", "close"]
    trace = pytrace_ebpf.open(tmp_path / "trace")
    parts = sorted((tmp_path / "trace" / "beats").glob("*.parquet"))
    rows = pa.concat_tables([pq.read_table(part) for part in parts])
    assert rows["number"].to_pylist() == list(range(1, beats.yielded + 1))
    assert sum(segment["rows"].get("beats", 0) for segment in trace.manifest["segments"]) == beats.yielded
    assert trace.manifest["beats"] == {"every_s": 0.005} and trace.manifest["cost"]["beat_ns"] == 1.5
    assert trace.manifest["lost"] == {"argument_ring": 3}


def test_rows_with_a_timestamp_go_to_the_segment_of_that_time_and_keyed_rows_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, "beats", BEATS)
    start = time.monotonic_ns()
    collector = Collector(start)
    collector.add({"beats": [{"ts": np.array([start + 1, start + 10**12]), "number": np.array([1, 2])}]})
    collector.add({"neighbours": [{"tid": np.array([5]), "pid": np.array([4]), "name": np.array(["x"], object), "cgroup": np.array([""], object)}]})
    collector.drained_ns = start + 10**9
    first, end, cut = collector.cut()
    assert (first, collector.waiting) == (start, 1)
    assert cut["beats"]["number"].to_pylist() == [1] and cut["neighbours"]["tid"].to_pylist() == [5]
    collector.drained_ns = start + 2 * 10**12
    again, _, cut = collector.cut()
    assert again == end and cut["beats"]["number"].to_pylist() == [2] and "neighbours" not in cut


def test_every_method_of_a_recorder_has_a_default() -> None:
    idle = Recorder()
    idle.add(1)
    idle.reset(1, 1, 0)
    idle.observe({})
    idle.stop()
    idle.leave()
    idle.close()
    assert (idle.drain(), idle.cut(), idle.metadata(), idle.cost(), idle.missing()) == ({}, {}, {}, {}, ())
    assert idle.losses().tolist() == [0] * len(LOSS_CLASSES)


def test_events_of_several_recorders_are_sorted_in_among_each_other() -> None:
    def events(*ts: int) -> dict[str, np.ndarray]:
        names = {column.name: np.zeros(len(ts), column.arrow.to_pandas_dtype()) for column in schema.EVENTS.columns}
        return names | {"ts": np.array(ts)}

    collector = Collector(0)
    collector.add({"events": [events(10, 30)]}, "calls")
    collector.add({"events": [events(20)]}, "native")
    assert collector.cut(final=True)[2]["events"]["ts"].to_pylist() == [10, 20, 30]
    assert collector.counts == {"call": 3, "sched": 0, "function": 0, "sample": 0, "value": 0}
