"""Bytes that rings and arenas held once, through the code that records: the tables are those that were read and approved then.

`PYTHONPATH=. python -m tests.golden.record`, as root, records them anew, and the tables with them: for where the layout of a record changes.
"""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pytrace_ebpf.record.agent.agent_library import agent_library
from pytrace_ebpf.trace.schema import TABLES, CallKind, SchedKind
from tests.golden.replay import REPLAYS, plain

HERE = Path(__file__).parent
MOST_BYTES = 16 << 10


@pytest.mark.parametrize("name", REPLAYS)
def test_the_recorded_bytes_become_the_expected_tables(name: str, tmp_path: Path) -> None:
    assert (HERE / f"{name}.npz").stat().st_size < MOST_BYTES
    made = REPLAYS[name](np.load(HERE / f"{name}.npz"), tmp_path)
    assert all(table.schema == TABLES[of].arrow for of, table in made.items())
    assert json.loads(json.dumps(plain(made))) == json.loads((HERE / f"{name}.json").read_text())


@pytest.mark.parametrize("name", ["usdt", "agent"])
def test_the_expected_calls_are_what_the_program_did(name: str) -> None:
    """Written down by hand, from PROGRAM of record.py."""
    expected = json.loads((HERE / f"{name}.json").read_text())
    names = {row["func_id"]: row["name"] for row in expected["functions"]}
    begun = Counter(names.get(row["func_id"]) for row in expected["events"] if row["kind"] in (CallKind.ENTRY, CallKind.RESUME))
    assert {name: begun[name] for name in ("inner", "outer", "counts", "fails", "sleeps", "work")} == {
        "inner": 3, "outer": 1, "counts": 3, "fails": 1, "sleeps": 1, "work": 1,
    }  # fmt: skip
    assert len({row["tid"] for row in expected["events"]}) == 2
    lines = {(names.get(row["func_id"]), row["line"]) for row in expected["events"] if row["kind"] in (CallKind.ENTRY, CallKind.RESUME)}
    program = {"inner": 4, "outer": 11, "counts": 12, "fails": 13, "work": 21}
    assert {each for each in lines if each[0] in program} == set(program.items())


@pytest.mark.parametrize("name", ["sched", "perf"])
def test_the_expected_scheduling_has_the_threads_begin_and_end(name: str) -> None:
    kinds = Counter(row["kind"] for row in json.loads((HERE / f"{name}.json").read_text())["sched"])
    assert kinds[SchedKind.FORK] == 1 and kinds[SchedKind.EXIT] == 2 and kinds[SchedKind.IN] and kinds[SchedKind.OUT]
    assert (kinds[SchedKind.EXEC], kinds[SchedKind.SNAPSHOT]) == ((0, 1) if name == "sched" else (1, 0))


def test_the_agent_that_was_recorded_lays_out_its_records_as_this_one_does() -> None:
    from tests.agent_arena import LAYOUT

    if not agent_library().exists():
        pytest.skip("the agent is not built")
    recorded = np.load(HERE / "agent.npz")
    assert recorded["header.0"].dtype == LAYOUT["arena"] and recorded["chunk.0"].dtype == LAYOUT["event"]
