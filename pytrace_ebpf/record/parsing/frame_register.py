"""Which register holds the interpreter's frame at a function probe, from the machine code before it, which calls for the line number.

3.11+: PyUnstable_InterpreterFrame_GetLine(frame), where it is not inlined: the register that is moved to %rdi.
3.8-3.10, and where that function is inlined, PyCode_Addr2Line(code, position): the register through which the frame's
position (f_lasti up to 3.10, prev_instr or instr_ptr from 3.11 on) is loaded to %esi or %rsi.
"""

import re

from pytrace_ebpf.record.parsing.disassembly import last_instructions

CODE_BEFORE = 64  # bytes before a probe that are looked at
_CALLEE_SAVED = frozenset(("rbx", "rbp", "r12", "r13", "r14", "r15"))
# Of a `mov` that has to do with the frame: its register.
_MOVES: dict[tuple[int, ...], re.Pattern[str]] = {
    **dict.fromkeys(((3, 8), (3, 9)), re.compile(r"esi, dword ptr \[(\w+) \+ 0x68\]")),
    (3, 10): re.compile(r"esi, dword ptr \[(\w+) \+ 0x60\]"),
    **dict.fromkeys(((3, minor) for minor in range(11, 16)), re.compile(r"rdi, (\w+)|rsi, qword ptr \[(\w+) \+ 0x38\]")),
}


def frame_register(code: bytes, version: tuple[int, ...]) -> str | None:
    """The register, its 64-bit name, at the end of `code` of a CPython `version`; None where that cannot be determined."""
    steps = last_instructions(code)
    calls = [at for at, step in enumerate(steps) if step[2] == "call"]
    pattern = _MOVES.get(version[:2])
    if not calls or pattern is None:
        return None
    moves = [found for *_, mnemonic, operands in steps[: calls[-1]] if mnemonic == "mov" and (found := pattern.fullmatch(operands))]
    register = moves[-1][moves[-1].lastindex or 0] if moves else None
    # The call returned before the probe: only a register that a callee must keep still has the frame.
    return register if register in _CALLEE_SAVED else None
