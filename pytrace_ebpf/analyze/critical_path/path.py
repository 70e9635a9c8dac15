"""The critical path: the chain of work and waits, across threads and processes, that determined how long something took.

A thread's time is walked backwards. What it had a core for, waited for a core for, or waited for without anybody known who ended that, is on the path as
it is. Instead of a wait that a recorded thread ended stands what that thread did meanwhile, and so on from there. Pieces are as long as what is asked for, to the nanosecond.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.critical_path.asked import spans
from pytrace_ebpf.analyze.critical_path.timelines import NOBODY, Timelines, timelines
from pytrace_ebpf.derive.scheduling.last_at import last_at
from pytrace_ebpf.derive.scheduling.split import thread_keys
from pytrace_ebpf.rebuild.critical_path import PIECE, WAITS_FOR, critical_path

Ints = npt.NDArray[np.int64]


class Path(NamedTuple):
    """A path.

    items: what was asked for (asked.ITEM). pieces: item, thread, start, end, kind, wait, through (as of rebuild.critical_path.PIECE) and `suspended`,
    in the order of item and time. lines: what they refer to.
    """

    items: pd.DataFrame
    pieces: pd.DataFrame
    lines: Timelines


def with_all_threads(trace: Any) -> Any:
    """The trace or, of a window of some threads, that of all of them: paths lead from one to the other."""
    some = any(getattr(trace, name, None) is not None for name in ("pid", "tid"))
    return trace.whole.window(trace.start_ns, trace.end_ns) if some else trace


def path(trace: Any, items: pd.DataFrame) -> Path:
    """The critical path of each of `items` in a pytrace_ebpf Trace. Memory is bounded by the waits from the first one's begin to the last one's end, and by the pieces."""
    trace.whole.derive("waits")
    asked = spans(trace, items)
    start, end = (int(items["start_ns"].min()), int(items["end_ns"].max())) if len(items) else (0, 0)
    lines = timelines(trace, start, end, thread_keys(asked["pid"].to_numpy(), asked["tid"].to_numpy()))
    walked = pd.concat(list(_walked(asked, lines)), ignore_index=True)
    found = critical_path(
        (lines.waits["start_ns"].to_numpy(np.int64), lines.until, lines.waits["end_ns"].to_numpy(np.int64), lines.next),
        (lines.first, lines.born),
        tuple(walked.loc[walked["thread"] != NOBODY, name].to_numpy() for name in ("thread", "start_ns", "end_ns")),
    )
    pieces = pd.DataFrame({name: found[name] for name in PIECE.names or ()})
    of = walked[walked["thread"] != NOBODY].iloc[pieces["span"]]
    pieces["item"], pieces["suspended"] = of["item"].to_numpy(), of["suspended"].to_numpy()
    led = of["through"].to_numpy()
    pieces["through"] = np.where(pieces["through"] == NOBODY, led, pieces["through"])
    kept = walked[walked["thread"] == NOBODY]
    held = pd.DataFrame({"item": kept["item"], "thread": kept["of"], "start": kept["start_ns"], "end": kept["end_ns"], "wait": kept["through"]})
    pieces = pd.concat([pieces, held.assign(span=-1, through=NOBODY, kind=WAITS_FOR, suspended=True)])
    pieces = pieces.sort_values(["item", "start"], kind="stable", ignore_index=True)
    _assert_whole(items, pieces)
    return Path(items, pieces, lines)


def _assert_whole(items: pd.DataFrame, pieces: pd.DataFrame) -> None:
    wall = (items["end_ns"] - items["start_ns"]).to_numpy(np.int64)
    length = (pieces["end"] - pieces["start"]).groupby(pieces["item"]).sum().reindex(np.arange(len(items)), fill_value=0)
    assert (length.to_numpy(np.int64) == wall).all(), "the pieces of a critical path are not as long as what it is of"


def _walked(asked: pd.DataFrame, lines: Timelines) -> Iterator[pd.DataFrame]:
    """What is walked: item, thread, start_ns, end_ns, suspended, through; thread NOBODY where the time is that of the wait `through`, of thread `of`.

    Of a coroutine that is suspended it is not recorded what resumes it. The loop does so after a wait of its own for what is ready: from then on it is
    what the loop did, and before that what ended that wait. Where the loop did not wait meanwhile, all is what it did.
    """
    thread = lines.thread(thread_keys(asked["pid"].to_numpy(), asked["tid"].to_numpy()))
    rows = asked.assign(thread=thread, of=thread, through=NOBODY)
    yield rows[~rows["suspended"]]
    rows = rows[rows["suspended"]]
    polls = np.flatnonzero((lines.waits["kind"] == "poll").to_numpy())
    of_poll = np.repeat(np.arange(len(lines.keys)), np.diff(lines.first))[polls]
    order = np.lexsort((lines.until[polls], of_poll))
    polls, of_poll = polls[order], of_poll[order]
    at = last_at(of_poll, lines.until[polls], rows["thread"].to_numpy(np.int64), rows["end_ns"].to_numpy(np.int64))
    poll = np.where(at >= 0, polls[at], NOBODY) if len(polls) else np.full(len(rows), NOBODY)
    ready = np.where(poll >= 0, np.append(lines.until, 0)[poll], 0)
    polled = ready > rows["start_ns"].to_numpy(np.int64)
    yield rows[~polled]
    loop = rows[polled].assign(start_ns=ready[polled])
    yield loop[loop["end_ns"] > loop["start_ns"]]
    by = np.append(lines.next, NOBODY)[poll]
    yield rows[polled].assign(end_ns=ready[polled], through=poll[polled], thread=by[polled])
