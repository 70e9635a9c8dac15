"""`report --what-if` as a terminal shows it: how long requests, calls or the run would take, and what that assumes."""

import textwrap
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from rich.text import Text

from pytrace_ebpf.analyze.quantiles import nearest_ranks
from pytrace_ebpf.analyze.what_if.change import CORES, FUNCTION, GIL, LOCK, Change, parsed
from pytrace_ebpf.analyze.what_if.what_if import what_if
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import PROSE

_QUANTILES = {"p50_ns": 0.5, "p99_ns": 0.99}
_ORDER = "threads wait for each other and for the GIL in the order that was recorded, and for cores as long as they did"
_SIMULATED = "The GIL and the cores are simulated, with what was seen to be needed of them; who waits for whom is as it was recorded."
_ASSUMED = {
    LOCK: f"no thread waits for a lock, and what locks protect goes on at the same time; queues, events and pools are waited for. {_SIMULATED}",
    GIL: f"threads of a process compute at the same time, on as many cores as there are, and no slower. {_SIMULATED}",
    CORES: f"the program has these cores for itself. {_SIMULATED}",
}


def found(trace: Any, said: str, items: pd.DataFrame) -> dict[str, Any] | None:
    """`change`, what was asked; `now` and `then`, each p50_ns, p99_ns and total_ns of `items`; `assumes`, a sentence. None without items."""
    if not len(items):
        return None
    change = parsed(said)
    outcome = what_if(trace, change, items)
    return {"change": said, "now": _sums(outcome.now), "then": _sums(outcome.then), "assumes": _assumed(change)}


def _sums(lengths: npt.NDArray[np.int64]) -> dict[str, int]:
    ranks = nearest_ranks(lengths, _QUANTILES.values())
    return dict(zip(_QUANTILES, ranks, strict=True)) | {"total_ns": int(lengths.sum())}


def _assumed(change: Change) -> str:
    if change.kind != FUNCTION:
        return f"That assumes: {_ASSUMED[change.kind]}"
    share = "no time" if not change.left else f"{float(change.left):.3g} of the time"
    does = f"{text.clean(change.pattern)} takes {share}, with all that it calls and all waits in it that no recorded thread ended"
    return f"That assumes: {does}; {_ORDER}."


def lines(told: dict[str, Any], of: dict[str, Any], width: int) -> list[Text]:
    """What is said of found(); `of`: what the path is of (view.path.found)."""
    now, then = told["now"], told["then"]
    names = {"total_ns": "the whole run"} if of["of"] == "run" else {"p50_ns": "p50", "p99_ns": "p99"}
    parts = [f"{name} {text.duration(now[key])} -> {text.duration(then[key])} ({_change(now[key], then[key])})" for key, name in names.items()]
    counted = "" if of["of"] == "run" else f" of {of['count']:,} {of['of']}" if of["count"] != 1 else f" of one {of['of'][:-1]}"
    head = f"What if {text.clean(told['change'])}: {', '.join(parts)}{counted}."
    room = min(width, PROSE)
    return [
        *(Text(line, "bold") for line in textwrap.wrap(head, room, break_on_hyphens=False)),
        *(Text(line, "dim") for line in textwrap.wrap(told["assumes"], room, break_on_hyphens=False)),
        Text(),
    ]


def _change(now: int, then: int) -> str:
    return f"{round(100 * (then - now) / now):+d} %" if now else text.NOTHING
