"""What the compiled library writes of begins and ends, numbers and paths is what a slow writer does, and it takes nothing that does not fit."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytrace_ebpf.analyze.samples.paths import Paths
from pytrace_ebpf.rebuild import written
from pytrace_ebpf.rebuild.library import EDGE, ENDS
from pytrace_ebpf.rebuild.paths import paths
from pytrace_ebpf.rebuild.written import Written, numbers

DOES = [b"end ", b"? ", b"", 'é"\\ '.encode(), b"x" * 300]
KEYS = np.array([7 << 32 | 7, 7 << 32 | 8, 9 << 32 | 1])
edge = st.tuples(st.integers(0, 2**62), st.integers(ENDS, 4) | st.just(2**31 - 1), st.integers(0, 2))


def of_threads(keys: np.ndarray) -> list[bytes]:
    return [b"(%d/%d) " % (key >> 32, key & 0xFFFFFFFF) for key in keys.tolist()]


def of(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, Iterator[bytes]]:
    """The rows as edges, and what of each comes before its time."""
    texts = (DOES[func + 2 if func + 2 < len(DOES) else 1] + of_threads(KEYS)[thread] for _, func, thread in rows)
    return np.array(rows, EDGE), texts


@given(st.lists(edge, max_size=40), st.sampled_from([1, 1 << 20]))
@settings(max_examples=60)
def test_texts_have_their_times_in_microseconds(rows: list[tuple[int, int, int]], room: int) -> None:
    edges, texts = of(rows)
    expected = b"".join(text + b"%d.%03d},\n" % divmod(ns + 5, 1000) for text, (ns, *_) in zip(texts, rows, strict=True))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(written, "_ROOM", room)
        made = Written(DOES, of_threads, origin=-5, end=b"},\n")
        assert b"".join(map(bytes, made.pieces(edges[:3], KEYS[:3]))) + b"".join(map(bytes, made.pieces(edges[3:], KEYS))) == expected


@given(st.lists(edge, max_size=40))
@settings(max_examples=60)
def test_packets_have_their_times_as_padded_varints(rows: list[tuple[int, int, int]]) -> None:
    edges, texts = of(rows)
    out = b"".join(map(bytes, Written(DOES, of_threads, as_varint=True).pieces(edges, KEYS)))
    for text, (ns, *_) in zip(texts, rows, strict=True):
        assert out.startswith(text)
        time, out = out[len(text) :][:9], out[len(text) + 9 :]
        assert all(byte >= 0x80 for byte in time[:8]) and time[8] < 0x80
        assert sum((byte & 0x7F) << 7 * k for k, byte in enumerate(time)) == ns
    assert not out


def test_the_longest_time_has_room() -> None:
    edges = np.array([(2**63 - 1, ENDS, 0)], EDGE)
    assert b"".join(map(bytes, Written([b"t"], lambda _: [b""]).pieces(edges, KEYS[:1]))) == b"t9223372036854775.807"


def test_an_edge_of_no_thread_is_refused() -> None:
    with pytest.raises(ValueError, match="no key"):
        list(Written(DOES, of_threads).pieces(np.array([(1, 0, 3)], EDGE), KEYS))


@given(st.lists(st.integers(0, 2**63 - 1)), st.integers(0, 9))
def test_numbers_are_divided_exactly(values: list[int], decimals: int) -> None:
    found = bytes(numbers(np.array(values, np.int64), decimals)).decode()
    assert found == ",".join(f"{value // 10**decimals}.{value % 10**decimals:0{decimals}d}" if decimals else str(value) for value in values)


def test_a_number_below_0_is_null() -> None:
    assert bytes(numbers(np.array([-1, 0, -(2**63)]))) == b"null,0,null"


@given(st.lists(st.integers(-1, 3), max_size=60))
def test_paths_are_those_that_are_walked(does: list[int]) -> None:
    slow, now, expected = Paths(), -1, []
    for begins in does:
        now = slow.number(now, begins) if begins >= 0 else slow.parents[now] if now >= 0 else -1
        expected.append(now)
    parent, place, after = paths(np.array(does, np.int64))
    assert (parent.tolist(), place.tolist(), after.tolist()) == (slow.parents, slow.functions, expected)
