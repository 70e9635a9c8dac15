"""How long tests took in recorded runs of a test suite, and which got slower: `pytest --pytrace` (pytest_plugin.py) records them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pytrace_ebpf.diff import verdict
from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.trace.files import Files, whole
from pytrace_ebpf.trace.shape import WHOLE, Fields, List, fits

BY = ("on_cpu", "wall")
TESTS, TRACE = "tests.json", "trace"  # below the directory of a run
FORMAT, FORMAT_VERSION = "pytrace-ebpf tests", 2

_LEAST_NS = 1_000_000  # what changes by less is not worth naming, whatever its share
_MOST_BYTES = 64 << 20
_SHAPE = Fields({"tests": List(Fields({"test": str, "pid": WHOLE, "tid": WHOLE, "start_ns": WHOLE, "end_ns": WHOLE, "cpu_ns": WHOLE}))})


@dataclass(frozen=True)
class Ran:
    """One test of one run: when the test itself began and ended (CLOCK_MONOTONIC, without its set-up and tear-down), in which thread, and its process's CPU time."""

    run: Path
    pid: int
    tid: int
    start_ns: int
    end_ns: int
    cpu_ns: int

    @property
    def wall_ns(self) -> int:
        return self.end_ns - self.start_ns

    def took_ns(self, by: str) -> int:
        """Of the time `by`, of BY."""
        return self.wall_ns if by == "wall" else self.cpu_ns


@dataclass(frozen=True)
class Slower:
    """A test that takes longer than before, by the means of its runs on either side; `sure`: beyond chance, None where there are too few runs to tell."""

    test: str
    before: Sequence[Ran]
    after: Sequence[Ran]
    by: str
    sure: bool | None = None

    @property
    def change_ns(self) -> float:
        """Of the means of the runs."""
        return _mean_ns(self.after, self.by) - _mean_ns(self.before, self.by)

    @property
    def share(self) -> float:
        """Of what it took before."""
        return self.change_ns / max(_mean_ns(self.before, self.by), 1)


def next_run(directory: Path) -> Path:
    """Where the next run below `directory` goes: made, and named by the next number."""
    directory.mkdir(parents=True, exist_ok=True)
    numbers = [int(path.name) for path in directory.iterdir() if path.name.isdigit()]
    made = directory / str(max(numbers, default=0) + 1)
    made.mkdir()
    return made


def write_tests(run: Path, tests: Sequence[Mapping[str, Any]]) -> None:
    """Write when the tests of a run were: rows with test (its node id), pid, tid, start_ns, end_ns and cpu_ns."""
    with whole(run / TESTS) as file:
        file.write(json.dumps({"format": FORMAT, "format_version": FORMAT_VERSION, "tests": list(tests)}, indent=1).encode())


def recorded_in(directory: Path) -> dict[str, list[Ran]]:
    """The runs of each test (by node id) below `directory`. Raises TraceError where there are none, or one is damaged."""
    found: dict[str, list[Ran]] = {}
    runs = sorted((path.parent for path in directory.glob(f"*/{TESTS}")), key=lambda path: (len(path.name), path.name))
    if not runs:
        raise TraceError(f"{directory} has no recorded tests: name a directory that pytest --pytrace wrote to.")
    for run in runs:
        for row in _read(run)["tests"]:
            found.setdefault(row["test"], []).append(Ran(run, *(row[name] for name in ("pid", "tid", "start_ns", "end_ns", "cpu_ns"))))
    return found


def slower(before: Mapping[str, Sequence[Ran]], after: Mapping[str, Sequence[Ran]], share: float, by: str) -> list[Slower]:
    """The tests that take longer by more than `share` of what they took before, and by a millisecond, of time `by`; what got slower most first.

    Beyond chance is what verdict.slower says of all tests together, so that many tests are no more often wrong than few.
    """
    compared = sorted(before.keys() & after.keys())
    chance = _chance({test: (before[test], after[test]) for test in compared}, share, by)
    found = []
    for test in compared:
        each = Slower(test, before[test], after[test], by, None if test not in chance else chance[test] <= verdict.RATE)
        if each.change_ns > _least_ns(before[test], share, by):
            found.append(each)
    return sorted(found, key=lambda each: (-each.change_ns, each.test))


def _chance(tests: Mapping[str, tuple[Sequence[Ran], Sequence[Ran]]], share: float, by: str) -> dict[str, float]:
    """Of each test that has runs enough: how often, at most, such a difference comes by chance in any of them.

    Tests that were in the same runs are compared together, and each such group has its part of what may be wrong.
    """
    groups: dict[tuple[tuple[Path, ...], ...], list[str]] = {}
    for test, sides in tests.items():
        if min(map(len, sides)) >= verdict.LEAST_RUNS:
            groups.setdefault(tuple(tuple(ran.run for ran in side) for side in sides), []).append(test)
    found: dict[str, float] = {}
    for names in groups.values():
        old, new = (np.array([[ran.took_ns(by) for ran in tests[test][side]] for test in names], float).T for side in (0, 1))
        # Of both sides together, as which of them a run is of must not matter here.
        least = np.maximum(share * (old.mean(axis=0) + new.mean(axis=0)) / 2, _LEAST_NS)
        found |= dict(zip(names, (verdict.slower(old, new, least) * len(groups)).tolist(), strict=True))
    return found


def _least_ns(before: Sequence[Ran], share: float, by: str) -> float:
    return max(share * _mean_ns(before, by), _LEAST_NS)


def _read(run: Path) -> dict[str, Any]:
    try:
        content, _ = Files(run).read(TESTS, _MOST_BYTES)
        said = json.loads(content)
        if not isinstance(said, dict) or said.get("format") != FORMAT or said.get("format_version") != FORMAT_VERSION or fits(said, _SHAPE):
            raise ValueError(run)
    except (OSError, ValueError, RecursionError):
        raise TraceError(f"{run / TESTS} is damaged or of another version: record the tests again.") from None
    return said


def _mean_ns(runs: Sequence[Ran], by: str) -> float:
    return sum(ran.took_ns(by) for ran in runs) / len(runs)
