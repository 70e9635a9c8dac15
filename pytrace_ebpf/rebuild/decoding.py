"""An agent's records to columns of `events`, and its values to texts: memory for the columns, and the library that fills it."""

import ctypes
from typing import Any, NamedTuple

import numpy as np

from pytrace_ebpf.rebuild.library import Decoded, Decoding, library

_COLUMNS = {"ts": np.int64, "kind": np.int8, "func_id": np.int32, "frame": np.int64, "line": np.int32}


class Line(NamedTuple):
    """A clock near some moment: CLOCK_MONOTONIC is from_ns at the stamp `since`, and ns_per_stamp more for each after it."""

    since: int
    from_ns: int
    ns_per_stamp: float


class Rows:
    """Rows of `events`, but for their pid and tid, that are taken from records of one process."""

    def __init__(self, rows: int, func_ids: np.ndarray[Any, Any], line: Line, span: tuple[int, int], lines: bool = False) -> None:
        """`rows`: so many will be taken.

        func_ids  int32, by the agent's number of the function, at least one; the last one stands for all beyond
        span      ns, of the first and the last moment that a record can be of
        lines     there may be records of lines
        """
        self.columns: dict[str, np.ndarray[Any, Any]] = {name: np.empty(rows, dtype) for name, dtype in _COLUMNS.items()}
        to = Decoded(*(column.ctypes.data for column in self.columns.values()))
        by = Decoding(line.since & (1 << 48) - 1, line.from_ns, line.ns_per_stamp, *span, func_ids.ctypes.data, len(func_ids), lines)
        self._func_ids, self._pointers = func_ids, (ctypes.byref(by), ctypes.byref(to))
        self._rows, self._taken, self._decode = rows if len(func_ids) else 0, 0, library().decode

    def take(self, records: np.ndarray[Any, Any]) -> bool:
        """Take records (C-contiguous, 16 bytes each); False where no agent wrote them.

        Raises ValueError where there is no room for them.
        """
        at, self._taken = self._taken, self._taken + len(records)
        if self._taken > self._rows or records.itemsize != 16:
            raise ValueError(f"{len(records)} records for {self._rows - at} rows")
        return bool(self._decode(records.ctypes.data, len(records), *self._pointers, at))


_TEXT_ROOM = 4 * 160  # bytes of a value's text at most: as in values.c
_TEXTS_AT_ONCE = 4096


def value_texts(values: np.ndarray[Any, Any]) -> tuple[bytes, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The texts of an agent's values (struct value of probes/agent/agent.h, C-contiguous), but for floats.

    As UTF-8 one after the other; where each ends, int64; and whether there is one, bool.
    """
    ends, has = np.empty(len(values), np.int64), np.empty(len(values), np.bool_)
    room, parts, before = np.empty(_TEXT_ROOM * min(len(values), _TEXTS_AT_ONCE), np.uint8), [], 0
    for at in range(0, len(values), _TEXTS_AT_ONCE):
        some = slice(at, min(at + _TEXTS_AT_ONCE, len(values)))
        size = library().value_texts(values[some].ctypes.data, some.stop - at, room.ctypes.data, ends[some].ctypes.data, has[some].ctypes.data)
        ends[some] += before
        before += size
        parts.append(room[:size].tobytes())
    return b"".join(parts), ends, has


VALUE = np.dtype(
    [
        ("event", "u8"), ("name", "u4"), ("type", "u4"), ("length", "i8"), ("position", "u2"), ("size", "u2"),
        ("what", "u1"), ("kind", "u1"), ("status", "u1"), ("dtype", "u1"), ("data", "u1", (160,)),
    ]
)  # fmt: skip
"""struct value of probes/agent/agent.h"""
_TYPE_ROOM = 4 * 128  # bytes of a type's name at most: as in objects.c


def objects(events: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], bytes, np.ndarray[Any, Any]]:
    """Objects that BPF read (struct object_event of probes/events.h, C-contiguous) as values, dtype VALUE.

    And the names of their types, as UTF-8 one after the other, with where each ends, int64; "" where it was not read.
    """
    values, ends, parts, before = np.empty(len(events), VALUE), np.empty(len(events), np.int64), [], 0
    room = np.empty(_TYPE_ROOM * min(len(events), _TEXTS_AT_ONCE), np.uint8)
    for at in range(0, len(events), _TEXTS_AT_ONCE):
        some = slice(at, min(at + _TEXTS_AT_ONCE, len(events)))
        size = library().objects(events[some].ctypes.data, some.stop - at, values[some].ctypes.data, room.ctypes.data, ends[some].ctypes.data)
        ends[some] += before
        before += size
        parts.append(room[:size].tobytes())
    return values, b"".join(parts), ends
