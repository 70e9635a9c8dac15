"""What a file of every call consists of, put together by the compiled library: records of two sizes, or texts with a time."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pytrace_ebpf.rebuild.library import library

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_TIME = 21  # bytes: 17 digits of a time in us, and what follows them


def interleave(first: Bytes, second: Bytes, is_second: npt.NDArray[np.bool_]) -> Bytes:
    """Rows of two matrices of different widths as one run of bytes, in the order that `is_second` (one for each row of both) gives."""
    first, second, is_second = np.ascontiguousarray(first), np.ascontiguousarray(second), np.ascontiguousarray(is_second)
    if (len(first), len(second)) != (len(is_second) - int(is_second.sum()), int(is_second.sum())):
        raise ValueError("as many rows as are asked for")
    out = np.empty(first.size + second.size, np.uint8)
    widths = (each.shape[1] for each in (first, second))
    addresses = (each.ctypes.data for each in (first, second))
    parts = [part for pair in zip(addresses, widths, strict=True) for part in pair]
    library().interleave(*parts, is_second.ctypes.data, len(is_second), out.ctypes.data)
    return out


class Stamped:
    """Texts, each with a time behind it."""

    def __init__(self, texts: Sequence[str], end: str) -> None:
        """`end`: what stands behind each time."""
        parts = [text.encode() for text in texts]
        self._sizes = np.array([len(part) for part in parts], np.int64)
        self._starts = np.append(0, np.cumsum(self._sizes)).astype(np.int64)
        self._texts, self._end = np.frombuffer(b"".join(parts) or b"\0", np.uint8), end.encode()

    def rows(self, which: Ints, ns: Ints) -> Bytes:
        """One after the other the texts `which` and the times `ns` (>= 0), in us with three decimals."""
        which, ns = np.ascontiguousarray(which, np.int64), np.ascontiguousarray(ns, np.int64)
        if len(which) != len(ns) or (len(which) and not 0 <= which.min() <= which.max() < len(self._sizes)):
            raise ValueError("a text for each time")
        out = np.empty(int(self._sizes[which].sum()) + len(which) * (_TIME + len(self._end)), np.uint8)
        columns = (each.ctypes.data for each in (self._texts, self._starts, which, ns))
        return out[: library().stamped(*columns, len(which), self._end, out.ctypes.data)]
