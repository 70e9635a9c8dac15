"""Columns as the bytes of Parquet's data pages, by the compiled library."""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.rebuild.library import library

_ROOM = 1 << 16  # for the least of pages


class Packer:
    """Packs one column's values after another's, into memory that the next call uses again."""

    def __init__(self) -> None:
        self._out = np.empty(_ROOM, np.uint8)
        self._known = np.zeros(library().dictionary_size() // 8 + 1, np.int64)  # struct dictionary of pages.c

    def begin(self) -> None:
        """Begin a column: its dictionary is empty."""
        if self._known[0]:
            self._known.fill(0)

    def dictionary(self) -> npt.NDArray[np.int64]:
        """The values that numbered() met since begin(), in the order of their numbers."""
        return self._known[1 : 1 + int(self._known[0])]

    def numbered(self, values: npt.NDArray[Any]) -> npt.NDArray[np.uint8] | None:
        """Encoding RLE_DICTIONARY of int32 or int64, the dictionary being dictionary(); None where that would become too large."""
        out = self._with_room(32 + 2 * len(values))
        address = _contiguous(values, np.int64 if values.itemsize == 8 else np.int32)
        size = library().pack_numbers(self._known.ctypes.data, address, values.itemsize == 8, len(values), out.ctypes.data)
        return out[:size] if size else None

    def deltas(self, values: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], bool]:
        """Encoding DELTA_BINARY_PACKED, and whether no value is below 0 or the one before it."""
        out, ascending = self._with_room(64 + (len(values) // 128 + 1) * 1060), ctypes.c_bool()
        size = library().pack_deltas(_contiguous(values, np.int64), len(values), out.ctypes.data, ctypes.byref(ascending))
        return out[:size], ascending.value

    def small(self, values: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
        """Encoding RLE_DICTIONARY of numbers from 0 to 15, the dictionary being just these."""
        out = self._with_room(12 + len(values))
        return out[: library().pack_small(_contiguous(values, np.int8), len(values), out.ctypes.data)]

    def _with_room(self, size: int) -> npt.NDArray[np.uint8]:
        if len(self._out) < size:
            self._out = np.empty(size, np.uint8)
        return self._out


def _contiguous(values: npt.NDArray[Any], dtype: "npt.DTypeLike") -> int:
    if values.dtype != dtype or not values.flags.c_contiguous:
        raise ValueError(f"{values.dtype} is not {dtype}, side by side")
    return values.ctypes.data
