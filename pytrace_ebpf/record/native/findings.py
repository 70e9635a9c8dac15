"""What was found in a library is kept: PyTorch's takes seconds to read, and is read while the program that loads it runs on."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pytrace_ebpf.record.native.probed_library import Native
from pytrace_ebpf.record.parsing.shape import decode, encode
from pytrace_ebpf.record.process.pinned import Descriptor
from pytrace_ebpf.record.process.target import identity

_OF_ROOT = Path("/var/cache/pytrace-ebpf/native")
_FORMAT = 5  # one more with every change of what is found
_KEPT = 100  # files, of some 100 KB where the library is PyTorch's


def signed(file: Descriptor, key: str) -> str:
    """What identifies the library that is open and what is wanted of it, `key`."""
    return json.dumps([_FORMAT, *identity(file), key])


def natives(shown: str, sign: str, find: Callable[[], Sequence[Native]]) -> Sequence[Native]:
    """What `find` finds in a library, which the process knows as `shown`; `sign` is what signed() says of it. Raises as `find` does."""
    kept = _folder() / f"{hashlib.sha256(sign.encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError, RecursionError):
        return [replace(native, file=shown) for native in decode(list[Native], json.loads(kept.read_text()))]
    found = find()
    with suppress(OSError):
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=kept.parent, delete=False) as new:
            json.dump(encode(found), new)
        Path(new.name).replace(kept)
        for old in sorted(kept.parent.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)[_KEPT:]:
            old.unlink(missing_ok=True)
    return found


def _folder() -> Path:
    """Root's own where this is root: what the environment names may be the folder of who called sudo, who could change it."""
    if os.geteuid() == 0:
        return _OF_ROOT
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pytrace-ebpf" / "native"
