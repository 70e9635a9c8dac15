"""Process and thread ids inside a pid namespace, and the same ones as this process sees them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

UNKNOWN_THREAD = -1


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

    def here(self, tids: set[int]) -> dict[int, int]:
        """Threads, as the process sees them, to what they are here; UNKNOWN_THREAD where that cannot be told any more."""
        if self.same:
            return {tid: tid for tid in tids}
        if not tids <= self._tids.keys():
            self.refresh()
        return {tid: self._tids.get(tid, UNKNOWN_THREAD) for tid in tids}

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
