"""Whether the interpreter's own probe code would raise in a program: it encodes every code object's file and name in UTF-8.

Up to 3.11 that is PyUnicode_AsUTF8 (Python/ceval.c, dtrace_function_entry), which fails for a lone surrogate and leaves
its error to the program. Lone surrogates are how Python holds the bytes of a path that is not UTF-8. 3.15 passes "?".

What is loaded is found from outside: an object begins with its count and its type, so the memory of the process is
searched for the address of PyCode_Type. What it holds is not trusted: each step has an end in time and in number.
"""

import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from pytrace_ebpf.record.cpython.frames import open_frames
from pytrace_ebpf.record.cpython.layout import Layout
from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.parsing.shape import decode
from pytrace_ebpf.record.process import asking
from pytrace_ebpf.record.process.memory import Memory, MemoryFault, asked
from pytrace_ebpf.record.process.target import Target

_PAGE = os.sysconf("SC_PAGE_SIZE")
_FIRST_HARMLESS = (3, 12)  # 3.12 to 3.14 have no such probes
_SECONDS, _BYTES = 0.5, 512 << 20  # of looking: a process of 100 MB takes about 0.05 s
_PATIENCE_S = 15.0  # for an answer
_CHUNK = 1 << 20
_SMALLEST = 128  # bytes of a code object: more of them than fit in a piece are forged
_PRESENT = np.uint64(1 << 63)  # of an entry of /proc/PID/pagemap
_LONGEST = 4096  # characters of a name that are looked at
_SHOWN = 120
_MOST_WORDS = 1 << 21  # bytes of a command line or an environment: a program can make its own as long as it likes


def unencodable(target: Target) -> str:
    """A file or function name of a running program at which its probes would raise, quoted in ASCII; "" where none is found.

    The open frames come first, then the code objects in its memory, as far as half a second reaches.
    """
    layout = target.layout
    if layout is None or layout.version >= _FIRST_HARMLESS:
        return ""
    code_type, string_type = (target.binary.symbol(name) for name in ("PyCode_Type", "PyUnicode_Type"))
    if code_type is None or string_type is None:
        return ""
    given: dict[str, Any] = {
        "pid": target.pid,
        "layout": layout,
        "code_type": code_type + target.bias,
        "string_type": string_type + target.bias,
        "frames": {frame.code_address for stack in open_frames(target, _SECONDS).values() for frame in stack},
    }
    process = target.process
    try:
        given["spans"] = list(_private(target))
        if process.pagemap is None:
            return ""
        found = asking.ask(sandbox.searcher, "search", given, process, str, _PATIENCE_S, "search")
    except (OSError, ValueError):
        return ""
    return found if found.isascii() and found.isprintable() else ""


def _search(given: dict[str, Any], files: list[int]) -> str:
    """What unencodable() asks for, in a process without rights."""
    memory, layout = Memory(*asked(given, files)), decode(Layout, given["layout"])
    look = _Look(memory, layout, given["string_type"])
    if found := look.at_codes(given["frames"]):
        return found
    for words in _pieces(memory, files[1], given["spans"], look.end):
        if found := look.at(words, np.flatnonzero(words == given["code_type"]) - 1):
            return found
    return ""


def unencodable_path(target: Target) -> str:
    """A place from which a program will load code though its name is not UTF-8, quoted in ASCII; "" where none is seen."""
    if target.layout is None or target.layout.version >= _FIRST_HARMLESS:
        return ""
    try:
        words = target.process.read("cmdline", _MOST_WORDS).rstrip(b"\0").split(b"\0")
        environment = target.process.read("environ", _MOST_WORDS).split(b"\0")
        here = os.fsencode(target.process.link("cwd"))
    except OSError:
        return ""
    program = script(words[1:])
    relative = program is None or not program.startswith(b"/")
    for place in (words[0], program or b"", here if relative else b"", *(line for line in environment if line.startswith(b"PYTHONPATH="))):
        try:
            place.decode()
        except UnicodeDecodeError:
            return _quoted(os.fsdecode(place))
    return ""


def script(words: Iterable[bytes]) -> bytes | None:
    """The script among a Python's command line arguments; None for -c, -m, or none at all."""
    rest = iter(words)
    for word in rest:
        if word == b"--check-hash-based-pycs":
            next(rest, None)
        elif not word.startswith(b"-"):
            return word
        elif not word.startswith(b"--"):
            for at, letter in enumerate(word.decode("latin-1")):
                if letter in "cm" or word == b"-":
                    return None
                if letter in "WX":  # with a value, in this word or as the next
                    if at == len(word) - 1:
                        next(rest, None)
                    break
    return None


class _Look:
    """Looks at code objects, each name of theirs once, until its time is over."""

    def __init__(self, memory: Memory, layout: Layout, string_type: int) -> None:
        self._memory, self._layout, self._string_type = memory, layout, string_type
        self._seen: set[int] = set()
        self.end = time.monotonic() + _SECONDS

    def at_codes(self, addresses: Iterable[int]) -> str:
        """The first name that cannot be encoded of the code objects at these addresses, "" for none."""
        size = max(self._layout.code_file, self._layout.code_name) + 8
        for address in addresses:
            with suppress(MemoryFault):
                if found := self.at(np.frombuffer(self._memory.read(address, size), "<u8"), np.zeros(1, np.int64)):
                    return found
        return ""

    def at(self, words: np.ndarray, starts: np.ndarray) -> str:
        """The same of those that begin at these places in a piece of memory, as far as they are all in it."""
        file, name = self._layout.code_file // 8, self._layout.code_name // 8
        starts = starts[(starts >= 0) & (starts + max(file, name) < len(words))][: _CHUNK // _SMALLEST]
        # Of memory that was freed the first word is a link to more of it: no count has bits 32 to 47.
        counts = words[starts]
        living = starts[(counts > 0) & (counts >> np.uint64(32) & np.uint64(0xFFFF) == 0)]
        for address in {*words[living + file].tolist(), *words[living + name].tolist()} - self._seen:
            if time.monotonic() > self.end:
                break
            self._seen.add(address)
            with suppress(MemoryFault):
                if found := self._surrogates(address):
                    return found
        return ""

    def _surrogates(self, address: int) -> str:
        """The str at `address`, quoted, where it holds a lone surrogate, which takes two or four bytes a character."""
        layout = self._layout
        head = self._memory.read(address, layout.string_state + 4)
        of_type, length, state = (
            struct.unpack_from(form, head, at)[0] for form, at in (("<Q", 8), ("<Q", layout.string_length), ("<I", layout.string_state))
        )
        kind, compact = state >> 2 & 7, state >> 5 & 1
        if of_type != self._string_type or kind not in (2, 4) or not compact:
            return ""
        raw = self._memory.read(address + layout.string_data_wide, min(length, _LONGEST) * kind)
        characters = np.frombuffer(raw, f"<u{kind}")
        if not ((characters >= 0xD800) & (characters <= 0xDFFF)).any():
            return ""
        return _quoted("".join(chr(min(character, 0x10FFFF)) for character in characters.tolist()))


def _pieces(memory: Memory, pagemap: int, spans: list[tuple[int, int]], end: float) -> Iterator[np.ndarray]:
    """The process's own memory as far as it is there, as arrays of uint64 of at most _CHUNK bytes.

    They overlap by a page. Small mappings come first: large ones hold arrays.
    """
    left = _BYTES
    for start, stop in sorted(spans, key=lambda span: span[1] - span[0]):
        for first in range(start, stop, _CHUNK - _PAGE):
            size = min(_CHUNK, stop - first)
            # What was never touched, or was swapped out, is left alone: reading would bring it in.
            entries = np.frombuffer(os.pread(pagemap, size // _PAGE * 8, first // _PAGE * 8), np.uint64)
            edges = np.flatnonzero(np.diff((entries & _PRESENT) != 0, prepend=False, append=False))
            for begin, behind in edges.reshape(-1, 2).tolist():
                left -= (behind - begin) * _PAGE
                if left < 0 or time.monotonic() > end:
                    return
                with suppress(MemoryFault):
                    yield np.frombuffer(memory.read(first + begin * _PAGE, (behind - begin) * _PAGE), "<u8")
            if time.monotonic() > end:
                return


def _private(target: Target) -> Iterator[tuple[int, int]]:
    """(start, end) of the writable mappings that are of no file and no stack."""
    for line in target.process.read("maps").splitlines():
        span, permissions, _offset, _device, inode, *name = line.split(maxsplit=5)
        if permissions.startswith(b"rw") and inode == b"0" and name in ([], [b"[heap]"]):
            start, _, end = span.partition(b"-")
            yield int(start, 16), int(end, 16)


def _quoted(text: str) -> str:
    quoted = ascii(text)
    return quoted if len(quoted) <= _SHOWN else f"{quoted[:_SHOWN]}..."


TASKS: dict[str, Callable[[dict[str, Any], list[int]], Any]] = {"search": _search}
