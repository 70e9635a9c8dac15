"""Where an operator's tensors are at its first instruction: its C++ signature by the System V calling convention for x86-64.

https://gitlab.com/x86-psABIs/x86-64-ABI, chapter 3.2.3; non-trivial C++ classes go by reference (Itanium C++ ABI, 3.1.2.3).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

MOST = 8  # tensors that are read of a call: TENSORS of probes/events.h
_REGISTERS = 6
_PARAMETERS = re.compile(r"::call\((.*)\)$")


class How(IntEnum):
    """How an argument leads to tensors, as in probes/native.c."""

    BY_REFERENCE = 0
    OPTIONAL = 1
    LIST = 2
    LIST_REFERENCE = 3
    OPTIONALS = 4


_TENSORS = {
    "at::Tensor const&": How.BY_REFERENCE,
    "at::Tensor&": How.BY_REFERENCE,
    "std::optional<at::Tensor> const&": How.OPTIONAL,
    "c10::ArrayRef<at::Tensor>": How.LIST,
    "c10::IListRef<at::Tensor> const&": How.LIST_REFERENCE,
    "c10::List<std::optional<at::Tensor>> const&": How.OPTIONALS,
}
_FLOATING = ("double", "float")
_PAIR = re.compile(r"c10::ArrayRef<.*>|std::basic_string_view<.*>|std::optional<long>|c10::Stream")
_LARGE = re.compile(r"std::optional<(c10::ArrayRef|std::basic_string_view)<.*>>|c10::OptionalArrayRef<.*>")


@dataclass(frozen=True)
class TensorArgument:
    """One tensor argument: `register` 0-5 among the integer ones, from 6 on eight bytes each on the stack."""

    register: int
    how: How


@cache
def demangler() -> Callable[[str], str]:
    """The C++ name behind a symbol. Its package is imported here: that takes a sixth of what importing the recorders does."""
    import cxxfilt

    return cxxfilt.demangle


def tensor_arguments(symbol: str, returns_in_memory: bool) -> tuple[TensorArgument, ...]:
    """The tensor arguments of a mangled `at::_ops::NAME::call`, in order, at most MOST.

    `returns_in_memory`: the first register holds where the result goes.
    """

    match = _PARAMETERS.search(demangler()(symbol).replace(" >", ">"))
    used, stack = int(returns_in_memory), 0
    found: list[TensorArgument] = []
    for parameter in _split(match[1]) if match else ():
        registers, words = _size(parameter)
        fits = registers is not None and used + registers <= _REGISTERS
        if parameter in _TENSORS:
            found.append(TensorArgument(used if fits else _REGISTERS + stack, _TENSORS[parameter]))
        if fits and registers is not None:
            used += registers
        else:
            stack += words
    return tuple(found[:MOST])


def _size(parameter: str) -> tuple[int | None, int]:
    """(integer registers, None = never in registers; eight-byte words on the stack, where there are not as many left)."""
    if parameter in _FLOATING:
        return 0, 1  # as long as there are eight of them at most
    if parameter.endswith(("&", "*")):
        return 1, 1
    if _LARGE.fullmatch(parameter):
        return None, 3
    if parameter == "std::optional<double>":
        return 1, 2  # its number goes in a vector register
    words = 2 if _PAIR.fullmatch(parameter) else 1
    return words, words


def _split(text: str) -> list[str]:
    """Parameters, cut at the commas that are in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
