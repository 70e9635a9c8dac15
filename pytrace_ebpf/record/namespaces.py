"""Process and thread ids inside a pid namespace, and the same ones as this process sees them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np


@dataclass
class Ids:
    """The ids of one process: `pid` as this process sees it; threads are looked up when they are first met."""

    pid: int
    same: bool  # the process sees the ids that this one sees
    _tids: dict[int, int] = field(default_factory=dict)  # of the inside -> of here

    @classmethod
    def of(cls, inside: int, candidates: Iterable[int]) -> Self | None:
        """The process that calls itself `inside`: one of `candidates` in another namespace, else that very number."""
        for pid in candidates:
            numbers = _numbers(Path(f"/proc/{pid}/status"))
            if numbers and numbers[-1] == inside and len(numbers) > len(_numbers(Path("/proc/self/status"))):
                return cls(pid, same=False)
        return cls(inside, same=True) if inside in candidates or Path(f"/proc/{inside}").exists() else None

    def host_tids(self, tids: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """(`tids` as this process sees them, mask of those that are known; None where all are)."""
        if self.same or not len(tids):
            return tids, None
        inside, places = np.unique(tids, return_inverse=True)
        if any(tid not in self._tids for tid in inside.tolist()):
            self.refresh()
        here = np.array([self._tids.get(tid, -1) for tid in inside.tolist()], np.int32)[places]
        known = here >= 0
        return here, None if known.all() else known

    def refresh(self) -> None:
        """Look at the threads that there are now; those that ended stay known."""
        if self.same:
            return
        for folder in Path(f"/proc/{self.pid}/task").glob("*"):
            numbers = _numbers(folder / "status")
            if numbers:
                self._tids[numbers[-1]] = int(folder.name)


def _numbers(status: Path) -> list[int]:
    """The ids of a thread from the outermost namespace that this process sees to its own; [] where it is gone."""
    try:
        lines = status.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return next(([int(word) for word in line.split()[1:]] for line in lines if line.startswith("NSpid:")), [])
