"""The agent's side of the memory that it shares with the tracer: its layout, its clock, and one process's arena.

The contract is probes/agent/agent.h; the structs are what the compiler made of them.
"""

import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.tables import Columns

STARTING, ACTIVE, QUIET, REFUSED = range(4)  # arena.state
RECORD, STOP = range(2)  # arena.command
FREE, WRITING, FULL = range(3)  # chunk.state
TSC, MONOTONIC = range(2)  # arena.clock
FUNCTIONS_START = 4096
CHUNKS_START = 64 << 20
CHUNK_HEADER = 64
MAGIC = int.from_bytes(b"pyragent", "little")

_LOW_48 = (1 << 48) - 1
_FUTEX, _FUTEX_WAKE = 202, 1  # x86-64; shared, not private
_CLOCKSOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_libc = ctypes.CDLL(None, use_errno=True)


class Library:
    """The agent's library, loaded here for what it says of itself; that does nothing else."""

    def __init__(self, path: Path) -> None:
        """Raises HostError where it is missing or cannot be loaded."""
        self.path = path
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise HostError(f"the agent is not built ({error}); run `make` in the source, or reinstall pytrace-ebpf") from error
        self._anchor = library.pytrace_anchor
        self._anchor.argtypes, self._anchor.restype = (ctypes.c_uint32, ctypes.c_void_p), None
        self._moment = (ctypes.c_uint64 * 2)()
        self.dtypes = _dtypes(ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, "pytrace_layout"))).decode())

    def moment(self, clock: int) -> tuple[int, int]:
        """(stamp of that clock, CLOCK_MONOTONIC ns) of one moment."""
        self._anchor(clock, self._moment)
        return int(self._moment[0]), int(self._moment[1])


def _dtypes(layout: str) -> dict[str, np.dtype]:
    """Lines of "struct field type offset count" as one dtype per struct; an array of char is a text."""
    fields: dict[str, dict[str, list[Any]]] = {}
    for line in layout.splitlines():
        struct, name, kind, offset, count = line.split()
        of = fields.setdefault(struct, {"names": [], "formats": [], "offsets": []})
        of["names"].append(name)
        of["formats"].append(f"S{int(count)}" if kind == "S1" else kind)
        of["offsets"].append(int(offset))
    return {struct: np.dtype(of) for struct, of in fields.items()}  # type: ignore[call-overload]


@cache
def best_clock() -> int:
    """TSC where the kernel itself keeps time by it, so that it runs evenly and alike on all cores; else MONOTONIC."""
    try:
        return TSC if _CLOCKSOURCE.read_text().strip() == "tsc" else MONOTONIC
    except OSError:
        return MONOTONIC


class Clock:
    """The stamps' clock in CLOCK_MONOTONIC, by straight lines from anchor to anchor."""

    def __init__(self, library: Library, number: int) -> None:
        self._library, self.number = library, number
        self._stamp, self._ns = library.moment(number)
        time.sleep(0.002)
        self.tick()

    def tick(self) -> None:
        """Set an anchor. Events taken since the last one lie between the two."""
        self._from, self._from_ns = self._stamp, self._ns
        self._stamp, self._ns = self._library.moment(self.number)
        self._ns_per_stamp = (self._ns - self._from_ns) / max(1, self._stamp - self._from)

    def ns(self, stamps: np.ndarray, out: np.ndarray) -> None:
        """CLOCK_MONOTONIC ns, int64, of stamps, uint64, of about the time between the last two anchors.

        Only the stamps' low 48 bits count.
        """
        # The difference of 48-bit numbers, as one with a sign.
        since = (stamps - np.uint64(self._from & _LOW_48) << np.uint64(16)).view(np.int64)
        since >>= np.int64(16)
        out[:] = since if self.number == MONOTONIC else since * self._ns_per_stamp
        out += np.int64(self._from_ns)


class Function(NamedTuple):
    """A function record."""

    id: int
    file: str
    name: str
    qualname: str
    first_line: int  # below 0: no Python function; then it is the negative number of the layer
    flags: int  # co_flags


class Arena:
    """The arena of one process, mapped. `taken` counts the events drained so far."""

    def __init__(self, descriptor: int, dtypes: dict[str, np.dtype]) -> None:
        """`descriptor` is closed. Raises ValueError for a file that is no arena, or not yet."""
        self._dtypes = dtypes
        try:
            self._map = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        self._header = np.frombuffer(self._map, dtypes["arena"], 1)
        if len(self._map) <= CHUNKS_START or int(self["magic"]) != MAGIC:
            raise ValueError("not an arena, or not yet")
        self.pid, self.clock = int(self["pid"]), int(self["clock"])
        size = int(self["chunk_bytes"])
        most = (len(self._map) - CHUNKS_START) // size
        self._chunks = np.ndarray((most,), dtypes["chunk"], self._map, CHUNKS_START, (size,))
        records = (size - CHUNK_HEADER) // 16
        self._events = np.ndarray((most, records), dtypes["event"], self._map, CHUNKS_START + CHUNK_HEADER, (size, 16))
        self._taken = np.zeros(most, np.uint64)
        self._functions_read = FUNCTIONS_START

    def __getitem__(self, field: str) -> Any:
        """A field of the header, as it is now."""
        return self._header[field][0]

    @property
    def state(self) -> int:
        """STARTING, ACTIVE, QUIET or REFUSED."""
        return int(self["state"])

    @property
    def message(self) -> str:
        """Why it is REFUSED."""
        return bytes(self["message"]).decode(errors="replace")

    @property
    def started(self) -> np.ndarray:
        """Stamp of its beginning, shape (1,)."""
        return self._header["started"]

    def stop(self) -> None:
        """Ask the agent to leave."""
        self._header["command"] = STOP
        address = self._header.ctypes.data + self._dtypes["arena"].fields["command"][1]  # type: ignore[index]
        _libc.syscall(_FUTEX, ctypes.c_void_p(address), _FUTEX_WAKE, 1 << 30, None, None, 0)

    def new_functions(self) -> list[Function]:
        """The functions told since the last call; call it after `news`: then all that its events name are known."""
        header = self._dtypes["function"]
        found = []
        end = int(self["functions_end"])
        while self._functions_read < end:
            row = np.frombuffer(self._map, header, 1, self._functions_read)[0]
            text = self._map[self._functions_read + header.itemsize : self._functions_read + int(row["size"])]
            file, name, qualname = (part.decode("utf-8", "replace") for part in text.split(b"\0")[:3])
            found.append(Function(int(row["id"]), file, name, qualname, int(row["first_line"]), int(row["flags"])))
            self._functions_read += int(row["size"])
        return found

    def news(self) -> "list[Piece]":
        """What was written since the last call. Its events lie in the arena: `give_back` when they were copied."""
        used = int(self["chunks"])
        chunks = self._chunks[:used]
        states = chunks["state"].copy()  # before the counts: a chunk that was full then has its last count
        counts = np.where(states == FREE, 0, chunks["count"])
        taken = self._taken[:used]
        grown = np.flatnonzero(counts > taken)
        grown = grown[np.argsort(chunks["order"][grown])]
        pieces = [
            Piece(chunk, tid, self._events[chunk, start:end], state == FULL)
            for chunk, tid, state, start, end in zip(
                grown.tolist(),
                chunks["tid"][grown].tolist(),
                states[grown].tolist(),
                taken[grown].tolist(),
                counts[grown].tolist(),
                strict=True,
            )
        ]
        read = np.flatnonzero((states == FULL) & (counts <= taken))
        np.maximum(taken, counts, out=taken)
        self._free(read)  # last: of its next use nothing is taken yet
        return pieces

    def give_back(self, pieces: "list[Piece]") -> None:
        """Let the agent have the chunks that it had filled."""
        self._free(np.array([piece.chunk for piece in pieces if piece.full], np.intp))

    def _free(self, chunks: np.ndarray) -> None:
        self._taken[chunks] = 0
        self._chunks["state"][chunks] = FREE


class Piece(NamedTuple):
    """Events of one chunk that were not taken yet."""

    chunk: int
    tid: int  # as the process sees it
    events: np.ndarray  # dtype event, shape (n,), in order
    full: bool  # there will be no more in this chunk


def batches(pieces: list[Piece], rows: int) -> Iterator[list[Piece]]:
    """The pieces in their order, in lists of about so many events."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.events)
        if size >= rows:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# The parts of an event that are whole bytes or nearly so.
_PARTS = np.dtype(
    {"names": ["stamp", "line", "frame", "rest"], "formats": ["<u8", "<u2", "<u4", "<u4"], "offsets": [0, 6, 8, 12]}
)


def columns(pieces: list[Piece], clock: Clock, pid: int, tids: dict[int, int], func_ids: np.ndarray) -> Columns:
    """Columns of `events`, piece by piece since these are in the processor's cache then.

    `tids` maps threads; `func_ids`, int32, maps the agent's function ids.
    """
    size = sum(len(piece.events) for piece in pieces)
    ts, frame = np.empty(size, np.int64), np.empty(size, np.int64)
    tid, func_id, line = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.int32)
    kind = np.empty(size, np.int8)
    start = 0
    for piece in pieces:
        at = slice(start, start := start + len(piece.events))
        parts = piece.events.view(_PARTS)
        rest = parts["rest"]
        clock.ns(parts["stamp"], ts[at])
        tid[at] = tids[piece.tid]
        kind[at] = rest >> np.uint32(20) & np.uint32(7)
        func_ids.take(rest & np.uint32(0xFFFFF), out=func_id[at], mode="clip")
        frame[at] = parts["frame"]
        left = parts["line"] | rest >> np.uint32(23) << np.uint32(16)
        line[at] = left
        line[at][left == 0] = -1
    return {
        "ts": ts, "pid": np.full(size, pid, np.int32), "tid": tid, "kind": kind,
        "func_id": func_id, "frame": frame, "line": line,
    }  # fmt: skip
