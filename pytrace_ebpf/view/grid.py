"""Tables of fixed widths for a terminal: every cell was made to fit before."""

from collections.abc import Sequence

from rich.table import Table

NARROW = 92  # below it bars and counts shrink so that the names keep some room


def rest(width: int, fixed: Sequence[tuple[int, str]]) -> int:
    """Cells that the last column has beside the fixed ones."""
    return max(8, width - sum(w + 1 for w, _ in fixed))


def grid(columns: Sequence[tuple[int, str]], left: set[int]) -> Table:
    """A table of (width, title) columns, one space apart; those numbered in `left` are set to the left."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for i, (width, title) in enumerate(columns):
        table.add_column(title, width=width, no_wrap=True, overflow="crop", justify="left" if i in left else "right")
    return table
