"""Whose an arena is: the process that it says, once enough is known to believe that."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from pytrace_ebpf.record.agent.arena import CALLS, Arena, Damaged
from pytrace_ebpf.record.process.namespaces import Ids, Shared
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.trace.schema import LOSS_CLASSES

# How long arenas wait at least for news of the process that they are of, how often the news that the kernel has are taken meanwhile, and how many wait.
_NEWS_S, _TURNS, _MOST_WAITING = 1.0, 2, 256


@dataclass(frozen=True)
class _Claim:
    """An arena, the file that it is in and when it began: of a process that the arena names."""

    arena: Arena
    shared: Shared
    start_ns: int
    turn: int  # how often news were taken by then
    until: float = field(default_factory=lambda: time.monotonic() + _NEWS_S)


class Claims:
    """Arenas of which it is not known yet whose they are.

    A process that executed another program a millisecond after it had forked has its arena mapped no more, and is maybe not heard of yet: its
    arena waits until it is. Time alone says nothing: on a busy host, or where many processes begin, seconds pass until the news are read that the kernel has long had.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self.losses = np.zeros(len(LOSS_CLASSES), np.int64)  # by class, of those that were given up
        self.has_all_news = False  # whether there will be no more: nothing waits then
        self._waiting: list[_Claim] = []
        self._owners: dict[int, int | None] = {}  # users of processes that are followed, or were
        self._executed_ns: dict[int, int] = {}  # when they became another program last

    def __bool__(self) -> bool:
        """Whether some are not decided."""
        return bool(self._waiting)

    @property
    def since_ns(self) -> int | None:
        """When the first of those began; None where there is none."""
        return min((claim.start_ns for claim in self._waiting), default=None)

    def add(self, arena: Arena, shared: Shared, start_ns: int) -> None:
        """One that was found, and began at `start_ns`."""
        self._waiting.append(_Claim(arena, shared, start_ns, self._processes.turns))

    def executed(self, pid: int, ts: int) -> None:
        """A process that is followed became another program."""
        self._executed_ns = {pid: ns for pid, ns in self._executed_ns.items() if pid in self._processes.processes} | {pid: ts}

    def replaced_ns(self, pid: int, start_ns: int) -> int | None:
        """When the program that `pid` was at `start_ns` executed another one; None where it did not."""
        executed_ns = self._executed_ns.get(pid, start_ns)
        return executed_ns if start_ns < executed_ns else None

    def settle(self, has_begun: Callable[[], bool]) -> bool:
        """Wait until has_begun(), which decides, or all is decided; what it said. Nobody takes news meanwhile, so that after a while what is known has to do."""
        until = time.monotonic() + _NEWS_S
        try:
            while not has_begun():
                if not self._waiting:
                    return False
                self.has_all_news = time.monotonic() > until
                time.sleep(0.01)
            return True
        finally:
            self.has_all_news = False

    def decide(self) -> Iterator[tuple[Arena, int, Ids]]:
        """(arena, when it began, whose it is) of those of which that is known by now.

        Others are given up after a while: of a process that ended inside a container before its arena was found, or that is not the one that it claims to be.
        """
        waiting, self._waiting = self._waiting, []
        for place, claim in enumerate(waiting):
            at_once = self.has_all_news or len(waiting) - place > _MOST_WAITING
            heard = at_once or self._processes.turns >= claim.turn + _TURNS
            final = at_once or (heard and time.monotonic() > claim.until)
            born = self._born(claim.start_ns) if heard else {}  # before, one may be there that has ended since, and another one not yet
            ids = Ids.of(claim.arena.pid, claim.shared, self._followed(claim.start_ns), final, born, self._processes.inside.keys())
            if ids is not None:
                yield claim.arena, claim.start_ns, ids
            elif not final:
                self._waiting.append(claim)
            else:
                with suppress(Damaged):
                    self.losses[LOSS_CLASSES.index("thread_map")] += sum(piece.size for piece in claim.arena.news() if piece.stream == CALLS)

    def _followed(self, since_ns: int) -> dict[int, int | None]:
        """The processes that are followed, or were at some time since then, each with its user; None where that is not known."""
        rows = self._processes.processes
        self._owners = {pid: owner for pid, owner in self._owners.items() if pid in rows}
        self._owners |= {pid: target.process.credentials.owner for pid, target in self._processes.targets.items()}
        return {pid: self._owners.get(pid) for pid, row in rows.items() if row["end_ns"] is None or row["end_ns"] >= since_ns}

    def _born(self, by_ns: int) -> dict[int, dict[int, int]]:
        """Of processes in another pid namespace that were there by then, what their threads are called in there, and here."""
        return {pid: numbers for pid, numbers in self._processes.inside.items() if self._processes.births.get(pid, by_ns) <= by_ns}
