"""Where commands print: rich in a terminal, plain and of a fixed width in a pipe."""

import sys

from rich.console import Console

from pytrace_ebpf.view.report import WIDTH


def console() -> Console:
    """Standard output as rich sees it."""
    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, emoji=False, markup=False)


def ascii_only() -> bool:
    """True where standard output cannot show block characters."""
    return (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
