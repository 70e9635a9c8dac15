"""What an interpreter's ELF file says: USDT probes, symbols, the runtime's address, the Python version.

Pure: everything is read once from an open file, nothing from a process. x86-64 only.
USDT notes: https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation
"""

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile

Version = tuple[int, int, int]

PROVIDER = "python"
_FUNCTION, _INDIRECT_FUNCTION = 2, 10  # kinds of symbols
_CODE_BEFORE = 64  # bytes of machine code kept before a probe's nop: frame_register() decodes them
_DEBUG_OFFSETS_SIZE = 1024  # 888 on 3.15; kept whole for layout.py

_SYMBOL = np.dtype([("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")])

# register -> field of the kernel's struct pt_regs
PT_REGS: Mapping[str, str] = {
    **{f"r{name}": name for name in ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp")},
    **{f"r{number}": f"r{number}" for number in range(8, 16)},
    "rip": "ip",
}
_ENCODING = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *(f"r{number}" for number in range(8, 16)))
_CALLEE_SAVED = frozenset(("rbx", "rbp", "r12", "r13", "r14", "r15"))
_WIDE = {  # a register's narrower names -> its 64-bit name
    **{narrow: wide for wide in _ENCODING[:8] for narrow in (wide, "e" + wide[1:], wide[1:])},
    **{f"{letter}l": f"r{letter}x" for letter in "abcd"},
    **{f"{name}l": f"r{name}" for name in ("si", "di", "bp", "sp")},
    **{f"r{number}{suffix}": f"r{number}" for number in range(8, 16) for suffix in ("", "d", "w", "b")},
    "rip": "rip",
}
_OPERAND = re.compile(r"(-?)(\d+)@(?:%(\w+)|(-?\d*)\(%(\w+)\))")
_VERSION_TEXT = re.compile(rb"(3)\.(\d{1,2})\.(\d{1,3})(?:(?:a|b|rc)\d+)?\+?\0")
# offset of the frame's position: f_lasti up to 3.10, prev_instr or instr_ptr from 3.11 on
_POSITION = {(3, 8): 0x68, (3, 9): 0x68, (3, 10): 0x60, **{(3, minor): 0x38 for minor in range(11, 16)}}


@dataclass(frozen=True)
class Argument:
    """Where a probe's argument is: `size` bytes in `register`, or in memory at register + `displacement`.

    `register` is the 64-bit name ("rax" for `%eax`); None for an operand of another form (a constant, an index).
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
    code_before: bytes  # the machine code that ends where the probe's nop begins


@dataclass(frozen=True)
class Segment:
    """One PT_LOAD: where a piece of the file is mapped."""

    vaddr: int
    offset: int
    file_size: int
    executable: bool


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
        offset = _file_offset(self.segments, vaddr)
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
        offset = _file_offset(self.segments, vaddr)
        if offset is None:
            raise ValueError(f"address {vaddr:#x} is not in the file")
        return offset


def read_functions(file: BinaryIO) -> Functions:
    """The exported functions of an x86-64 ELF file. Raises ValueError for anything else."""
    try:
        elf = ELFFile(file)
        symbols = {name: (value, size) for name, kind, value, size in _symbols(elf) if kind in (_FUNCTION, _INDIRECT_FUNCTION)}
        return Functions(_segments(elf), symbols)
    except (ELFError, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"it is not a readable ELF file ({error})") from None


def hidden_functions(file: BinaryIO, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """(address, size) of those functions that a library has for itself, as far as it was not stripped."""
    elf = ELFFile(file)
    table, texts = elf.get_section_by_name(".symtab"), elf.get_section_by_name(".strtab")
    if not table or not texts:
        return {}
    rows, text = np.frombuffer(table.data(), _SYMBOL), texts.data()  # half a million of them
    found = {}
    for name in names:
        at = text.find(b"\0" + name.encode() + b"\0") + 1
        here = rows[(rows["name"] == at) & (rows["info"] & 15 == _FUNCTION) & (rows["section"] != 0)] if at else rows[:0]
        if len(here):
            found[name] = int(here[0]["value"]), int(here[0]["size"])
    return found


def section(file: BinaryIO, name: str) -> bytes:
    """The contents of a section, b"" where there is none."""
    found = ELFFile(file).get_section_by_name(name)
    return bytes(found.data()) if found else b""


def read_binary(file: BinaryIO) -> Binary:
    """Parse an x86-64 ELF file. Raises ValueError with one sentence for anything else."""
    try:
        elf = ELFFile(file)
        if elf["e_machine"] != "EM_X86_64" or elf.elfclass != 64:
            raise ValueError(f"it is a program for {elf.get_machine_arch()} ({elf.elfclass} bits), not x86-64")
        return _Reader(elf, file).binary()
    except (ELFError, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"it is not a readable ELF file ({error})") from None


def needed(file: BinaryIO) -> tuple[str, ...]:
    """Names of the shared libraries that an ELF file asks its loader for; () for what is no dynamic ELF file."""
    try:
        dynamic = next(ELFFile(file).iter_segments("PT_DYNAMIC"), None)
        return tuple(str(getattr(tag, "needed", "")) for tag in dynamic.iter_tags("DT_NEEDED")) if isinstance(dynamic, DynamicSegment) else ()
    except (ELFError, struct.error, UnicodeDecodeError):
        return ()


def parse_arguments(text: str) -> tuple[Argument, ...]:
    """Parse a probe's operands, such as `8@%rbp -4@%eax -4@112(%rsp)`."""
    return tuple(_argument(operand) for operand in text.split())


def frame_register(binary: Binary, probe: Probe) -> str | None:
    """The register that holds the interpreter's frame at a function probe, or None where it cannot be told.

    Decoded from the code before the probe, which calls for the line number:
    3.11+  PyUnstable_InterpreterFrame_GetLine(frame): the last `mov %reg,%rdi` before the call;
    3.8-3.10, and where that function is inlined, PyCode_Addr2Line(code, position): the register that the
    position was loaded through, `mov position(%reg),%esi` or `%rsi`.
    """
    minor = binary.version[:2] if binary.version else (0, 0)
    call = _last_call(binary, probe)
    if call is None or minor not in _POSITION:
        return None
    code = probe.code_before[:call]
    at, register = _position_load(code, _POSITION[minor], wide=minor >= (3, 11))
    if minor >= (3, 11):
        at, register = max((at, register), _move_to_rdi(code))
    # The call returned before the probe: only a register that a callee must keep still has the frame.
    return register if register in _CALLEE_SAVED else None


def _file_offset(segments: tuple[Segment, ...], vaddr: int) -> int | None:
    for segment in segments:
        if segment.vaddr <= vaddr < segment.vaddr + segment.file_size:
            return vaddr - segment.vaddr + segment.offset
    return None


def _segments(elf: ELFFile) -> tuple[Segment, ...]:
    return tuple(
        Segment(s["p_vaddr"], s["p_offset"], s["p_filesz"], bool(s["p_flags"] & 1))
        for s in elf.iter_segments()
        if s["p_type"] == "PT_LOAD"
    )


def _symbols(elf: ELFFile) -> Iterator[tuple[str, int, int, int]]:
    """(name, kind, address, size) of the defined dynamic symbols; of all where there are no dynamic ones."""
    table = elf.get_section_by_name(".dynsym") or elf.get_section_by_name(".symtab")
    if not table:
        return
    # pyelftools takes 20 us a symbol; an interpreter has about 2,000, PyTorch's library 74,000.
    names = elf.get_section(table["sh_link"]).data()
    for name, info, _other, place, value, size in struct.iter_unpack("<IBBHQQ", table.data()):
        if place:
            yield names[name : names.index(b"\0", name)].decode("latin-1"), info & 15, value, size


def _argument(operand: str) -> Argument:
    match = _OPERAND.fullmatch(operand)
    if not match:
        size = re.match(r"(-?)(\d+)@", operand)
        return Argument(int(size[2]) if size else 8, bool(size and size[1]), None, None)
    sign, size_text, direct, displacement, base = match.groups()
    register = _WIDE.get(direct or base)
    return Argument(int(size_text), sign == "-", register, None if direct else int(displacement or 0))


def _last_call(binary: Binary, probe: Probe) -> int | None:
    code = probe.code_before
    start = probe.location_vaddr - len(code)
    for at in range(len(code) - 5, -1, -1):
        if code[at] == 0xE8:
            target = start + at + 5 + struct.unpack_from("<i", code, at + 1)[0]
            if _file_offset(tuple(s for s in binary.segments if s.executable), target) is not None:
                return at
        if code[at : at + 2] == b"\xff\x15" and at + 6 <= len(code):  # -fno-plt: call *slot(%rip)
            return at
    return None


def _move_to_rdi(code: bytes) -> tuple[int, str]:
    """Where the last `mov %reg,%rdi` is, and reg; (-1, "") for none."""
    for at in range(len(code) - 3, -1, -1):
        rex, opcode, modrm = code[at : at + 3]
        if rex in (0x48, 0x4C) and opcode == 0x89 and modrm & 0xC7 == 0xC7:
            return at, _ENCODING[(modrm >> 3 & 7) + (8 if rex == 0x4C else 0)]
    return -1, ""


def _position_load(code: bytes, displacement: int, wide: bool) -> tuple[int, str]:
    """Where the last `mov displacement(%base),%esi` (wide: `%rsi`) is, and base; (-1, "") for none."""
    for at in range(len(code) - 3, 0, -1):
        if code[at] != 0x8B or code[at + 1] & 0xF8 != 0x70:
            continue
        rex = code[at - 1]
        base = code[at + 1] & 7
        tail = code[at + 2 : at + 4]
        if base == 4 and tail[:1] == b"\x24":  # rsp and r12 as a base need a SIB byte
            tail = tail[1:]
        if tail[:1] != bytes((displacement,)) or (wide and rex not in (0x48, 0x49)):
            continue
        return at, _ENCODING[base + (8 if rex == (0x49 if wide else 0x41) else 0)]
    return -1, ""


class _Reader:
    """Collects a Binary's parts from one ELF file."""

    def __init__(self, elf: Any, file: BinaryIO) -> None:
        self.elf = elf
        self.file = file
        self.segments = _segments(elf)
        self.symbols = {name: (value, size) for name, _, value, size in _symbols(elf)}

    def binary(self) -> Binary:
        runtime = self._section_address(".PyRuntime") or self._value("_PyRuntime")
        offsets = self._bytes(runtime, _DEBUG_OFFSETS_SIZE) if runtime else b""
        return Binary(
            is_pie=self.elf["e_type"] == "ET_DYN",
            segments=self.segments,
            probes=self._probes(),
            symbols={name: value for name, (value, _) in self.symbols.items()},
            runtime_vaddr=runtime,
            version=self._version(offsets),
            debug_offsets=offsets if offsets.startswith(b"xdebugpy") else b"",
        )

    def _value(self, name: str) -> int | None:
        return self.symbols[name][0] if name in self.symbols else None

    def _section_address(self, name: str) -> int | None:
        section = self.elf.get_section_by_name(name)
        return section["sh_addr"] if section else None

    def _bytes(self, vaddr: int, size: int) -> bytes:
        offset = _file_offset(self.segments, vaddr)
        if offset is None:
            return b""
        self.file.seek(offset)
        return self.file.read(size)

    def _probes(self) -> dict[str, tuple[Probe, ...]]:
        section = self.elf.get_section_by_name(".note.stapsdt")
        base = self._section_address(".stapsdt.base")
        probes: dict[str, tuple[Probe, ...]] = {}
        for note in section.iter_notes() if section else ():
            descriptor = note["n_descdata"]
            location, noted_base, semaphore = struct.unpack_from("<QQQ", descriptor)
            provider, name, arguments = (part.decode() for part in descriptor[24:].split(b"\0")[:3])
            moved = base - noted_base if base else 0  # prelink moves the sections but not the notes
            if provider == PROVIDER:
                probe = self._probe(name, location + moved, semaphore + moved if semaphore else 0, arguments)
                probes[name] = (*probes.get(name, ()), probe)
        return probes

    def _probe(self, name: str, location: int, semaphore: int, arguments: str) -> Probe:
        return Probe(
            name=name,
            location_vaddr=location,
            offset=_file_offset(self.segments, location) or 0,
            semaphore_vaddr=semaphore,
            semaphore_offset=_file_offset(self.segments, semaphore) or 0,
            arguments=parse_arguments(arguments),
            code_before=self._bytes(location - _CODE_BEFORE, _CODE_BEFORE),
        )

    def _version(self, debug_offsets: bytes) -> Version | None:
        if debug_offsets.startswith(b"xdebugpy"):  # 3.13+
            return _from_hex(struct.unpack_from("<Q", debug_offsets, 8)[0])
        data = self._bytes(self._value("Py_Version") or 0, 8)
        if len(data) == 8 and self._value("Py_Version"):  # 3.11+
            return _from_hex(struct.unpack("<Q", data)[0])
        return self._version_by_function()

    def _version_by_function(self) -> Version | None:
        """Before 3.11 no data holds the version, but Py_GetVersion() refers to its text: follow every operand."""
        vaddr, size = self.symbols.get("Py_GetVersion", (0, 0))
        code = self._bytes(vaddr, min(size or 128, 512)) if vaddr else b""
        for at in range(len(code) - 3):
            relative, absolute = struct.unpack_from("<i", code, at)[0], struct.unpack_from("<I", code, at)[0]
            for address in (vaddr + at + 4 + relative, absolute):
                match = _VERSION_TEXT.match(self._bytes(address, 16))
                if match:
                    return int(match[1]), int(match[2]), int(match[3])
        return None


def _from_hex(version: int) -> Version:
    return version >> 24 & 0xFF, version >> 16 & 0xFF, version >> 8 & 0xFF
