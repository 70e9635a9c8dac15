"""The live view: what its keys do and what is drawn, on made pictures; and that names can do nothing to it."""

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from pytrace_ebpf.trace.snapshot import SELF_TIMES, TIMES, Facts, Snapshot
from pytrace_ebpf.view.top.app import Arrived, Top
from pytrace_ebpf.view.top.feed import Connection, Ended, News, Said, line_of, parsed
from pytrace_ebpf.view.top.head import head
from pytrace_ebpf.view.top.picked import picked
from pytrace_ebpf.view.top.screen_lines import Lines
from pytrace_ebpf.view.top.selection import SORTS, VIEWS, Choice

S = 10**9
SIZES = ((80, 24), (200, 50))
HOSTILE = "\x1b[31mred\x1b[0m [bold]x[/bold] [/] [@click=app.quit]q[/] \x9b2J\r\n\u202e[link=http://x]"


def of(names: Sequence[str], values: Sequence[float]) -> dict[str, int]:
    return {name: round(value * S) for name, value in zip(names, values, strict=True)}


def thread(pid: int, tid: int, name: str, split: Sequence[float], **more: Any) -> dict[str, Any]:
    now = {
        "state": "blocked",
        "kind": "sleep",
        "syscall": "clock_nanosleep",
        "since_ns": 3 * S,
        "cpu": 1,
        "func_id": 1,
        "gil_held_ns": 0,
        "idle_ns": 0,
        "samples": 5,
    }
    return {"pid": pid, "tid": tid, "name": name, "ended": False, **of(TIMES, split), **now, **more}


def function(pid: int, tid: int, func_id: int, total: Sequence[float], own: Sequence[float], idle: float = 0) -> dict[str, Any]:
    times = of(TIMES, total) | of(SELF_TIMES, own) | of(("idle_ns", "self_idle_ns"), (idle, idle))
    return {"pid": pid, "tid": tid, "func_id": func_id, **times, "samples": 9}


NONE = (0.0,) * 5


def picture(seconds: float = 10, **more: Any) -> Snapshot:
    """Two processes: in one `serve` calls `compute` on two threads, in the other one sleeps."""
    given: dict[str, Any] = {
        "facts": Facts(99 * S, round(seconds * S), S, 200, 3000, 0, 0, S // 50, S // 99),
        "processes": [
            {"pid": 10, "command": "python app.py", "python": "3.11.2", "ended": False},
            {"pid": 20, "command": "python idle.py", "python": "3.12.1", "ended": False},
        ],
        "threads": [
            thread(10, 11, "worker-1", (6, 1, 3, 0, 0), state="on_cpu", kind="", syscall="", gil_held_ns=6 * S, func_id=2),
            thread(10, 12, "worker-2", (3, 0, 6, 1, 0), state="gil_wait", kind="gil", gil_held_ns=3 * S, func_id=2),
            thread(20, 20, "MainThread", (0, 0, 0, 10, 0), func_id=3, idle_ns=10 * S),
        ],
        "functions": [
            function(10, 11, 1, (6, 1, 3, 0, 0), (1, 0, 0, 0, 0)),
            function(10, 12, 1, (3, 0, 6, 1, 0), (0, 0, 0, 1, 0)),
            function(10, 11, 2, (5, 1, 3, 0, 0), (5, 1, 3, 0, 0)),
            function(10, 12, 2, (3, 0, 6, 0, 0), (3, 0, 6, 0, 0)),
            function(20, 20, 3, (0, 0, 0, 10, 0), (0, 0, 0, 10, 0), 10),
        ],
        "lines": [
            {"pid": 10, "tid": 11, "func_id": 2, "line": 44, **of(TIMES, (5, 1, 3, 0, 0)), "idle_ns": 0, "samples": 9},
            {"pid": 10, "tid": 11, "func_id": 1, "line": 17, **of(TIMES, (1, 0, 0, 0, 0)), "idle_ns": 0, "samples": 9},
        ],
        "waits": [
            {"pid": 10, "tid": 12, "kind": "gil", "syscall": "futex", "resource": "", "func_id": 2, "by_tid": 11,
             "wait_ns": 6 * S, "queue_ns": 0, "idle_ns": 0, "samples": 60},
            {"pid": 20, "tid": 20, "kind": "sleep", "syscall": "clock_nanosleep", "resource": "", "func_id": 3, "by_tid": 0,
             "wait_ns": 10 * S, "queue_ns": 0, "idle_ns": 10 * S, "samples": 2},
            {"pid": 10, "tid": 12, "kind": "net", "syscall": "recvfrom", "resource": "postgres 10.0.0.5:5432", "func_id": 2, "by_tid": 0,
             "wait_ns": S // 2, "queue_ns": S // 4, "idle_ns": 0, "samples": 5},
            {"pid": 10, "tid": 11, "kind": "poll", "syscall": "poll", "resource": "postgres 10.0.0.5:5432", "func_id": 1, "by_tid": 0,
             "wait_ns": S // 4, "queue_ns": 0, "idle_ns": 0, "samples": 3},
        ],
        "requests": [
            {"pid": 10, "tid": 11, "func_id": 1, **of(TIMES, (5, 1, 3, 0, 0)), "idle_ns": 0, "samples": 9},
            {"pid": 10, "tid": 12, "func_id": 1, **of(TIMES, (3, 0, 6, 0, 0)), "idle_ns": 0, "samples": 9},
        ],
        "names": {1: ("serve", "app", "/srv/app.py", 10), 2: ("compute", "app", "/srv/app.py", 40), 3: ("wait", "idle", "/srv/idle.py", 3)},
    }  # fmt: skip
    return Snapshot(**given | more)


class Made:
    """A source that delivers what a test says."""

    def __init__(self) -> None:
        self.saved: list[tuple[list[int], int, str]] = []
        self.closed = False

    def start(self, deliver: Callable[[News], None]) -> None:
        self.deliver = deliver

    def save(self, pids: Sequence[int], seconds: int, directory: str) -> None:
        self.saved.append((list(pids), seconds, directory))

    def close(self) -> None:
        self.closed = True


def play(
    steps: Callable[[Top, "Pilot[None]"], Awaitable[None]], first: Snapshot | Said | None = None, size: tuple[int, int] = (100, 30)
) -> tuple[Top, Made]:
    """Run the view without a terminal while `steps` presses its keys."""
    source = Made()
    app = Top(source, first or picture())

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await steps(app, pilot)

    asyncio.run(run())
    return app, source


def rows(app: Top) -> list[str]:
    table = app.screen_stack[0].query_one(DataTable)
    return [table.get_row_at(at)[0].plain for at in range(table.row_count)]


def said(app: Top, part: str = "said") -> str:
    return str(app.screen_stack[0].query_one(f"#{part}", Static).render())


def on_screen(app: Top) -> list[str]:
    return ["".join(segment.text for segment in line) for line in app.screen._compositor.render_strips()]


def test_findings_stand_above_the_rows_of_everything_alone() -> None:
    found = tuple(f"`handle` (shop.py:{number}) waits [bold]{HOSTILE}" for number in range(5))

    async def steps(app: Top, pilot: "Pilot[None]") -> None:
        lines = on_screen(app)
        at = [number for number, line in enumerate(lines) if "`handle`" in line]
        assert len(at) == 3 and lines[at[0]].startswith("1. `handle` (shop.py:0) waits [bold]") and max(len(line) for line in lines) <= 80
        assert at[-1] < next(number for number, line in enumerate(lines) if "functions" in line.lower())
        await pilot.press("t", "enter")
        assert not any("`handle`" in line for line in on_screen(app))

    play(steps, picture(findings=found), size=(80, 24))


# -- rows, which need no screen ----------------------------------------------------


def names(choice: Choice, snapshot: Snapshot | None = None) -> list[str]:
    return [row["name"] for row in picked(snapshot or picture(), choice)]


def test_functions_add_up_over_threads_and_those_that_wait_for_work_come_last() -> None:
    first, *rest = picked(picture(), Choice())
    assert (first["name"], first["work_ns"], first["all_ns"], first["tids"]) == ("compute", 18 * S, 18 * S, {11, 12})
    assert [(row["name"], row["work_ns"]) for row in rest] == [("serve", 2 * S), ("wait", 0)]
    blocks = picture(functions=[function(10, 11, 1, (1, 0, 0, 0, 0), (1, 0, 0, 0, 0)), function(10, 12, 2, (0, 0, 0, 9, 0), (0, 0, 0, 9, 0), 1)])
    assert names(Choice(), blocks) == ["compute", "serve"], "what blocks comes before what computes less"
    for view in VIEWS:
        assert SORTS[view][0] == "work"
    assert names(Choice(own=False)) == ["serve", "compute", "wait"]
    assert names(Choice(sort="blocked")) == ["wait", "serve", "compute"]
    assert names(Choice(sort="blocked", backwards=True)) == ["compute", "serve", "wait"]
    assert names(Choice(sort="name")) == ["compute", "serve", "wait"]


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        (Choice(text="IDLE.py"), ["wait"]),
        (Choice(text="comp"), ["compute"]),
        (Choice(pid=20), ["wait"]),
        (Choice(pid=10, tid=12), ["compute", "serve"]),
        (Choice(view="threads", text="gil"), ["worker-2"]),
        (Choice(view="threads", text="idle.py"), ["MainThread"]),
        (Choice(view="lines", func_id=2), ["compute"]),
        (Choice(view="waits", text="worker-1"), ["compute"]),
        (Choice(text="nothing has this"), []),
    ],
)
def test_rows_are_narrowed_to_what_was_chosen(choice: Choice, found: list[str]) -> None:
    assert names(choice) == found


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("width", [20, 60, 80, 92, 120, 200])
def test_every_line_is_as_wide_as_the_screen(view: str, width: int) -> None:
    for sort in SORTS[view]:
        choice = Choice(view=view, sort=sort)
        lines = Lines(choice, picture().facts, width)
        assert cell_len(lines.head().plain) == width
        assert all(cell_len(lines.line(row).plain) == width for row in picked(picture(), choice))


def test_a_bar_is_full_for_all_the_time_of_one_thread() -> None:
    lines = Lines(Choice(view="threads"), picture().facts, 200)
    bars = [lines.line(row).plain[:24] for row in picked(picture(), Choice(view="threads"))]
    assert bars == ["█" * 15 + "▒" * 2 + "×" * 7, "█" * 7 + "×" * 15 + "·" * 2, "·" * 24]
    plain = Lines(Choice(view="threads"), picture().facts, 200, ascii_only=True)
    assert all(plain.line(row).plain[:24].isascii() for row in picked(picture(), Choice(view="threads")))


def test_the_head_says_who_has_the_gil_and_what_looking_costs() -> None:
    of_what, split, gil, cost = head(picture(), Choice(), 120, False).plain.split("\n")
    assert "2 processes" in of_what and of_what.endswith("last 10 s")
    assert "on CPU 30 %" in split and "GIL wait 30 %" in split and "blocked 37 %" in split and split.endswith("3 threads")
    assert gil == "GIL of 10 held 90 %, 0.9 threads wait for it; worker-1 60 %, worker-2 30 %"
    assert cost == "99 Hz  200 samples/s  3,000 switches/s  0 lost  tracer 2.0 % of a core"
    lost = picture(facts=Facts(99 * S, 10 * S, S, lost_ever=12))
    assert "12 LOST" in head(lost, Choice(), 80, False).plain and "PAUSED" in head(lost, Choice(), 80, False, "PAUSED").plain


# -- keys --------------------------------------------------------------------------


def test_keys_show_the_views() -> None:
    seen: list[tuple[str, list[str]]] = []

    async def steps(app: Top, pilot: "Pilot[None]") -> None:
        for key in ("t", "l", "w", "r", "c", "f", "2", "tab"):
            await pilot.press(key)
            seen.append((app.choice.view, rows(app)))

    play(steps)
    assert [view for view, _ in seen] == ["threads", "lines", "waits", "requests", "clients", "functions", "threads", "lines"]
    threads, lines, waits, requests, clients, functions = (shown for _, shown in seen[:6])
    assert "worker-1" in threads[0] and "10/11" in threads[0] and "GIL" in threads[1] and "sleep 3.00s" in threads[2]
    assert "/srv/app.py:44" in lines[0] and "by worker-1" in waits[0] and "sleep" in waits[-1]
    assert [line.split()[-3:-1] for line in requests] == [["2", "serve"]]
    assert len(clients) == 1 and "postgres 10.0.0.5:5432  compute" in clients[0], "all of a server in one row"
    assert [line.split()[-2] for line in functions] == ["compute", "serve", "wait"]


def test_keys_sort_and_turn_the_order() -> None:
    orders: list[tuple[str, str]] = []

    async def steps(app: Top, pilot: "Pilot[None]") -> None:
        for key in ("s", "s", "s", "s", "s", "s", "S", "s", "o"):
            await pilot.press(key)
            orders.append((app.choice.sort, rows(app)[0].split()[-2]))

        await pilot.press("s", "s", "t", "s", "w", "f")
        assert (app.choice.view, app.choice.sort, app.choice.own) == ("functions", "run queue", False), "each view is sorted as it was"

    play(steps)
    assert [sort for sort, _ in orders[:6]] == [*SORTS["functions"][1:]]
    assert [first for _, first in orders] == ["compute", "compute", "compute", "wait", "compute", "compute", "wait", "compute", "serve"]


def test_a_filter_narrows_while_it_is_typed_and_escape_drops_it() -> None:
    async def steps(app: Top, pilot: "Pilot[None]") -> None:
        await pilot.press("slash", *"comp")
        assert len(rows(app)) == 1 and app.query_one(Input).has_focus
        await pilot.press("enter")
        assert len(rows(app)) == 1 and not app.query_one(Input).display and app.query_one(DataTable).has_focus
        assert "'comp'" in said(app, "narrowed")
        await pilot.press("t")
        assert app.choice.text == "comp", "it stays with another view"
        await pilot.press("escape", "f")
        assert len(rows(app)) == 3 and not said(app, "narrowed")
        await pilot.press("slash", *"qtf")
        assert app.choice.text == "qtf" and app.choice.view == "functions" and rows(app) == []
        await pilot.press("escape")
        assert len(rows(app)) == 3

    play(steps)


def test_enter_goes_from_a_thread_to_its_functions_and_their_lines() -> None:
    async def steps(app: Top, pilot: "Pilot[None]") -> None:
        await pilot.press("t", "enter")
        assert (app.choice.view, app.choice.tid, len(rows(app))) == ("functions", 11, 2)
        assert "thread worker-1 11" in said(app, "narrowed")
        await pilot.press("enter")
        assert app.choice.view == "lines" and [line.split()[-1] for line in rows(app)] == ["/srv/app.py:44"]
        await pilot.press("escape")
        assert len(rows(app)) == 2 and not app.choice.is_narrowed

    play(steps)


def test_pausing_keeps_the_picture_and_going_on_shows_the_newest() -> None:
    async def steps(app: Top, pilot: "Pilot[None]") -> None:
        await pilot.press("p")
        for seconds in (20, 30):
            app.post_message(Arrived(picture(seconds)))
        await pilot.pause()
        assert "last 10 s" in said(app, "head") and "PAUSED" in said(app, "head")
        await pilot.press("p")
        assert "last 30 s" in said(app, "head") and "PAUSED" not in said(app, "head")

    play(steps)


def test_the_cursor_stays_on_its_row_while_the_order_changes() -> None:
    async def steps(app: Top, pilot: "Pilot[None]") -> None:
        await pilot.press("down")
        assert "serve" in rows(app)[app.query_one(DataTable).cursor_row]
        await pilot.press("s", "s", "s", "s")  # by blocked
        assert "serve" in rows(app)[app.query_one(DataTable).cursor_row]
        many = [function(10, 11, 100 + n, (1, 0, 0, 0, 0), (n + 2, 0, 0, 0, 0)) for n in range(100)]
        app.post_message(Arrived(picture(functions=[*picture().functions, *many])))
        await pilot.pause()
        assert "serve" in rows(app)[app.query_one(DataTable).cursor_row]
        app.post_message(Arrived(picture(functions=[])))
        await pilot.pause()
        await pilot.press("enter", "down")
        assert rows(app) == []

    play(steps)


@pytest.mark.parametrize("size", SIZES)
def test_the_screen_is_filled_and_keeps_its_last_line_at_any_size(size: tuple[int, int]) -> None:
    async def steps(app: Top, pilot: "Pilot[None]") -> None:
        other = SIZES[1 - SIZES.index(size)]
        for columns, lines in (size, other, (30, 8), size):
            await pilot.resize_terminal(columns, lines)
            await pilot.pause()
            shown = on_screen(app)
            assert len(shown) == lines and all(cell_len(line) == columns for line in shown)
            assert shown[0].startswith("pytrace-ebpf top") and "Sort" in shown[-1]
            if (columns, lines) == size:
                assert any("compute" in line for line in shown) and "Quit" in shown[-1]

    play(steps, size=size)


def test_exact_calls_are_asked_for_what_is_shown() -> None:
    async def steps(app: Top, pilot: "Pilot[None]") -> None:
        await pilot.press("e")
        assert "process 10, 20 for 5 s" in said(app).replace("processes", "process")
        await pilot.press("t", "enter", "e")
        app.post_message(Arrived(Said("exact calls are in pytrace-x: pytrace-ebpf report pytrace-x")))
        await pilot.pause()
        assert "pytrace-ebpf report pytrace-x" in said(app)

    app, source = play(steps)
    assert [(pids, seconds) for pids, seconds, _ in source.saved] == [([10, 20], 5), ([10], 5)] and source.closed
    assert all(directory.startswith("pytrace-2") for *_, directory in source.saved)
    assert app.saved == ["exact calls are in pytrace-x: pytrace-ebpf report pytrace-x"]


def test_of_many_processes_that_of_the_thread_under_the_cursor_is_recorded_exactly() -> None:
    processes = [{"pid": pid, "command": "python", "python": "3.11.2", "ended": False} for pid in range(30)]

    async def steps(app: Top, pilot: "Pilot[None]") -> None:
        await pilot.press("e")
        assert "too many" in said(app)
        await pilot.press("t", "e")

    _, source = play(steps, picture(processes=processes))
    assert [pids for pids, *_ in source.saved] == [[10]]


def test_what_has_ended_is_said_and_its_last_picture_stays() -> None:
    async def steps(app: Top, pilot: "Pilot[None]") -> None:
        app.post_message(Arrived(Ended("what was watched has ended")))
        await pilot.pause()
        assert "has ended; this is the last picture" in said(app) and "ENDED" in said(app, "head") and len(rows(app)) == 3
        await pilot.press("t", "e")
        assert "nothing is recorded any more" in said(app) and len(rows(app)) == 3

    app, source = play(steps)
    assert app.ended == Ended("what was watched has ended") and source.saved == []


def test_the_beginning_says_what_it_waits_for() -> None:
    async def steps(app: Top, pilot: "Pilot[None]") -> None:
        assert said(app) == "sampling 1 process"
        await pilot.press("t", "l", "w", "f", "e")
        app.post_message(Arrived(picture()))
        await pilot.pause()
        assert said(app) == "" and len(rows(app)) == 3

    play(steps, Said("sampling 1 process"))


def test_help_and_colours_come_and_go_and_q_and_a_signal_quit() -> None:
    async def steps(app: Top, pilot: "Pilot[None]") -> None:
        await pilot.press("question_mark")
        assert any("pause: keep this picture" in line for line in on_screen(app))
        app.post_message(Arrived(picture(20)))
        await pilot.pause()
        assert "last 20 s" in said(app, "head"), "pictures come in meanwhile"
        await pilot.press("q")
        assert app.is_running and len(app.screen_stack) == 1, "q closes the help"
        dark = app.theme
        await pilot.press("d")
        assert app.theme != dark
        signal.raise_signal(signal.SIGTERM)
        await pilot.pause()

    app, source = play(steps)
    assert source.closed and app.return_code == 0


# -- what a target chose -----------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_names_are_neither_markup_nor_commands_of_a_terminal(size: tuple[int, int]) -> None:
    threads = [row | {"name": HOSTILE, "kind": row["kind"] and HOSTILE, "syscall": HOSTILE} for row in picture().threads]
    waits = [row | {"kind": HOSTILE, "syscall": HOSTILE, "resource": HOSTILE} for row in picture().waits]
    forged = picture(
        threads=threads, waits=waits, names=dict.fromkeys((1, 2, 3), (HOSTILE, HOSTILE, HOSTILE, 1)),
        processes=[{"pid": 10, "command": HOSTILE, "python": HOSTILE, "ended": False}],
    )  # fmt: skip

    async def steps(app: Top, pilot: "Pilot[None]") -> None:
        app.post_message(Arrived(Said(HOSTILE)))
        for key in ("t", "enter", "enter", "w", "l", "f", "question_mark", "escape"):
            await pilot.press(key)
            shown = on_screen(app)
            assert [line for line in shown if not line.isprintable() or cell_len(line) != size[0]] == []
        await pilot.press("escape", "t")
        assert "[31mred" in rows(app)[0] and "[/]" in said(app) and "[bold]" in said(app, "head"), "as it is, but for what is no character"
        styles = [segment.style for line in app.screen._compositor.render_strips()[:-1] for segment in line if segment.style]
        assert not [style for style in styles if style.link or "@click" in style.meta], "the last line, of keys, is clicked"
        await pilot.press("slash", *"[bold]")
        assert len(rows(app)) == 3 and "[bold]" in said(app, "narrowed")

    play(steps, forged, size=size)


# -- the connection ----------------------------------------------------------------


@pytest.mark.parametrize("news", [picture(), Snapshot(), Said("x\ny"), Ended("gone", 3)])
def test_news_come_through_a_line_as_they_were(news: News) -> None:
    assert "\n" not in line_of(news) and parsed(line_of(news)) == news


def test_a_connection_delivers_what_comes_and_says_when_nothing_more_can() -> None:
    ours, theirs = socket.socketpair()
    source, came = Connection(ours), list[News]()
    theirs.sendall(f"{line_of(Said('begun'))}\n{line_of(picture())}\n".encode())
    assert source.first() == Said("begun")
    done = asyncio.run(_delivered(source, came, theirs))
    assert came == [picture(), Ended("the process that records has ended", 4)] and done


async def _delivered(source: Connection, came: list[News], other: socket.socket) -> bool:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def take(news: News) -> None:
        came.append(news)
        if isinstance(news, Ended):
            loop.call_soon_threadsafe(ended.set)

    source.start(take)
    source.save([1, 2], 5, "somewhere")
    assert other.recv(1000) == b'{"save": {"pids": [1, 2], "seconds": 5, "directory": "somewhere"}}\n'
    other.close()
    await ended.wait()
    source.close()
    return True


@pytest.mark.parametrize("line", ["", "x", "{}", '{"facts": 1}', '{"said": "x"', "[1]", '{"ended": "x"}'])
def test_a_line_that_is_none_of_ours_is_refused(line: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        parsed(line)
