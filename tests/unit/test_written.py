"""The compiled writer puts records and texts together as a slow one does, and takes nothing that does not fit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytrace_ebpf.rebuild.written import Stamped, interleave


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 70), st.integers(1, 70))
@settings(max_examples=60)
def test_records_of_two_sizes_come_in_the_order_that_is_given(kinds: list[bool], first_width: int, second_width: int) -> None:
    rng = np.random.default_rng(len(kinds))
    is_second = np.array(kinds, bool)
    first, second = (
        rng.integers(0, 256, (int(rows), width)).astype(np.uint8) for rows, width in ((sum(~is_second), first_width), (sum(is_second), second_width))
    )
    parts = {False: iter(first), True: iter(second)}
    assert interleave(first, second, is_second).tobytes() == b"".join(bytes(next(parts[kind])) for kind in kinds)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**62)), max_size=40))
@settings(max_examples=60)
def test_texts_have_their_times_in_microseconds(rows: list[tuple[int, int]]) -> None:
    texts = ["", "begin ", 'é"\\ ', "x" * 300]
    expected = "".join(f"{texts[which]}{ns // 1000}.{ns % 1000:03d}}},\n" for which, ns in rows)
    which, ns = (np.array(column, np.int64) for column in (zip(*rows, strict=True) if rows else ((), ())))
    assert Stamped(texts, "},\n").rows(which, ns).tobytes().decode() == expected


def test_the_longest_time_has_room() -> None:
    assert Stamped(["t"], "").rows(np.array([0]), np.array([2**63 - 1])).tobytes() == b"t9223372036854775.807"


def test_what_does_not_fit_is_refused() -> None:
    rows = np.zeros((2, 3), np.uint8)
    with pytest.raises(ValueError, match="as many"):
        interleave(rows, rows, np.array([True, True, True, False]))
    for which, ns in (([2], [0]), ([-1], [0]), ([0, 1], [0])):
        with pytest.raises(ValueError, match="text for each"):
            Stamped(["a", "b"], "").rows(np.array(which), np.array(ns))
