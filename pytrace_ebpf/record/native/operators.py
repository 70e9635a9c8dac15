"""ATen's operators in libtorch_cpu: `at::_ops::NAME::call`, where every call of one passes the dispatcher.

NAME joins the operator's name and overload by an underscore, as both may have some themselves: where one ends, and what
the operator returns, is in its schema, a string in the library such as "conv1d.padding(Tensor input, ...) -> Tensor".
"""

import fnmatch
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO

from pytrace_ebpf.record.native.probed_library import Found
from pytrace_ebpf.record.native.signature import tensor_arguments
from pytrace_ebpf.record.parsing.elf import Functions, section

DEFAULT = frozenset(Path(__file__).with_name("default_operators.txt").read_text().split())

_SYMBOL = re.compile(r"_ZN2at4_ops(\d+)(\w+)")
_SCHEMA = re.compile(rb"\0(?:aten::)?([A-Za-z_]\w*)(?:\.(\w+))?\([^\0]*\) -> ([^\0]+)(?=\0)")
_TENSOR = re.compile(r"Tensor(\(\w+\))?( \w+)?")
_TENSOR_REFERENCE = re.compile(r"Tensor\(\w+!\)( \w+)?")
_IN_REGISTER = frozenset(("bool", "int", "float", "ScalarType", "Layout", "MemoryFormat", "Device", "QScheme"))


def wanted(name: str, patterns: Sequence[str]) -> bool:
    """Whether `aten::NAME` is to be probed: one of the default set where there are no patterns, else of these."""
    if not patterns:
        return name in DEFAULT
    return any(pattern == "all" or fnmatch.fnmatchcase(name, pattern.removeprefix("aten::")) for pattern in patterns)


class Operators:
    """Finds the operators that match `patterns` in libtorch_cpu."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)

    def __call__(self, file: BinaryIO, functions: Functions) -> list[Found]:
        """Those of one library, in the order of their names."""
        symbols = {_name(symbol): symbol for symbol in functions.symbols if symbol.startswith("_ZN2at4_ops") and "4callE" in symbol}
        found = []
        for name, overload, returned in _schemas(section(file, ".rodata")):
            symbol = symbols.pop(f"{name}_{overload}" if overload else name, None)
            if symbol is None or not wanted(name, self._patterns):
                continue
            in_memory, results = _returned(returned)
            if not in_memory and not name.endswith("_"):
                results = 0  # it is an argument; where a result is read that is not the first one is not known any more
            tensors = tensor_arguments(symbol, in_memory)
            full = f"aten::{name}.{overload}" if overload else f"aten::{name}"
            found.append(Found(symbol, "operator", f"aten::{name}", full, "<operator>", tensors, results))
        return sorted(found, key=lambda each: each.qualname)


def _name(symbol: str) -> str:
    match = _SYMBOL.match(symbol)
    return match[2][: int(match[1])] if match else ""


def _schemas(data: bytes) -> list[tuple[str, str, str]]:
    """(name, overload, what it returns) of every operator's schema in a library's read-only data."""
    return [(name.decode(), overload.decode(), returned.decode()) for name, overload, returned in _SCHEMA.findall(data)]


@cache
def _returned(text: str) -> tuple[bool, int]:
    """(whether the result goes to memory that the caller gives; how many tensors it is, 0 = not read).

    A tuple goes there whatever is in it: libstdc++'s is no trivial class.
    """
    parts = [part.strip() for part in text.removeprefix("(").removesuffix(")").split(",")] if text.startswith("(") else [text]
    if len(parts) > 1:
        return True, len(parts) if all(_TENSOR.fullmatch(part) for part in parts) else 0
    if _TENSOR_REFERENCE.fullmatch(parts[0]):
        return False, 1
    if _TENSOR.fullmatch(parts[0]):
        return True, 1
    return bool(parts[0]) and parts[0].split()[0] not in _IN_REGISTER, 0
