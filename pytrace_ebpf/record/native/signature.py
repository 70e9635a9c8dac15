"""Where an operator's tensors are at its first instruction: its C++ signature by the System V calling convention for x86-64.

https://gitlab.com/x86-psABIs/x86-64-ABI, chapter 3.2.3; non-trivial C++ classes go by reference (Itanium C++ ABI, 3.1.2.3).
"""

import re
from dataclasses import dataclass
from enum import IntEnum

import cxxfilt

MOST = 8  # tensors that are read of a call: TENSORS of probes/events.h
_REGISTERS = 6
_PARAMETERS = re.compile(r"::call\((.*)\)$")


class How(IntEnum):
    """How an argument leads to tensors, as in probes/native.c."""

    BY_REFERENCE = 0
    OPTIONAL = 1
    LIST = 2
    LIST_REFERENCE = 3


_TENSORS = {
    "at::Tensor const&": How.BY_REFERENCE,
    "at::Tensor&": How.BY_REFERENCE,
    "std::optional<at::Tensor> const&": How.OPTIONAL,
    "c10::optional<at::Tensor> const&": How.OPTIONAL,
    "c10::ArrayRef<at::Tensor>": How.LIST,
    "at::ITensorListRef const&": How.LIST_REFERENCE,
    "c10::IListRef<at::Tensor> const&": How.LIST_REFERENCE,
}
_FLOATING = ("double", "float")
_PAIR = re.compile(r"c10::ArrayRef<.*>|std::basic_string_view<.*>|c10::basic_string_view<.*>|(std|c10)::optional<long>")
_IN_MEMORY = re.compile(
    r"(std|c10)::optional<(c10::ArrayRef<.*>|std::basic_string_view<.*>|c10::basic_string_view<.*>)>|c10::OptionalArrayRef<.*>"
)
_OPTIONAL_DOUBLE = re.compile(r"(std|c10)::optional<double>")


@dataclass(frozen=True)
class Place:
    """One tensor argument: `register` 0-5 among the integer ones, from 6 on eight bytes each on the stack."""

    register: int
    how: How


def places(symbol: str, returns_in_memory: bool) -> tuple[Place, ...]:
    """The tensor arguments of a mangled `at::_ops::NAME::call`, in order, at most MOST.

    `returns_in_memory`: the first register holds where the result goes.
    """
    match = _PARAMETERS.search(cxxfilt.demangle(symbol))
    registers, stack = int(returns_in_memory), 0
    found: list[Place] = []
    for parameter in _split(match[1]) if match else ():
        words, in_registers = _size(parameter)
        fits = in_registers and registers + words <= _REGISTERS
        at = registers if fits else _REGISTERS + stack
        if parameter in _TENSORS:
            found.append(Place(at, _TENSORS[parameter]))
        if fits:
            registers += words
        else:
            stack += words
    return tuple(found[:MOST])


def _size(parameter: str) -> tuple[int, bool]:
    """(eight-byte words of class INTEGER, whether they may go in registers)."""
    if parameter in _FLOATING:
        return 0, True
    if parameter.endswith(("&", "*")):
        return 1, True
    if _IN_MEMORY.fullmatch(parameter):
        return 3, False
    if _OPTIONAL_DOUBLE.fullmatch(parameter):
        return 1, True
    return (2 if _PAIR.fullmatch(parameter) else 1), True


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
