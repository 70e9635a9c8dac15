"""The names of functions that are looked up in sources or memory, which may take long: beside the loop that takes in everything, where processes are of several users.

What the functions are named in has to wait meanwhile, that of the one process alone. Whose user is left alone (shares.py) gets plain names at once.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from pytrace_ebpf.record.process.readings import Readings


class Names(NamedTuple):
    """What a function is called; `qualname`: None or "" where nothing says it."""

    file: str
    name: str
    qualname: str | None


Item = TypeVar("Item")
# (items, whether plain names have to do) -> the names of each, in their order
Read = Callable[[Sequence[Item], bool], list[Names]]


@dataclass(eq=False)
class _Asked(Generic[Item]):
    items: Sequence[Item]
    since_ns: int = field(default_factory=time.monotonic_ns)
    submitted: bool = False
    names: list[Names] | None = None


class Lookups(Generic[Item]):
    """Of one process. Memory: what was asked for and not taken."""

    def __init__(self, readings: Readings, user: int, read: Read[Item]) -> None:
        """`user`: whose turn it has to be, and who is charged; `read` is called by the thread of `readings`, if they have one."""
        self._readings, self._user, self._read = readings, user, read
        self._asked: deque[_Asked[Item]] = deque()
        self._plain = False

    def ask(self, items: Sequence[Item], look_up: bool = True) -> None:
        """Have these named, after those that were asked for before. `look_up`: False, their names are known without."""
        if items:
            self._asked.append(_Asked(items, names=None if look_up else self._read(items, True)))

    def take(self) -> list[tuple[Item, Names]]:
        """Those that have their names by now and were not taken, in the order in which they were asked for."""
        taken: list[tuple[Item, Names]] = []
        while self._asked:
            asked = self._asked[0]
            if asked.names is None:
                self._see_to(asked)
            if asked.names is None:
                for later in self._asked:
                    self._see_to(later)
                break
            taken += zip(asked.items, asked.names, strict=True)
            self._asked.popleft()
        return taken

    def _see_to(self, asked: _Asked[Item]) -> None:
        if self._plain or self._readings.is_left_alone(self._user):
            asked.names = self._read(asked.items, True)
        elif not asked.submitted:
            asked.submitted = self._readings.do(self._user, lambda: self._name(asked))

    def _name(self, asked: _Asked[Item]) -> None:
        if asked.names is None:
            asked.names = self._read(asked.items, False)

    def give_up(self) -> None:
        """Plain names have to do from now on."""
        self._plain = True

    @property
    def since_ns(self) -> int | None:
        """Since when somebody waits for names (CLOCK_MONOTONIC), None where nobody does."""
        return self._asked[0].since_ns if self._asked else None
