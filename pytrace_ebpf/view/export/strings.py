"""Strings by number, each once: the string table of a profile."""

from collections.abc import Iterator


class Strings:
    """Numbered from 0, which is the empty one."""

    def __init__(self) -> None:
        self._numbers = {"": 0}

    def number(self, text: str) -> int:
        """The number of a string."""
        return self._numbers.setdefault(text, len(self._numbers))

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)
