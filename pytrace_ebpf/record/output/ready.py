"""Makes Arrow ready to write, which takes 0.1 s, in parallel to other work."""

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np

from pytrace_ebpf.lazy_imports import pa, pq, psutil
from pytrace_ebpf.record.libc import libc

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h

_EXTENSIONS = ("lib", "_parquet", "_fs", "_s3fs")  # of pyarrow's, those that are imported and take the loader longest
_SWITCH_S = 0.0005  # how long at most a recording thread waits for the GIL while another one imports

_lock = threading.Lock()
_is_ready = False
_beside: threading.Thread | None = None
_with_pandas = True


def forgo_pandas() -> None:
    """Recording needs no pandas, which pyarrow imports at its first conversion, if it is there: half a second.

    It looks once: after make_ready() nothing in this process becomes pandas' by to_pandas().
    """
    global _with_pandas
    _with_pandas = "pandas" in sys.modules


def begin() -> threading.Thread:
    """Start make_ready() in a thread of its own, which is returned."""
    global _beside
    if _beside is None:
        _beside = threading.Thread(target=_ahead, name="arrow")
        _beside.start()
    return _beside


def _ahead() -> None:
    with suppress(ImportError, OSError, MemoryError):  # it is met again, and said, where it is needed
        make_ready()


def make_ready() -> None:
    """Import Arrow and have it convert for the first time. To be called before anything is written; later calls do nothing."""
    global _is_ready
    with _lock:
        if _is_ready:
            return
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        try:
            _map_libraries()
            with nullcontext() if _with_pandas else _no_pandas():
                pa.array([0])
            keep_freed_memory()
            pa.table({"first": np.zeros(1)})
            pq.ParquetWriter, psutil.Process  # noqa: B018 - imports them
        finally:
            sys.setswitchinterval(interval_s)
        _is_ready = True


def keep_freed_memory() -> None:
    """Every segment needs the same large arrays again: returned to the kernel, each of their pages would fault anew.

    Saves a tenth of the collector's time (scripts/bench/record.py), and a sixth of a first report's.
    """
    if hasattr(libc, "mallopt"):  # glibc
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        pa.set_memory_pool(pa.system_memory_pool())


def _map_libraries() -> None:
    """Load the shared libraries, most of the time of an import: as a call of C this does not hold the GIL."""
    package = find_spec("pyarrow")
    if package is not None and package.origin is not None:
        for name in _EXTENSIONS:
            libc.dlopen(os.fsencode(Path(package.origin).with_name(name + EXTENSION_SUFFIXES[0])), os.RTLD_NOW)


@contextmanager
def _no_pandas() -> Iterator[None]:
    """Hide pandas from imports inside the `with`."""
    hidden = _Hidden()
    sys.meta_path.insert(0, hidden)
    try:
        yield
    finally:
        sys.meta_path.remove(hidden)


class _Hidden:
    """A finder of modules for which there is no pandas."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)
