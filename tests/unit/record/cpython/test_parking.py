"""Which lock a thread waits for, read from the entry that CPython keeps of it in its stack: here in an array of words."""

import ctypes
import os

import pytest

from pytrace_ebpf.record.cpython.parking import parked_for
from pytrace_ebpf.record.process.pinned import Pinned

LOCK = 0x7F0000001234
UNMAPPED = 8
Words = ctypes.Array[ctypes.c_uint64]


@pytest.fixture
def words() -> Words:
    """lock, semaphore (4 words), node (next, previous), and two words more: a neighbour's node."""
    words = (ctypes.c_uint64 * 9)(LOCK)
    words[5] = words[6] = place(words, 7)
    words[7] = words[8] = place(words, 5)
    return words


def place(words: Words, at: int) -> int:
    return ctypes.addressof(words) + 8 * at


def said(words: Words, stack_pointer: int | None = None) -> int | str:
    semaphore = place(words, 1)
    found = parked_for(Pinned(os.getpid()).memory, semaphore, semaphore - 256 if stack_pointer is None else stack_pointer)
    return "semaphore" if found == semaphore else found


def test_a_parked_thread_waits_for_the_lock_before_its_semaphore(words: Words) -> None:
    assert said(words) == LOCK


@pytest.mark.parametrize("gone", [7, 8])
def test_one_neighbour_that_points_back_is_enough(words: Words, gone: int) -> None:
    words[gone] = 0
    assert said(words) == LOCK


@pytest.mark.parametrize("link", [0, UNMAPPED, 1 << 63])
def test_what_is_in_no_list_is_no_parked_thread(words: Words, link: int) -> None:
    words[5] = words[6] = link
    assert said(words) == "semaphore"


def test_a_list_that_does_not_point_back_is_not_its_list(words: Words) -> None:
    words[7] = words[8] = 0
    assert said(words) == "semaphore"


@pytest.mark.parametrize("distance", [-8, 4096])
def test_a_futex_outside_the_stack_is_the_lock_itself(words: Words, distance: int) -> None:
    assert said(words, place(words, 1) - distance) == "semaphore"
