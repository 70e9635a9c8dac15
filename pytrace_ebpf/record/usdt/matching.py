"""Patterns of `--args` as the automaton of probes/usdt_matching.h, which goes through a function's file and bare name, a line each."""

import re
from collections.abc import Iterator, Sequence

import numpy as np

_WORDS = 4  # of 64 states: STATE_WORDS
_BITS = 64 * _WORDS
_BYTES = range(1, 256)
_ENDS = b"./\n"  # what may follow a module's name
_ANY = b""  # in what elements() gives: any number of bytes


def automaton(patterns: Sequence[str]) -> tuple[np.ndarray, ...]:
    """first, last, steps and stays of struct matcher, uint64; it says yes of all functions that a pattern means, and of some others.

    A pattern has its share of the states, at most those of a word: of a longer one the beginning counts.
    """
    first, last = (np.zeros(_WORDS, np.uint64) for _ in range(2))
    steps, stays = (np.zeros((256, _WORDS), np.uint64) for _ in range(2))
    stays[0] = ~np.uint64(0)
    in_word = -(-len(patterns) // _WORDS)
    share = max(64 // in_word, 2) if in_word else 64
    for number, pattern in enumerate(patterns[: _WORDS * (64 // share)]):
        word, state = number % _WORDS, share * (number // _WORDS)
        end = state + share - 1
        first[word] |= _bit(state)
        if "/" not in pattern:  # it may begin behind any slash
            stays[1:, word] |= _bit(state)
            steps[ord("/"), word] |= _bit(state)
            state += 1
            first[word] |= _bit(state)
        for element in _elements(pattern):
            if state == end:
                break
            if element == _ANY:
                stays[1:, word] |= _bit(state)
                continue
            steps[np.frombuffer(element, np.uint8), word] |= _bit(state)
            state += 1
        stays[1:, word] |= _bit(state)
        last[word] |= _bit(state)
    if len(patterns) > _WORDS * (64 // share):  # some have no states
        last[0] |= _bit(0)
        first[0] |= _bit(0)
        stays[1:, 0] |= _bit(0)
    return first, last, steps.ravel(), stays.ravel()


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
