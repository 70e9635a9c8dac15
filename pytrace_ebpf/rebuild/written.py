"""What a file of every call consists of, put together by the compiled library: begins and ends, each with its thread and its time; and columns of numbers."""

from collections.abc import Callable, Iterator, Sequence
from ctypes import byref, c_size_t
from typing import Any

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.rebuild.library import EDGE, Form, Texts, library

Ints = npt.NDArray[np.int64]
_ROOM = 1 << 20  # bytes that are put together at once
_TIME = 32  # of these, at most, a time


class Written:
    """Of each edge a text that says what it does, one that says on which thread, its time, and an end."""

    def __init__(
        self, does: Sequence[bytes], of_threads: Callable[[Ints], Sequence[bytes]], *, origin: int = 0, as_varint: bool = False, end: bytes = b""
    ) -> None:
        """`does`: for the end of a call, for the begin of one that is not known, and for that of each function by func_id. `of_threads`: for keys of threads.

        Times count from `origin`; they are ns as a varint of nine bytes, or us, decimal.
        """
        self._does, self._threads, self._end, self._of_threads = _Texts(does), _Texts([]), _Texts([end]), of_threads
        self._form = Form(does=self._does.struct, end=self._end.struct, origin=origin, as_varint=as_varint)

    def pieces(self, edges: npt.NDArray[np.void], keys: Ints) -> Iterator[memoryview]:
        """`edges` (library.EDGE) as they go into the file, each piece there until the next; `keys`: of the threads by their numbers, which stay."""
        if len(keys) > len(self._threads.texts):
            self._threads = _Texts([*self._threads.texts, *self._of_threads(keys[len(self._threads.texts) :])])
            self._form.threads = self._threads.struct
        edges = np.ascontiguousarray(edges, EDGE)
        out = np.empty(max(_ROOM, self._does.longest + self._threads.longest + self._end.longest + _TIME), np.uint8)
        at, size = 0, c_size_t()
        while at < len(edges):
            where = edges.ctypes.data + at * EDGE.itemsize
            done = library().written(where, len(edges) - at, byref(self._form), out.ctypes.data, len(out), byref(size))
            if not done:
                raise ValueError("an edge of a thread that has no key")
            at += done
            yield out[: size.value].data


def numbers(values: npt.NDArray[Any], decimals: int = 0) -> memoryview:
    """Integers as decimal text, divided by 10^decimals, with commas between them; null for one below 0."""
    values = np.ascontiguousarray(values, np.int64)
    out = np.empty(_TIME * len(values), np.uint8)
    return out[: library().numbers(values.ctypes.data, len(values), decimals, out.ctypes.data)].data


class _Texts:
    """Texts one behind the other, as the library takes them."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.texts = texts
        sizes = np.array([len(text) for text in texts], np.int64)
        self._held: tuple[Any, ...] = (b"".join(texts), np.append(0, np.cumsum(sizes)).astype(np.int64))
        self.longest = int(sizes.max(initial=0))
        self.struct = Texts(self._held[0], self._held[1].ctypes.data, len(texts))
