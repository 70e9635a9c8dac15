"""A stopped thread on aarch64: its registers, and the forged signal frame through which it comes back from a call (machine.py).

At a stop the kernel has already gone back to the instruction of a system call that is to be made again (do_signal() of arch/arm64/kernel/signal.c):
the registers alone say how the thread goes on, and a call that the stop interrupted is made again by restoring them. Two kinds are not so simple:
* one that counts its time from its beginning is continued as restart_syscall, which the kernel puts into x8 when the thread goes on from there;
* one that says EINTR for every stop has lost its first argument, which x0 held. Whoever has seen that in /proc/PID/syscall gives it.

Layout: struct user_pt_regs, user_fpsimd_state and user_sve_header, rt_sigframe and sigcontext of arch/arm64/include/uapi/asm.
"""

import ctypes
import struct

from pytrace_ebpf import processors
from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.agent.inject.ptrace import Stopped
from pytrace_ebpf.record.agent.inject.registers import Call, Interrupted, WordRegisters

_ARM = processors.PROCESSORS["aarch64"]
_PRSTATUS, _FPREGS, _SVE, _SYSTEM_CALL, _GUARD = 1, 2, 0x405, 0x404, 0x410  # types of notes: NT_PRSTATUS, NT_PRFPREG, NT_ARM_...
_SIGRETURN, _FUTEX, _RESTART_SYSCALL, _NANOSLEEP, _CLOCK_NANOSLEEP, _EPOLL_PWAIT = map(
    _ARM.call, ("rt_sigreturn", "futex", "restart_syscall", "nanosleep", "clock_nanosleep", "epoll_pwait")
)
_RECEIVING = tuple(map(_ARM.call, ("read", "accept", "recvfrom", "recvmsg", "accept4")))
_INSTRUCTION, _SVC = 4, b"\x01\0\0\xd4"
_INTERRUPTED, _NO_CALL, _MOST_ERRNO = -4, -1, 4095  # EINTR
_AT_ENTRY = 0  # what x7 holds at the beginning of a system call, instead of its value, and 1 at its end
_ABSOLUTE, _WAIT = 1, 0  # a flag of clock_nanosleep; an operation of futex
_BELOW = 128  # bytes: the ABI has no red zone, and whoever breaks that does so near
_STEP, _BRANCH = 1 << 21, 3 << 10  # of pstate: SS; BTYPE, which would have the function begin with a landing pad
_NO_STACK = 7  # no valid ss_flags: the kernel then leaves the alternative stack alone
_SIGINFO, _CONTEXT, _RESERVED = 128, 464, 4096  # bytes of a frame: siginfo; ucontext up to __reserved; that
_END = bytes(16)  # of records
_FPSIMD_MAGIC, _SVE_MAGIC, _EXTRA_MAGIC = 0x46508001, 0x53564501, 0x45585401
_HAS_SVE = 1  # a flag of struct user_sve_header: the whole vectors are in use, not only what FPSIMD has of them

State = tuple[bytes, bytes]
"""The FPSIMD registers, and the whole vectors as NT_ARM_SVE has them, b"" where they are not in use."""


class Registers(WordRegisters):
    """struct user_pt_regs."""

    _fields_ = tuple((name, ctypes.c_ulonglong) for name in (*(f"x{number}" for number in range(31)), "sp", "pc", "pstate"))

    def stands_in(self, number: int, pc: int, sp: int) -> bool:
        """Whether the stop interrupted that system call, which /proc/PID/syscall shows by the address behind its instruction.

        The thread is to make it again, or it said EINTR. x8 still has the number.
        """
        again = self.pc == pc - _INSTRUCTION
        return (self.x8, self.sp) == (number, sp) and (again or (self.pc == pc and self.signed("x0") == _INTERRUPTED))

    def with_stack(self, sp: int) -> "Registers":
        """A copy with another stack pointer."""
        return self.but(sp=sp)


def registers_of(thread: Stopped) -> Registers:
    """Of a stopped thread."""
    return Registers.from_buffer_copy(thread.register_set(_PRSTATUS))


def set_registers(thread: Stopped, registers: Registers) -> None:
    """As it will go on."""
    thread.set_register_set(_PRSTATUS, bytes(registers))


def state_of(thread: Stopped) -> State:
    """Of a stopped thread. Raises TargetError where it may not return into a frame that was forged."""
    guard = thread.register_set(_GUARD, needed=False)
    if any(guard[:8]):
        raise TargetError(f"process {thread.pid} has a guarded control stack, so it can only be traced from its start; use `pytrace-ebpf run`")
    vectors = thread.register_set(_SVE, needed=False)
    live = len(vectors) >= 16 and struct.unpack_from("<H", vectors, 12)[0] & _HAS_SVE
    return thread.register_set(_FPREGS), vectors if live else b""


def set_state(thread: Stopped, state: State) -> None:
    """As it will go on."""
    plain, vectors = state
    thread.set_register_set(_SVE if vectors else _FPREGS, vectors or plain)


def forge(now: Registers, state: State, blocked: int, back: int, function: int, arguments: tuple[int | bytes, ...], interrupted: Interrupted) -> Call:
    """Make the thread that stands at `now` call `function(*arguments)` and come back by itself; `address` is a multiple of 16, as the stack pointer has to be.

    arguments  at most three, bytes (with their own final NUL) by their address
    back       address of the `mov x8, #139; svc #0` of the vDSO
    """
    values, texts, end = [], [], now.sp - _BELOW
    for argument in arguments:
        if isinstance(argument, bytes):
            end -= len(argument)
            texts.append((end, argument))
            argument = end
        values.append(argument)
    size = _SIGINFO + _CONTEXT + len(_records(state, 0))
    frame = (end - size) // 16 * 16
    content = bytes(_SIGINFO) + _ucontext(returned(now, interrupted), blocked) + _records(state, frame + _SIGINFO + _CONTEXT)
    content = content.ljust(now.sp - _BELOW - frame, b"\0")
    for at, text in texts:
        content = content[: at - frame] + text + content[at - frame + len(text) :]
    given = dict(zip(("x0", "x1", "x2"), values, strict=False))
    # x29 = 0: whoever walks the frames ends here.
    registers = now.but(**given, x8=_NO_CALL, x29=0, x30=back, sp=frame, pc=function, pstate=now.pstate & ~(_STEP | _BRANCH))
    return Call(frame, content, registers)


def returned(now: Registers, interrupted: Interrupted) -> Registers:
    """Where a thread goes on that was stopped at `now` and is put back by rt_sigreturn, without the tracer.

    A call that counts its time from its beginning says EINTR then, as after any signal.
    """
    if counts_from_its_beginning(now, interrupted):
        return now.but(pc=now.pc + _INSTRUCTION, x0=_INTERRUPTED)
    if interrupted.first is not None and now.signed("x0") == _INTERRUPTED and says_interrupted(now):
        return now.but(pc=now.pc - _INSTRUCTION, x0=interrupted.first)
    return now


def counts_from_its_beginning(now: Registers, interrupted: Interrupted) -> bool:
    """Whether what the thread is to make again, by its instruction, is a call that would then have all its time once more.

    Of one that it makes for the first time the registers say the same: that then says EINTR, for which the C library's callers are prepared.
    """
    if interrupted.instruction != _SVC:
        return False
    number = now.x8
    relative = number == _NANOSLEEP or (number == _CLOCK_NANOSLEEP and not now.x1 & _ABSOLUTE)
    waits = number == _FUTEX and now.x1 & 0x7F == _WAIT and now.x3
    return bool(number == _RESTART_SYSCALL or relative or waits)


def says_interrupted(now: Registers) -> bool:
    """Whether a call that said EINTR, for the stop alone, may as well go on."""
    endless = now.x8 == _EPOLL_PWAIT and bool(now.x3 & 0x80000000)
    # A socket with a time limit (SO_RCVTIMEO) says it, too: its limit counts from the stop then.
    return endless or now.x8 in _RECEIVING


def is_back(now: Registers, made: Call) -> bool:
    """Whether a thread that stands at the beginning or end of a system call is about to be put back."""
    return bool(now.x8 == _SIGRETURN and now.sp == made.address and now.x7 == _AT_ENTRY)


def refused(now: Registers) -> tuple[int, int] | None:
    """(number, errno) of the system call at whose end a thread stands, where the kernel refused it."""
    result = now.signed("x0")
    return (int(now.x8), -result) if now.x7 != _AT_ENTRY and -_MOST_ERRNO <= result < 0 else None


def resume(thread: Stopped, now: Registers, state: State, interrupted: Interrupted) -> None:
    """At the beginning of rt_sigreturn: have it go on with the time that it had left.

    rt_sigreturn would forget what is to be continued, so it is not made here; and x7 cannot be set here, so the thread is put back at its next stop, on
    its way out of the kernel. Should there be none, it goes on at the instruction of rt_sigreturn, with the frame as it was.
    """
    if not counts_from_its_beginning(now, interrupted):
        return
    before = registers_of(thread)
    thread.set_register_set(_SYSTEM_CALL, struct.pack("<i", _NO_CALL))
    set_registers(thread, before.but(pc=before.pc - _INSTRUCTION))
    thread.stop_on_its_way_out()
    set_state(thread, state)
    set_registers(thread, now.but(x8=_RESTART_SYSCALL))


def _ucontext(back: Registers, blocked: int) -> bytes:
    head = struct.pack("<QQ", 0, 0) + struct.pack("<QiiQ", 0, _NO_STACK, 0, 0) + struct.pack("<Q", blocked)
    context = bytes(8) + bytes(back)  # fault_address
    return head.ljust(176, b"\0") + context.ljust(_CONTEXT - 176, b"\0")


def _records(state: State, at: int) -> bytes:
    """What a signal frame has of the vectors at the address `at`, a multiple of 16; the whole ones in a part of its own, which may be as large as it is."""
    plain, vectors = state
    fpsr, fpcr = struct.unpack_from("<II", plain, 512)
    records = struct.pack("<IIII", _FPSIMD_MAGIC, 528, fpsr, fpcr) + plain[:512]
    if vectors:
        length = struct.unpack_from("<H", vectors, 8)[0]  # bytes of a vector
        size = length * 32 + length // 8 * 17  # 32 of them, 16 predicates and the register of first faults
        whole = -(-(16 + size) // 16) * 16
        sve = (struct.pack("<IIHHI", _SVE_MAGIC, whole, length, 0, 0) + vectors[16 : 16 + size]).ljust(whole, b"\0") + _END
        records += struct.pack("<IIQI12x", _EXTRA_MAGIC, 32, at + len(records) + 32 + len(_END), len(sve)) + _END + sve
    return records.ljust(_RESERVED, b"\0")
