"""The parts of an ELF file for this machine: segments, sections, symbols, notes, whatever its bytes are.

The file is not trusted. So nothing is read beyond its end, each size and count has a bound, and what does not fit
is left out, or is a ValueError where nothing could be said without it. A general reader of ELF has no such bounds.
Format: https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from pytrace_ebpf import processors

_MACHINES = {3: "x86", 8: "MIPS", 20: "PowerPC", 21: "64-bit PowerPC", 22: "IBM S/390", 40: "ARM", 243: "RISC-V", 258: "LoongArch"}
_MACHINES |= {each.elf: each.name for each in processors.PROCESSORS.values()}
_LITTLE_ENDIAN, _BITS_64 = 1, 2
_LOAD, _DYNAMIC = 1, 2
_STRTAB, _NEEDED = 5, 1  # tags
_MOST_SEGMENTS = 256
_MOST_BYTES = 256 << 20  # of one section: PyTorch's largest has 100 MB
_MOST_SYMBOLS, _MOST_NAMES = 1_000_000, 128 << 20  # PyTorch's library exports 74,000 of 12 MB
_LONGEST_NAME = 1 << 14
_MOST_NEEDED, _MOST_DYNAMIC, _MOST_NOTES = 1000, 1 << 20, 1 << 20


@dataclass(frozen=True)
class Segment:
    """One PT_LOAD: where a piece of the file is mapped."""

    vaddr: int
    offset: int
    file_size: int
    executable: bool


@dataclass(frozen=True)
class Section:
    """One section header."""

    address: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True)
class Symbol:
    """A symbol that is defined in the file."""

    name: str
    kind: int
    address: int
    size: int


class ElfFile:
    """The headers of an open file. Raises ValueError, one sentence, for what is no ELF file of this machine."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, os.SEEK_END)
        head = self.read(0, 64)
        if len(head) < 20 or head[:4] != b"\x7fELF":
            raise ValueError("it is not a readable ELF file (it does not begin as one)")
        bits, machine = (64 if head[4] == _BITS_64 else 32), struct.unpack_from("<H" if head[5] == _LITTLE_ENDIAN else ">H", head, 18)[0]
        here = processors.here()
        if (bits, head[5], machine) != (64, _LITTLE_ENDIAN, here.elf):
            named = _MACHINES.get(machine, f"machine {machine}")
            raise ValueError(f"it is a program for {named} ({bits} bits), not {here.name}")
        if len(head) < 64:
            raise ValueError("it is not a readable ELF file (it ends within its header)")
        self.is_pie = struct.unpack_from("<H", head, 16)[0] == 3  # ET_DYN
        segments_at, sections_at = struct.unpack_from("<QQ", head, 32)
        segment_size, segment_count, section_size, section_count, self._names_index = struct.unpack_from("<HHHHH", head, 54)
        headers = list(self._table(segments_at, segment_size, segment_count, struct.Struct("<IIQQQQQQ")))
        self.segments = tuple(Segment(vaddr, offset, size, bool(flags & 1)) for kind, flags, offset, vaddr, _, size, *_ in headers if kind == _LOAD)
        self._dynamic = [(offset, size) for kind, _, offset, _, _, size, *_ in headers if kind == _DYNAMIC]
        if len(self.segments) > _MOST_SEGMENTS:
            raise ValueError(f"it is not a readable ELF file ({len(self.segments)} segments)")
        rows = self._table(sections_at, section_size, section_count, struct.Struct("<IIQQQQIIQQ"))
        self._sections = [(name, Section(address, offset, size, link)) for name, _, _, address, offset, size, link, *_ in rows]
        self._by_name: dict[str, Section] | None = None

    def read(self, offset: int, size: int) -> bytes:
        """The bytes there, fewer where the file ends before or they are more than anybody needs."""
        size = min(size, self._size - offset, _MOST_BYTES)
        if offset < 0 or size <= 0:
            return b""
        self._file.seek(offset)
        return self._file.read(size)

    def at(self, vaddr: int, size: int) -> bytes:
        """The bytes that are mapped at an address, fewer where the file ends before."""
        offset = file_offset(self.segments, vaddr)
        return b"" if offset is None else self.read(offset, size)

    def section(self, name: str) -> Section | None:
        """A section by its name."""
        if self._by_name is None:
            names = self.read_section(self._sections[self._names_index][1]) if self._names_index < len(self._sections) else b""
            self._by_name = {}
            for at, section in self._sections:
                self._by_name.setdefault(_text(names, at) or "", section)
        return self._by_name.get(name)

    def read_section(self, section: Section | None) -> bytes:
        """Its contents; none of no section."""
        return self.read(section.offset, section.size) if section else b""

    def linked(self, section: Section) -> Section | None:
        """The section that its header refers to: of symbols their names."""
        return self._sections[section.link][1] if section.link < len(self._sections) else None

    def symbols(self, many: int = _MOST_SYMBOLS, beginnings: tuple[bytes, ...] = (b"",)) -> Iterator[Symbol]:
        """The defined dynamic symbols; all of them where there are no dynamic ones. Raises ValueError for more than a file can have.

        Where there are more than `many`, those of some `beginnings` alone, and so many of these at most.
        """
        table = self.section(".dynsym") or self.section(".symtab")
        if table is None:
            return
        names, rows = self.read_section(self.linked(table)), self.read(table.offset, min(table.size, _MOST_SYMBOLS * 24))
        wanted, left, length = beginnings if len(rows) > 24 * many else (b"",), many, 0
        for name, info, _other, place, value, size in struct.iter_unpack("<IBBHQQ", rows[: len(rows) // 24 * 24]):
            if place and names.startswith(wanted, name) and (text := _text(names, name)) is not None:
                length += len(text)
                if length > _MOST_NAMES:
                    raise ValueError(f"it is not a readable ELF file (names of symbols of more than {_MOST_NAMES} bytes)")
                yield Symbol(text, info & 15, value, size)
                left -= 1
                if not left:
                    return

    def notes(self, name: str) -> Iterator[bytes]:
        """The descriptors of the notes in a section, as far as they are whole."""
        section = self.section(name)
        data = self.read(section.offset, min(section.size, _MOST_NOTES)) if section else b""
        at = 0
        while at + 12 <= len(data):
            name_size, size, _ = struct.unpack_from("<III", data, at)
            at += 12 + (-(-name_size // 4) * 4)
            if at + size > len(data):
                return
            yield data[at : at + size]
            at += -(-size // 4) * 4

    def needed(self) -> tuple[str, ...]:
        """Names of the shared libraries that it asks its loader for."""
        found, texts = [], 0
        for offset, size in self._dynamic[:1]:
            data = self.read(offset, min(size, _MOST_DYNAMIC))
            for tag, value in struct.iter_unpack("<QQ", data[: len(data) // 16 * 16]):
                if tag == 0:
                    break
                if tag == _NEEDED:
                    found.append(value)
                elif tag == _STRTAB:
                    texts = value
        raw = (self.at(texts + value, _LONGEST_NAME) for value in found[:_MOST_NEEDED])
        return tuple(text for each in raw if (text := _text(each, 0)))

    def _table(self, offset: int, row_size: int, count: int, row: struct.Struct) -> Iterator[tuple[int, ...]]:
        data = self.read(offset, row.size * count) if row_size == row.size else b""
        yield from row.iter_unpack(data[: len(data) // row.size * row.size])


def file_offset(segments: tuple[Segment, ...], vaddr: int) -> int | None:
    """The file offset of an address, None for one that the file does not hold."""
    for segment in segments:
        if segment.vaddr <= vaddr < segment.vaddr + segment.file_size:
            return vaddr - segment.vaddr + segment.offset
    return None


def _text(names: bytes, at: int) -> str | None:
    """The text that begins there; None where it has no end."""
    end = names.find(b"\0", at, at + _LONGEST_NAME)
    return names[at:end].decode("latin-1") if end >= 0 else None
