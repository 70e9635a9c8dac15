"""Machine code as instructions, by capstone. Only processes without rights import it: others wrote that code."""

from functools import cache
from typing import Any

from pytrace_ebpf import processors
from pytrace_ebpf.processors.processor import Processor

Instruction = tuple[int, int, str, str]  # address, size, mnemonic, operands


@cache
def disassembler(machine: str = "") -> Any:
    """Capstone's for this machine or another, loaded when this is called first."""
    import capstone

    of = processors.of(machine) or processors.here()
    return capstone.Cs(*(getattr(capstone, name) for name in of.code.capstone))


def instructions(code: bytes, address: int = 0, machine: str = "") -> list[Instruction]:
    """The instructions of `code` from its first byte on, up to the first that is none."""
    return list(disassembler(machine).disasm_lite(code, address))


def last_instructions(code: bytes, processor: Processor | None = None) -> list[Instruction]:
    """The instructions by which `code` ends, where its first byte need not begin one; addresses are places in it.

    One of its first bytes begins an instruction. From there, as from the wrong ones, decoding falls into step after a few
    instructions: those that all decodings have which come to the very end of `code`.
    """
    of = processor or processors.here()
    first = len(code) % of.code.every
    decoded = [instructions(code[start:], start, of.machine) for start in range(first, min(of.code.longest, len(code)), of.code.every)]
    whole = [set(each) for each in decoded if each and each[-1][0] + each[-1][1] == len(code)]
    return sorted(set.intersection(*whole)) if whole else []
