"""Standard output and error as commands need them: what cannot be printed is one sentence, and what cannot be said ends no recording."""

import errno
import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from pytrace_ebpf.errors import OutputError

_STANDARD = (0, 1, 2)


class _Printed(io.FileIO):
    """Standard output."""

    def write(self, content: Any) -> int:
        """Raises BrokenPipeError where nobody reads any more, OutputError where nothing can be written."""
        try:
            return super().write(content)
        except BrokenPipeError:
            raise
        except OSError as error:
            why = "it is closed" if error.errno == errno.EBADF else error.strerror
            raise OutputError(f"standard output cannot be written ({why}); what was to be printed is not whole") from None


class _Said(io.FileIO):
    """Standard error: a recording goes on without its words, and a command keeps its exit code."""

    def write(self, content: Any) -> int:
        """What cannot be written, or is read by nobody any more, is dropped."""
        with suppress(OSError):
            return super().write(content)
        return memoryview(content).nbytes


def prepare() -> None:
    """Make the standard streams so; to be called before anything is opened."""
    _fill_what_is_closed()
    sys.stdout = _anew(sys.stdout, 1, _Printed)
    sys.stderr = _anew(sys.stderr, 2, _Said)


def forget() -> None:
    """Drop what is not printed yet: it has nowhere to go, and the interpreter complains when it flushes at its exit."""
    with suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fill_what_is_closed() -> None:
    """A file that is opened later is not to have the number of a standard stream. Programs that we start inherit none of this: to them they are closed."""
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # the lowest number that is free; what is written there says EBADF, as if it were closed


def _anew(before: TextIO | None, number: int, kind: Callable[..., io.FileIO]) -> TextIO:
    """The stream `before`, None where it was closed, with a file of that kind below it. Where it is no plain file, a test's for example, as it is."""
    raw = getattr(before, "buffer", None)  # as it is with PYTHONUNBUFFERED; else there is a buffer between
    if before is not None and not isinstance(getattr(raw, "raw", raw), io.FileIO):
        return before
    encoding, errors = ("utf-8", "strict") if before is None else (before.encoding, before.errors or "strict")
    return io.TextIOWrapper(
        io.BufferedWriter(kind(number, "wb", closefd=False)),
        encoding,
        "backslashreplace" if errors == "strict" else errors,  # a name that the locale has no letters for is still a name
        line_buffering=number == 2 or isinstance(raw, io.FileIO) or bool(before is not None and before.line_buffering),
    )
