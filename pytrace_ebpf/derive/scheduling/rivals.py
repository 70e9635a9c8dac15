"""Who had the core while a thread waited for it in its run queue, from the switches of that core, some segments at a time.

A wait in the run queue of one core is cut by every switch on that core: each piece belongs to the thread that left the core at its end. The kernel half
reports each such switch as long as a traced thread waits there: traced threads by their own rows, all others in external_switches.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pytrace_ebpf.derive.scheduling.split import thread_keys
from pytrace_ebpf.derive.scheduling.windows import touches
from pytrace_ebpf.trace.schema import SchedKind

Ints = npt.NDArray[np.int64]
SCHED = ("ts", "pid", "tid", "kind", "cpu", "state", "address")
EXTERNAL = ("ts", "cpu", "pid", "tid")
RIVAL = np.dtype([("key", "i8"), ("queued_ns", "i8"), ("rival", "i8"), ("ns", "i8")])
"""key, rival: pid << 32 | tid; queued_ns: since when it waited."""
_STILL_RUNNABLE = 0x7F
_PIECE = np.dtype([("key", "i8"), ("queued_ns", "i8"), ("cpu", "i8"), ("start", "i8"), ("end", "i8")])
_ROW = np.dtype([("key", "i8"), ("ts", "i8"), ("kind", "i1"), ("cpu", "i8"), ("state", "i4"), ("address", "i8"), ("queued_ns", "i8")])
_AT_ONCE = 1 << 20  # pairs of a wait and a switch that are looked at together


class Rivals:
    """Sums (RIVAL) of segments that follow each other. Memory is bounded by these segments and by the threads that wait at their end."""

    def __init__(self, lost: Ints) -> None:
        """`lost`: windows in which switches were lost, (n, 2): what was waited in them is nobody's."""
        self._lost = lost
        self._open = np.zeros(0, _ROW)  # the rows that began waits which have not ended

    def take(self, sched: pa.Table, external: pa.Table) -> npt.NDArray[np.void]:
        """Of waits in these segments, by thread and rival: further rows of the same may follow."""
        rows = _rows(sched)
        left = _left(rows, external)
        rows = np.concatenate((self._open, rows))
        rows = rows[np.lexsort((rows["ts"], rows["key"]))]
        if not len(rows):
            return np.zeros(0, RIVAL)
        pieces, waiting = _pieces(rows)
        until = _last(waiting, left)  # of those that still wait what is known by now: who has the core after that, a later switch says
        pieces = np.concatenate((pieces, _piece(waiting, until)))
        waiting["ts"], self._open = until, waiting
        pieces = pieces[~touches(self._lost, pieces["start"], pieces["end"])]
        return _added([_shared(some, left) for some in _some(pieces, left)])


def _rows(sched: pa.Table) -> npt.NDArray[np.void]:
    out = np.zeros(len(sched), _ROW)
    out["key"] = thread_keys(sched["pid"].to_numpy(), sched["tid"].to_numpy())
    for name in ("ts", "kind", "cpu", "state", "address"):
        out[name] = sched[name].to_numpy()
    return out


def _left(rows: npt.NDArray[np.void], external: pa.Table) -> npt.NDArray[np.void]:
    """Who left which core when, by core and time."""
    own = rows[rows["kind"] == SchedKind.OUT]
    left = np.zeros(len(own) + len(external), np.dtype([("cpu", "i8"), ("ts", "i8"), ("who", "i8")]))
    left["cpu"], left["ts"], left["who"] = (
        np.concatenate((mine, other))
        for mine, other in (
            (own["cpu"], external["cpu"].to_numpy()),
            (own["ts"], external["ts"].to_numpy()),
            (own["key"], thread_keys(external["pid"].to_numpy(), external["tid"].to_numpy())),
        )
    )
    return left[np.lexsort((left["ts"], left["cpu"]))]


def _pieces(rows: npt.NDArray[np.void]) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
    """The time in the run queue of one core, by rows in the order of thread and time; and the rows of threads that still wait.

    Who is woken without having left its core, or was throttled, has none.
    """
    kind, place = rows["kind"], np.arange(len(rows))
    moved = kind == SchedKind.MIGRATE
    begins = ((kind == SchedKind.OUT) & (rows["state"] & _STILL_RUNNABLE == 0)) | (kind == SchedKind.WAKING) | (kind == SchedKind.FORK)
    first = np.maximum.accumulate(np.where(moved, 0, place))
    waits = (begins | moved) & begins[first] & (rows["key"][first] == rows["key"])
    since = np.where(rows["queued_ns"] > 0, rows["queued_ns"], rows["ts"])
    rows["queued_ns"] = since[first]
    follows = np.append(rows["key"][1:] == rows["key"][:-1], False)
    after = np.append(kind[1:], -1)
    at = np.flatnonzero(waits & follows & ((after == SchedKind.IN) | (after == SchedKind.MIGRATE)))
    at = at[(after[at] == SchedKind.MIGRATE) | (rows["address"][at + 1] == 0)]
    waiting = rows[waits & ~follows]
    waiting["kind"] = SchedKind.WAKING
    return _piece(rows[at], rows["ts"][at + 1]), waiting


def _piece(rows: npt.NDArray[np.void], end: Ints) -> npt.NDArray[np.void]:
    out = np.zeros(len(rows), _PIECE)
    for name, of in (("key", "key"), ("queued_ns", "queued_ns"), ("cpu", "cpu"), ("start", "ts")):
        out[name] = rows[of]
    out["end"] = end
    return out


def _last(rows: npt.NDArray[np.void], left: npt.NDArray[np.void]) -> Ints:
    """When the core of each row was last left, or since when that one waits, if that is later."""
    cpus, at = np.unique(left["cpu"][::-1], return_index=True)
    last = np.append(left["ts"][::-1][at], 0)
    found = np.searchsorted(cpus, rows["cpu"])
    known = np.append(cpus, -1)[found] == rows["cpu"]
    out: Ints = np.maximum(rows["ts"], np.where(known, last[found], 0))
    return out


def _some(pieces: npt.NDArray[np.void], left: npt.NDArray[np.void]) -> list[npt.NDArray[np.void]]:
    """The pieces, so many at a time that they meet some _AT_ONCE switches."""
    first, last = _met(pieces, left)
    upto = np.cumsum(last - first)
    return np.split(pieces, np.searchsorted(upto, np.arange(_AT_ONCE, upto[-1], _AT_ONCE))) if len(upto) and upto[-1] > _AT_ONCE else [pieces]


def _met(pieces: npt.NDArray[np.void], left: npt.NDArray[np.void]) -> tuple[Ints, Ints]:
    """Of each piece which of the switches of its core lie in it: from which on, and up to before which."""
    base = np.int64(left["ts"].min()) if len(left) else np.int64(0)
    span = np.int64(left["ts"].max() - base + 2) if len(left) else np.int64(1)

    def place(cpu: Ints, ts: Ints) -> Ints:
        found: Ints = cpu * span + np.clip(ts - base + 1, 0, span - 1)
        return found

    order = place(left["cpu"], left["ts"])
    return (
        np.searchsorted(order, place(pieces["cpu"], pieces["start"]), side="right"),
        np.searchsorted(order, place(pieces["cpu"], pieces["end"]), side="right"),
    )


def _shared(pieces: npt.NDArray[np.void], left: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    first, last = _met(pieces, left)
    count = last - first
    of = np.repeat(np.arange(len(pieces)), count)
    at = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    out = np.zeros(len(at), RIVAL)
    begins = np.zeros(len(at), bool)
    begins[(np.cumsum(count) - count)[count > 0]] = True
    out["key"], out["queued_ns"], out["rival"] = pieces["key"][of], pieces["queued_ns"][of], left["who"][at]
    out["ns"] = left["ts"][at] - np.where(begins, pieces["start"][of], left["ts"][at - 1])
    return _added([out])


def _added(parts: list[npt.NDArray[np.void]]) -> npt.NDArray[np.void]:
    """Rows of the same wait and rival added up, in the order of queued_ns."""
    rows = np.concatenate(parts)
    order = np.lexsort((rows["rival"], rows["key"], rows["queued_ns"]))
    rows = rows[order]
    names = ("key", "queued_ns", "rival")
    differs = np.ones(len(rows), bool)
    differs[1:] = np.logical_or.reduce([rows[name][1:] != rows[name][:-1] for name in names])
    out = rows[differs]
    if len(rows):
        out["ns"] = np.add.reduceat(rows["ns"], np.flatnonzero(differs))
    return out[out["ns"] > 0]
