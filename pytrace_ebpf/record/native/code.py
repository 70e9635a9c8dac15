"""Where a function returns: the addresses of its `ret` instructions, for probes there.

A return probe of the kernel replaces the return address on the stack, and a C++ exception that is thrown through such a
frame ends the process, because the unwinder knows no function there. A probe on the instruction itself changes no stack.
"""

from capstone import CS_ARCH_X86, CS_MODE_64, Cs

_RETURNS = frozenset(("ret", "repz ret", "bnd ret"))
_disassembler = Cs(CS_ARCH_X86, CS_MODE_64)


def returns(code: bytes, address: int, cold: bool) -> tuple[int, ...]:
    """Addresses of the instructions by which the function at `address` is left, () where its code cannot be followed.

    They are its returns, and jumps through a register, which hand its caller over to another function. `cold`: jumps out
    of `code` are not among them, as they lead to its cold part, from where exceptions go; else they are ends too, and of
    a kind that is not followed: what they lead to returns for it.
    """
    found = []
    end = address
    for at, size, mnemonic, operand in _disassembler.disasm_lite(code, address):
        end = at + size
        if mnemonic in _RETURNS or (mnemonic == "jmp" and not operand.startswith("0x") and "ptr" not in operand):
            found.append(at)
        elif not cold and mnemonic.startswith("j") and not _inside(operand, address, len(code)):
            return ()
    return tuple(found) if end == address + len(code) else ()


def _inside(operand: str, address: int, size: int) -> bool:
    return operand.startswith("0x") and address <= int(operand, 16) < address + size
