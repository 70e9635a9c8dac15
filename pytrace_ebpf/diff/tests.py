"""How long tests took in recorded runs of a test suite, and which got slower: `pytest --pytrace` (pytest_plugin.py) records them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.trace.files import Files, whole
from pytrace_ebpf.trace.shape import WHOLE, Fields, List, fits

TESTS, TRACE = "tests.json", "trace"  # below the directory of a run
FORMAT, FORMAT_VERSION = "pytrace-ebpf tests", 1

_LEAST_NS = 1_000_000  # what changes by less is not worth naming, whatever its share
_MOST_BYTES = 64 << 20
_SHAPE = Fields({"tests": List(Fields({"test": str, "pid": WHOLE, "tid": WHOLE, "start_ns": WHOLE, "end_ns": WHOLE}))})


@dataclass(frozen=True)
class Ran:
    """One test of one run: when the test itself began and ended (CLOCK_MONOTONIC, without its set-up and tear-down), and in which thread."""

    run: Path
    pid: int
    tid: int
    start_ns: int
    end_ns: int

    @property
    def wall_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Slower:
    """A test that takes longer than before; its runs on either side."""

    test: str
    before: Sequence[Ran]
    after: Sequence[Ran]

    @property
    def change_ns(self) -> float:
        """Of the means of the runs."""
        return _mean_ns(self.after) - _mean_ns(self.before)

    @property
    def share(self) -> float:
        """Of what it took before."""
        return self.change_ns / max(_mean_ns(self.before), 1)


def next_run(directory: Path) -> Path:
    """Where the next run below `directory` goes: made, and named by the next number."""
    directory.mkdir(parents=True, exist_ok=True)
    numbers = [int(path.name) for path in directory.iterdir() if path.name.isdigit()]
    made = directory / str(max(numbers, default=0) + 1)
    made.mkdir()
    return made


def write_tests(run: Path, tests: Sequence[Mapping[str, Any]]) -> None:
    """Write when the tests of a run were: rows with test (its node id), pid, tid, start_ns and end_ns."""
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
            found.setdefault(row["test"], []).append(Ran(run, *(row[name] for name in ("pid", "tid", "start_ns", "end_ns"))))
    return found


def slower(before: Mapping[str, Sequence[Ran]], after: Mapping[str, Sequence[Ran]], share: float) -> list[Slower]:
    """The tests that take longer by more than `share` of what they took before, and by a millisecond; what got slower most first.

    Where both sides have several runs of a test, each must have taken longer than every one before; one run each may be chance.
    """
    found = []
    for test in before.keys() & after.keys():
        each = Slower(test, before[test], after[test])
        old, new = ([ran.wall_ns for ran in side] for side in (each.before, each.after))
        certain = min(len(old), len(new)) < 2 or min(new) > max(old)
        if certain and each.change_ns > max(share * _mean_ns(each.before), _LEAST_NS):
            found.append(each)
    return sorted(found, key=lambda each: (-each.change_ns, each.test))


def _read(run: Path) -> dict[str, Any]:
    try:
        content, _ = Files(run).read(TESTS, _MOST_BYTES)
        said = json.loads(content)
        if not isinstance(said, dict) or said.get("format") != FORMAT or said.get("format_version") != FORMAT_VERSION or fits(said, _SHAPE):
            raise ValueError(run)
    except (OSError, ValueError, RecursionError):
        raise TraceError(f"{run / TESTS} is damaged or of another version: record the tests again.") from None
    return said


def _mean_ns(runs: Sequence[Ran]) -> float:
    return sum(ran.wall_ns for ran in runs) / len(runs)
