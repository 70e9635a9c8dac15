"""What of an ELF file says how its functions are left, and what they are called: read in a process without rights.

The compiled library makes the rows (rebuild/unwind.c), of which PyTorch has millions.
"""

import ctypes
import mmap
import re
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pytrace_ebpf.rebuild
from pytrace_ebpf import processors
from pytrace_ebpf.record.native.signature import demangler
from pytrace_ebpf.record.parsing.elf_file import ElfFile, Segment

ROW_BYTES, FUNCTION_BYTES = 8, 4  # struct unwind_rule of probes/unwind.h; an address
MOST_ROWS = 2_500_000  # that one answer has room for
_LIBRARY = Path(pytrace_ebpf.rebuild.__path__[0]) / "rebuild.so"
_SYMBOL = struct.Struct("<IBBHQQ")
_MOST_SYMBOLS, _LONGEST, _MOST_WANTED, _MOST_NAMESAKES = 4_000_000, 400, 100_000, 1000
_FUNCTIONS, _LOCAL = (2, 10), 0  # STT_FUNC, STT_GNU_IFUNC; STB_LOCAL
EVAL = "_PyEval_EvalFrameDefault"  # the interpreter's function that runs Python code
_LONGEST_CODE = 1 << 20
_PARTS = re.compile(r"(\.(cold|part|isra|constprop|lto_priv|localalias|llvm)(\.\d+)*)+$")  # of a function, or a copy, that a compiler made


@dataclass(frozen=True)
class Unwinding:
    """Rows of struct unwind_rule, sorted, and where functions begin: addresses of the file."""

    segments: tuple[Segment, ...]  # executable ones
    rows: bytes
    functions: bytes
    more: bool  # there are rows behind those
    evaluating: tuple[int, ...] = ()  # where the parts of EVAL begin


def read(unwind: Callable[..., int], file: BinaryIO, skip: int) -> Unwinding:
    """What is in a file, without its first `skip` rows; nothing for one that has no .eh_frame. Raises ValueError for no ELF file."""
    elf = ElfFile(file)
    segments = tuple(segment for segment in elf.segments if segment.executable)
    section = elf.section(".eh_frame")
    content = elf.read_section(section)
    if section is None or not content:
        return Unwinding(segments, b"", b"", False)
    evaluating: tuple[int, ...] = ()
    with mmap.mmap(-1, len(content) * ROW_BYTES) as rows, mmap.mmap(-1, len(content)) as functions:
        found = ctypes.c_size_t()
        into, begins = ((ctypes.c_char * len(memory)).from_buffer(memory) for memory in (rows, functions))
        count = unwind(content, len(content), section.address, into, len(content), begins, len(content) // FUNCTION_BYTES, ctypes.byref(found))
        del into, begins
        last, functions_end = min(count, skip + MOST_ROWS), found.value * FUNCTION_BYTES
        if not skip:
            evaluating = tuple(_parts(elf, EVAL, array("Q", rows[: count * ROW_BYTES]), array("I", functions[:functions_end])))
        return Unwinding(segments, rows[skip * ROW_BYTES : last * ROW_BYTES], functions[: 0 if skip else functions_end], count > last, evaluating)


def _parts(elf: ElfFile, name: str, rows: "array[int]", functions: "array[int]") -> Iterator[int]:
    """Where an exported function begins, and those parts of it that a compiler has put elsewhere, which need no symbol.

    Such a part is left to from within the function, not to its beginning, and begins with a stack frame, unlike a function.
    """
    place = next((symbol.address for symbol in elf.symbols(_MOST_NAMESAKES, (name.encode(),)) if symbol.name == name), None)
    at = bisect_left(functions, place) if place is not None else len(functions)
    if place is None or at == len(functions) or functions[at] != place:
        return
    yield place
    end = functions[at + 1] if at + 1 < len(functions) else place
    found = set()
    code = processors.here().code
    for target in code.jumps(elf.at(place, min(end - place, _LONGEST_CODE)), place):
        part = functions[max(bisect_right(functions, target) - 1, 0)]
        if part < target and part not in found and not place <= target < end:
            row = rows[bisect_left(rows, part, key=lambda row: row & 0xFFFFFFFF)]
            found |= {part} if row >> 32 != code.at_call else set()
    yield from sorted(found)


def unwinder() -> Callable[..., int]:
    """rebuild_unwind() of the compiled library, which cannot be loaded any more when it is needed. Raises OSError."""
    function = ctypes.CDLL(str(_LIBRARY)).rebuild_unwind
    function.restype = ctypes.c_size_t
    size = ctypes.c_size_t
    function.argtypes = [ctypes.c_char_p, size, ctypes.c_uint64, ctypes.c_void_p, size, ctypes.c_void_p, size, ctypes.POINTER(size)]
    return function


def names(file: BinaryIO, addresses: Sequence[int]) -> list[str]:
    """What the functions that begin there are called, C++ ones as in a source; "" of one without a symbol. Raises ValueError for no ELF file."""
    elf, wanted = ElfFile(file), set(addresses[:_MOST_WANTED])
    found: dict[int, tuple[bool, int, int]] = {}  # whether it is local, length and place of the name
    table = elf.section(".symtab") or elf.section(".dynsym")
    if table is None:
        return [""] * len(addresses)
    texts, rows = elf.read_section(elf.linked(table)), elf.read(table.offset, min(table.size, _MOST_SYMBOLS * _SYMBOL.size))
    for name, info, _, place, value, _ in _SYMBOL.iter_unpack(rows[: len(rows) // _SYMBOL.size * _SYMBOL.size]):
        if value in wanted and place and info & 15 in _FUNCTIONS:
            length = texts.find(b"\0", name) - name
            if length > 0:
                found[value] = min(found.get(value, (True, 1 << 30, 0)), (info >> 4 == _LOCAL, length, name))
    return [_shown(texts[at : at + length]) if length else "" for _, length, at in (found.get(each, (True, 0, 0)) for each in addresses)]


def _shown(symbol: bytes) -> str:
    plain = _PARTS.sub("", symbol[: 4 * _LONGEST].decode("latin-1"))
    if plain.startswith("_Z"):
        try:
            plain = demangler()(plain)
        except Exception:  # whatever it has for what is no name
            return plain[:_LONGEST]
    return plain[:_LONGEST]
