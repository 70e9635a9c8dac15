"""Where commands print: with rich in a terminal, plain and with names in full in a pipe; no control characters but rich's own."""

import os
import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from pytrace_ebpf.printable import printable

_LEAST = 40  # cells of a line
_PIPE = 1000  # cells of a line in a pipe: names are not cut


_ASCII = str.maketrans({"µ": "u", "…": "~", "±": "~"})  # each of one cell, as what it stands for


class Screen(Console):
    """A console for texts that a traced program wrote."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich's, with every text made printable."""
        plain = ascii_only()
        for text, style, control in super().render(renderable, options):
            text = text.translate(_ASCII) if plain else text
            yield Segment(text if control else "\n".join(map(printable, text.split("\n"))), style, control)

    def on_broken_pipe(self) -> None:
        """Rich ends the program with exit code 1, which is that of `diff --fail-over`."""
        raise BrokenPipeError


def console() -> Screen:
    """Standard output as rich sees it."""
    columns = os.environ.get("COLUMNS", "")
    chosen = sys.stdout.isatty() or (columns.isdecimal() and int(columns) > 0)
    return Screen(width=None if chosen else _PIPE, highlight=False, emoji=False, markup=False)


def width_of(console: Console) -> int:
    """Cells a line may take."""
    return max(_LEAST, console.width - 1)  # a line as wide as the terminal would be broken by some


def ascii_only() -> bool:
    """True where standard output cannot show block characters, or the locale is C: then Python itself would write UTF-8 all the same."""
    chosen = os.environ.get("LC_ALL") or os.environ.get("LANG")
    return chosen in ("C", "POSIX") or (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
