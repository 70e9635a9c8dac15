"""The rows of a view as lines of exactly the width of the screen: figures of fixed widths, and names in what is left."""

from collections.abc import Callable, Mapping
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from pytrace_ebpf.trace.snapshot import Facts
from pytrace_ebpf.trace.states import BY_NAME, STATES
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import NARROW
from pytrace_ebpf.view.top.selection import Choice

_WIDE = 140  # cells from which there is room for every figure
_STATE = {"": ("", "dim"), "off_cpu": ("off CPU", "")} | {state.name: (state.title, state.colour) for state in STATES}
_QUEUE = BY_NAME["runq_wait"]
_LEFT = ("state", "kind", "system call")  # columns of words
_KIND = {"lock": "lock", "poll": "poll", "sleep": "sleep", "net": "network", "other": "other"}

Cell = Callable[[dict[str, Any]], Text]
Figure = tuple[int, str, str, Cell]  # cells, title, what it is sorted by, how it looks


class Lines:
    """The lines of one view in so many cells, for the time that `facts` are of."""

    def __init__(self, choice: Choice, facts: Facts, width: int, ascii_only: bool = False, of_many: bool = False) -> None:
        """`of_many`: threads are of several processes."""
        self._choice, self._ns, self._width, self._ascii, self._many = choice, max(facts.seconds_ns, 1), width, ascii_only, of_many
        self._figures = _FIGURES[choice.view](self)
        self._room = max(0, width - sum(cells + 1 for cells, *_ in self._figures) - 1)

    def head(self) -> Text:
        """The titles; that by which the rows are sorted is marked."""
        out = Text()
        mark = ("v" if self._ascii else "▼") if not self._choice.backwards else ("^" if self._ascii else "▲")
        for cells, title, sort, _ in self._figures:
            sorted_by = sort == self._choice.sort
            shown = (
                (title + mark if sorted_by else title)[-cells:] if cell_len(title) < cells else (title[: cells - 1] + mark if sorted_by else title)
            )
            out.append(shown.ljust(cells) if title in _LEFT else shown.rjust(cells), "bold underline" if sorted_by else "bold").append(" ")
        name = {
            "threads": "thread, and where it is",
            "waits": "waits in, for or until",
            "requests": "answered by",
            "clients": "waited for, and where most",
        }.get(self._choice.view, self._choice.view[:-1])
        sorted_by = self._choice.sort == "name"
        out.append(" " + name + (mark if sorted_by else ""), "bold underline" if sorted_by else "bold")
        return _exactly(out, self._width)

    def line(self, row: dict[str, Any]) -> Text:
        """One row."""
        out = Text()
        for cells, _, _, cell in self._figures:
            figure = cell(row)
            figure.truncate(cells)
            out.append(" " * max(0, cells - figure.cell_len) if figure.justify == "right" else "").append_text(figure)
            out.append(" " * max(0, cells - figure.cell_len) if figure.justify != "right" else "").append(" ")
        out.append(" ").append_text(_NAMES[self._choice.view](self, row, self._room))
        return _exactly(out, self._width)

    # -- figures -------------------------------------------------------------------

    def share(self, column: str, style: str = "") -> Cell:
        """A time as a share of that of one thread."""

        def cell(row: dict[str, Any]) -> Text:
            said = text.percent(row.get(column, 0), self._ns)
            return Text("" if said in ("0 %", text.NOTHING) else said, "dim" if said == "<0.1 %" else style, justify="right")

        return cell

    def bar(self, cells: int) -> Cell:
        """The split, `cells` long for one thread's time."""
        least = self._ns / cells / 2
        return lambda row: text.bar({"unknown_ns": 0} | row, cells, self._ascii, longest=self._ns) if row["all_ns"] >= least else Text()

    @property
    def wide(self) -> int:
        """0 where there is little room, 1, 2 for every figure."""
        return (self._width >= NARROW) + (self._width >= _WIDE)

    def name_and_place(self, row: Mapping[str, Any], room: int) -> Text:
        """A function and as much of its place as there is room for."""
        file, line = row["place"]
        return (
            text.function(row["name"], file, line, room) if file else Text(text.fit(row["name"], room), "dim" if row["name"].startswith("(") else "")
        )

    def thread(self, row: dict[str, Any], room: int) -> Text:
        """A thread's name and number, and its function."""
        who = f"{row['pid']}/{row['tid']}" if self._many else str(row["tid"])
        name_room = min(max(20, room // 3), 40)
        name = text.fit(row["name"], name_room - len(who) - 1)
        out = Text.assemble((name, "dim" if row["ended"] else "bold"), " ", (who, "dim"))
        out.pad_right(max(0, name_room - out.cell_len))
        left = room - out.cell_len - 2
        return out.append("  ").append_text(self.name_and_place({"name": row["function"], "place": row["place"]}, left)) if left > 8 else out

    def wait(self, row: dict[str, Any], room: int) -> Text:
        """The function that waits, and what for or, where that is not known, who ends it."""
        by = f"  by {text.clean(row['by'])}" if row["by"] else ""
        by = f"  for {text.clean(row['resource'])}" if row["resource"] else by
        by = by if cell_len(by) + 8 < room else ""
        out = self.name_and_place(row, room - cell_len(by))
        return out.append(by, "dim")

    def client(self, row: dict[str, Any], room: int) -> Text:
        """What is waited for, and the function that does so most."""
        out = Text(text.fit(row["name"], room))
        left = room - out.cell_len - 2
        return out.append("  ").append_text(self.name_and_place({"name": row["function"], "place": row["place"]}, left)) if left > 8 else out

    def state(self, row: dict[str, Any]) -> Text:
        """What a thread is in at the moment, and for how long."""
        if row["ended"]:
            return Text("ended", "dim")
        label, colour = _STATE.get(row["state"], ("", "dim"))
        kind = _KIND.get(row["kind"], row["kind"]) if row["state"] == "blocked" else ""
        since = text.duration(row["since_ns"]) if row["state"] and row["state"] != "on_cpu" else ""
        return Text(" ".join(filter(None, (text.clean(kind) or label, since))), colour)


_THREADS: Figure = (7, "threads", "threads", lambda row: Text(str(row["threads"]), justify="right"))


def _times(lines: Lines) -> list[Figure]:
    bar = (8, 16, 24)[lines.wide]
    figures = [
        (bar, "", "", lines.bar(bar)),
        (6, "work", "work", lines.share("work_ns", "bold")),
        *((max(6, len(state.title) + 1), state.title, state.label, lines.share(f"{state.name}_ns")) for state in STATES),
    ]
    return [*figures, (6, "all", "all", lines.share("all_ns"))] if lines.wide else figures


def _of_requests(lines: Lines) -> list[Figure]:
    return [*_times(lines), _THREADS]


def _of_threads(lines: Lines) -> list[Figure]:
    bar, *times = _times(lines)
    return [
        bar,
        *(times[:-1] if lines.wide == 2 else times[:1]),  # the four of a thread are all its time
        (6, "holds", "GIL held", lines.share("gil_held_ns")),
        (5, "core", "core", lambda row: Text(str(row["cpu"]) if row["cpu"] >= 0 else "", justify="right")),
        (14, "state", "", lines.state),
    ]


def _times_of_waits(lines: Lines) -> list[Figure]:
    bar = (8, 16, 24)[lines.wide]
    return [
        (bar, "", "", lines.bar(bar)),
        (6, "work", "work", lines.share("work_ns", "bold")),
        (7, "time", "all", lines.share("all_ns")),
        *([(7, "waited", "waited", lines.share("wait_ns")), (7, _QUEUE.title, _QUEUE.label, lines.share("queue_ns"))] if lines.wide else []),
        (7, "samples", "times", lambda row: Text(text.count(row["samples"], 7), justify="right")),
    ]


def _of_clients(lines: Lines) -> list[Figure]:
    return [*_times_of_waits(lines), _THREADS]


def _of_waits(lines: Lines) -> list[Figure]:
    return [
        *_times_of_waits(lines),
        (10, "kind", "kind", lambda row: Text(text.fit(row["kind"], 10))),
        *([(16, "system call", "", lambda row: Text(text.fit(row["syscall"], 16), "dim"))] if lines.wide == 2 else []),
    ]


_FIGURES: dict[str, Callable[[Lines], list[Figure]]] = {
    "functions": _times, "lines": _times, "threads": _of_threads, "waits": _of_waits, "requests": _of_requests, "clients": _of_clients,
}  # fmt: skip
_NAMES: dict[str, Callable[[Lines, dict[str, Any], int], Text]] = {
    "functions": Lines.name_and_place, "lines": Lines.name_and_place, "threads": Lines.thread, "waits": Lines.wait, "requests": Lines.name_and_place, "clients": Lines.client,
}  # fmt: skip


def _exactly(line: Text, width: int) -> Text:
    line.truncate(width, pad=True)
    line.no_wrap = True
    return line
