"""The list of segments while it is written: a line is added for each, and no line is written twice but where old segments are dropped."""

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from pytrace_ebpf.record.output.directory import Output
from pytrace_ebpf.trace.schema import SEGMENTS
from pytrace_ebpf.trace.sealed import sealed_line

Line = Mapping[str, Any]


class Journal:
    """The file of trace/segments.py in a trace directory."""

    def __init__(self, output: Output) -> None:
        """Make it, empty. Raises OSError."""
        self._output = output
        self._file: BinaryIO = output.create("", SEGMENTS)
        self._size = 0

    def add(self, lines: Iterable[Line]) -> None:
        """Add lines, all or none of them, and on the disk when this returns. Raises OSError."""
        content = _content(lines)
        try:
            _write(self._file, content)
            os.fdatasync(self._file.fileno())
        except OSError:
            self.take_back(self._size)
            raise
        self._size += len(content)

    @property
    def size(self) -> int:
        """Bytes so far, for take_back()."""
        return self._size

    def take_back(self, to: int) -> None:
        """Remove what was added since it had `to` bytes. Raises OSError."""
        os.ftruncate(self._file.fileno(), to)
        self._size = to

    def replace(self, lines: Iterable[Line]) -> None:
        """Put other lines in the place of all, or none of them. Raises OSError."""
        content = _content(lines)
        self._output.replace(SEGMENTS, content)
        self._file.close()
        self._file, self._size = self._output.append(SEGMENTS), len(content)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def _content(lines: Iterable[Line]) -> bytes:
    return b"".join(sealed_line(json.dumps(line, separators=(",", ":")).encode()) + b"\n" for line in lines)


def _write(file: BinaryIO, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(file.fileno(), left) :]
