"""`diff --until-sure`: two command lines recorded in turn (A B, B A, ...) until their runs say whether one is slower, or are used up."""

import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from pytrace_ebpf.diff import verdict
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.record.output.directory import Output
from pytrace_ebpf.record.rights.user import as_caller
from pytrace_ebpf.runs import repeated
from pytrace_ebpf.terminal import progress, stopping

SIDES = ("before", "after")


def commands(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The two command lines of `... -- COMMAND A -- COMMAND B`. Raises UsageError."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == "--":
            parts.append([])
        else:
            parts[-1].append(word)
    if len(parts) != 3 or not all(parts[1:]):
        raise UsageError("--until-sure needs two programs to start: pytrace-ebpf diff --until-sure -- python3 old.py -- python3 new.py")
    return parts[1], parts[2]


def record(
    programs: Sequence[Sequence[str]], output: Path | None, runs: int, is_sure: Callable[[tuple[Path, Path], float], bool]
) -> tuple[Path, Path]:
    """The directories with the runs of each. `is_sure` is asked now and then, with the chance of being wrong that it may take."""
    with as_caller():
        made = Output(output, "diff")
        made.close()
    sides = made.path / SIDES[0], made.path / SIDES[1]
    at = verdict.looks(runs)
    with (
        stopping.stop_signals(signal.SIGINT, *stopping.not_ignored(signal.SIGTERM, signal.SIGHUP)) as stopped,
        progress.turns(2 * runs) as begin,
    ):
        for number in range(1, runs + 1):
            # A B, B A, A B: what grows all the time, or comes every other time, is neither side's.
            both = list(zip(SIDES, sides, programs, strict=True))
            for name, folder, command in both if number % 2 else reversed(both):
                begin(f"{name}, run {number} of {runs} at most", "")
                if stopped():
                    raise KeyboardInterrupt
                with as_caller():
                    folder.mkdir(exist_ok=True)
                trace, log = folder / str(number), folder / f"{number}.log"
                repeated.record(command, ["-q", "-o", str(trace)], log, stopped, f"`{name}`", {})
            if number in at and is_sure(sides, verdict.RATE / len(at)):
                break
    return sides
