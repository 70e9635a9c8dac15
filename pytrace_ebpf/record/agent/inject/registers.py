"""What the processors' files (x86_64.py, aarch64.py) have in common."""

import ctypes
from dataclasses import dataclass
from typing import Any, Self


class WordRegisters(ctypes.Structure):
    """Registers of 64 bits, by name."""

    def but(self, **values: int) -> Self:
        """A copy with other values, negative ones as the register holds them."""
        copy = type(self).from_buffer_copy(self)
        for name, value in values.items():
            setattr(copy, name, value & (1 << 64) - 1)
        return copy

    def signed(self, name: str) -> int:
        """A register as a signed number."""
        return ctypes.c_longlong(getattr(self, name)).value


@dataclass(frozen=True)
class Call:
    """What makes a thread call a function: `content` at `address` of its stack, then these registers."""

    address: int  # of the frame
    content: bytes
    registers: Any  # of the processor's


@dataclass(frozen=True)
class Interrupted:
    """What a stop interrupted, as far as registers do not say it."""

    instruction: bytes = b""  # the four bytes where the thread stands
    first: int | None = None  # what the system call was given first; None: not known, or there was none
