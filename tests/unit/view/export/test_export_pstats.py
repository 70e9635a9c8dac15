"""An export for pstats has what cProfile would have written: read back by pstats itself, and beside cProfile of the same calls."""

import cProfile
import io
import pstats as standard
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.functions.by_function import with_self
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.view.export import pstats
from tests.unit.synthetic import SAMPLE_FUNCTIONS, Script, sample, write_trace

KEYS = {row[0]: (row[1], max(row[4], 0), row[3]) for row in SAMPLE_FUNCTIONS}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return pytrace_ebpf.open(sample(tmp_path_factory.mktemp("sample")))


def loaded(trace: Trace, path: Path, value: str = "wall") -> standard.Stats:
    with path.open("wb") as out:
        pstats.write(trace, value, out)
    return standard.Stats(str(path), stream=io.StringIO())


@pytest.mark.parametrize("value", ["wall", "gil_wait"])
def test_pstats_has_every_function_and_its_callers(trace: Trace, tmp_path: Path, value: str) -> None:
    calls = with_self(trace.calls()).set_index("call_id")
    functions: dict[Any, list[float]] = defaultdict(lambda: [0, 0, 0, 0])
    callers: dict[Any, dict[Any, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0, 0, 0, 0]))
    for row in calls.itertuples():
        whole, own = (getattr(row, f"{prefix}{value}_ns") / 1e9 for prefix in ("", "self_"))
        above, pairs = row, []
        while above.parent_id >= 0:
            pairs.append((calls.loc[above.parent_id].func_id, above.func_id))
            above = calls.loc[above.parent_id]
        first = row.func_id not in [caller for caller, _ in pairs]
        _add(functions[KEYS[row.func_id]], first, 1, own, first * whole)
        if pairs:
            first = pairs[0] not in pairs[1:]
            _add(callers[KEYS[row.func_id]][KEYS[pairs[0][0]]], 1, first, own, first * whole)
    found = loaded(trace, tmp_path / "p", value).stats  # type: ignore[attr-defined]
    assert found.keys() == functions.keys()
    for key, (*sums, by) in found.items():
        assert sums == pytest.approx(functions[key], abs=1e-12)
        assert {caller: list(of) for caller, of in by.items()} == {caller: pytest.approx(of, abs=1e-12) for caller, of in callers[key].items()}


def _add(sums: list[float], *more: float) -> None:
    sums[:] = [a + b for a, b in zip(sums, more, strict=True)]


def test_pstats_prints_it(trace: Trace, tmp_path: Path) -> None:
    stats = loaded(trace, tmp_path / "p")
    stats.sort_stats("cumulative").print_stats().print_callers().print_callees()
    shown = stats.stream.getvalue()  # type: ignore[attr-defined]
    assert "work.py:31(Worker.step)" in shown and "was called by..." in shown
    assert stats.total_calls == len(trace.calls())  # type: ignore[attr-defined]


def test_counts_of_recursion_are_those_of_cprofile(tmp_path: Path) -> None:
    script = Script(1, 1)

    def even(n: int) -> None:
        script.enter(2).run(10)
        if n:
            odd(n - 1)
        if n > 2:
            even(n - 3)
        script.leave()

    def odd(n: int) -> None:
        script.enter(3).run(10)
        if n:
            even(n - 1)
        script.leave()

    # cProfile counts the calls of these two; the script acts the same ones.
    profiler = cProfile.Profile(builtins=False)
    sys.setprofile(None)
    profiler.runcall(even, 9)
    profiler.create_stats()
    names = {"even": 2, "odd": 3}
    counted = {key[2]: (value[:2], {who[2]: of[:2] for who, of in value[4].items()}) for key, value in profiler.stats.items() if key[2] in names}  # type: ignore[attr-defined]
    trace = pytrace_ebpf.open(write_trace(tmp_path / "t", events=script.events, functions=SAMPLE_FUNCTIONS))
    found = loaded(trace, tmp_path / "p").stats  # type: ignore[attr-defined]
    assert {KEYS[names[name]]: (sums, {KEYS[names[who]]: of for who, of in by.items()}) for name, (sums, by) in counted.items()} == {
        key: (value[:2], {who: of[:2] for who, of in value[4].items()}) for key, value in found.items()
    }


def test_pstats_says_what_is_not_known(tmp_path: Path) -> None:
    script = Script(1, 1).enter(0).run(10).leave()
    trace = pytrace_ebpf.open(write_trace(tmp_path / "t", events=script.events, functions=SAMPLE_FUNCTIONS))
    with pytest.raises(UsageError, match="no scheduling"):
        pstats.write(trace, "gil_wait", io.BytesIO())
