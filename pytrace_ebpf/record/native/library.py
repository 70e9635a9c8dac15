"""What of a mapped library can be probed: a layer's functions, with where they begin, where they return and what they are given."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from pytrace_ebpf.record.elf import Functions, read_functions
from pytrace_ebpf.record.native import code
from pytrace_ebpf.record.native.signature import Place


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
    rbp tells.
    `tensors`: its tensor arguments; `results`: how many tensors it returns, 0 where that cannot be read.
    """

    layer: str
    name: str
    qualname: str
    module: str
    file: str
    entry: int
    returns: tuple[int, ...]
    tensors: tuple[Place, ...] = ()
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
    tensors: tuple[Place, ...] = ()
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
        entry = functions.file_offset(vaddr)
        file.seek(entry)
        body = file.read(size)
        ends, stack = code.last_branches(body, entry) if throws(found) else ((), 0)
        ends = ends or code.returns(body, entry, cold=throws(found))
        yield Native(
            found.layer, found.name, found.qualname, found.module, path, entry, ends, found.tensors, found.results, found.gemm, stack
        )


Finder = Callable[[BinaryIO, Functions], list[Found]]


def symbol_offsets(path: str, wanted: Callable[[str], bool]) -> list[int]:
    """File offsets of the exported functions whose symbols are wanted, each place once. Raises OSError, ValueError for no ELF file."""
    with open(path, "rb") as file:  # noqa: PTH123 - a path in /proc/PID/root
        functions = read_functions(file)
    return sorted({functions.file_offset(vaddr) for symbol, (vaddr, _) in functions.symbols.items() if wanted(symbol)})
