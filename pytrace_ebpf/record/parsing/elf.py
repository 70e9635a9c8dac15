"""What an interpreter's ELF file says: USDT probes, symbols, the runtime's address, the Python version.

Pure: everything is read once from an open file, nothing from a process. A file for this machine only.
USDT notes: https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation
"""

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import BinaryIO

from pytrace_ebpf import processors
from pytrace_ebpf.processors.processor import Usdt
from pytrace_ebpf.record.parsing.elf_file import ElfFile, Segment, file_offset
from pytrace_ebpf.record.parsing.frame_register import CODE_BEFORE, frame_register

Version = tuple[int, int, int]

PROVIDER = b"python"
_WITH_FRAME = ("function__entry", "function__return")
_FUNCTION, _INDIRECT_FUNCTION = 2, 10  # kinds of symbols
_DEBUG_OFFSETS_SIZE = 1024  # 888 on 3.15; kept whole for layout.py
_MOST_PROBES = 1000  # an interpreter has a dozen
_MOST_NAMESAKES = 1000
# An interpreter has 2,500, the C library 3,000. Of a program with more of its own, into which CPython was linked, those of CPython's are known.
_MANY_SYMBOLS, _OF_CPYTHON = 20_000, (b"Py", b"_Py")
_LONGEST_OPERANDS = 256

PT_REGS: Mapping[str, int] = processors.here().usdt.places
_VERSION_TEXT = re.compile(rb"(3)\.(\d{1,2})\.(\d{1,3})(?:(?:a|b|rc)\d+)?\+?\0")


@dataclass(frozen=True)
class Argument:
    """Where a probe's argument is: `size` bytes in `register`, or in memory at register + `displacement`.

    `register` is the 64-bit name ("rax" for `%eax`, "x1" for `w1`); None for an operand of another form (a constant, an index).
    """

    size: int
    signed: bool
    register: str | None
    displacement: int | None


@dataclass(frozen=True)
class Probe:
    """One location of a USDT probe. Addresses are the file's own (add the load bias); offsets are file offsets."""

    name: str
    location_vaddr: int
    offset: int
    semaphore_vaddr: int  # 0 = the probe has none
    semaphore_offset: int  # for ref_ctr_offset; 0 = none
    arguments: tuple[Argument, ...]
    frame: str | None = None  # of function__entry and function__return: the register that holds the interpreter's frame


@dataclass(frozen=True)
class Binary:
    """One parsed ELF file. `probes` maps a probe's name to its locations, almost always exactly one."""

    is_pie: bool  # ET_DYN: addresses are relative to a load bias
    segments: tuple[Segment, ...]
    probes: Mapping[str, tuple[Probe, ...]]
    symbols: Mapping[str, int]
    runtime_vaddr: int | None  # _PyRuntime
    version: Version | None
    debug_offsets: bytes  # the file's _Py_DebugOffsets (3.13+), else b""

    def symbol(self, name: str) -> int | None:
        """The address of a defined dynamic symbol."""
        return self.symbols.get(name)

    def file_offset(self, vaddr: int) -> int:
        """The file offset of an address. Raises ValueError for an address that the file does not hold."""
        offset = file_offset(self.segments, vaddr)
        if offset is None:
            raise ValueError(f"address {vaddr:#x} is not in the file")
        return offset


@dataclass(frozen=True)
class Functions:
    """The functions that a library defines for others: name -> (address, size)."""

    segments: tuple[Segment, ...]
    symbols: dict[str, tuple[int, int]]

    def file_offset(self, vaddr: int) -> int:
        """The file offset of an address. Raises ValueError for an address that the file does not hold."""
        offset = file_offset(self.segments, vaddr)
        if offset is None:
            raise ValueError(f"address {vaddr:#x} is not in the file")
        return offset


def read_functions(file: BinaryIO) -> Functions:
    """The exported functions of an ELF file. Raises ValueError for anything else."""
    elf = ElfFile(file)
    return Functions(elf.segments, {each.name: (each.address, each.size) for each in elf.symbols() if each.kind in (_FUNCTION, _INDIRECT_FUNCTION)})


def hidden_functions(file: BinaryIO, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """(address, size) of those functions that a library has for itself, as far as it was not stripped. Raises ValueError."""
    elf = ElfFile(file)
    rows, text = elf.read_section(elf.section(".symtab")), elf.read_section(elf.section(".strtab"))
    found = {}
    for name in names:
        at = text.find(b"\0" + name.encode() + b"\0") + 1
        place = _defined(rows, at) if at else None
        if place:
            found[name] = place
    return found


def _defined(rows: bytes, name: int) -> tuple[int, int] | None:
    """(address, size) of the first function whose name is at `name` of its texts. Half a million rows are searched, not walked."""
    wanted, at = struct.pack("<I", name), -1
    for _ in range(_MOST_NAMESAKES):
        at = rows.find(wanted, at + 1)
        if at < 0:
            return None
        if at % 24 == 0 and at + 24 <= len(rows):
            _, info, _, section, value, size = struct.unpack_from("<IBBHQQ", rows, at)
            if info & 15 == _FUNCTION and section:
                return value, size
    return None


def section(file: BinaryIO, name: str) -> bytes:
    """The contents of a section, b"" where there is none. Raises ValueError for no ELF file."""
    elf = ElfFile(file)
    return elf.read_section(elf.section(name))


def read_binary(file: BinaryIO) -> Binary:
    """Parse an ELF file for this machine. Raises ValueError with one sentence for anything else."""
    return _Reader(ElfFile(file)).binary()


def needed(file: BinaryIO) -> tuple[str, ...]:
    """Names of the shared libraries that an ELF file asks its loader for; () for what is no dynamic ELF file."""
    try:
        return ElfFile(file).needed()
    except ValueError:
        return ()


def parse_arguments(text: str, usdt: Usdt | None = None) -> tuple[Argument, ...]:
    """Parse a probe's operands, such as `8@%rbp -4@%eax -4@112(%rsp)` on x86-64 and `8@x1 -4@[sp, 12]` on aarch64. `usdt`: another processor's."""
    usdt = usdt or processors.here().usdt
    return tuple(_argument(operand, usdt) for operand in usdt.split.split(text.strip()) if operand)


def _argument(operand: str, usdt: Usdt) -> Argument:
    match = usdt.operand.fullmatch(operand)
    if not match:
        size = re.match(r"(-?)(\d{1,2})@", operand, re.ASCII)
        return Argument(int(size[2]) if size else 8, bool(size and size[1]), None, None)
    register = usdt.wide.get(match["register"] or match["base"])
    return Argument(int(match["size"]), match["sign"] == "-", register, None if match["register"] else int(match["displacement"] or 0))


class _Reader:
    """Collects a Binary's parts from one ELF file."""

    def __init__(self, elf: ElfFile) -> None:
        self.elf = elf
        self.segments = elf.segments
        self.symbols = {each.name: (each.address, each.size) for each in elf.symbols(_MANY_SYMBOLS, _OF_CPYTHON)}

    def binary(self) -> Binary:
        runtime = self._section_address(".PyRuntime") or self._value("_PyRuntime")
        offsets = self.elf.at(runtime, _DEBUG_OFFSETS_SIZE) if runtime else b""
        if not offsets.startswith(b"xdebugpy") or len(offsets) < _DEBUG_OFFSETS_SIZE:
            offsets = b""
        version = self._version(offsets)
        return Binary(
            is_pie=self.elf.is_pie,
            segments=self.segments,
            probes=self._probes(version),
            symbols={name: value for name, (value, _) in self.symbols.items()},
            runtime_vaddr=runtime,
            version=version,
            debug_offsets=offsets,
        )

    def _value(self, name: str) -> int | None:
        return self.symbols[name][0] if name in self.symbols else None

    def _section_address(self, name: str) -> int | None:
        section = self.elf.section(name)
        return section.address if section else None

    def _probes(self, version: Version | None) -> dict[str, tuple[Probe, ...]]:
        base = self._section_address(".stapsdt.base")
        probes: dict[str, list[Probe]] = {}
        for descriptor in islice(self.elf.notes(".note.stapsdt"), _MOST_PROBES):
            provider, name, arguments, *_rest = [*descriptor[24:].split(b"\0", 3), b"", b"", b""]
            if len(descriptor) < 24 or provider != PROVIDER or len(arguments) > _LONGEST_OPERANDS:
                continue
            location, noted_base, semaphore = struct.unpack_from("<QQQ", descriptor)
            moved = base - noted_base if base else 0  # prelink moves the sections but not the notes
            probe = self._probe(name.decode("latin-1"), location + moved, semaphore + moved if semaphore else 0, arguments.decode("latin-1"))
            if version and probe.name in _WITH_FRAME:
                probe = replace(probe, frame=frame_register(self.elf.at(probe.location_vaddr - CODE_BEFORE, CODE_BEFORE), version))
            probes.setdefault(probe.name, []).append(probe)
        return {name: tuple(found) for name, found in probes.items()}

    def _probe(self, name: str, location: int, semaphore: int, arguments: str) -> Probe:
        return Probe(
            name=name,
            location_vaddr=location,
            offset=file_offset(self.segments, location) or 0,
            semaphore_vaddr=semaphore,
            semaphore_offset=file_offset(self.segments, semaphore) or 0,
            arguments=parse_arguments(arguments),
        )

    def _version(self, debug_offsets: bytes) -> Version | None:
        if debug_offsets.startswith(b"xdebugpy"):  # 3.13+
            return _from_hex(struct.unpack_from("<Q", debug_offsets, 8)[0])
        data = self.elf.at(self._value("Py_Version") or 0, 8)
        if len(data) == 8 and self._value("Py_Version"):  # 3.11+
            return _from_hex(struct.unpack("<Q", data)[0])
        return self._version_by_function()

    def _version_by_function(self) -> Version | None:
        """Before 3.11 no data holds the version, but Py_GetVersion() refers to its text: follow every operand."""
        vaddr, size = self.symbols.get("Py_GetVersion", (0, 0))
        code = self.elf.at(vaddr, min(size or 128, 512)) if vaddr else b""
        for address in processors.here().code.addresses(code, vaddr):
            match = _VERSION_TEXT.match(self.elf.at(address, 16))
            if match:
                return int(match[1]), int(match[2]), int(match[3])
        return None


def _from_hex(version: int) -> Version:
    return version >> 24 & 0xFF, version >> 16 & 0xFF, version >> 8 & 0xFF
