"""A line on a terminal's standard error for everything that takes longer than a second. It is removed at the end; nothing else is printed meanwhile."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Progress

AFTER_S = 1.0

Report = Callable[[str, float | None], None]  # what is being done, and the share of it that is done, None where that is not known


@contextmanager
def shown(what: str, console: Console | None = None) -> Iterator[Report]:
    """While the block runs, `what` it does is shown from the first second on where standard error (or `console`) is a terminal.

    Yields the function that reports progress: what exactly is being done, and how much of it is done.
    """
    with _line(by_share=True, console=console, after_s=AFTER_S) as line:
        if line is None:
            yield lambda _what, _share: None
            return
        now, task = what, line.add_task(what, total=None)

        def report(what: str, share: float | None) -> None:
            nonlocal now, task
            if what != now:
                line.remove_task(task)
                now, task = what, line.add_task(what, total=None)
            if share is not None:
                line.update(task, completed=share, total=1.0)

        yield report


@contextmanager
def turns(count: int, console: Console | None = None) -> Iterator[Callable[[str, str], None]]:
    """For a block of `count` turns. Yields the function to call as each turn begins, and at the end: the turn's name, and a line to print about the one before."""
    console = Console(stderr=True, highlight=False, force_terminal=sys.stderr.isatty()) if console is None else console
    with _line(by_share=False, console=console, after_s=0) as line:
        task = None if line is None else line.add_task("", total=count, completed=-1)

        def begin(what: str, before: str) -> None:
            if before:
                console.print(Text(before), soft_wrap=True)
            if line is not None and task is not None:
                line.update(task, description=what, advance=1)

        yield begin


@contextmanager
def _line(by_share: bool, console: Console | None, after_s: float) -> Iterator["Progress | None"]:
    """A line that appears after so many seconds, with what is done as a share or as a number; None where there is no terminal for it."""
    console = Console(stderr=True, force_terminal=sys.stderr.isatty()) if console is None else console  # whatever FORCE_COLOR says
    if not console.is_terminal or console.is_dumb_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    done = TaskProgressColumn(show_speed=False) if by_share else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), done, TimeElapsedColumn(), TimeRemainingColumn())
    line = Progress(*columns, console=console, transient=True)
    start = threading.Timer(after_s, line.start)
    start.daemon = True
    start.start()
    try:
        yield line
    finally:
        start.cancel()
        start.join()
        line.stop()
