"""What formats have by number: strings, each once, and rows by thread, process or function, of which there may be as many as rows."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def grouped(numbers: Ints) -> Iterator[tuple[int, Ints]]:
    """Each one of `numbers`, ascending, and where it stands: in one sort, however many different ones there are."""
    order = np.argsort(numbers, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers[order])) + 1
    for places in np.split(order, cuts) if len(order) else []:
        yield int(numbers[places[0]]), places


class Strings:
    """The string table of a profile: numbered from 0, which is the empty one."""

    def __init__(self) -> None:
        self._numbers = {"": 0}

    def number(self, text: str) -> int:
        """The number of a string."""
        return self._numbers.setdefault(text, len(self._numbers))

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)
