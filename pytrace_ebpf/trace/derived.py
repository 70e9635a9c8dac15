"""Where derived data is kept: built next to the old, moved there whole, and never through a link.

What a table was made from stands in the metadata of one more Parquet file, without rows: so the folder is Parquet and nothing else,
and has the columns of a table that is empty.
"""

import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.trace.files import Files
from pytrace_ebpf.trace.parts import Part
from pytrace_ebpf.trace.table import Table

_KEY_FILE = "made-from.parquet"
_KEY_BYTES = 1 << 16
_KEY = b"made_from"


def kept(files: Files, table: Table, key: str) -> list[Part] | None:
    """The parts of a derived table in the directory `files`; None where there are none that were made from what `key` says."""
    try:
        folder = files.folder(table.name)
        if not folder.ours and os.geteuid() == 0:  # root does not trust another user's files
            return None
        content, _ = folder.read(_KEY_FILE, _KEY_BYTES)
        if (pq.read_schema(pa.BufferReader(content)).metadata or {}).get(_KEY) != key.encode():
            return None
        return [Part(files, table.name, part) for part in folder.names() if part.endswith(".parquet") and part != _KEY_FILE]
    except (OSError, ValueError, pa.ArrowException):
        return None


def build(files: Files, table: Table, key: str, make: Callable[[Path], None]) -> list[Part] | None:
    """Have `make` write a table into a new folder, and put that in the place of the old one.

    None where the directory cannot be written. Raises TraceError where writing fails halfway.
    """
    name = table.name
    fresh, at = f".{name}-{secrets.token_hex(4)}", files.descriptor
    try:
        os.mkdir(files.name(fresh), 0o700, dir_fd=at)
        folder = files.folder(fresh)
    except OSError:
        return None
    try:
        make(folder.through)
        pq.write_table(table.arrow.with_metadata({_KEY: key}).empty_table(), folder.through / _KEY_FILE)
        shutil.rmtree(files.name(name), ignore_errors=True, dir_fd=at)
        try:
            os.rename(files.name(fresh), files.name(name), src_dir_fd=at, dst_dir_fd=at)
        except OSError:  # another reader was faster; its rows are the same
            if kept(files, table, key) is None:
                raise
        return kept(files, table, key)
    except OSError as error:
        raise TraceError(f"{files.directory / name} cannot be written: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            shutil.rmtree(files.name(fresh), ignore_errors=True, dir_fd=at)


class Pieces:
    """Files of a folder of our own in a trace's directory, each made once and whole.

    A folder that is not trusted counts as empty; where it cannot be written nothing is kept.
    """

    def __init__(self, files: Files, name: str) -> None:
        """The folder `name` of the directory `files`."""
        self._files, self._name = files, name
        self._exists = self._folder() is not None

    def _folder(self) -> Files | None:
        try:
            folder = self._files.folder(self._name)
        except OSError:
            return None
        return folder if folder.ours or os.geteuid() else None  # root does not trust another user's files

    @property
    def writable(self) -> bool:
        """Whether keep() can succeed: only in a directory of one's own."""
        return self._files.ours and (self._exists or self._name not in self._files.names()) and os.access(self._files.through, os.W_OK)

    def names(self) -> list[str]:
        """The files that are there."""
        folder = self._folder()
        return [name for name in folder.names() if not name.startswith(".")] if folder else []

    def read(self, name: str, limit: int) -> bytes | None:
        """A whole file of at most `limit` bytes; None where it cannot be read."""
        folder = self._folder()
        try:
            return folder.read(name, limit)[0] if folder else None
        except OSError:
            return None

    def keep(self, name: str, content: bytes) -> None:
        """Write a file, where that is possible."""
        if not self.writable:
            return
        with suppress(OSError):
            if not self._exists:
                os.mkdir(self._files.name(self._name), 0o700, dir_fd=self._files.descriptor)
                self._exists = True
        folder = self._folder()
        if folder is None or not folder.ours:
            return
        fresh, at = f".{name}-{secrets.token_hex(4)}", folder.descriptor
        with suppress(OSError):
            descriptor = os.open(folder.name(fresh), os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600, dir_fd=at)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                os.replace(folder.name(fresh), folder.name(name), src_dir_fd=at, dst_dir_fd=at)
            except OSError:
                os.unlink(folder.name(fresh), dir_fd=at)

    def drop(self, name: str) -> None:
        """Remove a file that is of no use any more."""
        folder = self._folder()
        if folder and folder.ours:
            with suppress(OSError):
                os.unlink(folder.name(name), dir_fd=folder.descriptor)
