"""What of a mapped library can be probed: a layer's functions, with where they begin, where they return and what they are given."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from pytrace_ebpf.record.native import code
from pytrace_ebpf.record.native.signature import TensorArgument
from pytrace_ebpf.record.parsing.elf import Functions, read_functions

_LONGEST = 1 << 20  # bytes of a function


@dataclass(frozen=True)
class Gemm:
    """Where a matrix product C[m, n] = A[m, k] B[k, n] gets its sizes: m, n and k from argument `first` on."""

    first: int
    wide: bool  # 64 bits each
    indirect: bool  # by reference, as Fortran does
    dtype: str


@dataclass(frozen=True)
class Native:
    """One function to probe. `entry`, `returns`: file offsets; without returns the kernel's own return probe has to serve.

    `stack`: bytes of stack that the function still has at `returns`: 0 at the instruction that returns, code.BY_FRAME_POINTER where
    rbp gives it.
    `tensors`: its tensor arguments; `results`: how many tensors it returns, 0 where that cannot be read.
    """

    layer: str
    name: str
    qualname: str
    module: str
    file: str
    entry: int
    returns: tuple[int, ...]
    tensors: tuple[TensorArgument, ...] = ()
    results: int = 0
    gemm: Gemm | None = None
    stack: int = 0


@dataclass(frozen=True)
class Found:
    """A function that is wanted, by the symbol that it has."""

    symbol: str
    layer: str
    name: str
    qualname: str
    module: str
    tensors: tuple[TensorArgument, ...] = ()
    results: int = 0
    gemm: Gemm | None = None


def throws(function: Found | Native) -> bool:
    """Whether C++ exceptions may pass it, which the kernel's return probe would turn into the end of the process."""
    return function.layer == "operator" or function.module == "oneDNN"


def locate(file: BinaryIO, path: str, functions: Functions, wanted: Sequence[Found]) -> Iterator[Native]:
    """The wanted functions by their places in `file`; of several names for one place the first."""
    seen = set()
    for found in wanted:
        vaddr, size = functions.symbols[found.symbol]
        if vaddr in seen:
            continue
        seen.add(vaddr)
        if size > _LONGEST:
            continue
        try:
            entry = functions.file_offset(vaddr)
        except ValueError:  # it is in no part of the file
            continue
        file.seek(entry)
        body = file.read(size)
        ends, stack = code.last_branches(body, entry) if throws(found) else ((), 0)
        ends = ends or code.returns(body, entry, cold=throws(found))
        yield Native(found.layer, found.name, found.qualname, found.module, path, entry, ends, found.tensors, found.results, found.gemm, stack)


Finder = Callable[[BinaryIO, Functions], list[Found]]


def symbol_offsets(file: BinaryIO, pattern: str) -> list[int]:
    """File offsets of the exported functions whose whole symbols match `pattern`, each place once. Raises ValueError for no ELF file."""
    functions, wanted = read_functions(file), re.compile(pattern)
    return sorted({functions.file_offset(vaddr) for symbol, (vaddr, _) in functions.symbols.items() if wanted.fullmatch(symbol)})
