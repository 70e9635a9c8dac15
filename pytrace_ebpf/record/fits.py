"""How many functions each pattern fits, soon after a recording began, and for none what somebody may have meant."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from pytrace_ebpf.patterns import Mains, fits_function, fits_package, fitting, nearest
from pytrace_ebpf.record.cpython.functions import module_of
from pytrace_ebpf.record.cpython.loaded import loaded_functions
from pytrace_ebpf.record.process.target import Target
from pytrace_ebpf.record.recorder import Recorder, Rows
from pytrace_ebpf.record.source import Recording

_SOON_S = 1.0  # the program of a `run` has imported its modules by then
_MOST_PROCESSES = 3
_OF_MODULES = ("--include", "--exclude")
Known = Sequence[tuple[str, str, str]]  # functions: file, module, qualified name


def loaded(target: Target) -> Known:
    """The functions that a process has loaded."""
    return [(file, module_of(file), qualname) for file, qualname, _ in loaded_functions(target).functions]


def fits(option: str, pattern: str, known: Known, mains: Mains) -> list[tuple[str, str, str]]:
    """Those of them that a pattern of an option means."""
    if option in _OF_MODULES:
        return [each for each in known if fits_package(pattern, each[0], each[1], mains.have(each[0]))]
    return [each for each in known if fits_function(pattern, *each, mains.have(each[0]))]


class Fits(Recorder):
    """Looks once at what the first processes have loaded."""

    def __init__(self, recording: Recording, asked: Iterable[tuple[str, str]]) -> None:
        """`asked`: patterns, each with its option."""
        self._recording, self._asked = recording, list(asked)
        self._began_s, self._said = time.monotonic(), list[str]()
        self._found: list[dict[str, Any]] | None = None

    def drain(self) -> Rows:
        """No rows."""
        if self._found is None and time.monotonic() - self._began_s >= _SOON_S and self._recording.processes.targets:
            known: dict[tuple[str, str, str], None] = {}
            for target in list(self._recording.processes.targets.values())[:_MOST_PROCESSES]:
                known |= dict.fromkeys(loaded(target))
            self._look([*known] or self._recording.functions.uncut())
        return {}

    def stop(self) -> None:
        """Of a program that has ended before, what it called counts."""
        if self._found is None:
            self._look(self._recording.functions.uncut())

    def _look(self, known: Known) -> None:
        mains, self._found = self._recording.processes.mains, []
        for option, pattern in self._asked:
            count = len(fits(option, pattern, known, mains))
            like = [] if count else nearest(pattern, known)
            self._found.append({"option": option, "pattern": pattern, "fits": count, "known": len(known), "nearest": like})
            self._said.append(fitting(option, pattern, count, len(known), like))

    def take_said(self) -> list[str]:
        """How many functions each pattern fits."""
        said, self._said = self._said, []
        return said

    def facts(self) -> dict[str, Any]:
        """The manifest's `patterns`."""
        return {"patterns": self._found} if self._found else {}
