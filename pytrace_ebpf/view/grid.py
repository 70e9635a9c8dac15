"""Tables for a terminal: figures of fixed widths that are never cropped, and names in what is left of the line."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

NARROW = 92  # cells below which bars and counts shrink, so that the names keep some room
PROSE = 100  # cells of a line of sentences, which are hard to read when longer
_LEAST_NAME = 16  # cells: with fewer, names stand on a line of their own
_GAP = 2  # cells between figures and names

Column: TypeAlias = tuple[int, str]  # cells, title
Name: TypeAlias = Callable[[int], Text | str]  # a name in at most so many cells


class Listing:
    """Rows of figures, each with its names at the end of the line or, where that has no room for them, above the figures."""

    def __init__(
        self, width: int, figures: Sequence[Column], names: Sequence[str], may_go: Sequence[str] = (), head: bool = True, above: bool = False
    ) -> None:
        """`figures`: the first is set to the left where it has no title, a bar. `names`: titles.

        `may_go`: titles of figures that are left out, in this order, where a line does not hold them all. `head`: whether titles are shown.
        `above`: the names stand above the figures wherever, since they are long. `beside` says whether they stand at the end of the line.
        """
        figures = [(max(cells, len(title)), title) for cells, title in figures]
        kept = figures
        for title in may_go:
            if _cells(kept) > width:
                kept = [column for column in kept if column[1] != title]
        self._shown = [column in kept for column in figures]
        self._figures, self._names, self._head = kept, list(names), head
        left = width - _cells(kept) - len(names) * _GAP
        self.beside = left >= _LEAST_NAME * len(names) and not above
        self._room = _shares(left if self.beside else width - (len(names) - 1) * _GAP, len(names))
        self._rows: list[tuple[list[Text | str], list[Text], str]] = []

    def add(self, figures: Sequence[Text | str], *names: Name, style: str = "") -> None:
        """A row: one cell for each figure, and a function that gives each name in so many cells."""
        kept = [cell for cell, shown in zip(figures, self._shown, strict=True) if shown]
        texts = [name(room) for name, room in zip(names, self._room, strict=True)]
        self._rows.append((kept, [each if isinstance(each, Text) else Text(each, style) for each in texts], style))

    def __rich__(self) -> RenderableType:
        """What stands on the screen."""
        if not self.beside:
            return Group(*self._stacked())
        table = self._table()
        gaps = [_GAP, *[_GAP - 1] * (len(self._names) - 1)]  # a cell between columns is there anyway
        for title, width, gap in zip(self._names, self._room, gaps, strict=True):
            table.add_column(" " * gap + title, max_width=width + gap, no_wrap=True, overflow="crop", justify="left")
        for figures, names, style in self._rows:
            table.add_row(*figures, *(Text(" " * gap, style) + name for gap, name in zip(gaps, names, strict=True)), style=style)
        return table

    def _stacked(self) -> Iterator[RenderableType]:
        if self._head:
            yield self._line([Text(name, "bold") for name in self._names])
            yield self._table()
        for figures, names, style in self._rows:
            line = self._table()
            line.show_header = False
            line.add_row(*figures, style=style)
            yield self._line(names)
            yield line

    def _line(self, names: Sequence[Text]) -> Text:
        """Names above figures, in columns where there are several."""
        padded = [name.copy() for name in names]
        for name, room in zip(padded[:-1], self._room, strict=False):
            name.pad_right(room - cell_len(name.plain))
        return Text(" " * _GAP).join(padded)

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold", show_header=self._head)
        for i, (width, title) in enumerate(self._figures):
            table.add_column(title, width=width, no_wrap=True, overflow="crop", justify="right" if i or title else "left")
        return table


def _cells(columns: Sequence[Column]) -> int:
    return sum(width + 1 for width, _ in columns)


def _shares(cells: int, parts: int) -> list[int]:
    """`cells` in so many parts, the last ones larger by one where it does not come out even."""
    return [cells // parts + (i >= parts - cells % parts) for i in range(parts)]
