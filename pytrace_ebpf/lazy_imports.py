"""Packages that take long to import and that a recording needs only once it writes: imported when they are first used.

So a module that has them from here begins with `from __future__ import annotations`: else its signatures are a use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
else:

    class _Lazy:
        """Stands for a module until something of it is asked for."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            value = getattr(importlib.import_module(self._name), name)
            setattr(self, name, value)
            return value

    pa, pc, pq, psutil = map(_Lazy, ("pyarrow", "pyarrow.compute", "pyarrow.parquet", "psutil"))

__all__ = ["pa", "pc", "pq", "psutil"]
