"""Checksums, by which a trace knows whether it is whole: CRC-32 of each part, of each line of the list of segments and of the manifest.

They are there to find damage (a disk, a copy that broke off), not forgery. 4 GB a second, which is little beside decompressing.
"""

import zlib
from collections.abc import Iterable
from typing import BinaryIO

_LINE, _MANIFEST = b',"check":', b',\n "check": '


def sealed_line(line: bytes) -> bytes:
    """A JSON object on one line, with the checksum of what precedes as its last field."""
    return _sealed(line[:-1], _LINE) + b"}"


def sealed_manifest(content: bytes) -> bytes:
    """The same of an object that is indented by one."""
    return _sealed(content.removesuffix(b"}").rstrip(), _MANIFEST) + b"\n}"


def _sealed(body: bytes, mark: bytes) -> bytes:
    return body + mark + str(zlib.crc32(body)).encode()


def holds(content: bytes) -> bool | None:
    """Whether the checksum with which a line or a manifest ends is that of what precedes; None where it has none, as before there were any."""
    for mark in (_LINE, _MANIFEST):
        body, found, number = content.rpartition(mark)
        if found:
            return number.rstrip(b"}\n\r ") == str(zlib.crc32(body)).encode()
    return None


class Summed:
    """A file to write, from its start to its end; `sum` is the checksum of all that was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.sum, self.closed = file, 0, False

    def write(self, content: bytes) -> int:
        """As a file's."""
        self.sum = zlib.crc32(content, self.sum)
        return self._file.write(content)

    def writelines(self, lines: Iterable[bytes]) -> None:
        """As a file's."""
        for line in lines:
            self.write(line)

    def tell(self) -> int:
        """As a file's."""
        return self._file.tell()

    def flush(self) -> None:
        """As a file's."""
        self._file.flush()

    def close(self) -> None:
        """Nothing more will come; the file stays open."""
        self.closed = True
