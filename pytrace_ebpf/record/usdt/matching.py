"""Patterns of `--args` as the automaton of probes/usdt_matching.h, which goes through a function's file and bare name, a line each."""

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import numpy as np

from pytrace_ebpf.patterns import MAIN

_WORDS = 4  # of 64 states: STATE_WORDS
_BITS = 64 * _WORDS
_BYTES = range(1, 256)
_ENDS = b"./\n"  # what may follow a module's name
_ANY = b""  # in what elements() gives: any number of bytes


def automaton(patterns: Sequence[str]) -> tuple[np.ndarray, ...]:
    """first, last, steps and stays of struct matcher, uint64; it says yes of all functions that a pattern means, and of some others.

    A way in which a pattern may fit has its share of the states, at most those of a word: of a longer one the beginning counts.
    """
    first, last = (np.zeros(_WORDS, np.uint64) for _ in range(2))
    steps, stays = (np.zeros((256, _WORDS), np.uint64) for _ in range(2))
    stays[0] = ~np.uint64(0)
    ways = [way for pattern in patterns for way in _ways(pattern)]
    in_word = -(-len(ways) // _WORDS)
    share = max(64 // in_word, 2) if in_word else 64
    for number, (behind, elements) in enumerate(ways[: _WORDS * (64 // share)]):
        word, state = number % _WORDS, share * (number // _WORDS)
        end = state + share - 1
        first[word] |= _bit(state)
        if behind:
            stays[1:, word] |= _bit(state)
            steps[ord(behind), word] |= _bit(state)
            state += 1
            if behind == "/":  # or at the beginning
                first[word] |= _bit(state)
        for element in elements:
            if state == end:
                break
            if element == _ANY:
                stays[1:, word] |= _bit(state)
                continue
            steps[np.frombuffer(element, np.uint8), word] |= _bit(state)
            state += 1
        stays[1:, word] |= _bit(state)
        last[word] |= _bit(state)
    if len(ways) > _WORDS * (64 // share) or any(fnmatchcase(MAIN, pattern) for pattern in patterns):
        # Some have no states, or may mean the main program, whose file is not known here.
        last[0] |= _bit(0)
        first[0] |= _bit(0)
        stays[1:, 0] |= _bit(0)
    return first, last, steps.ravel(), stays.ravel()


def _ways(pattern: str) -> Iterator[tuple[str, Iterator[bytes]]]:
    """How a pattern may fit: behind which character it begins ("" for the beginning alone), and its elements."""
    if "/" in pattern:
        pattern = pattern.removeprefix("./")
        yield "" if pattern.startswith("/") else "/", _elements(pattern)
        return
    yield "/", _elements(pattern)
    yield "\n", _name_elements(pattern)


def _name_elements(pattern: str) -> Iterator[bytes]:
    """Those of a function's plain name, which is the last part of all that the pattern may mean."""
    literal, has_set, _ = pattern.partition("[")
    last = (literal + "*" * len(has_set)).rpartition(".")[2]
    parts = re.split(r"[*?]", last)
    if len(parts) > 1:
        yield _ANY
    yield from _bytes(parts[-1])
    yield b"\n"


def _bit(state: int) -> np.uint64:
    return np.uint64(1 << state)


def _elements(pattern: str) -> Iterator[bytes]:
    """Of each byte that the text is to have the ones that it may be; _ANY for any number of any.

    What a pattern begins with is a module's first name, or a path; what it ends with is a module's last name or a bare name, or a path.
    """
    is_path = "/" in pattern
    pattern, has_set, _ = pattern.partition("[")
    parts = re.split(r"[*?]" if is_path else r"[*?.]", pattern + "*" * len(has_set))
    yield from _bytes(parts[0])
    if len(parts) > 1:
        yield _ANY
        yield from _bytes(parts[-1])
    yield b"\n" if is_path else _ENDS


def _bytes(literal: str) -> Iterator[bytes]:
    return (bytes((byte,)) for byte in literal.encode("utf-8", "surrogateescape"))
