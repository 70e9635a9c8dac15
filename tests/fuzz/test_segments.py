"""Lists of segments in which something is other than it was: shown, or refused in a sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytrace_ebpf.record.options import Keep
from pytrace_ebpf.trace.schema import SEGMENTS
from tests.fuzz.reading import try_commands
from tests.fuzz.test_manifest import EXAMPLES, changed, changes
from tests.unit.record.output.test_long_recordings import PID, recorded, segments, work


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzz") / "trace"
    recorded(path, segments([work(PID, 8)], 8), Keep(seconds=4))
    (path / "good.jsonl").write_text((path / SEGMENTS).read_text())
    return path


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(changes, min_size=1, max_size=3))
def test_a_changed_list_is_shown_or_refused(trace: Path, several: list[Any]) -> None:
    lines = [json.loads(line) for line in (trace / "good.jsonl").read_text().splitlines()]
    for where, (how, value) in several:
        changed(lines, where, how, value)
    (trace / SEGMENTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    try_commands(trace, 1)
