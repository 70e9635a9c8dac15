"""Where a function returns: instructions to probe instead of its return.

A return probe of the kernel replaces the return address on the stack, and a C++ exception that is thrown through such a
frame ends the process, because the unwinder knows no function there. A probe on the `ret` instruction itself changes no
stack. But the kernel has the processor step over a `ret`, which a hypervisor makes expensive, while it follows a branch
by itself: so where every way to the return leads over a branch to the function's last instructions, that is probed.
"""

from pytrace_ebpf.record.parsing.disassembly import Instruction, instructions

_RETURNS = frozenset(("ret", "repz ret", "bnd ret"))
_MOST_AFTER = 96  # bytes of code between such a branch and the function's last instructions, which destroy local objects
BY_FRAME_POINTER = 1  # as in probes/native.c


def returns(code: bytes, address: int, cold: bool) -> tuple[int, ...]:
    """Addresses of the instructions by which the function at `address` is left, () where its code cannot be followed.

    They are its returns, and jumps through a register, which hand its caller over to another function. `cold`: jumps out
    of `code` are not among them, as they lead to its cold part, from where exceptions go; else they are ends too, and of
    a kind that is not followed: what they lead to returns for it.
    """
    found = []
    end = address
    for at, size, mnemonic, operand in instructions(code, address):
        end = at + size
        if mnemonic in _RETURNS or (mnemonic == "jmp" and not operand.startswith("0x") and "ptr" not in operand):
            found.append(at)
        elif not cold and mnemonic.startswith("j") and not _inside(operand, address, len(code)):
            return ()
    return tuple(found) if end == address + len(code) else ()


def _inside(operand: str, address: int, size: int) -> bool:
    return operand.startswith("0x") and address <= int(operand, 16) < address + size


def last_branches(code: bytes, address: int) -> tuple[tuple[int, ...], int]:
    """(addresses of branches of which every return has passed one just before, bytes of stack that the function has there).

    BY_FRAME_POINTER instead of that number: rbp gives it.

    ((), 0) where that cannot be determined for the function at `address`. Several may be passed on the way to one return.
    """
    steps = instructions(code, address)
    ends = [at for at, step in enumerate(steps) if step[2] in _RETURNS]
    if len(ends) != 1 or sum(step[1] for step in steps) != len(code):
        return (), 0
    first, stack = _epilogue(steps, ends[0])
    jumps = {at: int(step[3], 16) if step[3].startswith("0x") else -1 for at, step in enumerate(steps) if step[2].startswith("j")}
    whole = first  # the stack is, up to here
    while steps[whole][2] == "mov":
        whole += 1
    targets = {step[0] for step in steps[first : whole + 1]}
    sites = {at for at, target in jumps.items() if target in targets}
    near = all(steps[first][0] - steps[at][0] <= _MOST_AFTER for at in sites)
    if not stack or not near or -1 in jumps.values() or _reaches(steps, jumps, ends[0], sites):
        return (), 0
    return tuple(steps[at][0] for at in sorted(sites)), stack


def _epilogue(steps: list[Instruction], end: int) -> tuple[int, int]:
    """(the first of the instructions that take the stack down before the one at `end`, by how many bytes or BY_FRAME_POINTER)."""
    first, stack, by_frame_pointer = end, 0, False
    while first:
        _, _, mnemonic, operands = steps[first - 1]
        if mnemonic == "pop":
            stack += 8
        elif mnemonic == "add" and operands.startswith("rsp, "):
            stack += int(operands.removeprefix("rsp, "), 0)
        elif mnemonic == "sub" and operands.startswith("rsp, -"):  # adding 128 so is a shorter instruction
            stack -= int(operands.removeprefix("rsp, "), 0)
        elif mnemonic == "lea" and operands.startswith("rsp, [rbp") and steps[end - 1][2:] == ("pop", "rbp"):
            by_frame_pointer = True
        elif not (mnemonic == "mov" and operands.startswith(("rax, ", "eax, "))):
            break
        first -= 1
    return first, BY_FRAME_POINTER if by_frame_pointer else stack


def _reaches(steps: list[Instruction], jumps: dict[int, int], end: int, without: set[int]) -> bool:
    """Whether a way leads from the first instruction to that at `end` without passing one of `without`."""
    places = {step[0]: at for at, step in enumerate(steps)}
    seen, ways = set(without), [0]
    while ways:
        at = ways.pop()
        if at in seen or at >= len(steps):
            continue
        if at == end:
            return True
        seen.add(at)
        if at in jumps and jumps[at] in places:
            ways.append(places[jumps[at]])
        if steps[at][2] not in ("jmp", "ud2", "hlt"):
            ways.append(at + 1)
    return False
