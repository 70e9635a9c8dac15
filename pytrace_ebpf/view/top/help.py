"""What the keys do, and what the figures mean."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from pytrace_ebpf.trace.states import STATES

_KEYS = (
    ("f t l w r c", "functions, threads, lines, waits, requests, clients; Tab the next"),
    ("s  S", "sort by the next column; the other way round"),
    ("o", "times of functions themselves, or with all that they call"),
    ("/", "filter: show what has a text in its name, module or file"),
    ("Enter", "a thread's functions, a function's lines; Esc shows all again"),
    ("p", "pause: keep this picture"),
    ("e", "record every call for the next 5 s, for pytrace-ebpf report"),
    ("d", "dark or light"),
    ("q", "quit"),
)
_FIGURES = (
    "100 % is all the time of one thread: two threads that never rest in a function "
    "are 200 %. A bar is full at 100 %. work is all time but "
    "that in which threads wait for something to do. Threads are exact, by scheduling events; functions, "
    "lines and waits are estimates by samples. holds is how long a thread had the GIL."
)


class Help(ModalScreen[None]):
    """A page above all; any of these keys closes it."""

    CSS = """
    Help { align: center middle; }
    Help > VerticalScroll { width: 76; max-width: 95%; height: auto; max-height: 95%; border: round $primary; padding: 0 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,question_mark,h,f1,enter,space", "dismiss(None)", "close")]

    def compose(self) -> ComposeResult:
        """The page."""
        with VerticalScroll():
            yield Static(page())


def page() -> Text:
    """Its text."""
    out = Text()
    for key, what in _KEYS:
        out.append(f"{key:<11}", "bold").append(f" {what}\n")
    out.append("\n")
    for state in STATES:
        out.append(f"{state.glyph * 2} ", state.colour).append(f"{state.label}   ")
    return out.append("\n\n").append(_FIGURES)
