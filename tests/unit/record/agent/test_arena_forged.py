"""Whatever a user writes into an arena is read, or reported as damaged, and takes no more memory than a valid one."""

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytrace_ebpf.record.agent import arena
from pytrace_ebpf.record.agent.agent_library import MONOTONIC, Clock, Library, agent_library
from pytrace_ebpf.record.agent.arena import (
    ALLOCATIONS,
    CALLS,
    CHUNK_SIZE,
    CHUNK_TABLE,
    CHUNKS_START,
    FREE,
    FULL,
    FUNCTIONS_START,
    MAGIC,
    OPCODES,
    VALUES,
    WRITING,
    Arena,
    Damaged,
    NotYet,
)
from pytrace_ebpf.record.agent.traced import Traced, lookups
from pytrace_ebpf.record.cpython.functions import Functions
from pytrace_ebpf.record.cpython.qualnames import unknown
from pytrace_ebpf.record.output.observed_rows import ARRAY, KINDS, SIZED, TEXT, observed_table
from pytrace_ebpf.record.output.statement_rows import STATEMENT
from pytrace_ebpf.record.process.pinned import Descriptor
from pytrace_ebpf.record.process.readings import Readings
from pytrace_ebpf.trace import client_functions
from pytrace_ebpf.trace.schema import OBSERVED, TABLES
from tests.unit.agent_pythons import built

pytestmark = built

CHUNK_BYTES, CHUNKS = 4096, 3
SPAN = 10**9, 2 * 10**9
LIBRARY = Library(agent_library()) if agent_library().exists() else None
DTYPES = LIBRARY.dtypes if LIBRARY else {}
CLOCK: Any = Clock(LIBRARY, MONOTONIC) if LIBRARY else None


def function(number: int, texts: bytes = b"file.py\0name\0q.name\0", first_line: int = 1, size: int | None = None) -> bytes:
    body = texts.ljust(-(-len(texts) // 8) * 8, b"\0")
    return arena._RECORD.pack(16 + len(body) if size is None else size, number, first_line, 0xFFFFFFFF) + body


def header(**values: int) -> bytes:
    row = np.zeros(1, DTYPES["arena"])
    chosen = {"magic": MAGIC, "pid": 1, "clock": MONOTONIC, "chunk_bytes": CHUNK_BYTES, "chunks": CHUNKS, "functions_end": FUNCTIONS_START} | values
    for name, value in chosen.items():
        row[name] = value
    return row.tobytes()


def chunk(state: int, count: int, order: int = 1, tid: int = 1, stream: int = CALLS, record_bytes: int = 16) -> bytes:
    row = np.zeros(1, DTYPES["chunk"])
    row["state"], row["tid"], row["order"], row["count"], row["stream"], row["record_bytes"] = state, tid, order, count, stream, record_bytes
    return row.tobytes().ljust(CHUNK_SIZE, b"\0")


def event(stamp: int = SPAN[0], what: int = 1 << 32) -> bytes:
    return np.array([(stamp & (1 << 48) - 1, what)], DTYPES["event"]).tobytes()


def written(path: Path, *parts: tuple[int, bytes], size: int = CHUNKS_START + CHUNKS * CHUNK_BYTES) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.ftruncate(descriptor, size)
    for offset, content in parts:
        os.pwrite(descriptor, content, offset)
    return descriptor


def read(descriptor: int, looks: int = 2, between: Callable[[], None] = lambda: None) -> list[dict[str, np.ndarray]]:
    """What the tracer takes from an arena. Raises Damaged or NotYet, and nothing else."""
    functions = Functions()
    found = Arena(Descriptor(descriptor), DTYPES, CHUNKS * CHUNK_BYTES)
    ids: Any = SimpleNamespace(pid=1)
    traced, taken = Traced(found, ids, SPAN[0], lookups(Readings(None, ""), 0, unknown)), []
    clock: Any = SimpleNamespace(line=CLOCK.line, now_ns=SPAN[1], ns_per_stamp=0.5)
    for _ in range(looks):
        pieces = found.news()
        traced.introduce(functions)
        assert len(traced.func_ids) <= 2 << 20 and len(traced.values._names) <= 2 << 20
        tids = {piece.tid: piece.tid for piece in pieces}
        calls, values, allocations = ([piece for piece in pieces if piece.stream == stream] for stream in (CALLS, VALUES, ALLOCATIONS))
        taken += list(traced.events(calls, tids, clock))
        for columns in traced.allocations.take(found, allocations, tids, 1, traced.values.moments):
            pa.table(columns, schema=TABLES["allocations"].arrow).validate(full=True)
        for columns in traced.values.take(found, values, tids, 1):
            observed_table(OBSERVED, columns).validate(full=True)
        pa.table(traced.executed(functions, clock), schema=TABLES["opcodes"].arrow).validate(full=True)
        between()
    return taken


def values(**fields: int) -> list[tuple[int, bytes]]:
    row = np.zeros(1, DTYPES["value"]) if DTYPES else np.zeros(1)
    for name, number in fields.items() if DTYPES else ():
        row[name] = number
    return [(TABLE, chunk(WRITING, 1, stream=VALUES, record_bytes=192)), (EVENTS, row.tobytes())] if DTYPES else []


def allocations(**fields: int) -> list[tuple[int, bytes]]:
    row = np.zeros(1, DTYPES["allocations"]) if DTYPES else np.zeros(1)
    for name, number in fields.items() if DTYPES else ():
        row[name] = number
    return [(TABLE, chunk(WRITING, 1, stream=ALLOCATIONS, record_bytes=48)), (EVENTS, row.tobytes())]


def opcodes(*counts: int, state: int = WRITING, **fields: int) -> list[tuple[int, bytes]]:
    rows = np.zeros(len(counts), DTYPES["opcode"]) if DTYPES else np.zeros(1)
    for name, number in ({"count": counts} | fields).items() if DTYPES else ():
        rows[name] = number
    return [(TABLE, chunk(state, len(counts), stream=OPCODES, record_bytes=32)), (EVENTS, rows.tobytes())]


TABLE, FUNCTIONS, EVENTS = CHUNK_TABLE, FUNCTIONS_START, CHUNKS_START
WRONG_VALUES = {"kind": KINDS, "what": 4, "status": 4, "size": 161, "length": -1, "position": 1 << 15}
WRONG_ALLOCATIONS = {"bytes": 1 << 56, "freed_bytes": (1 << 64) - 1, "level": -(1 << 63), "peak": -1}
WRONG_OPCODES = {"count": 1 << 62, "ticks": (1 << 64) - 1, "line": 1 << 31}
DAMAGE = {
    "no arena": [(0, header(magic=7))],
    "another clock": [(0, header(clock=2))],
    "chunks of nothing": [(0, header(chunk_bytes=0))],
    "chunks of odd size": [(0, header(chunk_bytes=4097))],
    "endless chunks": [(0, header(chunk_bytes=1 << 31))],
    "more chunks than there are": [(0, header(chunks=CHUNKS + 1))],
    "an impossible process id": [(0, header(pid=1 << 31))],
    "no process": [(0, header(pid=0))],
    "an impossible thread id": [(0, header()), (TABLE, chunk(WRITING, 1, tid=1 << 31))],
    "an unknown stream": [(0, header()), (TABLE, chunk(WRITING, 1, stream=4))],
    "values of the size of events": [(0, header()), (TABLE, chunk(WRITING, 1, stream=VALUES))],
    "more values than a chunk holds": [(0, header()), (TABLE, chunk(WRITING, CHUNK_BYTES // 192 + 1, stream=VALUES, record_bytes=192))],
    **{f"a value with a wrong {name}": [(0, header()), *values(**{name: number})] for name, number in WRONG_VALUES.items()},
    "allocations of the size of events": [(0, header()), (TABLE, chunk(WRITING, 1, stream=ALLOCATIONS))],
    "more allocations than a chunk holds": [(0, header()), (TABLE, chunk(WRITING, CHUNK_BYTES // 48 + 1, stream=ALLOCATIONS, record_bytes=48))],
    **{f"allocations with wrong {name}": [(0, header()), *allocations(**{name: number})] for name, number in WRONG_ALLOCATIONS.items()},
    "instructions of the size of events": [(0, header()), (TABLE, chunk(WRITING, 1, stream=OPCODES))],
    "more instructions than a chunk holds": [(0, header()), (TABLE, chunk(WRITING, CHUNK_BYTES // 32 + 1, stream=OPCODES, record_bytes=32))],
    **{f"instructions with a wrong {name}": [(0, header()), *opcodes(1, **{name: number})] for name, number in WRONG_OPCODES.items()},
    "a statement of a function that is not in the table": [
        (0, header()),
        *values(what=STATEMENT, kind=TEXT, position=len(client_functions.FUNCTIONS)),
    ],
    "a statement that is no text": [(0, header()), *values(what=STATEMENT, kind=SIZED)],
    "an array whose sizes are not there": [(0, header()), *values(kind=ARRAY, length=2)],
    "a container with data": [(0, header()), *values(kind=SIZED, size=8)],
    "records of no size": [(0, header()), (TABLE, chunk(WRITING, 1, record_bytes=0))],
    "records of another size": [(0, header()), (TABLE, chunk(FULL, 1, record_bytes=24))],
    "an unknown state": [(0, header()), (TABLE, chunk(3, 1))],
    "more events than a chunk holds": [(0, header()), (TABLE, chunk(WRITING, CHUNK_BYTES // 16 + 1))],
    "endless events": [(0, header()), (TABLE, chunk(WRITING, (1 << 64) - 1))],
    "functions before their place": [(0, header(functions_end=FUNCTIONS - 8))],
    "functions into the chunks": [(0, header(functions_end=CHUNKS_START + 8))],
    "a function that is too large": [(0, header(functions_end=FUNCTIONS + 40)), (FUNCTIONS, function(1, size=1 << 31))],
    "a function without size": [(0, header(functions_end=FUNCTIONS + 40)), (FUNCTIONS, function(1, size=0))],
    "a function that is cut off": [(0, header(functions_end=FUNCTIONS + 24)), (FUNCTIONS, function(1))],
    "a function with a forged id": [(0, header(functions_end=FUNCTIONS + 40)), (FUNCTIONS, function(1 << 31))],
    "names without an end": [(0, header(functions_end=FUNCTIONS + 40)), (FUNCTIONS, function(1, b"x" * 24))],
    "an unknown layer": [(0, header(functions_end=FUNCTIONS + 40)), (FUNCTIONS, function(1, first_line=-7))],
    "exec, reported by an agent": [(0, header()), (TABLE, chunk(WRITING, 1)), (EVENTS, event(what=3 << 52))],
    "an unknown kind": [(0, header()), (TABLE, chunk(WRITING, 1)), (EVENTS, event(what=7 << 52))],
}


@pytest.mark.parametrize("parts", DAMAGE.values(), ids=DAMAGE)
def test_what_no_agent_writes_is_damaged(parts: list[tuple[int, bytes]], tmp_path: Path) -> None:
    with pytest.raises(Damaged):
        read(written(tmp_path / "arena", *parts))


def test_an_arena_above_the_agents_limit_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="larger"):
        read(written(tmp_path / "arena", (0, header()), size=1 << 40))


@pytest.mark.parametrize("size", [0, CHUNKS_START, CHUNKS_START + 1])
def test_an_arena_that_is_being_created_is_not_yet(size: int, tmp_path: Path) -> None:
    with pytest.raises(NotYet):
        read(written(tmp_path / "arena", size=size))


@pytest.mark.parametrize("left", [0, 8, CHUNK_TABLE, CHUNK_TABLE + 8, FUNCTIONS_START, CHUNKS_START, CHUNKS_START + 8])
def test_an_arena_that_is_truncated_while_it_is_read_is_damaged(left: int, tmp_path: Path) -> None:
    descriptor = written(tmp_path / "arena", (0, header()), (TABLE, chunk(WRITING, 3)))

    def cut() -> None:
        os.truncate(tmp_path / "arena", left)
        if left > CHUNK_TABLE + 64:
            with (tmp_path / "arena").open("r+b") as file:
                os.pwrite(file.fileno(), chunk(WRITING, 9), TABLE)

    with pytest.raises(Damaged, match="cut off"):
        read(descriptor, 2, cut)


def test_a_command_to_a_truncated_arena_raises_no_signal(tmp_path: Path) -> None:
    for left in (0, CHUNK_TABLE):
        found = Arena(Descriptor(written(tmp_path / "arena", (0, header()))), DTYPES, CHUNKS * CHUNK_BYTES)
        os.truncate(tmp_path / "arena", left)
        found.stop()  # neither a signal nor an exception


def test_a_count_that_shrinks_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    descriptor = written(path, (0, header()), (TABLE, chunk(WRITING, 3)))
    writer = os.open(path, os.O_RDWR)
    with pytest.raises(Damaged, match="fewer"):
        read(descriptor, 2, lambda: os.pwrite(writer, chunk(WRITING, 2), TABLE) and None)
    os.close(writer)


def test_time_stamps_lie_between_the_beginning_and_now(tmp_path: Path) -> None:
    now = time.monotonic_ns()
    events = b"".join(event(stamp) for stamp in (0, now, now + (1 << 46), (1 << 48) - 1))
    (taken,) = read(written(tmp_path / "arena", (0, header()), (TABLE, chunk(WRITING, 4)), (EVENTS, events)))
    assert len(taken["ts"]) == 4
    assert (taken["ts"] >= SPAN[0]).all() and (taken["ts"] <= SPAN[1]).all()


def test_counters_fit_wherever_they_are_added_up(tmp_path: Path) -> None:
    found = Arena(Descriptor(written(tmp_path / "arena", (0, header(dropped=2**64 - 1, waited_ns=2**64 - 1)))), DTYPES, 1 << 20)
    assert sum(found.counted(name) for name in ("dropped", "unnamed", "waited_ns")) < 1 << 62


words = st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 2, 3, 7, 4096, 1 << 31, 2**32 - 1])
long_words = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, FUNCTIONS_START, FUNCTIONS_START + 40, CHUNKS_START, 2**63, 2**64 - 1])
headers = st.fixed_dictionaries(
    {},
    optional={
        "magic": st.just(MAGIC) | long_words, "clock": words, "chunk_bytes": st.just(CHUNK_BYTES) | words, "chunks": st.integers(0, 4) | words,
        "started": long_words, "functions_end": long_words, "dropped": long_words, "state": words, "pid": words,
    },
)  # fmt: skip
chunks = st.builds(
    chunk,
    st.sampled_from([FREE, WRITING, FULL]) | words,
    st.integers(0, 256) | long_words,
    long_words,
    words,
    st.sampled_from([CALLS, VALUES, ALLOCATIONS]) | words,
    st.sampled_from([16, 48, 192]) | words,
)
functions = st.builds(
    function, st.integers(1, 3) | words, st.binary(max_size=60), st.integers(-3, 3) | st.integers(-(2**31), 2**31 - 1), st.none() | words
)
value_records = st.builds(
    lambda head, data: head + data.ljust(160, b"\0"),
    st.builds(
        lambda *fields: struct.pack("<QIIqHHBBBB", *fields),
        st.integers(0, 3) | long_words, words, words, st.integers(0, 20) | st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**16 - 1),
        st.integers(0, 160), st.integers(0, 4), st.integers(0, KINDS), st.integers(0, 4), st.integers(0, 255),
    ),
    st.binary(max_size=160),
)  # fmt: skip
parts = st.tuples(
    st.builds(lambda values: (0, header(**values)), headers),
    st.builds(lambda rows: (TABLE, b"".join(rows)), st.lists(chunks, max_size=CHUNKS)),
    st.builds(lambda rows: (FUNCTIONS, b"".join(rows)), st.lists(functions, max_size=4)),
    st.builds(lambda data: (EVENTS, data), st.binary(max_size=256) | value_records),
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(first=parts, second=parts)
def test_a_forged_arena_is_read_or_damaged(first: tuple, second: tuple, tmp_path: Path) -> None:
    path = tmp_path / "arena"
    descriptor = written(path, *first)
    writer = os.open(path, os.O_RDWR)
    try:
        read(descriptor, 2, lambda: [os.pwrite(writer, content, offset) for offset, content in second] and None)
    except (Damaged, NotYet):
        pass
    finally:
        os.close(writer)


def test_instructions_are_counted_by_what_was_added(tmp_path: Path) -> None:
    """Whatever function, number or form they name; fewer of them than before are damage, as are fewer records."""
    path = tmp_path / "arena"
    first = [(0, header(python=0x030D0000)), *opcodes(3, 1 << 61, 0, function=1 << 31, opcode=255, form=255, ticks=10)]
    found = Arena(Descriptor(written(path, *first)), DTYPES, CHUNKS * CHUNK_BYTES)
    ids: Any = SimpleNamespace(pid=1)
    traced = Traced(found, ids, SPAN[0], lookups(Readings(None, ""), 0, unknown))
    clock: Any = SimpleNamespace(ns_per_stamp=0.5)

    def added(*parts: tuple[int, bytes]) -> tuple[list[int], list[int]]:
        for offset, content in parts:
            os.pwrite(found.file.fileno(), content, offset)
        columns = traced.executed(Functions(), clock)
        assert set(columns["func_id"].tolist()) <= {-1} and set(columns["line"].tolist()) <= {-1}
        return columns["hits"].tolist(), columns["wall_ns"].tolist()

    assert added() == ([3, 1 << 61, 0], [5, 5, 5])
    assert added() == ([], [])
    assert added(*opcodes(4, 1 << 61, 1, 7, ticks=12)) == ([1, 0, 1, 7], [1, 1, 1, 6])
    assert added((TABLE, chunk(FREE, 4, stream=OPCODES, record_bytes=32))) == ([], [])
    with pytest.raises(Damaged, match="counts fewer instructions than it did"):
        added(*opcodes(4, 1 << 61, 1, 6, ticks=12))
    with pytest.raises(Damaged, match="counts fewer instructions than it did"):
        added(*opcodes(4, ticks=12))
