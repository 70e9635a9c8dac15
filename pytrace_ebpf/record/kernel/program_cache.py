"""What root compiled is kept for the next time, in a directory that nobody but root can change.

What is in there becomes part of the kernel, so every directory on the way and the file itself must be root's and nobody
else's to write, as the open descriptors say. A file begins with the SHA-256 of its rest: one that was cut short or
damaged counts as not there. Anybody but root keeps nothing.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pytrace_ebpf.record.rights import folders, openat2

_ROOT, _FOLDER = Path("/"), "var/cache/pytrace-ebpf/programs"
_MADE = (("var/cache", "pytrace-ebpf"), ("var/cache/pytrace-ebpf", "programs"))  # where they are not there
_MOST_FILES, _MOST_BYTES = 32, 1 << 24
_OTHERS_WRITE = 0o022


def load(key: str) -> bytes | None:
    """The content kept under `key`; None where there is none that can be trusted."""
    with suppress(OSError, openat2.Unfit), _folder() as folder:
        file = openat2.regular_file(folder, key, 0, _MOST_BYTES)
        if os.fstat(file.fileno()).st_mode & _OTHERS_WRITE:
            return None
        with os.fdopen(os.dup(file.fileno()), "rb") as opened:
            digest, content = opened.readline(), opened.read()
        if digest == _digest(content):
            return content
    return None


def keep(key: str, content: bytes) -> None:
    """Keep `content` for load(key), where there is a place for it."""
    if os.geteuid():
        return
    with suppress(OSError):
        for above, name in _MADE:
            with suppress(FileExistsError), _folder(above) as folder:
                os.mkdir(name, 0o700, dir_fd=folder)
        with _folder() as folder:
            unfinished = f"{key}.{os.getpid()}"
            with suppress(FileNotFoundError):  # of a process that had this number and was killed
                os.unlink(unfinished, dir_fd=folder)
            file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
            with os.fdopen(file, "wb") as opened:
                opened.write(_digest(content) + content)
            os.rename(unfinished, key, src_dir_fd=folder, dst_dir_fd=folder)
            _drop_oldest(folder)


@contextmanager
def _folder(path: str = _FOLDER) -> Iterator[int]:
    """A directory, open. Raises OSError where others than root can change it, or this is not root."""
    if os.geteuid():
        raise PermissionError
    root = os.open(_ROOT, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        folder = folders.directory(root, path, {0})
    finally:
        os.close(root)
    try:
        yield folder
    finally:
        os.close(folder)


def _drop_oldest(folder: int) -> None:
    with os.scandir(folder) as entries:
        by_age = sorted((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name) for entry in entries)
    for _, name in by_age[:-_MOST_FILES]:
        os.unlink(name, dir_fd=folder)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode() + b"\n"
