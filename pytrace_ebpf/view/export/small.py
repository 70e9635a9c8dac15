"""Exports that would be very large: what takes a small share of all time is summed as OTHER, of which the file says nothing more."""

from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from pytrace_ebpf.view.text import percent, size

OTHER = -3  # stands for a function: of those that are too small
OTHER_NAME = "(other)"
MOST = 50_000_000  # bytes of a file that nobody asked to be larger

_SHARES = (0.001, 0.01, 0.1)

Chunks = Callable[[float], Iterator[bytes]]
"""The share of all time below which things are summed leads to the file, in pieces."""


def write(chunks: Chunks, out: BinaryIO, least: float | None) -> str:
    """Write all from the share `least` on; None: all there is, or where that is more than MOST the largest part that is not. A note on what was left out, "" for nothing."""
    if least is not None:
        for chunk in chunks(least):
            out.write(chunk)
        return ""
    for share in (0.0, *_SHARES[:-1]):
        found: Iterable[bytes | bytearray] | None = _within(chunks(share))
        if found is not None:
            break
    else:
        share = _SHARES[-1]
        found = chunks(share)
    out.writelines(found)
    if not share:
        return ""
    return f"; what takes under {percent(share, 1)} of all time is summed as {OTHER_NAME}, as the file would have more than {size(MOST)}: --min 0 has all"


def _within(chunks: Iterator[bytes]) -> list[bytearray] | None:
    """The pieces, None where they are more than MOST."""
    found = bytearray()  # many are a line
    for chunk in chunks:
        found += chunk
        if len(found) > MOST:
            return None
    return [found]
