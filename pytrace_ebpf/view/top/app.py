"""The live view, with Textual: it draws pictures as they come, and never waits for where they come from."""

import asyncio
import signal
import time
from dataclasses import replace
from typing import Any, ClassVar

from rich.text import Text
from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import DataTable, Footer, Input, Static

from pytrace_ebpf.trace.snapshot import Snapshot
from pytrace_ebpf.view import text
from pytrace_ebpf.view.top.feed import SAVED, Ended, News, Said, Source
from pytrace_ebpf.view.top.head import findings, head, narrowed, tabs
from pytrace_ebpf.view.top.help import Help
from pytrace_ebpf.view.top.picked import picked
from pytrace_ebpf.view.top.screen_lines import Lines
from pytrace_ebpf.view.top.selection import VIEWS, Choice

_SHOWN = 300  # rows: nobody reads more, and the filter finds the others
_SAVED_S = 5
_MOST_SAVED = 8  # processes at once

_CSS = """
Screen { layout: vertical; }
#head { height: 4; padding: 0; }
#findings { height: auto; max-height: 3; }
#tabs { height: 1; background: $panel; }
#narrowed { height: auto; max-height: 1; }
#rows { height: 1fr; background: $background; scrollbar-size-vertical: 1; overflow-x: hidden; }
#rows > .datatable--cursor { background: $primary 25%; text-style: none; }
#rows > .datatable--header { background: $background; text-style: none; }
#said { height: auto; max-height: 2; text-style: bold; }
#filter { height: 1; border: none; padding: 0; display: none; background: $panel; }
#filter.shown { display: block; }
"""


class Arrived(Message):
    """News came, in another thread."""

    def __init__(self, news: News) -> None:
        self.news = news
        super().__init__()


class Top(App[None]):
    """The screen. All names on it were chosen by the program: none is ever taken for markup or a terminal's commands."""

    CSS = _CSS
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(f"{view[0]},{number}", f"view('{view}')", view, show=False) for number, view in enumerate(VIEWS, 1)),
        Binding("tab", "next_view", "next view", show=False, priority=True),
        Binding("s", "sort", "Sort"),
        Binding("S", "reverse", "reverse", show=False),
        Binding("o", "own", "Own or all"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("enter", "narrow", "only this", show=False),
        Binding("escape,backspace", "widen", "all", show=False),
        Binding("p,space", "pause", "Pause", key_display="p"),
        Binding("e", "exact", "Exact calls, 5 s"),
        Binding("d", "theme", "dark/light", show=False),
        Binding("question_mark,h,f1", "help", "Help", key_display="?"),
        Binding("q,ctrl+c", "quit", "Quit", priority=False, key_display="q"),
    ]

    def __init__(self, source: Source, first: Snapshot | Said | None = None, ascii_only: bool = False) -> None:
        """`first`: what is shown until something comes."""
        super().__init__()
        self._source, self._ascii = source, ascii_only
        self.snapshot = first if isinstance(first, Snapshot) else Snapshot()
        self._beginning = first.sentence if isinstance(first, Said) else ""
        self._latest: Snapshot | None = None  # that came while it is paused
        self.choice = Choice()
        self._keys: list[tuple[Any, ...]] = []
        self.ended: Ended | None = None
        self.saved: list[str] = []  # where exact calls are, a sentence each
        self.paused = False
        self._width = 0  # cells of the screen, once it is known

    # -- what there is -------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """The parts of the screen, from the top."""
        yield Static(id="head", markup=False)
        yield Static(id="findings", markup=False)
        yield Static(id="tabs", markup=False)
        yield Static(id="narrowed", markup=False)
        yield DataTable(id="rows", cursor_type="row", cell_padding=0, cursor_foreground_priority="renderable")
        yield Static(id="said", markup=False)
        yield Input(placeholder="show what has this in its name, module or file; Enter keeps it, Esc drops it", id="filter", select_on_focus=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to take pictures in."""
        self.query_one(DataTable).focus()
        self._say(self._beginning)
        self._draw()
        self._source.start(self._deliver)
        for number in (signal.SIGTERM, signal.SIGHUP):  # the terminal is put right
            asyncio.get_running_loop().add_signal_handler(number, self.exit)

    def _deliver(self, news: News) -> None:
        """Called in another thread."""
        self.post_message(Arrived(news))

    def on_unmount(self) -> None:
        """Nothing more is wanted."""
        self._source.close()

    def on_resize(self, event: events.Resize) -> None:
        """Lines are of the width of the screen."""
        self._width = event.size.width
        self._draw()

    @on(Arrived)
    def take(self, message: Arrived) -> None:
        """Show a picture, or say what happened."""
        news = message.news
        if isinstance(news, Said):
            self._say(news.sentence)
            if news.sentence.startswith(SAVED):
                self.saved.append(news.sentence)
        elif isinstance(news, Ended):
            self.ended = news
            self._say(f"{news.sentence}; this is the last picture")
            self._draw()
        elif self.paused:
            self._latest = news
        else:
            self._show(news)

    def _show(self, snapshot: Snapshot) -> None:
        if self._beginning:
            self._beginning = ""
            self._say("")
        self.snapshot = snapshot
        self._draw()

    # -- drawing -------------------------------------------------------------------

    def _draw(self) -> None:
        if not self._width:
            return
        width, choice = self._width, self.choice
        mark = "ENDED" if self.ended else "PAUSED" if self.paused else ""
        rows = picked(self.snapshot, choice)
        self._part("head").update(head(self.snapshot, choice, width, self._ascii, mark))
        self._part("findings").update(findings(self.snapshot, width))
        self._part("findings").display = bool(self.snapshot.findings) and not choice.is_narrowed
        self._part("tabs").update(tabs(choice, len(rows), width))
        self._part("narrowed").update(narrowed(self.snapshot, choice, width))
        self._part("narrowed").display = choice.is_narrowed
        self._fill(rows[:_SHOWN], width)

    def _fill(self, rows: list[dict[str, Any]], width: int) -> None:
        """The rows; the cursor stays on its own, or else where it is."""
        table = self._base.query_one(DataTable)
        at, top = table.cursor_row, table.scroll_y
        key = self._keys[at] if 0 <= at < len(self._keys) else None
        of_many = len({row["pid"] for row in self.snapshot.threads}) > 1
        lines = Lines(self.choice, self.snapshot.facts, width - 1, self._ascii, of_many)
        self._keys = [row["key"] for row in rows]
        table.clear(columns=True)
        table.add_column(lines.head(), width=width - 1)
        table.add_rows([(lines.line(row),) for row in rows])
        # The first row stays the first: it is what is looked at, until somebody moves away from it.
        table.move_cursor(row=self._keys.index(key) if at > 0 and key in self._keys else min(at, len(rows) - 1) if at > 0 else 0, scroll=False)
        table.scroll_to(y=top, animate=False, immediate=True)

    def _part(self, name: str) -> Static:
        return self._base.query_one(f"#{name}", Static)

    @property
    def _base(self) -> Any:
        return self.screen_stack[0]

    def _say(self, sentence: str) -> None:
        self._part("said").update(Text(text.clean(sentence)))

    def _choose(self, choice: Choice) -> None:
        if choice.view != self.choice.view:
            self._base.query_one(DataTable).move_cursor(row=0)
            self._keys = []
        self.choice = choice
        self._draw()

    # -- keys ----------------------------------------------------------------------

    def action_view(self, view: str) -> None:
        """Show another view."""
        self._choose(self.choice.seen_as(view))

    def action_next_view(self) -> None:
        """Show the next view."""
        self.action_view(VIEWS[(VIEWS.index(self.choice.view) + 1) % len(VIEWS)])

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._choose(self.choice.sorted_by_next())

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self._choose(replace(self.choice, backwards=not self.choice.backwards))

    def action_own(self) -> None:
        """Times of functions themselves, or with all that they call."""
        self._choose(replace(self.choice, own=not self.choice.own))

    def action_pause(self) -> None:
        """Keep this picture, or go on with the newest."""
        self.paused = not self.paused
        if not self.paused and self._latest is not None:
            self.snapshot, self._latest = self._latest, None
        self._draw()

    def action_filter(self) -> None:
        """Ask what rows should have in them."""
        field = self.query_one(Input)
        field.value = self.choice.text
        field.add_class("shown")
        field.focus()

    @on(Input.Changed)
    def _narrow_to_text(self, event: Input.Changed) -> None:
        if event.input.has_class("shown"):
            self._choose(replace(self.choice, text=event.value))

    @on(Input.Submitted)
    def _keep_text(self) -> None:
        self.query_one(Input).remove_class("shown")
        self.query_one(DataTable).focus()

    @on(DataTable.RowSelected)
    def action_narrow(self) -> None:
        """Of a thread its functions, of a function its lines."""
        at = self.query_one(DataTable).cursor_row
        if not 0 <= at < len(self._keys):
            return
        key = self._keys[at]
        if self.choice.view == "threads":
            self._choose(replace(self.choice, pid=key[0], tid=key[1], text="").seen_as("functions"))
        elif self.choice.view == "functions":
            self._choose(replace(self.choice, func_id=key[0], text="").seen_as("lines"))

    def action_widen(self) -> None:
        """Show everything again."""
        field = self.query_one(Input)
        if field.has_class("shown"):
            field.remove_class("shown")
            self.query_one(DataTable).focus()
        self._choose(self.choice.widened())

    def action_theme(self) -> None:
        """Dark on light, or light on dark."""
        self.theme = "textual-light" if self.theme == "textual-dark" else "textual-dark"

    def action_help(self) -> None:
        """Say what the keys and figures are."""
        self.push_screen(Help())

    def action_exact(self) -> None:
        """Record exact calls of what is shown for some seconds."""
        pids = self._chosen_pids()
        if self.ended:
            self._say("nothing is recorded any more")
        elif not pids:
            self._say("nothing is seen yet that could be recorded")
        elif len(pids) > _MOST_SAVED:
            self._say(f"{len(pids)} processes are shown, which is too many to record: choose one among the threads (t, then e on one of them)")
        else:
            directory = time.strftime("pytrace-%Y%m%d-%H%M%S")
            self._say(
                f"recording every call of process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))} for {_SAVED_S} s into {directory} ..."
            )
            self._source.save(pids, _SAVED_S, directory)

    def _chosen_pids(self) -> list[int]:
        living = {row["pid"] for row in self.snapshot.processes if not row["ended"] and row["python"]}
        if self.choice.pid is not None:
            living &= {self.choice.pid}
        elif self.choice.view == "threads" and len(living) > 1 and self._keys:
            living &= {self._keys[max(0, self.query_one(DataTable).cursor_row)][0]}
        return sorted(living)
