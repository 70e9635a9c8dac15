"""A trace played again: without a change it takes as long as it did, to the nanosecond; with one as long as is known by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytrace_ebpf.analyze.critical_path.asked import of_calls, of_run
from pytrace_ebpf.analyze.what_if.change import parsed
from pytrace_ebpf.analyze.what_if.what_if import what_if
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.rebuild.replay import MARK, PAUSE, SIGNAL, WAIT, WORK, replay
from tests.unit.analyze.test_critical_path import Thread, Wait, made_up, written
from tests.unit.synthetic import sample

MS = 1_000_000


@pytest.mark.parametrize("number", range(20))
def test_without_a_change_it_takes_as_long_as_it_did(tmp_path: Path, number: int) -> None:
    """Calls that begin and end while their threads have a core, as real ones do."""
    threads = made_up(number)
    trace = written(tmp_path / "trace", threads)
    waits = {(thread.tid, ts) for thread in threads for wait in thread.waits for ts in range(wait.start + 1, wait.end)}
    calls = of_calls(trace, ["*"])
    real = [not {(call.tid, call.start_ns), (call.tid, call.end_ns)} & waits for call in calls.itertuples()]
    assert sum(real) > 10
    for items in (calls[real].reset_index(drop=True), of_run(trace)):
        outcome = what_if(trace, parsed("run 1x"), items)
        assert outcome.then.tolist() == outcome.now.tolist() and outcome.played is None


def waiting(tmp_path: Path) -> Any:
    """main, of 90: works for 10, waits until 80 for fetch in another thread, is queued for 2; fetch sleeps from 20 to 40, by a timer."""
    main, worker = Thread(1, 1, [Wait(10, 80, 82, by=2)], [(0, 1), (90, None)]), Thread(1, 2, [Wait(20, 40, 41)], [(0, 5), (95, None)])
    return written(tmp_path / "trace", [main, worker])


@pytest.mark.parametrize(
    ("change", "takes"),
    [
        ("fetch 2x", 40 + 2 + 8),
        ("fetch 4x", 20 + 2 + 8),
        ("fetch 0x", 10 + 8),  # there is nothing to wait for, and who does not wait is not queued
        ("fetch 0.5x", 160 + 2 + 8),
        ("main 2x", 80 + 1 + 4),
        ("step 2x", 90),
    ],
)
def test_a_function_of_another_speed(tmp_path: Path, change: str, takes: int) -> None:
    trace = waiting(tmp_path)
    items = of_calls(trace, ["main"])
    assert what_if(trace, parsed(change), items).then.tolist() == [takes]


def test_what_is_no_change_and_a_function_that_is_not_there(tmp_path: Path) -> None:
    for said in ("", "fetch", "2x", "fetch x", "cores 0", "cores", "locks"):
        with pytest.raises(UsageError, match="is not known: give"):
            parsed(said)
    trace = waiting(tmp_path)
    with pytest.raises(UsageError, match=r"--what-if nothing fits none of the 7 functions of this trace\."):
        what_if(trace, parsed("nothing 2x"), of_calls(trace, ["main"]))


def play(threads: list[list[tuple[int, int, int]]], cores: int | None, gil: int = -1) -> list[int]:
    """Steps (kind, value, locked) of threads, each followed by a mark: when these are come to, in ms."""
    steps = [[*own, (MARK, place, 0)] for place, own in enumerate(threads)]
    flat = np.array([step for own in steps for step in own])
    first = np.cumsum([0, *map(len, steps)])
    when = replay((flat[:, 0], flat[:, 1], flat[:, 2]), (first, np.full(len(threads), gil)), cores, 8, len(threads))
    return [int(ts) // MS if ts >= 0 else -1 for ts in when]


def test_cores_and_the_gil_are_shared() -> None:
    works = [[(WORK, 20 * MS, 1)], [(WORK, 20 * MS, 1)]]
    assert play(works, cores=2) == [20, 20]
    assert play(works, cores=1) == [36, 40]  # 4 ms each in turn
    assert play(works, cores=2, gil=0) == [35, 40]  # 5 ms each
    assert play([*works, [(WORK, 20 * MS, 0)]], cores=2, gil=0) == [35, 40, 20]
    assert play([[(WORK, 8 * MS, 1), (PAUSE, 10 * MS, 0), (WORK, 2 * MS, 1)], [(WORK, 20 * MS, 1)]], cores=2, gil=0) == [30, 28]


def test_who_waits_goes_on_when_the_signal_is_given() -> None:
    gives = [(WORK, 7 * MS, 0), (SIGNAL, 3, 0), (WORK, MS, 0)]
    waits = [(WORK, MS, 0), (WAIT, 3, 0), (PAUSE, 2 * MS, 0), (WORK, MS, 0)]
    assert play([gives, waits], cores=None) == [8, 10]
    late = [(WORK, 9 * MS, 0), *waits[1:]]
    assert play([gives, late], cores=None) == [8, 10]  # not queued, as it need not wait
    assert play([waits], cores=None) == [-1]


def test_the_report_says_then_and_what_it_assumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = sample(tmp_path / "trace")
    for change in ("Worker.step 2x", "lock", "gil", "cores 4"):
        assert main(["report", str(trace), "--what-if", change]) == 0
        told = capsys.readouterr().out
        assert f"What if {change}: the whole run " in told and "That assumes: " in told
    assert main(["report", str(trace), "--what-if", "all"]) == 2
    assert capsys.readouterr().err.startswith("pytrace-ebpf: --what-if all is not known")
