"""The native functions of sampled processes: the rules by which the kernel half finds their callers, and their names.

What a process has mapped is looked at when the kernel half meets an instruction of which nothing is known. Each file is read once,
whatever the number of processes that have it, by the process without rights: rules and names are the file's own word, and serve to
find the way in that file's own frames alone. Of the room that there is for files and their rules, those of a user get no more than they leave to others.
"""

import ctypes
import mmap
import os
import re
import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.cpython.functions import Functions
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.native.unwinding import EVAL, FUNCTION_BYTES, ROW_BYTES, Unwinding
from pytrace_ebpf.record.parsing.elf_file import Segment
from pytrace_ebpf.record.parsing.sandbox import native_parsers
from pytrace_ebpf.record.process import descriptors
from pytrace_ebpf.record.process.pinned import Descriptor
from pytrace_ebpf.record.process.readings import Readings
from pytrace_ebpf.record.process.target import Mapping as Mapped
from pytrace_ebpf.record.process.target import Target, as_text, identity, mapped_file, parse_mappings
from pytrace_ebpf.trace.layers import NUMBERS

FRAME_NATIVE = 1 << 63  # events.h
_IN_TURN_S = 3.0  # for names, where others wait
_PATIENCE_S, _AT_ONCE_S = 10.0, 0.2  # for one file; for reading files between two drains
_FIRST_WAIT_S, _LAST_WAIT_S = 0.2, 30.0  # between two looks at a process that runs where nothing is known to be: code that it made itself
_MOST_FILES, _OF_ALL_FILES = 400, 8  # open all the while, for the names of their functions: so many, or that part of what may be open
_MOST_ROWS, _MOST_SPANS = 1 << 23, 4096  # rows of a file; both as in samples.c
_MOST_IN_ALL = 1 << 24  # rows of all files, 8 bytes each
_NUMBERS = 4095  # of files, from 1 on: MOST_FILES of samples.c
# By what the interpreter calls anything: these say nothing of what is called.
_CALLING = re.compile(
    r"_?Py(Eval_(EvalCode|EvalFrame|Vector|CallFunction)|Function_|Vectorcall_|Object_\w*[Cc]all|CFunction_|Call_)\w*"
    r"|(cfunction|method|methoddescr|classmethoddescr|wrapper|type|slot_tp)_(vectorcall|call)\w*"
    r"|function_code_fastcall|object_vacall|call_function|do_call_core|vectorcall_(maybe|method|unbound)"
    r"|PyNumber_\w+|binary_i?op1"
)
_LIBC = re.compile(r"(libc|libpthread|ld-[\w-]+)[.-]")


@dataclass(frozen=True)
class Native:
    """A native function: its func_id, and what it is to the interpreter."""

    func_id: int
    evaluates: bool = False  # the loop that runs Python code
    calls: bool = False  # it only leads to what is called
    nameless: bool = False
    begins: bool = False  # of the file that the interpreter is in, or of libc: outside of all Python frames it only says how that began


class Natives(Protocol):
    """What knows native functions by what the kernel half reports of them."""

    def functions(self, frames: Iterable[int], user: int = 0) -> Mapping[int, Native]:
        """By sample_frame.code; what is not known is left out. `user`: whose share new ones take."""


@dataclass
class _File:
    number: int
    file: Descriptor
    shown: str
    key: tuple[object, ...]  # of the process that showed it: what fails is attributed to that
    owner: int = 0
    rows: int = 0
    segments: tuple[Segment, ...] | None = None  # None: not read yet
    begins: array = field(default_factory=lambda: array("I"))  # type: ignore[type-arg] # of its functions
    evaluating: tuple[int, ...] = ()
    natives: dict[int, Native] = field(default_factory=dict)  # by where they begin


@dataclass
class _Seen:
    """What a program has mapped."""

    target: Target
    spans: list[tuple[int, int, int, _File]] = field(default_factory=list)  # first address, the one behind the last, offset in the file
    wait_s: float = _FIRST_WAIT_S
    next_s: float = 0.0


class NativeCode:
    """The files that sampled programs have mapped."""

    def __init__(self, programs: Programs, functions: Functions, readings: Readings | None = None) -> None:
        """`readings`: who looks at files, beside this or at once; functions() may be called by another thread."""
        self._programs, self._functions, self._readings = programs, functions, readings or Readings(None, "")
        self._strays, self._described, self._descriptions = programs.map("strays"), programs.map("described"), 0
        self._span, self._rule = programs.map("spans_one").value, programs.map("rules_one").value
        assert (self._rule.itemsize, FUNCTION_BYTES) == (ROW_BYTES, array("I").itemsize)
        self._files: dict[tuple[int, ...], _File] = {}
        self._by_number: dict[int, _File] = {}
        self._seen: dict[int, _Seen] = {}  # by the program's number
        self._unread: list[_File] = []
        self._last, self._most_files = 0, min(_MOST_FILES, descriptors.most() // _OF_ALL_FILES)
        native_parsers.start()

    def begin(self, number: int, target: Target, user: int = 0) -> None:
        """Look at what a program has mapped, unless that was done a moment ago, and read what is new of it, for as long as nobody minds."""
        now, seen = time.monotonic(), self._seen.setdefault(number, _Seen(target))
        if now >= seen.next_s:
            seen.next_s, seen.wait_s = now + seen.wait_s, min(2 * seen.wait_s, _LAST_WAIT_S)
            self._readings.do(user, partial(self._map, number, seen, user))
        self._read_some()

    def look(self, sampled: Mapping[int, tuple[int, Target, int]]) -> bool:
        """Look at the processes that have run where nothing is known; `sampled`: (number, target, user) by pid. Returns whether files are yet to be read."""
        for pid in [int(pid) for pid, _ in self._strays.items()]:
            self._strays.delete(pid)
            if pid in sampled:
                self.begin(*sampled[pid])
        self._read_some()
        return bool(self._unread)

    def forget(self, number: int) -> None:
        """A program is no longer sampled."""
        if self._seen.pop(number, None):
            self._programs.map("spans").delete(number)

    def functions(self, frames: Iterable[int], user: int = 0) -> Mapping[int, Native]:
        """Natives' functions(); new ones are named by their files' symbols, those without one by the file and where they begin."""
        places, wanted = {}, dict[int, tuple[_File, set[int]]]()
        for frame in frames:
            number, pc = frame >> 32 & 0x7FFFFFFF, frame & 0xFFFFFFFF
            file = self._by_number.get(number)
            at = bisect_right(file.begins, pc) - 1 if file else -1
            if file and at >= 0:
                places[frame] = file, file.begins[at]
                if file.begins[at] not in file.natives:
                    wanted.setdefault(number, (file, set()))[1].add(file.begins[at])
        for file, begins in wanted.values():
            self._name(file, sorted(begins), user)
        return {frame: file.natives[begin] for frame, (file, begin) in places.items()}

    def _read_some(self) -> None:
        """Read files for a while."""
        end_s = time.monotonic() + _AT_ONCE_S
        read = list[_File]()
        while not self._readings.beside and self._unread and time.monotonic() < end_s:
            read.append(self._unread.pop(0))
            self._read(read[-1])
        self._tell(read)

    def _read_and_tell(self, file: _File) -> None:
        self._read(file)
        self._tell([file])

    def _tell(self, read: list[_File]) -> None:
        """Tell the kernel half of files that were read."""
        for number, seen in list(self._seen.items()) if read else ():
            if any(file in read for *_, file in seen.spans):
                self._describe(number, seen)

    def _map(self, number: int, seen: _Seen, user: int = 0) -> None:
        with suppress(OSError, TargetError):
            before = [span[:3] for span in seen.spans]
            seen.spans = list(self._mapped(seen.target))
            if [span[:3] for span in seen.spans] != before:
                seen.wait_s = _FIRST_WAIT_S
                self._describe(number, seen)
        while self._readings.beside and self._unread:  # each in its turn
            file = self._unread.pop(0)
            if not self._readings.do(user, partial(self._read_and_tell, file)):
                self._drop(file)

    def _mapped(self, target: Target) -> Iterator[tuple[int, int, int, _File]]:
        maps = target.process.read("maps")
        executable = [mapping for mapping in parse_mappings(maps) if mapping.executable]
        opened: dict[tuple[int, int], _File | None] = {}
        for mapping in executable[:_MOST_SPANS]:
            inode = mapping.device, mapping.inode
            if inode not in opened:
                opened[inode] = self._file(target, mapping)
            if file := opened[inode]:
                yield mapping.start, mapping.end, mapping.offset, file
        there, own = _vdso(maps), _vdso(Path("/proc/self/maps").read_bytes())
        if there and own and len(there) == len(own):  # the kernel's own code, the same in every process
            yield there.start, there.stop, 0, self._kernels(own)

    def _file(self, target: Target, mapping: Mapped) -> _File | None:
        try:
            file = mapped_file(target.process, mapping)
            key = identity(file)
        except OSError:
            return None
        if key not in self._files:
            number = self._number(owner := os.fstat(file.fileno()).st_uid)
            if not number:
                return None
            self._add(key, _File(number, file, as_text(mapping.path), ("unwinding", *target.process.key), owner))
        return self._files[key]

    def _number(self, owner: int) -> int:
        """A number for one file more of a user's, 0 where there is none: root's take any that is free, those of another one half of these at most."""
        if len(self._files) >= self._most_files or not self._may(owner, 1, self._most_files, Counter(each.owner for each in self._files.values())):
            self._tidy()
        held = Counter(each.owner for each in self._files.values())
        if len(self._files) >= self._most_files or not self._may(owner, 1, self._most_files, held):
            return 0
        self._last = next(number for at in range(_NUMBERS) if (number := (self._last + at) % _NUMBERS + 1) not in self._by_number)
        return self._last

    def _may(self, owner: int, more: int, most: int, held: Mapping[int, int]) -> bool:
        """Whether a user may have so many more of `most` places: root all that are free; others no more than they leave."""
        free = most - sum(held.values())
        return more <= free and (owner == 0 or held.get(owner, 0) + more <= free - more)

    def _rows(self) -> Counter[int]:
        rows = Counter[int]()
        for each in self._files.values():
            rows[each.owner] += each.rows
        return rows

    def _tidy(self) -> None:
        """Let go of the files that no sampled program has mapped."""
        mapped = {file.number for seen in list(self._seen.values()) for *_, file in seen.spans}
        for file in [file for file in self._files.values() if file.number not in mapped]:
            self._drop(file)

    def _drop(self, file: _File) -> None:
        self._files = {key: each for key, each in self._files.items() if each is not file}
        self._by_number.pop(file.number, None)
        self._functions.release([native.func_id for native in list(file.natives.values())])
        with suppress(OSError):
            self._programs.map("rules").delete(file.number)

    def _kernels(self, where: range) -> _File:
        """What the kernel has mapped into this process as into any other."""
        key = (where.start,)
        if key not in self._files:
            memory = Descriptor(os.memfd_create("vdso", os.MFD_CLOEXEC))
            os.write(memory.fileno(), ctypes.string_at(where.start, len(where)))
            self._add(key, _File(self._number(0), memory, "[vdso]", ("unwinding",)))
        return self._files[key]

    def _add(self, key: tuple[int, ...], file: _File) -> None:
        self._files[key] = self._by_number[file.number] = file
        self._unread.append(file)

    def _read(self, file: _File) -> None:
        """The rules of a file, to the kernel half; none of one that has no such rules, or cannot be read."""
        segments, rows, begins = tuple[Segment, ...](), list[np.ndarray](), b""
        with suppress(ValueError, OSError):
            while (skip := sum(len(each) for each in rows)) < _MOST_ROWS:
                given = {"skip": skip}
                part = native_parsers.ask("unwinding", given, [file.file], Unwinding, _PATIENCE_S, file.key)
                rows.append(np.frombuffer(part.rows, self._rule))
                segments, begins, file.evaluating = part.segments, begins or part.functions, file.evaluating or part.evaluating
                if not part.more or not part.rows:
                    break
        whole = np.concatenate(rows)[:_MOST_ROWS] if rows else np.zeros(0, self._rule)
        file.begins.frombytes(begins[: len(begins) // FUNCTION_BYTES * FUNCTION_BYTES])
        file.segments = segments if len(whole) else ()
        if len(whole) and not self._may(file.owner, len(whole), _MOST_IN_ALL, self._rows()):
            self._tidy()
        if len(whole) and self._by_number.get(file.number) is file and self._may(file.owner, len(whole), _MOST_IN_ALL, self._rows()):
            file.rows = len(whole)
            with suppress(OSError):
                self._programs.set_array("rules", file.number, whole)

    def _describe(self, number: int, seen: _Seen) -> None:
        """Hand the kernel half what a program has mapped."""
        rows = [(start, end, *_placed(file, start, offset), 0) for start, end, offset, file in seen.spans]
        with suppress(OSError):
            self._programs.set_array("spans", number, np.array(rows, self._span))
        self._descriptions += 1
        self._described.set(0, self._descriptions)  # what the kernel half found by the descriptions before does not hold any more

    def _name(self, file: _File, begins: list[int], user: int) -> None:
        try:
            given = {"addresses": begins}
            names = native_parsers.ask("names", given, [file.file], list[str], _IN_TURN_S if self._readings.beside else _PATIENCE_S, file.key)
        except (ValueError, OSError):
            names = []
        library = file.shown.rpartition("/")[2]
        of_interpreter = bool(file.evaluating or _LIBC.match(library))
        for begin, name in zip(begins, [*names, *[""] * len(begins)], strict=False):
            shown = name or f"{library}+{begin:#x}"
            func_id = self._functions.intern_native(NUMBERS["native"], shown, shown, library, file.shown, user)
            self._functions.hold((func_id,))
            calls, began = bool(_CALLING.fullmatch(name)), of_interpreter or name == "_start"
            file.natives[begin] = Native(func_id, begin in file.evaluating or name == EVAL, calls, not name, began)


def _vdso(maps: bytes) -> range | None:
    """Where the kernel's own code for programs is, by the text of /proc/PID/maps."""
    found = re.search(rb"^([0-9a-f]+)-([0-9a-f]+) r-xp .*\[vdso\]$", maps, re.MULTILINE)
    return range(int(found[1], 16), int(found[2], 16)) if found else None


def _placed(file: _File, start: int, offset: int) -> tuple[int, int]:
    """(bias, number) of a piece of a file that is mapped from `start` on; number 0 where nothing is known of it."""
    for segment in file.segments or ():
        first = segment.offset // mmap.PAGESIZE * mmap.PAGESIZE
        if first <= offset < segment.offset + segment.file_size:
            return (start - offset + segment.offset - segment.vaddr) % (1 << 64), file.number
    return 0, 0
