"""What is handed over of a recording that is looked at while it goes on."""

import numpy as np
import pytest

from pytrace_ebpf.record.live.sink import Closed, Live


def row(ts: int) -> dict[str, np.ndarray]:
    numbers = {"ts": np.int64, "pid": np.int32, "tid": np.int32, "kind": np.int8, "func_id": np.int32, "frame": np.int64, "line": np.int32}
    return {name: np.array([ts if name == "ts" else 1], kind) for name, kind in numbers.items()}


def test_each_row_is_handed_over_once_in_the_segment_of_its_time_and_the_segments_meet() -> None:
    closed: list[Closed] = []
    live = Live(closed.append)
    for number in range(3):
        live.collector.add({"events": [row(live.start_ns + number)]})
        live.collector.drained_ns = live.start_ns + number + 1 + 5_000_000
        live.cut({"number": number})
    live.collector.add({"events": [row(closed[-1].end_ns + 1)]})
    live.finish({"number": 3}, 0)
    assert [each.metadata["number"] for each in closed] == [0, 1, 2, 3]
    assert [each.end_ns for each in closed[:-1]] == [each.start_ns for each in closed[1:]]
    rows = [each.tables["events"]["ts"].to_pylist() if "events" in each.tables else [] for each in closed]
    assert rows == [[live.start_ns], [live.start_ns + 1], [live.start_ns + 2], [closed[-2].end_ns + 1]]
    assert live.collector.waiting == 0


def test_what_cannot_be_handled_ends_the_recording() -> None:
    def refuse(closed: Closed) -> None:
        raise ValueError(closed.end_ns)

    with pytest.raises(ValueError):
        Live(refuse).cut({})


def test_there_is_no_trace() -> None:
    live = Live(lambda _: None)
    assert not list(live.traces) and not live.full and not live.failed
    with pytest.raises(RuntimeError):
        _ = live.directory
