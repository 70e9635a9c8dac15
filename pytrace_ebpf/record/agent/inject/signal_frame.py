"""A forged signal frame: when the function that a thread was made to call returns into it, the kernel restores the thread.

The kernel does so after any signal handler: the thread returns into libc's own `rt_sigreturn` with a frame that holds
all its registers. So nothing depends on the tracer once the thread runs, even if it is killed at that moment.

Layout: struct rt_sigframe, ucontext and sigcontext of arch/x86/include/uapi/asm.
"""

import struct
from dataclasses import dataclass

from pytrace_ebpf.record.agent.inject.ptrace import Registers

RESTART_NOINTR, RESTART_BLOCK, INTERRUPTED = -513, -516, -4
_RESTART = (-512, RESTART_NOINTR, -514)  # ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND
_FUTEX, _RESTART_SYSCALL, _EPOLL_WAIT = 202, 219, (232, 281)
_RECEIVING = (0, 43, 45, 47, 288)  # read, accept, recvfrom, recvmsg, accept4
_WAIT_BITSET = 9  # with an absolute end, unlike FUTEX_WAIT
_RED_ZONE = 128
_TRAP_AND_DIRECTION = 0x500  # flags that the ABI wants clear at a call
_FLAGS = 7  # UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS
_NO_STACK = 7  # no valid ss_flags: the kernel then leaves the alternative stack alone
_TILES = 18, 2816  # component XTILEDATA of XSAVE, and where it begins
_CONTEXT = ("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx", "rsp", "rip", "eflags")  # fmt: skip


@dataclass(frozen=True)
class Call:
    """What makes a thread call a function: `content` at `address` of its stack, then these registers."""

    address: int  # of the frame, whose first word is the return address; a multiple of 16, plus 8
    content: bytes
    registers: Registers


def forge(now: Registers, extended_state: bytes, blocked: int, function: int, arguments: tuple[int | bytes, ...], back: int) -> Call:
    """Make the thread that stands at `now` call `function(*arguments)` and come back by itself.

    arguments  at most three, bytes (with their own final NUL) by their address
    back       address of libc's `mov $15,%rax; syscall`
    """
    values, texts, end = [], [], now.rsp - _RED_ZONE
    for argument in arguments:
        if isinstance(argument, bytes):
            end -= len(argument)
            texts.append((end, argument))
            argument = end
        values.append(argument)
    state = _as_in_a_signal(extended_state)
    state_at = (end - len(state)) // 64 * 64
    before = 8 + 304 + 128  # return address, ucontext, siginfo
    frame = (state_at - before) // 16 * 16 - 8
    content = bytearray(now.rsp - _RED_ZONE - frame)
    content[:312] = struct.pack("<Q", back) + _ucontext(returned(now), blocked, state_at)
    for at, text in ((state_at, state), *texts):
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
