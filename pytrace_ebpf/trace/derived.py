"""Where derived data is kept: built next to the old, moved there whole, and never through a link.

What a table was made from stands in the metadata of one more Parquet file, without rows: so the folder is Parquet and nothing else,
and has the columns of a table that is empty. There it also says what of a trace that still grows is settled, and stays as it is; and the
checksum of each part's footer. Pages have theirs beside them, which are compared as a page is read.
"""

import errno
import json
import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.trace.files import Files
from pytrace_ebpf.trace.parts import Part
from pytrace_ebpf.trace.table import Table
from pytrace_ebpf.trace.writing import description

FOLDER = "settled"  # the states of Settled

_KEY_FILE = "made-from.parquet"
_KEY_BYTES = 1 << 24
_STATE_BYTES = 1 << 30
_KEY, _SETTLED, _FOOTERS = b"made_from", b"settled", b"footers"
_MAGIC, _FOOTER_BYTES = b"PAR1", 1 << 28
_CHECK_BYTES = 4
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Settled:
    """What of a derived table no later segment of its trace changes: the files `parts`, and the `state` that goes on after them.

    `key` says what both were derived from; `name` is the file of the state, where that is kept.
    """

    key: str
    parts: tuple[str, ...]
    state: bytes
    name: str = ""


def kept(files: Files, table: Table, key: str) -> list[Part] | None:
    """The parts of a derived table in the directory `files`; None where there are none that were made from what `key` says."""
    try:
        folder, says = _opened(files, table)
        if says.get(_KEY) != key.encode():
            return None
        if json.loads(says.get(_FOOTERS, b"null")) != _footers(folder):
            return None
        return [Part(files, table.name, part) for part in _parts(folder)]
    except (OSError, ValueError, pa.ArrowException):
        return None


def _parts(folder: Files) -> list[str]:
    return [part for part in folder.names() if part.endswith(".parquet") and part != _KEY_FILE]


def _footers(folder: Files) -> dict[str, int]:
    """CRC-32 of the footer of each part: where its pages lie, and between which values. Raises OSError, ValueError."""
    return {part: zlib.crc32(_footer(folder, part)) for part in _parts(folder)}


def _footer(folder: Files, part: str) -> bytes:
    with os.fdopen(folder.open(part), "rb") as file:
        size = file.seek(-len(_MAGIC) - 4, os.SEEK_END) + len(_MAGIC) + 4
        length = int.from_bytes(file.read(4), "little") + len(_MAGIC) + 4
        if length > min(size, _FOOTER_BYTES):
            raise ValueError(length)
        file.seek(-length, os.SEEK_END)
        return file.read(length)


def _opened(files: Files, table: Table) -> tuple[Files, dict[bytes, bytes]]:
    """The folder of a derived table, and what it was made from. Raises OSError, ValueError, pa.ArrowException."""
    folder = files.folder(table.name)
    if not folder.ours and os.geteuid() == 0:  # root does not trust another user's files
        raise OSError(1, "another user's")
    content, _ = folder.read(_KEY_FILE, _KEY_BYTES)
    return folder, pq.read_schema(pa.BufferReader(content)).metadata or {}


def settled(files: Files, table: Table) -> Settled | None:
    """What is settled of the table that lies in the directory `files`, whatever else it was made from; None for nothing."""
    try:
        key, parts, name = _says(_opened(files, table)[1])
    except (OSError, ValueError, TypeError, RecursionError, pa.ArrowException):
        return None
    if not (isinstance(key, str) and isinstance(name, str) and isinstance(parts, list) and all(isinstance(part, str) for part in parts)):
        return None
    state = Pieces(files, FOLDER).read(name, _STATE_BYTES) if "/" not in name else None
    return None if state is None else Settled(key, tuple(parts), state, name)


def _says(of_folder: dict[bytes, bytes]) -> list[Any]:
    """Settled.key, parts and name, or three other things. Raises ValueError."""
    key, parts, name = json.loads(of_folder.get(_SETTLED, b"[null, null, null]"))
    return [key, parts, name]


def take_over(files: Files, table: Table, what: Settled, into: Path) -> bool:
    """Put the parts of what is settled in the directory `files` into the folder `into` too, as the same files.

    False: none of them, as where somebody else has derived the table meanwhile.
    """
    taken: list[Path] = []
    try:
        folder, says = _opened(files, table)
        if _says(says) != [what.key, list(what.parts), what.name] or not set(what.parts) <= set(folder.names()):
            return False
        for part in what.parts:
            os.link(folder.name(part), into / part, src_dir_fd=folder.descriptor, follow_symlinks=False)
            taken.append(into / part)
    except (OSError, ValueError, TypeError, NotImplementedError, pa.ArrowException):
        for path in taken:
            path.unlink()
        return False
    return True


def build(
    files: Files, keys: Sequence[tuple[Table, str]], make: Callable[[dict[str, Path]], Mapping[str, Settled | None]]
) -> dict[str, list[Part]] | None:
    """Have `make` write tables into new folders, by name, and put these in the place of the old ones, with what it returns.

    `keys`: what each is made from. None where the directory cannot be written, or its disk has no room. Raises TraceError where writing
    fails halfway for another reason.
    """
    at, fresh = files.descriptor, [f".{table.name}-{secrets.token_hex(4)}" for table, _ in keys]
    try:
        try:
            for name in fresh:
                os.mkdir(files.name(name), 0o700, dir_fd=at)
            folders = [files.folder(name) for name in fresh]
        except OSError:
            return None
        settled = make({table.name: folder.through for (table, _), folder in zip(keys, folders, strict=True)})
        for (table, key), name, folder in zip(keys, fresh, folders, strict=True):
            _put(files, table, key, name, folder, settled.get(table.name))
        parts = {table.name: kept(files, table, key) for table, key in keys}
        return {name: found for name, found in parts.items() if found is not None} if None not in parts.values() else None
    except OSError as error:
        if error.errno in _NO_ROOM:
            return None
        names = " and ".join(str(files.directory / table.name) for table, _ in keys)
        raise TraceError(f"{names} cannot be written: {error.strerror or error}.") from error
    finally:
        for name in fresh:
            with suppress(OSError):
                shutil.rmtree(files.name(name), ignore_errors=True, dir_fd=at)


def _put(files: Files, table: Table, key: str, fresh: str, folder: Files, settled: Settled | None) -> None:
    """Put the new folder `fresh` of a table in the place of the old. Raises OSError."""
    name, at = table.name, files.descriptor
    says = {_KEY: key.encode()} | _settle(files, table, settled)
    says[_FOOTERS] = json.dumps(_footers(folder)).encode()
    pq.write_table(table.arrow.with_metadata(says | description(table)).empty_table(), folder.through / _KEY_FILE)
    for part in folder.names():
        os.chmod(folder.name(part), 0o600, dir_fd=folder.descriptor)
    shutil.rmtree(files.name(name), ignore_errors=True, dir_fd=at)
    try:
        os.rename(files.name(fresh), files.name(name), src_dir_fd=at, dst_dir_fd=at)
    except OSError:  # another reader was faster; its rows are the same
        if kept(files, table, key) is None:
            raise


def _settle(files: Files, table: Table, fresh: Settled | None) -> dict[bytes, bytes]:
    """Keep a state in the place of the last; what the table is to say of it."""
    states, name = Pieces(files, FOLDER), f"{table.name}-{secrets.token_hex(8)}"
    for old in states.names():
        if old.startswith(f"{table.name}-"):
            states.drop(old)
    if fresh is None:
        return {}
    states.keep(name, fresh.state)
    return {_SETTLED: json.dumps([fresh.key, fresh.parts, name]).encode()}


def _check(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECK_BYTES, "little")


class Pieces:
    """Files of a folder of our own in a trace's directory, each made once and whole, with a checksum at its end.

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
        """A whole file of at most `limit` bytes; None where it cannot be read, or is not what was written."""
        folder = self._folder()
        try:
            content = folder.read(name, limit)[0] if folder else b""
        except OSError:
            return None
        content, check = content[:-_CHECK_BYTES], content[-_CHECK_BYTES:]
        return content if check == _check(content) else None

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
                    file.write(content + _check(content))
                os.replace(folder.name(fresh), folder.name(name), src_dir_fd=at, dst_dir_fd=at)
            except OSError:
                os.unlink(folder.name(fresh), dir_fd=at)

    def drop(self, name: str) -> None:
        """Remove a file that is of no use any more."""
        folder = self._folder()
        if folder and folder.ours:
            with suppress(OSError):
                os.unlink(folder.name(name), dir_fd=folder.descriptor)
