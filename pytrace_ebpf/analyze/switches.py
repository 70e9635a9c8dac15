"""What state a thread is in after each of its scheduling events, decided for all threads at once."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.trace.schema import SYSCALL_UNKNOWN, SchedKind

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

ON_CPU, RUNQ, GIL, BLOCKED, OFF, UNKNOWN, GONE = range(7)
STATES = ("on_cpu", "runq_wait", "gil_wait", "blocked", "off_cpu")  # off_cpu: the last three not told apart
FUTEX = 202  # x86-64
STILL_RUNNABLE = 0x7F  # no bit of it set: preempted, not blocked (facts of the sched_switch tracepoint)
LOST = 100  # a row of our own: from here the state is unknown, scheduling events were lost


@dataclass
class Switches:
    """Scheduling rows as arrays of one length, grouped by `thread` (ascending) and by time within.

    `thread` is a dense number of (pid, tid), `row` the place in the table they were taken from, -1 for LOST;
    `to` is the state after the row (ON_CPU ...), filled in by `decide`; the others are schema.SCHED's columns.
    """

    thread: Ints
    ts: Ints
    kind: Ints
    cpu: Ints
    state: Ints
    syscall: Ints
    address: Ints
    other_tid: Ints
    row: Ints
    to: Ints

    def take(self, which: npt.NDArray[np.generic]) -> "Switches":
        """The rows that `which` (mask or positions) selects."""
        return Switches(*(column[which] for column in vars(self).values()))


def _last_where(mask: Bools, first: Ints) -> Ints:
    """Position of the last row before each row, within its thread, where `mask` holds; -1 none.

    `first`: position of the first row of each row's thread.
    """
    position = np.maximum.accumulate(np.where(mask, np.arange(len(mask)), -1))
    before = np.concatenate(([-1], position[:-1]))
    return np.where(before >= first, before, -1)


def firsts(thread: Ints) -> Ints:
    """For each row of a grouped column the position of its group's first row."""
    new = np.concatenate(([True], thread[1:] != thread[:-1])) if len(thread) else np.zeros(0, bool)
    return np.maximum.accumulate(np.where(new, np.arange(len(thread)), 0))


def decide(rows: Switches, known: Ints, gil: Ints) -> Switches:
    """The rows that change a thread's state, with `to` filled in.

    `known`: state of each thread before its first row. `gil`: shape (threads, 2), the addresses
    from which up to which a futex is the GIL's; (0, 0) unknown.
    """
    rows = rows.take(rows.kind != SchedKind.MIGRATE)
    rows = rows.take(_living(rows, known))
    rows = rows.take(_useful_snapshot(rows, known))
    rows.to = _states(rows, gil)
    first = firsts(rows.thread)
    waking = rows.kind == SchedKind.WAKING
    before = _last_where(~waking, first)
    state_before = np.where(before >= 0, rows.to[before], known[rows.thread])
    return rows.take(~(waking & (state_before == ON_CPU)))


def _living(rows: Switches, known: Ints) -> Bools:
    """Rows of a thread that has not ended: after EXIT it still leaves its core. exec gives a leader's id to another thread."""
    first = firsts(rows.thread)
    died = _last_where(rows.kind == SchedKind.EXIT, first)
    revives = (rows.kind == SchedKind.FORK) | (rows.kind == SchedKind.EXEC)
    born = _last_where(revives, first)
    dead = (died > born) | ((died < 0) & (born < 0) & (known[rows.thread] == GONE))
    living: Bools = revives | ~dead
    return living


def _useful_snapshot(rows: Switches, known: Ints) -> Bools:
    """Everything but snapshots of threads whose state is already known from events: those are newer."""
    at = np.flatnonzero(rows.kind == SchedKind.SNAPSHOT)
    first = firsts(rows.thread)
    unknown = np.where(at > first[at], rows.kind[at - 1] == LOST, known[rows.thread[at]] == UNKNOWN)
    keep = np.ones(len(rows.ts), bool)
    keep[at[~unknown]] = False
    return keep


def _states(rows: Switches, gil: Ints) -> Ints:
    blocked_on = np.where(
        (rows.syscall == FUTEX) & (rows.address >= gil[rows.thread, 0]) & (rows.address < gil[rows.thread, 1]), GIL, BLOCKED
    )
    blocked_on[rows.syscall == SYSCALL_UNKNOWN] = OFF
    runnable = (rows.state & STILL_RUNNABLE) == 0
    to = np.full(len(rows.ts), RUNQ, np.int64)  # waking, fork
    to[(rows.kind == SchedKind.IN) | (rows.kind == SchedKind.EXEC)] = ON_CPU
    to[rows.kind == SchedKind.EXIT] = GONE
    to[rows.kind == LOST] = UNKNOWN
    out = rows.kind == SchedKind.OUT
    to[out] = np.where(runnable, RUNQ, blocked_on)[out]
    at = np.flatnonzero(rows.kind == SchedKind.SNAPSHOT)
    if len(at):
        to[at] = _snapshot_states(rows, at, runnable[at], blocked_on[at])
    return to


def _snapshot_states(rows: Switches, at: Ints, runnable: Bools, blocked_on: Ints) -> Ints:
    """What the next row proves: who gets a core was in the run queue, who leaves one had it, who is woken was blocked."""
    last = len(rows.ts) - 1
    follows = (at < last) & (rows.thread[np.minimum(at + 1, last)] == rows.thread[at])
    following = np.where(follows, rows.kind[np.minimum(at + 1, last)], -1)
    leaves = (following == SchedKind.OUT) | (following == SchedKind.EXIT)
    queued = (following == SchedKind.IN) & (runnable | (blocked_on != OFF))
    states: Ints = np.where(queued, RUNQ, np.where(leaves | runnable, ON_CPU, blocked_on))
    return states
