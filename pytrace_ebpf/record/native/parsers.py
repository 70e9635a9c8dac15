"""What the second process without rights can be asked: what of a library can be probed, and how its functions are left. See sandbox.py.

It is another one than that of parsers.py, so that reading PyTorch's library, which takes seconds, keeps nobody waiting.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pytrace_ebpf.record.native import libraries, operators, probed_library, signature, unwinding
from pytrace_ebpf.record.parsing import disassembly
from pytrace_ebpf.record.parsing.elf import read_functions
from pytrace_ebpf.record.parsing.parsers import file_of
from pytrace_ebpf.record.parsing.shape import encode

# By the layer's name, of the patterns that were given.
FINDERS: dict[str, Callable[[Sequence[str]], probed_library.Finder]] = {
    "operator": operators.Operators,
    "blas": lambda _: libraries.find_blas,
    "cuda": lambda _: libraries.find_cuda,
}


def _natives(given: dict[str, Any], files: list[int]) -> Any:
    file = file_of(files[0])
    functions = read_functions(file)
    return encode(list(probed_library.locate(file, given["shown"], functions, FINDERS[given["layer"]](given["patterns"])(file, functions))))


def _symbol_offsets(given: dict[str, Any], files: list[int]) -> Any:
    return probed_library.symbol_offsets(file_of(files[0]), given["pattern"])


def _unwinding(given: dict[str, Any], files: list[int]) -> Any:
    return encode(unwinding.read(_UNWIND, file_of(files[0]), given["skip"]))


def _names(given: dict[str, Any], files: list[int]) -> Any:
    return unwinding.names(file_of(files[0]), given["addresses"])


# Libraries, which cannot be loaded any more when they are needed.
disassembly.disassembler()
signature.demangler()
_UNWIND = unwinding.unwinder()
TASKS: dict[str, Callable[[dict[str, Any], list[int]], Any]] = {
    "natives": _natives,
    "symbol_offsets": _symbol_offsets,
    "unwinding": _unwinding,
    "names": _names,
}
