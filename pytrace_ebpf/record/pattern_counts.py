"""How many functions each pattern fits, soon after a recording began, and for none what somebody may have meant."""

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from pytrace_ebpf.patterns import Mains, fits_function, fits_package, fitting, nearest
from pytrace_ebpf.record.cpython.functions import module_of
from pytrace_ebpf.record.cpython.loaded import loaded_functions
from pytrace_ebpf.record.process.target import Target
from pytrace_ebpf.record.recorder import Recorder, Rows
from pytrace_ebpf.record.source import Recording

_LOOKS_S = (0.4, 1.4)  # after the begin
_PATIENCE_S = 2.0
_MOST_PROCESSES = 3
_MODULE = "<module>"  # code that is no function to who counts them
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


class PatternCounts(Recorder):
    """Looks twice at what the first processes have loaded, in a thread of its own: at what fitted nothing again, as a program may just have begun to import."""

    def __init__(self, recording: Recording, asked: Iterable[tuple[str, str]]) -> None:
        """`asked`: patterns, each with its option."""
        self._recording, self._asked = recording, list(asked)
        self._began_s, self._looks, self._said = time.monotonic(), 0, list[str]()
        self._found: dict[tuple[str, str], dict[str, Any]] = {}
        self._looker: threading.Thread | None = None

    def drain(self) -> Rows:
        """No rows."""
        targets = list(self._recording.processes.targets.values())[:_MOST_PROCESSES]
        idle = self._looker is None or not self._looker.is_alive()
        if self._looks < len(_LOOKS_S) and time.monotonic() - self._began_s >= _LOOKS_S[self._looks] and targets and idle:
            self._looks += 1
            self._looker = threading.Thread(target=self._look, args=(targets, self._looks == len(_LOOKS_S)), name="patterns", daemon=True)
            self._looker.start()
        return {}

    def cost(self) -> dict[str, Any]:
        """Nothing. As all is drained now: of a program that has ended before it was looked at, what it called counts."""
        if self._looker is not None:
            self._looker.join(_PATIENCE_S)
        if self._looks < len(_LOOKS_S) and (self._looker is None or not self._looker.is_alive()):
            self._looks = len(_LOOKS_S)
            self._look([], True)
        return {}

    def _look(self, targets: Sequence[Target], is_last: bool) -> None:
        known: dict[tuple[str, str, str], None] = {}
        for target in targets:
            known |= dict.fromkeys(loaded(target))
        known |= dict.fromkeys(each for each in self._recording.functions.uncut() if each[2] != _MODULE)
        for option, pattern in self._asked:
            if (option, pattern) not in self._found:
                count = len(fits(option, pattern, [*known], self._recording.processes.mains))
                if count or is_last:
                    like = [] if count else nearest(pattern, known)
                    self._said.append(fitting(option, pattern, count, len(known), like))
                    self._found[option, pattern] = {"option": option, "pattern": pattern, "fits": count, "known": len(known), "nearest": like}

    def take_said(self) -> list[str]:
        """How many functions each pattern fits."""
        said, self._said = self._said, []
        return said

    def metadata(self) -> dict[str, Any]:
        """The manifest's `patterns`."""
        return {"patterns": list(self._found.values())} if self._found else {}
