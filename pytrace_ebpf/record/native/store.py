"""What was found in a library is kept: PyTorch's takes seconds to read, and is read while the program that loads it runs on."""

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from pytrace_ebpf.record.elf import read_functions
from pytrace_ebpf.record.native.library import Finder, Gemm, Native, locate
from pytrace_ebpf.record.native.signature import How, Place

_FORMAT = 4  # one more with every change of what is found
_KEPT = 100  # files, of some 100 KB where the library is PyTorch's


def signed(path: str, key: str) -> str:
    """What tells the library at `path` and what is wanted of it, `key`, from all others. Raises OSError."""
    status = os.stat(path)  # noqa: PTH116 - a path in /proc/PID/root
    return json.dumps([_FORMAT, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, key])


def natives(path: str, shown: str, sign: str, find: Finder) -> Sequence[Native]:
    """What `find` wants of the library at `path`, which the process knows as `shown`; `sign` is what signed() says of it.

    Raises OSError, and ValueError for what is no library.
    """
    kept = _folder() / f"{hashlib.sha256(sign.encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError, TypeError, KeyError):
        return [replace(_native(row), file=shown) for row in json.loads(kept.read_text())]
    with open(path, "rb") as file:  # noqa: PTH123
        functions = read_functions(file)
        found = list(locate(file, shown, functions, find(file, functions)))
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=kept.parent, delete=False) as new:
            json.dump([asdict(native) for native in found], new)
        Path(new.name).replace(kept)
        for old in sorted(kept.parent.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)[_KEPT:]:
            old.unlink(missing_ok=True)
    return found


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pytrace-ebpf" / "native"


def _native(row: dict) -> Native:  # type: ignore[type-arg]
    places = tuple(Place(place["register"], How(place["how"])) for place in row["tensors"])
    gemm = Gemm(**row["gemm"]) if row["gemm"] else None
    return Native(**row | {"returns": tuple(row["returns"]), "tensors": places, "gemm": gemm})
