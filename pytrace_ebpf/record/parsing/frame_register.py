"""Which register holds the interpreter's frame at a function probe, from the machine code before it, which calls for the line number.

3.11+: PyUnstable_InterpreterFrame_GetLine(frame), where it is not inlined: the register that is moved to that of a first argument.
3.8-3.10, and where that function is inlined, PyCode_Addr2Line(code, position): the register through which the frame's
position (f_lasti up to 3.10, prev_instr or instr_ptr from 3.11 on) is loaded to that of a second argument.
"""

from pytrace_ebpf import processors
from pytrace_ebpf.processors.processor import Processor
from pytrace_ebpf.record.parsing.disassembly import last_instructions

CODE_BEFORE = 64  # bytes before a probe that are looked at


def frame_register(code: bytes, version: tuple[int, ...], processor: Processor | None = None) -> str | None:
    """The register, its 64-bit name, at the end of `code` of a CPython `version`; None where that cannot be determined. `processor`: another one than this."""
    known = (processor or processors.here()).code
    steps = last_instructions(code, processor)
    calls = [at for at, step in enumerate(steps) if step[2] == known.call]
    pattern = known.frame.get((version[0], version[1]))
    if not calls or pattern is None:
        return None
    moves = [found for *_, mnemonic, operands in steps[: calls[-1]] if mnemonic in known.move and (found := pattern.fullmatch(operands))]
    register = moves[-1][moves[-1].lastindex or 0] if moves else None
    # The call returned before the probe: only a register that a callee must keep still has the frame.
    return register if register in known.kept else None
