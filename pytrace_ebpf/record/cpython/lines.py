"""The source line of each instruction of a code object: its line table, in the three formats that CPython has had.

Read and decoded in a process without rights, as code objects are (frames.py). Formats: Objects/lnotab_notes.txt of CPython 3.9
and 3.10, Objects/locations.md of 3.11.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from pytrace_ebpf.record.cpython.frames import BudgetedMemory, CodeInfo, SpentError, read_code
from pytrace_ebpf.record.cpython.layout import Layout
from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.parsing.shape import decode, encode
from pytrace_ebpf.record.process import asking
from pytrace_ebpf.record.process.memory import Memory, MemoryFault
from pytrace_ebpf.record.process.target import Target

NO_LINE = -1
_BUDGET_S, _PATIENCE_S = 2.0, 15.0  # of processor time; until the process that reads is given up
HASH = 8  # of a str, behind its length
_LENGTH = 16  # of a code object's instructions, from 3.11 on
_MIX, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1  # samples.c
_SIZE, _BYTES = 16, 32  # of a bytes object: where its length is, and its bytes
_TYPE = 8  # of any object; without a GIL all of it is further behind
_MOST_BYTES = 1 << 20  # of one table
_MOST_RANGES = 1 << 20  # of all that is asked for at once
Range = tuple[int, int]  # position of the first instruction (bytes) and the line; it reaches up to the next range


@dataclass(frozen=True)
class CodeLines:
    """What a code object says of its function, and its lines in the order of the instructions."""

    info: CodeInfo
    ranges: list[Range]

    def line(self, position: int) -> int:
        """The line of the instruction `position` bytes behind the first one; NO_LINE where it has none."""
        at = bisect_right(self.ranges, max(position, 0), key=itemgetter(0)) - 1
        return self.ranges[at][1] if at >= 0 else NO_LINE


def read_lines(target: Target, wanted: Sequence[tuple[int, int]], within_s: float = _PATIENCE_S) -> dict[tuple[int, int], CodeLines]:
    """The code objects `wanted`, (address, identity) each, without those that are gone or whose place another one has taken. Nothing is raised."""
    if target.layout is None or not wanted:
        return {}
    process, given = target.process, {"pid": target.pid, "layout": target.layout, "wanted": [list(each) for each in wanted]}
    try:
        read = asking.ask(sandbox.parsers, "read_lines", given, process, list[CodeLines | None], within_s, "lines")
    except ValueError:
        return {}
    return {key: found for key, found in zip(wanted, read, strict=False) if found is not None and _fits(found)}


def _fits(found: CodeLines) -> bool:
    numbers = [found.info.first_line, found.info.flags, *(number for each in found.ranges for number in each)]
    return all(-(1 << 31) <= number < 1 << 31 for number in numbers)


def walk_lines(given: dict[str, Any], files: list[int]) -> Any:
    """What read_lines() asks for: None for an address without that code object, and for those beyond the budget."""
    memory, layout = BudgetedMemory(given, files, _BUDGET_S), decode(Layout, given["layout"])
    found: list[CodeLines | None] = []
    taken = 0
    try:
        for address, identity in given["wanted"]:
            try:
                found.append(_read(memory, layout, address, identity))
            except (MemoryFault, struct.error, IndexError):
                found.append(None)
            taken += len(found[-1].ranges) if found[-1] else 0
            if taken > _MOST_RANGES:
                break
    except SpentError:
        pass
    return encode(found)


def _read(memory: Memory, layout: Layout, address: int, identity: int) -> CodeLines | None:
    info = read_code(memory, layout, address)
    table = memory.u64(address + layout.code_lines)
    more = layout.object_type - _TYPE
    size = memory.u64(table + _SIZE + more)
    if size > _MOST_BYTES:
        raise MemoryFault(f"the lines of the code object at {address:#x} of process {memory.pid} are too many")
    ranges = list(decoded(layout.version, memory.read(table + _BYTES + more, size) if size else b"", info.first_line))
    if identity_of(memory, layout, address, info.first_line) != identity:  # checked last, so that all that was read before is of this object
        return None
    return CodeLines(info, ranges)


def identity_of(memory: Memory, layout: Layout, address: int, first_line: int) -> int:
    """The hash by which samples.c identifies a code object: of its file's address, its name's hash, its first line and (from 3.11 on) its length."""
    mixed, name = _MIX, memory.u64(address + layout.code_name)
    parts = (
        memory.u64(address + layout.code_file),
        memory.u64(name + layout.string_length + HASH),
        first_line & 0xFFFFFFFF,
        memory.u64(address + _LENGTH + layout.object_type - _TYPE),
    )
    for value in parts:
        mixed = (mixed ^ value) * _MIX & _MASK
        mixed ^= mixed >> 32
    return mixed & 0xFFFFFFFF


def place_of(memory: Memory, layout: Layout, frame: int, code: int, known: dict[int, int]) -> tuple[int, int, int]:
    """Where a frame stands: its code object, that one's identity and the position in it, -1 where that is not known. `known`: identities by address.

    Raises MemoryFault, and struct.error.
    """
    if code not in known:
        known[code] = identity_of(memory, layout, code, memory.i32(code + layout.code_first_line))
    if layout.code_start is None:
        return code, known[code], memory.i32(frame + layout.frame_position)
    position = position_in(memory, layout, frame, code)
    return code, known[code], position if abs(position) < 1 << 31 else -1


def position_in(memory: Memory, layout: Layout, frame: int, code: int) -> int:
    """Where a frame stands in its code, in bytes, from 3.11 on. Raises MemoryFault."""
    start = code + (layout.code_start or 0)
    if layout.code_copies is not None and layout.frame_copy is not None:
        start = memory.u64(memory.u64(code + layout.code_copies) + 8 * (1 + memory.i32(frame + layout.frame_copy)))
    return memory.u64(frame + layout.frame_position) - start


def line_at(version: tuple[int, int], table: bytes, first_line: int, position: int) -> int:
    """The line of the instruction at `position` by a line table, of which anything may be wrong; NO_LINE: it has none, or none that can be."""
    found = NO_LINE
    with suppress(IndexError):  # it ends in the middle
        for begins, line in decoded(version, table, first_line):
            if begins > position:
                break
            found = line
    return found if 0 < found < 1 << 31 else NO_LINE


def decoded(version: tuple[int, int], table: bytes, first_line: int) -> Iterator[Range]:
    """The ranges in a line table of that version; NO_LINE for instructions without a line."""
    if version < (3, 10):
        return _lnotab(table, first_line)
    return _deltas(table, first_line) if version < (3, 11) else _locations(table, first_line)


def _lnotab(table: bytes, line: int) -> Iterator[Range]:
    """Up to 3.9: pairs of steps, in bytes and in lines (signed)."""
    at = begins = 0
    for step, lines in struct.iter_unpack("<Bb", table[: len(table) // 2 * 2]):
        at += step
        if lines:
            if at > begins:
                yield begins, line
                begins = at
            line += lines
    yield begins, line


def _deltas(table: bytes, line: int) -> Iterator[Range]:
    """3.10: pairs of a length in bytes and the step to its line (signed; -128: it has none)."""
    at = 0
    for length, lines in struct.iter_unpack("<Bb", table[: len(table) // 2 * 2]):
        if lines != -128:
            line += lines
        if length:
            yield at, NO_LINE if lines == -128 else line
            at += length


def _locations(table: bytes, line: int) -> Iterator[Range]:
    """From 3.11 on: entries of a byte with its kind and the number of code units, and what its kind needs."""
    at, place = 0, 0
    while place < len(table):
        kind, units = table[place] >> 3 & 15, (table[place] & 7) + 1
        place += 1
        if kind in (13, 14):  # no columns, or all of it as varints
            step, place = _signed(table, place)
            line += step
            for _ in range(3 if kind == 14 else 0):
                _, place = _varint(table, place)
        elif kind >= 10:  # on this line or one of the next two
            line += kind - 10 if kind < 13 else 0
            place += 2 if kind < 13 else 0
        else:
            place += 1
        yield at, NO_LINE if kind == 15 else line
        at += 2 * units


def _varint(table: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = table[place]
        place += 1
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64 or shift > 60:
            return value, place


def _signed(table: bytes, place: int) -> tuple[int, int]:
    value, place = _varint(table, place)
    return (-(value >> 1) if value & 1 else value >> 1), place
