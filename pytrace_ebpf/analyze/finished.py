"""Finished calls as plain arrays, and as the Arrow table of schema.CALLS."""

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pytrace_ebpf.analyze.pairing import (
    IN_LOSS,
    OPEN_AT_END,
    OPEN_AT_START,
    REPAIRED,
    RESUMED,
    UNWOUND,
    YIELDED,
    Bools,
    Ints,
)
from pytrace_ebpf.trace.schema import CALLS, LAYERS, STATUSES

_PRECEDENCE = ((OPEN_AT_END, "open_at_end"), (OPEN_AT_START, "open_at_start"), (UNWOUND, "unwound"), (REPAIRED, "repaired"), (IN_LOSS, "in_loss"))
_SCHEDULED = ("on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns", "first_cpu", "last_cpu", "migrations", "preemptions", "waits")


def _status_codes() -> npt.NDArray[np.int32]:
    codes = np.zeros(128, np.int32)
    for flag, status in _PRECEDENCE:  # the later one wins
        codes[(np.arange(128) & flag) != 0] = STATUSES.index(status)
    return codes


_STATUS_OF = _status_codes()


@dataclass
class Finished:
    """Calls as arrays of one length: schema.CALLS's columns, and what their nulls and status come from.

    Of the scheduling columns -1 is null. `known`: on_cpu_ns is not; `self_known`: nor is any child's. `flags` as in pairing. `thread`: the dense number of (pid, tid).
    """

    call_id: Ints
    parent_id: Ints
    last_descendant_id: Ints
    next_sibling_id: Ints
    depth: npt.NDArray[np.int32]
    thread: Ints
    func_id: npt.NDArray[np.int32]
    start_ns: Ints
    end_ns: Ints
    wall_ns: Ints
    on_cpu_ns: Ints
    runq_wait_ns: Ints
    gil_wait_ns: Ints
    blocked_ns: Ints
    self_wall_ns: Ints
    self_on_cpu_ns: Ints
    first_cpu: npt.NDArray[np.int16]
    last_cpu: npt.NDArray[np.int16]
    migrations: npt.NDArray[np.int32]
    preemptions: npt.NDArray[np.int32]
    waits: npt.NDArray[np.int32]
    line: npt.NDArray[np.int32]
    flags: npt.NDArray[np.int8]
    frame: Ints
    known: Bools
    self_known: Bools

    def __len__(self) -> int:
        return len(self.call_id)

    def take(self, which: npt.NDArray[np.generic]) -> "Finished":
        """The calls that `which` (mask or positions) selects."""
        return Finished(*(column[which] for column in vars(self).values()))

    @classmethod
    def concat(cls, parts: list["Finished"]) -> "Finished":
        """All calls of `parts`, in that order."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))

    @classmethod
    def to_arrow(cls, parts: list["Finished"], keep: Bools, keys: Ints, layers: npt.NDArray[np.int32]) -> pa.Table:
        """The calls of `parts` that `keep` selects, as schema.CALLS in the order of call_id.

        `keys`: (pid << 32 | tid) by thread number. `layers`: number in LAYERS by func_id, the last one for -1 and unknown ones.
        """
        order = np.argsort(np.concatenate([part.call_id for part in parts]), kind="stable")
        order = order[keep[order]]
        calls = cls(*(np.concatenate([getattr(part, f.name) for part in parts])[order] for f in fields(cls)))
        return calls._to_arrow(keys, layers)

    def _to_arrow(self, keys: Ints, layers: npt.NDArray[np.int32]) -> pa.Table:
        count = len(self)
        part_of_many = (self.flags & (RESUMED | YIELDED | REPAIRED)) != 0
        columns: dict[str, pa.Array] = {
            "frame": pa.array(np.where(part_of_many, self.frame, 0)),
            "resumed": pa.array((self.flags & RESUMED) != 0),
            "yielded": pa.array((self.flags & YIELDED) != 0),
            "layer": pa.DictionaryArray.from_arrays(layers[np.minimum(self.func_id, len(layers) - 1)], list(LAYERS)),
            "status": pa.DictionaryArray.from_arrays(_STATUS_OF[self.flags], list(STATUSES)),
            "pid": pa.array((keys >> 32).astype(np.int32)[self.thread]),
            "tid": pa.array((keys & 0xFFFFFFFF).astype(np.int32)[self.thread]),
            "worker_on_cpu_ns": pa.nulls(count, pa.int64()),  # analyze/workers.py knows it
            "self_on_cpu_ns": pa.array(self.self_on_cpu_ns, mask=None if self.self_known.all() else ~self.self_known),
            **{name: _nullable(getattr(self, name)) for name in _SCHEDULED},
        }
        schema = CALLS.arrow
        return pa.table([columns[n] if n in columns else pa.array(getattr(self, n)) for n in schema.names], schema=schema)


def _nullable(column: npt.NDArray[np.integer]) -> pa.Array:
    return pa.array(column, mask=column < 0 if column.min(initial=0) < 0 else None)
