"""Whether something happened that a recording waits for, decided on one segment after the other; triggers.c says how."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pytrace_ebpf import processors
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.lazy_imports import pa
from pytrace_ebpf.rebuild.engine import with_engines_numbers
from pytrace_ebpf.rebuild.library import CONDITION, HIT, OF_FUNCTION, Events, Switches, columns, library
from pytrace_ebpf.rebuild.stacks import listed

CALL_TAKES, LOOP_HELD, RAISES, SHARE_WAITED = range(4)
"""enum happening"""
MOST_CONDITIONS = 32
TENTHS = 10
RUNQ, GIL = 1, 2  # states of common.h

_DTYPES = {"ts": np.int64, "frame": np.int64, "address": np.int64, "kind": np.int8, "cpu": np.int16}
Ended = tuple[int, int, int]  # pid, tid (0: the whole process), ns


class Triggers:
    """The open calls of all threads and what each waits for, as far as conditions are about it."""

    def __init__(self, conditions: Sequence[tuple[int, int, int, int]]) -> None:
        """`conditions`: (what, state, over in ns, span in ns), at most MOST_CONDITIONS; a span is a multiple of TENTHS.

        Raises HostError where the compiled library is missing or there is no memory.
        """
        self._library, self._count = library(), len(conditions)
        given = np.array([(over, span, what, state) for what, state, over, span in conditions], CONDITION)
        self._triggers = self._library.triggers_open(given.ctypes.data, len(given))
        self._check(bool(self._triggers))

    def __del__(self) -> None:
        if getattr(self, "_triggers", None):
            self._library.triggers_close(self._triggers)

    def _check(self, fine: bool) -> None:
        if not fine:
            raise HostError("there is not enough memory for the calls that are open at once")

    def functions(self, wants: npt.NDArray[np.uint32], is_coroutine: npt.NDArray[np.bool_]) -> None:
        """By func_id which conditions each function is about, as bits, and whether it makes coroutines. Raises HostError."""
        of = np.zeros(len(wants), OF_FUNCTION)
        of["wants"], of["is_coroutine"] = wants, is_coroutine
        self._check(self._library.triggers_functions(self._triggers, of.ctypes.data, len(of)))

    def events(self, events: pa.Table | None, lost: bool) -> None:
        """Take a segment's rows of schema.EVENTS, grouped by thread; `lost`: there were more. Raises HostError."""
        for batch in (events.to_batches() if events is not None else []) or [None]:  # as they lie in memory, without a copy
            self._check(self._library.triggers_events(self._triggers, _columns(Events, batch), lost))

    def switches(self, sched: pa.Table | None, lost: bool, gil: dict[int, tuple[int, int]]) -> None:
        """Take a segment's rows of schema.SCHED, in the order of time; `gil` by process from where to where its GIL lies. Raises HostError."""
        rows = _columns(Switches, None if sched is None else with_engines_numbers(sched, processors.here().machine))
        pids = np.array(sorted(gil), np.int32)
        where = np.array([gil[pid] for pid in pids.tolist()], np.int64).reshape(-1, 2)
        self._check(self._library.triggers_switches(self._triggers, rows, lost, pids.ctypes.data, where.ctypes.data, len(pids)))

    def ended(self, ended: Iterable[Ended]) -> None:
        """These threads and processes ended. Raises HostError."""
        rows = list(ended)
        pid, tid = (np.array([row[at] for row in rows], np.int32) for at in (0, 1))
        end_ns = np.array([row[2] for row in rows], np.int64)
        self._check(self._library.triggers_ended(self._triggers, pid.ctypes.data, tid.ctypes.data, end_ns.ctypes.data, len(rows)))

    def open_calls(self) -> dict[str, npt.NDArray[np.int64]]:
        """The calls that are open now, as Stacks.open_calls has them."""
        return listed(self._library.triggers_open_count, self._library.triggers_open_list, self._triggers)

    def hits(self, end_ns: int) -> npt.NDArray[Any]:
        """What came true in the segment that ends at `end_ns`: of each condition the first time, dtype HIT."""
        self._library.triggers_judge(self._triggers, end_ns)
        hits = np.zeros(self._count, HIT)
        return hits[: self._library.triggers_hits(self._triggers, hits.ctypes.data)]


def _columns(struct: Any, rows: Any) -> Any:
    """Columns of a table or batch as the library takes them; None for no rows."""
    names = [field[0] for field in struct._fields_ if field[0] != "rows"]
    return columns(
        struct, **{name: np.ascontiguousarray(() if rows is None else rows[name].to_numpy(), _DTYPES.get(name, np.int32)) for name in names}
    )
