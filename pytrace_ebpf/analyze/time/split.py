"""The states of threads over time: on a core, in the run queue, waiting for the GIL, or blocked.

Where no wake-ups were recorded (source perf), what follows a sleep is off-CPU time of unknown kind.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.time.switches import BLOCKED, GIL, RUNQ, STATES, UNKNOWN, States
from pytrace_ebpf.analyze.time.windows import windows_of
from pytrace_ebpf.trace.schema import SCHED_LOSSES, SchedKind

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Known:
    """What was known at the moment `ts`: of the threads `keys` (thread_keys, ascending) the state (switches.STATES) and the core, -1 unknown."""

    ts: int
    keys: Ints
    state: Ints
    cpu: Ints


def timeline(
    sched: pd.DataFrame, processes: pd.DataFrame, end_ns: int, losses: pd.DataFrame | None = None, known: Known | None = None
) -> pd.DataFrame:
    """State intervals of every thread: one row per interval, by thread and in the order of time.

    Takes schema.SCHED, schema.PROCESSES and schema.LOSSES rows; the last interval of a living thread
    ends at `end_ns`. `known`: where `sched` does not begin with the recording. Columns: pid, tid, start_ns, end_ns, state (on_cpu, runq_wait, gil_wait, blocked),
    cpu (of the interval's first event), syscall (gil_wait, blocked; else -1), other_tid (gil_wait,
    blocked: the waker; runq_wait after preemption: who got the core; else 0). Unknown time has no row.
    """
    before = Known(0, *np.zeros((3, 0), np.int64)) if known is None else known
    of_rows = thread_keys(sched["pid"].to_numpy(), sched["tid"].to_numpy())
    keys = np.unique(np.concatenate((of_rows, before.keys)))
    windows = np.zeros((0, 2), np.int64) if losses is None else windows_of(losses, SCHED_LOSSES)
    states = States(before.ts, windows[windows[:, 1] >= before.ts])
    states.grow(gil_ranges(processes, keys >> 32), (np.searchsorted(keys, before.keys), before.state))
    rows = states.take(np.searchsorted(keys, of_rows), sched, np.zeros(len(of_rows), np.int64), [end_ns]).after(
        np.searchsorted(keys, before.keys), before.ts, before.cpu, before.state
    )
    follows = np.append(rows.thread[1:] == rows.thread[:-1], False) if len(rows.ts) else np.zeros(0, bool)
    end = np.where(follows, np.append(rows.ts[1:], end_ns), end_ns)
    waits = (rows.to == GIL) | (rows.to == BLOCKED)
    woken = follows & (np.append(rows.kind[1:], -1) == SchedKind.WAKING)
    waker = np.where(waits & woken, np.append(rows.other_tid[1:], 0), 0)
    preempted = (rows.kind == SchedKind.OUT) & (rows.to == RUNQ)
    frame = pd.DataFrame(
        {
            "pid": (keys >> 32)[rows.thread].astype(np.int32),
            "tid": (keys & 0xFFFFFFFF)[rows.thread].astype(np.int32),
            "start_ns": rows.ts,
            "end_ns": end,
            "state": pd.Categorical.from_codes(np.where(rows.to < UNKNOWN, rows.to, -1), list(STATES)),
            "cpu": rows.cpu.astype(np.int16),
            "syscall": np.where(waits, rows.syscall, -1).astype(np.int32),
            "other_tid": np.where(preempted, rows.other_tid, waker).astype(np.int32),
        }
    )
    return frame[(rows.to < UNKNOWN) & (end > rows.ts)].reset_index(drop=True)


def on_cores(timeline: pd.DataFrame) -> pd.DataFrame:
    """The rows of a `timeline` in which a thread had a core."""
    return timeline[timeline["state"].astype("object") == "on_cpu"]


def thread_keys(pid: npt.NDArray[np.integer], tid: npt.NDArray[np.integer]) -> Ints:
    """One number for (pid, tid), in their order."""
    return (pid.astype(np.int64) << 32) | tid.astype(np.int64)


def gil_ranges(processes: pd.DataFrame, pid: Ints) -> Ints:
    """The addresses of each process's GIL, shape (n, 2); (0, 0) where unknown."""
    known = processes.set_index("pid")[["gil_start", "gil_end"]]
    return known.reindex(pid, fill_value=0).to_numpy(np.int64)
