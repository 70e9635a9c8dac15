"""Perfetto's tracks of a trace: one per process, per thread below it one for calls and below that one for states."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.view.export.protobuf import data, number
from pytrace_ebpf.view.identities import strings, words

Ints = npt.NDArray[np.int64]
_KEY = ["pid", "tid"]
_BASE = 1 << 20  # uuids: process p has 1 + p; thread t _BASE + 2 t, its states one more


@dataclass(frozen=True)
class Tracks:
    """The threads of a trace, numbered from 0: columns pid, tid, name, end_ns."""

    threads: pd.DataFrame

    @classmethod
    def of(cls, threads: pd.DataFrame, *tables: pd.DataFrame) -> "Tracks":
        """All threads of `threads` and those that only occur in one of `tables` (columns pid, tid)."""
        seen = pd.concat([t[_KEY].drop_duplicates() for t in (threads, *tables)]).drop_duplicates()
        known = threads.drop_duplicates(_KEY, keep="last")[[*_KEY, "name", "end_ns"]]
        return cls(seen.merge(known, how="left", on=_KEY))

    def number(self, table: pd.DataFrame) -> Ints:
        """The thread number of each row of `table` (pid, tid), -1 for one that is not known."""
        return self.number_of(_keys(table))

    def number_of(self, keys: Ints) -> Ints:
        """The same by pid << 32 | tid."""
        known = _keys(self.threads)
        order = np.argsort(known)
        if not len(order):
            return np.full(len(keys), -1, np.int64)
        at = order[np.minimum(np.searchsorted(known, keys, sorter=order), len(order) - 1)]
        return np.where(known[at] == keys, at, -1)

    def uuid(self, thread: Ints) -> Ints:
        """Uuid of the track of a thread's calls."""
        return _BASE + 2 * thread

    def state_uuid(self, thread: Ints) -> Ints:
        """Uuid of the track of a thread's states."""
        return self.uuid(thread) + 1

    def tid(self, thread: int) -> int:
        return int(self.threads["tid"].iat[thread])

    def name(self, thread: int) -> str:
        name = self.threads["name"].iat[thread]
        return name if isinstance(name, str) and name else f"thread {self.tid(thread)}"

    def ended(self, thread: int) -> bool:
        """True for a thread whose exit was seen."""
        return bool(pd.notna(self.threads["end_ns"].iat[thread]))

    @property
    def processes(self) -> dict[int, int]:
        """Uuid of each process's track, by pid."""
        return {int(pid): 1 + i for i, pid in enumerate(self.threads["pid"].unique())}

    def descriptors(self, processes: pd.DataFrame) -> Iterator[bytes]:
        """The TrackDescriptor messages, parents first."""
        pids = list(self.threads["pid"].unique())
        known = {row["pid"]: row for row in processes.to_dict("records")}
        for i, pid in enumerate(pids):
            row = known.get(pid, {})
            command, labels = str(row.get("command") or f"process {pid}"), words(strings(row))
            yield number(1, 1 + i) + data(3, number(1, int(pid)) + data(2, command) + data(6, command) + (data(8, labels) if labels else b""))
        for t, pid in enumerate(self.threads["pid"]):
            thread = number(1, int(pid)) + number(2, self.tid(t)) + data(5, self.name(t))
            uuid = _BASE + 2 * t
            yield number(1, uuid) + number(5, 1 + pids.index(pid)) + data(4, thread)
            yield number(1, uuid + 1) + number(5, uuid) + data(2, "state")


def _keys(table: pd.DataFrame) -> Ints:
    return table["pid"].to_numpy(np.int64) << 32 | table["tid"].to_numpy(np.int64)
