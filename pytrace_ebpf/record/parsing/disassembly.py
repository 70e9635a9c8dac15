"""Machine code as instructions, x86-64, by capstone. Only processes without rights import it: others wrote that code."""

from functools import cache
from typing import Any

Instruction = tuple[int, int, str, str]  # address, size, mnemonic, operands
_LONGEST = 15  # bytes of an instruction


@cache
def disassembler() -> Any:
    """Capstone's, loaded when this is called first."""
    from capstone import CS_ARCH_X86, CS_MODE_64, Cs

    return Cs(CS_ARCH_X86, CS_MODE_64)


def instructions(code: bytes, address: int = 0) -> list[Instruction]:
    """The instructions of `code` from its first byte on, up to the first that is none."""
    return list(disassembler().disasm_lite(code, address))


def last_instructions(code: bytes) -> list[Instruction]:
    """The instructions by which `code` ends, where its first byte need not begin one; addresses are places in it.

    One of its first bytes begins an instruction. From there, as from the wrong ones, decoding falls into step after a few
    instructions: those that all decodings have which come to the very end of `code`.
    """
    decoded = [instructions(code[start:], start) for start in range(min(_LONGEST, len(code)))]
    whole = [set(each) for each in decoded if each and each[-1][0] + each[-1][1] == len(code)]
    return sorted(set.intersection(*whole)) if whole else []
