"""What `run` and `attach` print while they record: what begins, how it goes on and what it costs, and what came of it."""

import argparse
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.options import option_rules
from pytrace_ebpf.printable import printable
from pytrace_ebpf.record import waiting
from pytrace_ebpf.record.flight.conditions import OF_CALLS
from pytrace_ebpf.trace.sampled import SAMPLES_ALONE
from pytrace_ebpf.units import plural
from pytrace_ebpf.view import ended

if TYPE_CHECKING:  # they need packages that a mere reader of experiments may not have
    from pytrace_ebpf.record.process.targets import Begun
    from pytrace_ebpf.record.session import Session, Status

BUDGET = "--budget bounds it"
_SENTENCES = 3  # of processes without calls: more of them say the same
_STEP_S, _CLEAR = 1.0, "\r\x1b[K"  # of a line that is drawn anew; what leaves nothing of it
_MUCH, _LITTLE = 0.2, 0.05  # of the program's CPU time, which of one that does little means little; of a core

_ticks = threading.Event()  # whether such a line is there


@contextmanager
def ticking(what: str, quiet: bool) -> Iterator[None]:
    """On a terminal show `what` is done in here, for how many seconds already and what is waited for: each second anew, whatever this thread waits for."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    done, began = threading.Event(), time.monotonic()

    def tick() -> None:
        while not done.wait(_STEP_S):
            waits = "".join(f"; {each}" for each in waiting.now()[:1])
            print(f"{_CLEAR}{what}, {time.monotonic() - began:.0f} s{printable(waits)}", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=tick, name="ticking", daemon=True)
    thread.start()
    _ticks.set()
    try:
        yield
    finally:
        done.set()
        thread.join()
        _ticks.clear()
        print(_CLEAR, end="", file=sys.stderr, flush=True)


def beginning(begun: Sequence["Begun"], said: Sequence[str], quiet: bool) -> None:
    """Print what is traced by which source, what is not, and, in colour on a terminal, what that costs the program."""
    if not quiet:
        from rich.console import Console

        console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
        for (source, warning), pids in _by_source(begun).items():
            console.print(printable(f"tracing process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))} by {source}"))
            if warning:
                console.print(printable(warning), style="yellow")
        for sentence in said:
            console.print(printable(sentence), style="yellow")


def _by_source(begun: Sequence["Begun"]) -> dict[tuple[str, str], list[int]]:
    """Processes of which the same is to be said."""
    found: dict[tuple[str, str], list[int]] = {}
    for each in begun:
        found.setdefault((each.source, each.warning), []).append(each.pid)
    return found


@contextmanager
def progress(quiet: bool, hint: str, cheaper: str = BUDGET) -> Iterator[Callable[["Status"], None]]:
    """Show how the recording goes on stderr: one changing line in a terminal, else a plain line every ten seconds.

    `cheaper`: what to do where tracing costs much.
    """
    if quiet:
        yield lambda status: None
    elif sys.stderr.isatty():
        yield from _changing_line(hint, cheaper)
    else:
        print(hint, file=sys.stderr, flush=True)
        yield _every_ten_seconds(cheaper)


def _changing_line(hint: str, cheaper: str) -> Iterator[Callable[["Status"], None]]:
    from rich.console import Console  # here: a recording that shows no line need not wait for it
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    latest: list[tuple[Status, float]] = []

    def now() -> Text:
        """Drawn by a thread of its own: the seconds go on while this one writes, or waits for a core."""
        if not latest:
            return Text(hint, style="dim")
        status, at = latest[-1]
        moved = line(replace(status, seconds=status.seconds + time.monotonic() - at))
        return Text.assemble(moved, (cost(status, cheaper), "yellow" if is_dear(status) else ""), ("  " + hint, "dim"))

    with Live(get_renderable=now, console=console, transient=True) as live:

        def show(status: "Status") -> None:
            for sentence in status.said:
                console.print(Text(printable(sentence)))
            latest[:] = [(status, time.monotonic())]
            live.refresh()

        yield show


def line(status: "Status") -> str:
    """One line of progress."""
    lost = f"{status.lost:,} LOST" if status.lost else "0 lost"
    recorded = [f"{status.calls:>12,} call events"] if status.calls or not status.samples else []
    recorded += [f"{status.samples:>10,} samples"] if status.samples else []
    recorded += [f"{status.sched:>10,} scheduling events"] if status.sched or not status.samples else []
    return "  ".join((f"{status.seconds:6.1f} s", *recorded, lost))


def cheaper(args: argparse.Namespace) -> str:
    """What to do where this recording costs much."""
    if option_rules.source(args) == SAMPLES_ALONE:
        return "a lower --sample rate costs less"
    return BUDGET if not any(condition.word in OF_CALLS for condition in args.trigger) else "--include and --exclude leave calls out"


def is_dear(status: "Status") -> bool:
    """Whether tracing costs so much at the moment that the figures are distorted."""
    return status.price is not None and status.price.share > _MUCH and status.price.cores > _LITTLE


def cost(status: "Status", cheaper: str = BUDGET) -> str:
    """What tracing costs at the moment: a tail for a line of progress, "" where nothing is known of it."""
    if status.price is None:
        return ""
    little = status.price.share > _MUCH and not is_dear(status)
    share = (
        "under 5 % of a core" if little else f"{status.price.share * 100:.0f} % of the program's CPU time, {status.price.cores * 100:.0f} % of a core"
    )
    left_out = f", {plural(status.price.left_out, 'function')} left out" if status.price.left_out else ""
    left_out = ", paused" if status.price.paused else left_out
    dear = f"; {cheaper}" if is_dear(status) and not status.price.bounded else ""
    return f"  tracing takes {share}{left_out}{dear}"


def closing(session: "Session", quiet: bool, started: bool = False) -> None:
    """Print what was recorded, why it ended early if it did, how to look at it, and how the processes ended. Raises HostError where the trace could not be written.

    `started`: the program was, so its end is passed on, and said only where the kernel killed a process for want of memory.
    """
    status, traces = session.status(), session.traces
    if not quiet:
        say(line(status))
        for sentence in status.said:
            say(sentence)
    if session.failed:
        raise HostError(f"{session.ended_early or 'not every trace could be written'}; what was recorded until then is in {_listed(traces)}")
    if not quiet:
        if status.waited_ns:
            say(f"the program waited {status.waited_ns / 1e9:.2f} s for the tracer to read what it wrote")
        for sentence in status.unserved[:_SENTENCES]:
            say(sentence)
        if session.ended_early:
            say(f"the recording ended early: {session.ended_early}")
        for trace in traces[-1:]:
            say(where(trace))
    for sentence in ended.sentences([row for row in session.ended if row["oom_killed"] or not started], _SENTENCES):
        if not quiet or "out of memory" in sentence:
            say(sentence)


def where(trace: Path) -> str:
    """Where a trace is, and how to look at it."""
    return f"trace in {trace}    look at it: pytrace-ebpf report {shlex.quote(str(trace))}"


def _listed(traces: Sequence[Path]) -> str:
    return ", ".join(map(str, traces)) or "no trace"


def say(line: str) -> None:
    """Print a line on stderr in which a traced program's words cannot move the cursor."""
    print((_CLEAR if _ticks.is_set() else "") + printable(line), file=sys.stderr, flush=True)


def _every_ten_seconds(cheaper: str) -> Callable[["Status"], None]:
    before = 0.0

    def show(status: "Status") -> None:
        nonlocal before
        for sentence in status.said:
            say(sentence)
        if status.seconds - before >= 10:
            before = status.seconds
            print(line(status) + cost(status, cheaper), file=sys.stderr, flush=True)

    return show
