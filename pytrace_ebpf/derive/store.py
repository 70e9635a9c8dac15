"""Derive a table of a trace that has grown from what was derived of it before: only the new segments are read.

A segment is settled once it was read while the trace went on: what its parts hold no later one changes. What was open at its end, in
the engine and in whatever else follows the events, is kept beside them as a state to go on from.

Where a recording has dropped its first segments (`--retain`) such a table is derived anew from what is left, while the sums of calls are not (sums.py): a
call_id counts from the beginning of the trace, so each row would have to be read and written again, and writing is most of what deriving it takes.
"""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pytrace_ebpf.derive.checkpoints import segment_keys
from pytrace_ebpf.derive.feed import has_only_cputime
from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.derived import Settled
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import Table

State = dict[str, npt.NDArray[Any]]
NO_STATE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, pa.ArrowException, TraceError)
"""What reading a state raises that is none."""
_MOST_BYTES = 1 << 31
_ENGINE, _NUMBERS = "engine", "threads"


class Growing(Protocol):
    """Where a pass for one sink begins, and what is kept for the next one."""

    @property
    def first(self) -> int:
        """How many segments need not be taken again."""

    def resume(self, engines: Shards) -> State:
        """Have fresh `engines` go on from there; returns what else goes on. Raises NO_STATE where nothing can."""

    def refuse(self) -> None:
        """Begin with the first segment: what is kept is no state."""

    def due(self, segments: int) -> bool:
        """Whether settle() is to be called now that so many have been taken."""

    def settle(self, engines: Shards, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """What goes on now: the engines, and `state` besides."""


class Growth:
    """One derivation of a table. `first`: how many segments an earlier one has settled, of which resume() takes over the files and the state."""

    def __init__(self, trace: Trace, table: Table, into: Path, parts: list[str]) -> None:
        """`parts`: the list of its files in the new folder `into`; resume() adds to it."""
        self.first = 0
        self._trace, self._table, self._into, self._parts = trace, table, into, parts
        self._keys = list(segment_keys(trace))
        self._settled: Settled | None = None
        before = trace.settled(table)
        if before is not None and before.key in self._keys:
            self.first, self._settled = self._keys.index(before.key) + 1, before

    def resume(self, engines: Shards) -> State:
        """Have fresh `engines` go on from what is settled; returns what else goes on. Raises NO_STATE where nothing can."""
        assert self._settled
        state = unpacked(self._settled.state)
        load(engines, state)
        if not self._trace.take_over(self._table, self._settled, self._into):
            raise ValueError("it has changed meanwhile")
        self._parts += self._settled.parts
        return state

    def refuse(self) -> None:
        """Begin with the first segment: what is left of the state is none."""
        for part in self._parts:
            (self._into / part).unlink()
        self._parts.clear()
        self.first, self._settled = 0, None

    def due(self, segments: int) -> bool:
        """Whether settle() is to be called now that so many have been taken."""
        count = len(self._keys)
        # A curve of CPU time needs the sample that follows.
        return self._goes_on and segments == (count - 1 if has_only_cputime(self._trace) else count)

    def settle(self, engines: Shards, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """The parts so far stay, and `state` is what goes on besides the engines; nothing, where these miss a name, which may come late."""
        if not engines.met_unknown:
            self._settled = Settled(self._key, tuple(self._parts), packed({**state, **saved(engines)}))

    def settle_with(self, table: Table, engines: Shards, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """settle() what is made of the rows of another derived `table`, part by part, if these are settled; the engines take nothing."""
        under = self._trace.settled(table)
        if under is not None and under.key == self._key:
            self.settle(engines, state)

    @property
    def _key(self) -> str:
        """What all depends on that settle() keeps."""
        return self._keys[len(self._keys) - has_only_cputime(self._trace) - 1]

    @property
    def settled(self) -> Settled | None:
        """What a derivation is to return."""
        return self._settled if self._goes_on else None

    @property
    def _goes_on(self) -> bool:
        return bool(self._keys) and self._trace.manifest["state"] != "complete"


def _numbers(engines: Shards) -> npt.NDArray[np.int64]:
    return engines.engines[0].keys()


def saved(engines: Shards) -> State:
    """The state of engines, for load()."""
    return {_NUMBERS: _numbers(engines), _ENGINE: np.frombuffer(engines.save(), np.uint8)}


def load(engines: Shards, state: State) -> None:
    """Have fresh engines go on from there, and take it out of `state`. Raises KeyError, and TraceError for none.

    Also where the threads have other numbers by now, which are part of every call_id.
    """
    before, now = state.pop(_NUMBERS), _numbers(engines)
    if len(before) > len(now) or not np.array_equal(before, now[: len(before)]):
        raise TraceError("its threads have other numbers")
    engines.load(state.pop(_ENGINE).tobytes())


def packed(state: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Arrays by name as bytes."""
    out = io.BytesIO()
    np.savez_compressed(out, **state)  # type: ignore[arg-type]
    return out.getvalue()


def unpacked(content: bytes) -> State:
    """What was packed(). Raises OSError, ValueError, KeyError, EOFError and BadZipFile for what is no such thing."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(each.file_size for each in archive.infolist()) > _MOST_BYTES:
            raise ValueError("too large")
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def checked_rows(rows: npt.NDArray[Any], dtype: "np.dtype[Any]", columns: int | None = None) -> npt.NDArray[Any]:
    """An array of a state, of the shape (n,) or (columns, n). Raises ValueError where it is none of `dtype`."""
    if rows.dtype != dtype or rows.shape[:-1] != (() if columns is None else (columns,)) or not rows.ndim:
        raise ValueError("no such state")
    return rows
