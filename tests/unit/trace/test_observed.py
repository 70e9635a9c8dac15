"""An agent's values as rows: what the compiled library and NumPy make of them is what a slow reference does; each with its event's moment."""

import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytrace_ebpf.record.agent.arena import VALUES, Damaged, Piece
from pytrace_ebpf.record.agent.values import MOST_THREADS, Values
from pytrace_ebpf.record.output import observed_rows
from pytrace_ebpf.record.output.observed_rows import ARRAY, BOOL, BYTES, FLOAT, INT, KINDS, NEGATIVE, NONE, SIZED, TENSOR, TEXT, observed_table
from pytrace_ebpf.trace.observed import VALUE_STATUSES, WHATS
from pytrace_ebpf.trace.schema import OBSERVED
from tests.agent_arena import LAYOUT
from tests.unit.agent_pythons import built

pytestmark = built
DATA = 160


def record(kind: int = 0, data: bytes = b"", **fields: int) -> np.ndarray:
    row = np.zeros(1, LAYOUT["value"])
    row["kind"], row["size"] = kind, len(data)
    row["data"][0, : len(data)] = np.frombuffer(data, np.uint8)
    for name, value in fields.items():
        row[name] = value
    return row


def tabled(records: np.ndarray) -> list[dict[str, Any]]:
    count = len(records)
    who = {"ts": np.arange(count), "pid": np.ones(count, np.int32), "tid": np.ones(count, np.int32)}
    table = observed_table(OBSERVED, {**who, "name": np.full(count, None, object), "type": np.full(count, "T", object), "record": records})
    table.validate(full=True)
    return table.to_pylist()


def slowly(row: Any) -> tuple[str | None, list[int] | None, str | None]:
    """value, shape and dtype of one record."""
    kind, data, length = int(row["kind"]), row["data"].tobytes()[: int(row["size"])], int(row["length"])
    cut = VALUE_STATUSES[row["status"]] == "cut"
    if VALUE_STATUSES[row["status"]] in ("redacted", "unread"):
        return None, None, None
    if kind in (ARRAY, TENSOR):
        names = observed_rows._TENSOR_TYPES if kind == TENSOR else observed_rows._ARRAY_TYPES
        return None, list(struct.unpack(f"<{len(data) // 8}q", data)), dict(enumerate(names)).get(int(row["dtype"]))
    if kind in (INT, NEGATIVE):
        if cut:
            return None, [length], None
        number = sum((digit & (1 << 30) - 1) << 30 * place for place, (digit,) in enumerate(struct.iter_unpack("<I", data[: len(data) // 4 * 4])))
        return f"{'-' if kind == NEGATIVE else ''}{number}", None, None
    if kind == FLOAT:
        return (None if cut or len(data) != 8 else repr(struct.unpack("<d", data)[0])), None, None
    if kind == TEXT:
        return data.decode("utf-8", "backslashreplace"), [length], None
    if kind == BYTES:
        named = {0x5C: "\\\\", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}
        return "".join(named.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}") for byte in data), [length], None
    if kind == SIZED:
        return None, [length], None
    return {NONE: "None", BOOL: str(bool(length))}.get(kind), None, None


TEXTS = st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace")[:DATA]) | st.binary(max_size=DATA) | st.sampled_from(
    [b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xe2\x82", b"a\xffb", "\U0010ffff\uffff".encode()]
)  # fmt: skip
DIGITS = st.lists(st.integers(0, 2**30 - 1) | st.sampled_from([0, 1, 2**30 - 1]), max_size=40).map(
    lambda digits: struct.pack(f"<{len(digits)}I", *digits)
)
SIZES = st.lists(st.integers(0, 2**63 - 1), max_size=20).map(lambda sizes: struct.pack(f"<{len(sizes)}q", *sizes))
CONTENT = {
    TEXT: TEXTS, BYTES: st.binary(max_size=DATA), INT: DIGITS | st.binary(max_size=DATA), NEGATIVE: DIGITS, ARRAY: SIZES, TENSOR: SIZES,
    FLOAT: st.floats().map(lambda number: struct.pack("<d", number)) | st.binary(max_size=9),
}  # fmt: skip
RECORDS = st.integers(0, KINDS - 1).flatmap(
    lambda kind: st.builds(
        record, st.just(kind), CONTENT.get(kind, st.just(b"")), what=st.integers(0, len(WHATS) - 1), status=st.integers(0, len(VALUE_STATUSES) - 1),
        length=st.integers(0, 2**40), dtype=st.integers(0, 255), position=st.integers(0, 40),
    )
)  # fmt: skip


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(RECORDS, min_size=1, max_size=20))
def test_rows_are_those_of_the_slow_reference(records: list[np.ndarray]) -> None:
    found = tabled(np.concatenate(records))
    for row, (source,) in zip(found, records, strict=True):
        assert (row["value"], row["shape"], row["dtype"]) == slowly(source)
        assert (row["what"], row["status"]) == (WHATS[source["what"]], VALUE_STATUSES[source["status"]])
        assert row["position"] == (source["position"] if row["what"] == "argument" else -1)


def test_many_rows_have_their_own_texts() -> None:
    records = np.concatenate([record(TEXT, f"text {number}".encode(), length=9) for number in range(10_000)])
    assert [row["value"] for row in tabled(records)] == [f"text {number}" for number in range(10_000)]


class Written:
    """Values by piece, as an arena has them."""

    def __init__(self, **pieces: list[int]) -> None:
        self.values_of = {int(thread[1:]): np.concatenate([record(event=number) for number in numbers]) for thread, numbers in pieces.items()}
        self.given_back: list[Piece] = []

    def values(self, piece: Piece) -> np.ndarray:
        return self.values_of[piece.thread]

    def give_back(self, pieces: list[Piece]) -> None:
        self.given_back += pieces


def piece(thread: int, number: int = 0, size: int = 1, stream: int = 0) -> Piece:
    return Piece(0, thread, 0, size, False, stream, thread, number)


def taken(values: Values, **pieces: list[int]) -> list[tuple[int, int]]:
    """(thread, ts) of each."""
    arena: Any = Written(**pieces)
    of = [piece(thread, stream=VALUES) for thread in arena.values_of]
    batches = values.take(arena, of, {each.tid: each.tid if each.tid < 4 else 1 for each in of}, 7)
    assert arena.given_back == of
    return [(tid, ts) for batch in batches for tid, ts in zip(batch["tid"].tolist(), batch["ts"].tolist(), strict=True)]


def test_a_value_has_the_moment_of_its_event_whenever_it_is_read() -> None:
    values = Values()
    values.met([piece(1, 0, 3), piece(2, 5, 2)], np.array([10, 11, 12, 25, 26]))
    assert taken(values, t1=[0, 0, 2], t2=[6]) == [(1, 10), (1, 10), (1, 12), (2, 26)]
    assert taken(values, t1=[2], t2=[6]) == [(1, 12), (2, 26)]  # of the last event that was read before
    assert taken(values, t1=[3, 4], t3=[0]) == []  # of events that are not there yet
    values.met([piece(1, 3, 1), piece(1, 4, 2)], np.array([13, 14, 15]))
    values.met([piece(3, 0)], np.array([30]))
    assert taken(values) == [(1, 13), (1, 14), (3, 30)]
    assert values.lost == 0


def test_a_value_whose_event_never_comes_is_counted_and_not_kept() -> None:
    values = Values()
    assert taken(values, t1=[9, 2**64 - 1]) == []
    values.met([piece(1, 0)], np.array([10]))
    assert taken(values, t1=[0]) == [(1, 10)] and values.lost == 2 and not values._waiting


def test_of_threads_that_ended_little_is_kept() -> None:
    values = Values()
    for thread in range(1, 3 * MOST_THREADS, 1000):
        values.met([piece(number) for number in range(thread, thread + 1000)], np.arange(1000))
        taken(values)
    assert len(values._last) == MOST_THREADS and not values._events
    latest = max(values._last)
    assert taken(values, **{f"t{latest}": [0]}) == [(1, 999)] and 1 not in values._last


@pytest.mark.parametrize("fields", [{"kind": KINDS}, {"what": 4}, {"status": 4}, {"size": 161}, {"length": -1}, {"kind": ARRAY, "length": 3}])
def test_a_value_that_no_agent_writes_is_damaged(fields: dict[str, int]) -> None:
    arena: Any = SimpleNamespace(values=lambda _: record(**fields), give_back=lambda _: None)
    with pytest.raises(Damaged):
        Values().take(arena, [piece(1, stream=VALUES)], {1: 1}, 1)
