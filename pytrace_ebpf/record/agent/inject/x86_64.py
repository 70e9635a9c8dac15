"""A stopped thread on x86-64: its registers, and the forged signal frame through which it comes back from a call (machine.py).

Layout: struct rt_sigframe, ucontext and sigcontext of arch/x86/include/uapi/asm.
"""

import ctypes
import struct

from pytrace_ebpf import processors
from pytrace_ebpf.record.agent.inject.ptrace import Stopped
from pytrace_ebpf.record.agent.inject.registers import Call, Interrupted, WordRegisters

_X86 = processors.PROCESSORS["x86_64"]
_PRSTATUS, _XSTATE = 1, 0x202  # NT_PRSTATUS, NT_X86_XSTATE
_NO_SUCH_CALL = -38  # ENOSYS: what rax holds at the beginning of a system call
_MOST_ERRNO = 4095

RESTART_NOINTR, RESTART_BLOCK, INTERRUPTED = -513, -516, -4
_RESTART = (-512, RESTART_NOINTR, -514)  # ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND
_SIGRETURN, _FUTEX, _RESTART_SYSCALL = map(_X86.call, ("rt_sigreturn", "futex", "restart_syscall"))
_EPOLL_WAIT = tuple(map(_X86.call, ("epoll_wait", "epoll_pwait")))
_RECEIVING = tuple(map(_X86.call, ("read", "accept", "recvfrom", "recvmsg", "accept4")))
_WAIT_BITSET = 9  # with an absolute end, unlike FUTEX_WAIT
_RED_ZONE = 128
_TRAP_AND_DIRECTION = 0x500  # flags that the ABI wants clear at a call
_FLAGS = 7  # UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS
_NO_STACK = 7  # no valid ss_flags: the kernel then leaves the alternative stack alone
_TILES = 18, 2816  # component XTILEDATA of XSAVE, and where it begins
_CONTEXT = ("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx", "rsp", "rip", "eflags")  # fmt: skip


State = bytes


class Registers(WordRegisters):
    """struct user_regs_struct of x86-64."""

    _fields_ = tuple(
        (name, ctypes.c_ulonglong)
        for name in (
            *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
            *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
        )
    )

    def stands_in(self, number: int, pc: int, sp: int) -> bool:
        """Whether the stop interrupted that system call, which /proc/PID/syscall shows by the address behind its instruction."""
        return (self.orig_rax, self.rip, self.rsp) == (number, pc, sp)

    @property
    def sp(self) -> int:
        """The stack pointer."""
        return int(self.rsp)

    def with_stack(self, sp: int) -> "Registers":
        """A copy with another stack pointer."""
        return self.but(rsp=sp)

    @property
    def pc(self) -> int:
        """Of the next instruction."""
        return int(self.rip)


def registers_of(thread: Stopped) -> Registers:
    """Of a stopped thread."""
    return Registers.from_buffer_copy(thread.register_set(_PRSTATUS))


def set_registers(thread: Stopped, registers: Registers) -> None:
    """As it will go on."""
    thread.set_register_set(_PRSTATUS, bytes(registers))


def state_of(thread: Stopped) -> State:
    """The registers of the floating point and vector units, in the form of XSAVE."""
    return thread.register_set(_XSTATE)


def set_state(thread: Stopped, state: State) -> None:
    """As it will go on."""
    thread.set_register_set(_XSTATE, state)


def is_back(now: Registers, made: Call) -> bool:
    """Whether a thread that stands at the beginning or end of a system call is about to be put back."""
    return bool(now.orig_rax == _SIGRETURN and now.rsp == made.address + 8)


def refused(now: Registers) -> tuple[int, int] | None:
    """(number, errno) of the system call at whose end a thread stands, where the kernel refused it."""
    result = now.signed("rax")
    return (int(now.orig_rax), -result) if -_MOST_ERRNO <= result < 0 and result != _NO_SUCH_CALL else None


def resume(thread: Stopped, now: Registers, state: State, interrupted: Interrupted) -> None:
    """At the beginning of rt_sigreturn: turn it into the system call that had been interrupted, if there is one.

    One that says EINTR itself would do so at once, as the thread is let go: that is made again behind rt_sigreturn.
    """
    del interrupted
    number = repeated(now)
    if number is not None and now.signed("rax") != INTERRUPTED:
        set_state(thread, state)
        set_registers(thread, now.but(orig_rax=number, rax=_NO_SUCH_CALL))


def forge(now: Registers, state: State, blocked: int, back: int, function: int, arguments: tuple[int | bytes, ...], interrupted: Interrupted) -> Call:
    """Make the thread that stands at `now` call `function(*arguments)` and come back by itself; `address` is a multiple of 16, plus 8.

    arguments  at most three, bytes (with their own final NUL) by their address
    back       address of libc's `mov $15,%rax; syscall`
    """
    del interrupted  # the registers say it all
    values, texts, end = [], [], now.rsp - _RED_ZONE
    for argument in arguments:
        if isinstance(argument, bytes):
            end -= len(argument)
            texts.append((end, argument))
            argument = end
        values.append(argument)
    image = _as_in_a_signal(state)
    state_at = (end - len(image)) // 64 * 64
    before = 8 + 304 + 128  # return address, ucontext, siginfo
    frame = (state_at - before) // 16 * 16 - 8
    content = bytearray(now.rsp - _RED_ZONE - frame)
    content[:312] = struct.pack("<Q", back) + _ucontext(returned(now), blocked, state_at)
    for at, text in ((state_at, image), *texts):
        content[at - frame : at - frame + len(text)] = text
    registers = now.but(
        **dict(zip(("rdi", "rsi", "rdx"), values, strict=False)),
        rip=function,
        rsp=frame,
        rax=0,
        orig_rax=-1,
        eflags=now.eflags & ~_TRAP_AND_DIRECTION,
    )
    return Call(frame, bytes(content), registers)


def returned(now: Registers) -> Registers:
    """Where a thread goes on that was stopped at `now` and is put back by rt_sigreturn.

    A system call that the stop interrupted is made again, by going back to its instruction. That is exact but for the
    few that count their time from their beginning (RESTART_BLOCK): these say EINTR, as after any signal.
    """
    number = repeated(now)
    if number is None or number == _RESTART_SYSCALL:
        if now.signed("orig_rax") >= 0 and now.signed("rax") == RESTART_BLOCK:
            if now.orig_rax == _FUTEX and now.rsi & 0x7F == _WAIT_BITSET:
                return now.but(rip=now.rip - 2, rax=now.orig_rax, orig_rax=-1)
            return now.but(rax=INTERRUPTED, orig_rax=-1)
        return now.but(orig_rax=-1)
    return now.but(rip=now.rip - 2, rax=number, orig_rax=-1)


def repeated(now: Registers) -> int | None:
    """The number of the system call that the kernel makes when it goes on from `now`; None where it makes none."""
    number, result = now.signed("orig_rax"), now.signed("rax")
    if number < 0:
        return None
    if result == RESTART_BLOCK:
        return _RESTART_SYSCALL
    # epoll says EINTR for every stop; without an end in time to keep to it may as well go on
    endless = number in _EPOLL_WAIT and now.rdx & 0x80000000
    # A socket with a time limit (SO_RCVTIMEO) says it, too: its limit counts from the stop then.
    again = result == INTERRUPTED and (endless or number in _RECEIVING)
    return number if result in _RESTART or again else None


def _ucontext(back: Registers, blocked: int, state_at: int) -> bytes:
    context = struct.pack("<18Q", *(getattr(back, name) for name in _CONTEXT))
    context += struct.pack("<4H", back.cs, 0, 0, back.ss) + struct.pack("<4Q", 0, 0, 0, 0)
    context += struct.pack("<Q", state_at) + bytes(64)
    stack = struct.pack("<QiiQ", 0, _NO_STACK, 0, 0)
    return struct.pack("<QQ", _FLAGS, 0) + stack + context + struct.pack("<Q", blocked)


def _as_in_a_signal(state: bytes) -> bytes:
    """XSAVE's image as the kernel expects it in a signal frame: its size and components between two magic numbers."""
    components = struct.unpack_from("<Q", state, 464)[0] or 3  # XCR0, where ptrace says it
    used, size = struct.unpack_from("<Q", state, 512)[0], len(state)
    tiles, tiles_at = _TILES
    if components >> tiles & 1 and not used >> tiles & 1:
        # Most threads may not have them, and the kernel drops an image that is larger than theirs.
        components, size = components & ~(1 << tiles), tiles_at
    image = bytearray(state[:size])
    image[464:512] = struct.pack("<IIQI28x", 0x46505853, size + 4, components, size)
    return bytes(image) + struct.pack("<I", 0x46505845)
