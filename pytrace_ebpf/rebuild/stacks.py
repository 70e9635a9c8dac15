"""Which calls are open while a trace is recorded: the stacks of all threads, without times."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.lazy_imports import pa
from pytrace_ebpf.rebuild.library import Events, columns, library

_DTYPES = {"ts": np.int64, "kind": np.int8, "frame": np.int64}


class Stacks:
    """The open calls of all threads, from the events of one segment after the other."""

    def __init__(self) -> None:
        """Raises HostError where the compiled library is missing or there is no memory."""
        self._library = library()
        self._stacks = self._library.stacks_open()
        self._check(bool(self._stacks))

    def __del__(self) -> None:
        if getattr(self, "_stacks", None):
            self._library.stacks_close(self._stacks)

    def _check(self, fine: bool) -> None:
        if not fine:
            raise HostError("there is not enough memory for the calls that are open at once")

    def take(self, events: pa.Table) -> None:
        """Take in rows of schema.EVENTS, grouped by thread and each in its own order. Raises HostError."""
        names = [field[0] for field in Events._fields_ if field[0] != "rows"]
        arrays = {name: np.ascontiguousarray(events[name].to_numpy(), _DTYPES.get(name, np.int32)) for name in names}
        self._check(self._library.stacks_take(self._stacks, columns(Events, **arrays)))

    def forget(self, pid: npt.NDArray[np.int32], tid: npt.NDArray[np.int32]) -> None:
        """These threads have ended. Raises HostError."""
        pid, tid = (np.ascontiguousarray(ids, np.int32) for ids in (pid, tid))
        self._check(self._library.stacks_forget(self._stacks, pid.ctypes.data, tid.ctypes.data, len(pid)))

    def open_calls(self) -> dict[str, npt.NDArray[np.int64]]:
        """Columns pid, tid, func_id, line (of the entry) and frame of the open calls, thread by thread, outermost first."""
        return listed(self._library.stacks_count, self._library.stacks_list, self._stacks)


def listed(count: Any, fill: Any, of: int) -> dict[str, npt.NDArray[np.int64]]:
    """The columns of Stacks.open_calls, of whatever the library has stacks in."""
    calls = count(of)
    pid, tid, func_id, line = np.zeros((4, calls), np.int32)
    frame = np.zeros(calls, np.int64)
    fill(of, *(column.ctypes.data for column in (pid, tid, func_id, line, frame)))
    return {"pid": pid, "tid": tid, "func_id": func_id, "line": line, "frame": frame}
