"""One process's arena: a file of another user, who may write anything into it at any moment.

It is not mapped here, since its owner could truncate it, which would be a SIGBUS: it is read into memory of our own,
and that copy is checked before it is used. Arenas stay in this process all the same: they
are records of a fixed size, decoded by one loop of C (rebuild/decode.c), so that there is no parser to take over, and a process
without rights would have to hand on 33 bytes of columns for each event of 16. Over a socket that takes about 21 ns of CPU an
event (17 to send, 5 to receive, half a million events at a time), where reading and decoding one take 8
(scripts/bench/collector.py). The contract is probes/agent/agent.h.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pytrace_ebpf.printable import printable
from pytrace_ebpf.rebuild.decoding import Rows
from pytrace_ebpf.record.agent.agent_library import MONOTONIC, TSC, Clock
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.record.process.pinned import Descriptor
from pytrace_ebpf.trace.schema import LAYERS

STARTING, ACTIVE, QUIET, REFUSED = range(4)  # arena.state
RECORD, STOP = range(2)  # arena.command
FREE, WRITING, FULL = range(3)  # chunk.state
CALLS, VALUES, ALLOCATIONS, OPCODES = range(4)  # chunk.stream
NAME = 255  # -function.first_line of what is no function but a name
INTERPRETER = 254  # or of what says that a thread makes calls of an interpreter
CHUNK_TABLE, MOST_CHUNKS, CHUNK_SIZE = 64 << 10, 1 << 16, 64
FUNCTIONS_START = CHUNK_TABLE + MOST_CHUNKS * CHUNK_SIZE
CHUNKS_START = 64 << 20
EVERYTHING = (1 << 32) - 1  # arena.left_out_count
MAGIC = int.from_bytes(b"pyragent", "little")

_PAGE = mmap.PAGESIZE
_EVENT = 16  # bytes
_MOST_CHUNK_BYTES = _EVENT << 20
_LAST_FUNCTION = (1 << 20) - 1
_RECORD = struct.Struct("<IIiI")  # struct function
_LONGEST_RECORD = 16 << 10  # three texts of at most 4096 bytes
_AT_ONCE = 1 << 20  # bytes of function records
_MOST_ID = 1 << 22  # of a thread: PID_MAX_LIMIT of the kernel's include/linux/threads.h
_BUSY = 4096  # events of one thread at once from which on it gets columns of its own
_MOST_COUNTED = 1 << 48  # a larger count is not believed
_DIGITS = 19  # of an int64
_NOT_PYTHON = {LAYERS.index(name) for name in ("gc", "import", "c")}


class NotYet(Exception):  # noqa: N818 - the field's word
    """The arena is still being created."""


class Damaged(Exception):  # noqa: N818 - the field's word
    """The arena holds what no agent writes; the text is the predicate of a sentence whose subject is the memory of a process."""


class Function(NamedTuple):
    """A function record, or another that first_line tells: -NAME, a name of the agent's values, `file`; -INTERPRETER, a thread, `flags`, makes calls of the interpreter `file`."""

    id: int
    file: str
    name: str
    qualname: str  # "" where code objects carry none
    first_line: int  # below 0: no Python function; then it is the negative number of the layer
    flags: int  # co_flags


class Piece(NamedTuple):
    """Records of one chunk that were not taken yet."""

    chunk: int
    tid: int  # as the process says
    start: int
    size: int
    full: bool  # there will be no more in this chunk
    stream: int  # CALLS, VALUES or ALLOCATIONS
    thread: int  # its number among those of the arena
    number: int  # of the first of these records among the thread's of that stream


class Arena:
    """The arena of one process. Every method raises Damaged, after which nothing more is to be asked of it."""

    def __init__(self, file: Descriptor, dtypes: dict[str, np.dtype], most_bytes: int) -> None:
        """`file`: open for reading and writing; `most_bytes`: the limit that the agent was given for its chunks.

        Raises NotYet for an arena whose header is not complete.
        """
        self.file, self._dtypes, self._turn = file, dtypes, 0
        size = os.fstat(file.fileno()).st_size
        if size <= CHUNKS_START:
            raise NotYet
        self.look()
        if self._header["magic"] == 0:
            raise NotYet
        self.pid, self.clock, self.python = (int(self._header[name]) for name in ("pid", "clock", "python"))
        chunk_bytes = int(self._header["chunk_bytes"])
        _hold(int(self._header["magic"]) == MAGIC, "does not begin as an agent's does")
        _hold(0 < self.pid <= _MOST_ID, "has an impossible process id")
        _hold(self.clock in (TSC, MONOTONIC), "names an unknown clock")
        _hold(_PAGE <= chunk_bytes <= _MOST_CHUNK_BYTES and chunk_bytes % _PAGE == 0, "has chunks of an impossible size")
        _hold(size - CHUNKS_START <= max(most_bytes, chunk_bytes), "is larger than the limit that the agent was given")
        self.most_chunks, self._chunk_bytes = min((size - CHUNKS_START) // chunk_bytes, MOST_CHUNKS), chunk_bytes
        self._taken = np.zeros(self.most_chunks, np.uint64)
        self._events = np.empty(chunk_bytes // _EVENT, dtypes["event"])
        self._record_bytes = np.array([dtypes[name].itemsize for name in ("event", "value", "allocations", "opcode")])  # by stream
        self._functions_read, self._functions = FUNCTIONS_START, 0

    def look(self) -> None:
        """Read the header again; the properties give its values."""
        self._header = np.frombuffer(self._read(0, self._dtypes["arena"].itemsize), self._dtypes["arena"])[0]

    @property
    def state(self) -> int:
        """STARTING, ACTIVE, QUIET or REFUSED."""
        return int(self._header["state"])

    @property
    def message(self) -> str:
        """Why it is REFUSED."""
        return sentence(bytes(self._header["message"]))

    @property
    def started(self) -> int:
        """Stamp of its beginning."""
        return int(self._header["started"])

    def counted(self, field: str) -> int:
        """One of the header's counters: dropped, unnamed, values_dropped, allocations_dropped, opcodes_dropped, untracked, waited_ns, interpreters, threads_taken."""
        return min(int(self._header[field]), _MOST_COUNTED)

    def stop(self) -> None:
        """Ask the agent to leave."""
        self._write(self._offset("command"), STOP)

    def leave_out(self, functions: np.ndarray | None) -> bool:
        """Ask the agent to write no calls of these functions, ids of which the first few hundred count, None: none at all; and those of all others.

        False where it has not followed the last time it was asked yet: then it is not asked now.
        """
        if not self.follows:
            return False
        room = self._dtypes["arena"].fields["left_out"][0].shape[0]  # type: ignore[index]
        self._turn = self._turn + 1 & 0xFFFFFFFF
        if functions is not None:
            self._put(self._offset("left_out"), functions[:room].astype(np.uint32).tobytes())
        self._write(self._offset("left_out_count"), EVERYTHING if functions is None else min(room, len(functions)))
        self._write(self._offset("left_out_turn"), self._turn)
        return True

    @property
    def used(self) -> int:
        """About how many bytes of it have memory."""
        functions = max(0, min(int(self._header["functions_end"]), CHUNKS_START) - FUNCTIONS_START)
        return functions + min(int(self._header["chunks"]), self.most_chunks) * self._chunk_bytes

    def grant(self, size: int) -> None:
        """Let so many bytes of it have memory."""
        self._put(self._offset("granted"), size.to_bytes(8, "little"))

    @property
    def follows(self) -> bool:
        """Whether the agent had done what leave_out() asked when the header was looked at."""
        return int(self._header["left_out_done"]) == self._turn

    def _offset(self, field: str) -> int:
        return int(self._dtypes["arena"].fields[field][1])  # type: ignore[index]

    def new_functions(self) -> Iterator[Function]:
        """The functions reported since the last call. Call it after `news`: then all functions of those events are known."""
        self.look()
        end = int(self._header["functions_end"])
        _hold(self._functions_read <= end <= CHUNKS_START, "says that its functions end where they cannot")
        while self._functions_read < end:
            data = self._read(self._functions_read, min(end - self._functions_read, _AT_ONCE))
            at = 0
            while at + _RECORD.size <= len(data):
                size = _RECORD.unpack_from(data, at)[0]
                _hold(_RECORD.size < size <= _LONGEST_RECORD and size % 8 == 0, "holds a function of an impossible size")
                if at + size > len(data):
                    break
                yield self._function(data[at : at + size])
                at += size
            _hold(at > 0, "holds a function that is cut off")
            self._functions_read += at

    def _function(self, record: bytes) -> Function:
        _, number, first_line, flags = _RECORD.unpack_from(record)
        file, name, qualname, *rest = record[_RECORD.size :].split(b"\0", 3) + [b""] * 3
        self._functions += 1
        _hold(number == self._functions <= _LAST_FUNCTION, "numbers its functions as no agent does")
        _hold(len(rest) == 4, "holds a function whose names do not end")
        _hold(first_line >= 0 or -first_line in _NOT_PYTHON or -first_line in (NAME, INTERPRETER), "holds a function of an unknown layer")
        _hold(first_line != -INTERPRETER or (file.isdigit() and len(file) < _DIGITS), "names an interpreter as no agent does")
        return Function(number, _text(file), _text(name), _text(qualname), first_line, flags & 0x7FFFFFFF)

    def news(self) -> list[Piece]:
        """What was written since the last call. Its events lie in the arena: `give_back` when they were read."""
        self.look()
        used = int(self._header["chunks"])
        _hold(used <= self.most_chunks, "says that more chunks are in use than there are")
        if not used:
            return []
        states = self._table(used)["state"]  # before the counts: a chunk that was full then has its last count
        table = self._table(used)
        _hold(bool((states <= FULL).all()), "has a chunk in an unknown state")
        stream = np.minimum(table["stream"], OPCODES)
        ours = (table["stream"] == stream) & (table["record_bytes"] == self._record_bytes[stream])
        _hold(bool((ours | (states == FREE)).all()), "has a chunk of an unknown stream")
        _hold(bool(((table["tid"] <= _MOST_ID) | (states == FREE)).all()), "has a chunk with an impossible thread id")
        _hold(bool(((table["first"] < _MOST_COUNTED) | (states == FREE)).all()), "numbers its records as no agent does")
        counts = table["count"]
        if (stream != CALLS).any():  # after those of events: else a record could come when its event is forgotten
            counts = np.where(stream == CALLS, counts, self._table(used)["count"])
        counts, taken = np.where((states == FREE) | (stream == OPCODES), 0, counts), self._taken[:used]
        _hold(bool((counts <= self._chunk_bytes // self._record_bytes[stream]).all()), "counts more events in a chunk than it holds")
        _hold(bool((counts >= taken).all()), "counts fewer events in a chunk than it did")
        grown = np.flatnonzero(counts > taken)
        grown = grown[np.argsort(table["order"][grown])]
        pieces = [
            Piece(chunk, tid, start, end - start, state == FULL, of, thread, first + start)
            for chunk, tid, state, start, end, of, thread, first in zip(
                grown.tolist(),
                table["tid"][grown].tolist(),
                states[grown].tolist(),
                taken[grown].tolist(),
                counts[grown].tolist(),
                stream[grown].tolist(),
                table["thread"][grown].tolist(),
                table["first"][grown].tolist(),
                strict=True,
            )
        ]
        read = np.flatnonzero((states == FULL) & (counts <= taken))
        np.maximum(taken, counts, out=taken)
        self._free(read.tolist())  # last: of its next use nothing is taken yet
        return pieces

    def events(self, piece: Piece) -> np.ndarray:
        """The events of a piece, dtype event, in order, in memory that the next call uses again."""
        return self._records(piece, self._events[: piece.size])

    def values(self, piece: Piece) -> np.ndarray:
        """The values of a piece, dtype value, in order."""
        return self._records(piece, np.empty(piece.size, self._dtypes["value"]))

    def allocations(self, piece: Piece) -> np.ndarray:
        """The records of a piece, dtype allocations, in order."""
        return self._records(piece, np.empty(piece.size, self._dtypes["allocations"]))

    def opcodes(self) -> list[tuple[int, np.ndarray]]:
        """(chunk, its records, dtype opcode, as they stand now) of every chunk with counts of instructions."""
        self.look()
        used = min(int(self._header["chunks"]), self.most_chunks)
        table, found = self._table(used), []
        for chunk in np.flatnonzero((table["stream"] == OPCODES) & (table["state"] == WRITING)).tolist():
            size = int(table["count"][chunk])
            _hold(size <= self._chunk_bytes // self._record_bytes[OPCODES], "counts more events in a chunk than it holds")
            found.append((chunk, self._records(Piece(chunk, 0, 0, size, False, OPCODES, 0, 0), np.empty(size, self.dtype("opcode")))))
        return found

    def dtype(self, name: str) -> np.dtype:
        """Of one of the agent's structs."""
        return self._dtypes[name]

    def _records(self, piece: Piece, into: np.ndarray) -> np.ndarray:
        offset = CHUNKS_START + piece.chunk * self._chunk_bytes + piece.start * into.itemsize
        try:
            got = os.preadv(self.file.fileno(), [into.data], offset)
        except OSError as error:
            raise Damaged(f"cannot be read ({error.strerror})") from None
        _hold(got == into.nbytes, "was cut off")
        return into

    def give_back(self, pieces: list[Piece]) -> None:
        """Let the agent have the chunks that it had filled."""
        self._free([piece.chunk for piece in pieces if piece.full])

    def _free(self, chunks: list[int]) -> None:
        state = self._dtypes["chunk"].fields["state"][1]  # type: ignore[index]
        for chunk in chunks:
            self._taken[chunk] = 0
            self._write(CHUNK_TABLE + chunk * CHUNK_SIZE + state, FREE)

    def _table(self, chunks: int) -> np.ndarray:
        data = self._read(CHUNK_TABLE, chunks * CHUNK_SIZE)
        return np.ndarray((chunks,), self._dtypes["chunk"], data, strides=(CHUNK_SIZE,))

    def _read(self, offset: int, size: int) -> bytes:
        try:
            data = os.pread(self.file.fileno(), size, offset)
        except OSError as error:
            raise Damaged(f"cannot be read ({error.strerror})") from None
        _hold(len(data) == size, "was cut off")
        return data

    def _write(self, offset: int, value: int) -> None:
        self._put(offset, value.to_bytes(4, "little"))

    def _put(self, offset: int, data: bytes) -> None:
        try:
            os.pwrite(self.file.fileno(), data, offset)
        except OSError as error:
            raise Damaged(f"cannot be written ({error.strerror})") from None


def _text(part: bytes) -> str:
    return part.decode("utf-8", "replace")


def sentence(text: bytes) -> str:
    """What another user wrote, up to its first NUL, on one line that a terminal shows as it is."""
    return printable(" ".join(text.partition(b"\0")[0].decode(errors="replace").split()))


def batches(pieces: list[Piece], rows: int) -> Iterator[list[Piece]]:
    """The pieces in their order, in lists of about so many events; a busy thread has lists of its own."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        if batch and piece.tid != batch[-1].tid and max(size, piece.size) >= _BUSY:
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += piece.size
        if size >= rows:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class Mapping(NamedTuple):
    """What is needed to convert one process's events."""

    pid: int
    tids: dict[int, int]
    func_ids: np.ndarray  # int32, by the agent's function ids
    span: tuple[int, int]  # ns, of the first and the last moment that an event can be of
    lines: bool = False  # events of lines were asked for


def columns(arena: Arena, pieces: list[Piece], clock: Clock, mapping: Mapping) -> Columns:
    """Columns of `events`, piece by piece since these are in the processor's cache then. Raises Damaged."""
    sizes, tids = [piece.size for piece in pieces], [mapping.tids[piece.tid] for piece in pieces]
    rows = Rows(sum(sizes), mapping.func_ids, clock.line, mapping.span, mapping.lines)
    for piece in pieces:
        _hold(rows.take(arena.events(piece)), "holds an event of a kind that no agent writes")
    tid = np.repeat(np.array(tids, np.int32), sizes) if len(set(tids)) > 1 else _constant(tids[0], sum(sizes))
    return {"pid": _constant(mapping.pid, sum(sizes)), "tid": tid, **rows.columns}


def _constant(value: int, rows: int) -> np.ndarray:
    """int32, shape (rows,), the same memory for all who ask for this value."""
    return _constants(value, 1 << (rows - 1).bit_length())[:rows]


@lru_cache(maxsize=8)
def _constants(value: int, rows: int) -> np.ndarray:
    constants = np.full(rows, value, np.int32)
    constants.flags.writeable = False
    return constants


def _hold(what: bool, otherwise: str) -> None:
    if not what:
        raise Damaged(otherwise)
