"""The waits of all threads as arrays, each with the thread that ended it: what the critical path walks along."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.scheduling.split import thread_keys

Ints = npt.NDArray[np.int64]

WAIT_COLUMNS = (
    "pid", "tid", "func_id", "own_func_id", "own_line", "start_ns", "blocked_until_ns", "end_ns", "kind", "syscall", "resource_id",
    "primitive_func_id", "waker_pid", "waker_tid", "holder_tid", "slices", "throttled_ns", "cpu_after",
)  # fmt: skip
"""Of schema.WAITS."""
NOBODY = -1


@dataclass(frozen=True)
class Timelines:
    """Threads and their waits.

    keys: pid << 32 | tid of each thread, sorted; a thread is its place there. waits: WAIT_COLUMNS, by thread, of each in the order of time.
    until: when each became runnable (int64 ns; its end where that is not known). next: the thread that ended it, NOBODY where that is not known or
    is not recorded. first: the place of each thread's first wait, and one more. born: whether that is the wait of a new thread for its first core.
    """

    keys: Ints
    waits: pd.DataFrame
    until: Ints
    next: npt.NDArray[np.int32]
    first: Ints
    born: npt.NDArray[np.uint8]

    def thread(self, keys: Ints) -> npt.NDArray[np.int32]:
        """The threads of these keys; NOBODY where there is none."""
        at = np.searchsorted(self.keys, keys).clip(max=max(0, len(self.keys) - 1))
        known = self.keys[at] == keys if len(self.keys) else np.zeros(len(keys), bool)
        return np.where(known, at, NOBODY).astype(np.int32)


def timelines(trace: Any, start_ns: int, end_ns: int, also: Ints) -> Timelines:
    """Those of a pytrace_ebpf Trace in [start_ns, end_ns), about 200 bytes a wait, and the threads `also` (keys), of which there may be nothing."""
    waits = trace.waits(list(WAIT_COLUMNS), start_ns=start_ns, end_ns=end_ns)
    threads = trace.whole.threads()
    key = thread_keys(waits["pid"].to_numpy(), waits["tid"].to_numpy())
    order = np.lexsort((waits["start_ns"].to_numpy(), key))
    waits, key = waits.iloc[order].reset_index(drop=True), key[order]
    keys = np.unique(np.concatenate((key, also, thread_keys(threads["pid"].to_numpy(), threads["tid"].to_numpy()))))
    first = np.searchsorted(key, np.append(keys, np.iinfo(np.int64).max))
    until = waits["blocked_until_ns"].fillna(waits["end_ns"]).to_numpy(np.int64)
    found = Timelines(keys, waits, until, np.full(len(waits), NOBODY, np.int32), first, _born(waits, keys, first, threads, trace.whole.start_ns))
    found.next[:] = found.thread(_enders(waits))
    found.next[waits["blocked_until_ns"].isna().to_numpy()] = NOBODY
    return found


def _enders(waits: pd.DataFrame) -> Ints:
    """The key of who ended each wait, NOBODY for none; of a slice of a longer wait who ended that; and of one for the GIL that timed out who had it."""
    pid, tid, waker, holder = (waits[name].fillna(0).to_numpy(np.int64) for name in ("pid", "tid", "waker_tid", "holder_tid"))
    kind = waits["kind"].astype("object").to_numpy()
    by = np.where(waker > 0, thread_keys(waits["waker_pid"].fillna(0).to_numpy(np.int64), waker), NOBODY)
    by[(kind == "gil") & (waker <= 0) & (holder > 0)] = thread_keys(pid, holder)[(kind == "gil") & (waker <= 0) & (holder > 0)]
    blocked = np.flatnonzero(kind != "preempted")  # one that loses its core between two slices has still waited for the same
    slices, own = waits["slices"].to_numpy(np.int64)[blocked], thread_keys(pid, tid)[blocked]
    goes_on = np.append((own[1:] == own[:-1]) & (slices[1:] > 1) & (slices[1:] == slices[:-1] + 1), False)[: len(blocked)]
    last = np.minimum.accumulate(np.where(goes_on, len(blocked), np.arange(len(blocked)))[::-1])[::-1]
    of_last = by[blocked[last]] if len(blocked) else by[blocked]
    by[blocked] = np.where(goes_on & (by[blocked] == NOBODY), of_last, by[blocked])
    by[kind == "preempted"] = NOBODY
    return by


def _born(waits: pd.DataFrame, keys: Ints, first: Ints, threads: pd.DataFrame, start_ns: int) -> npt.NDArray[np.uint8]:
    has = np.flatnonzero(first[1:] > first[:-1])
    rows = waits.iloc[first[has]]
    made = pd.Series(threads["start_ns"].to_numpy(np.int64), thread_keys(threads["pid"].to_numpy(), threads["tid"].to_numpy()))
    since = made[~made.index.duplicated(keep="last")].reindex(keys[has]).fillna(start_ns).to_numpy(np.int64)
    begins = rows["start_ns"].to_numpy(np.int64)
    born = (rows["kind"].astype("object") == "other").to_numpy() & rows["syscall"].isna().to_numpy() & (begins > start_ns) & (begins <= since)
    out = np.zeros(len(keys), np.uint8)
    out[has] = born
    return out
