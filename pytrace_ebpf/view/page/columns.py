"""Columns of numbers packed for a page: as many bytes each as they need, the bytes of one place side by side, so that they compress well."""

import base64
import gzip
import json
from typing import Any

import numpy as np
import numpy.typing as npt

_LEVEL = 6


class Columns:
    """The columns of one page, one after the other in one block of bytes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._at = 0

    def add(self, values: npt.ArrayLike) -> dict[str, int]:
        """Pack integers (below 2^53, shape (n,)); returns what page/source/columns.js needs to read them: at, n, width (bytes each), least."""
        numbers = np.asarray(values, np.int64)
        least = int(numbers.min()) if len(numbers) else 0
        above = (numbers - least).view(np.uint64)
        width = (int(above.max()).bit_length() + 7) // 8 if len(above) else 0
        self._parts += [(above >> np.uint64(8 * place)).astype(np.uint8).tobytes() for place in range(width)]
        place, self._at = self._at, self._at + width * len(numbers)
        return {"at": place, "n": len(numbers), "width": width, "least": least}

    def packed(self, facts: dict[str, Any]) -> str:
        """`facts`, which say where the columns are, and these: gzip in base64, in which nothing ends a script."""
        head = json.dumps(facts, separators=(",", ":")).encode()
        return base64.b64encode(gzip.compress(len(head).to_bytes(4, "little") + head + b"".join(self._parts), _LEVEL, mtime=0)).decode()
