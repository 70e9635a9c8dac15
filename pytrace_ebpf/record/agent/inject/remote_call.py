"""Makes a stopped thread call one C function, such that it comes back also when the tracer is killed meanwhile.

Everything that the thread needs lies on its own stack, below all that is in use, before one change of its registers
sends it off. From then on it is on its own: it returns through the forged signal frame. While the tracer lives it
improves on that: signals wait until the call is over, and an interrupted system call goes on as if nothing had been,
with the time it had left.
"""

import time
from dataclasses import dataclass, field

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.agent.inject.ptrace import NotStopped, Registers, Stopped
from pytrace_ebpf.record.agent.inject.signal_frame import INTERRUPTED, forge, repeated
from pytrace_ebpf.record.process.memory import Memory, MemoryFault
from pytrace_ebpf.record.process.pinned import Pinned

_SIGRETURN = 15
_FAULTS = (4, 5, 7, 8, 11)  # SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV: of the instruction itself
_ALL_BUT_FAULTS = (1 << 64) - 1 & ~sum(1 << number - 1 for number in _FAULTS)
_NO_SUCH_CALL = -38  # ENOSYS: what rax holds at the beginning of a system call
_MOST_ERRNO = 4095
_PATIENCE_S = 2.0


class NoRoom(Exception):  # noqa: N818 - the usual term
    """The thread's stack has no room for the call. The caller takes another thread."""


@dataclass
class Course:
    """How a call went, as far as it was watched."""

    returned: bool = False  # seen to the end; else it goes on by itself, or comes to its end when the thread is continued
    refused: dict[int, int] = field(default_factory=dict)  # number of a system call -> errno of the last one that the kernel refused


def write(memory: Memory, address: int, content: bytes) -> None:
    """Write into a process's memory. Raises TargetError where that cannot be."""
    try:
        memory.write(address, content)
    except MemoryFault:
        raise TargetError(f"the memory of process {memory.pid} cannot be written; it has ended, or is not what it was") from None


def call(thread: Stopped, memory: Memory, function: int, arguments: tuple[int | bytes, ...], back: int, room: int) -> Course:
    """Call `function(*arguments)` in a stopped thread and let the thread go on where it stood.

    back  address of libc's rt_sigreturn
    room  bytes of stack that the function may need

    Raises NoRoom (nothing has changed then) and TargetError when the function crashed, in which case the thread has
    been put back without it.
    """
    now, state, blocked = thread.registers(), thread.extended_state(), thread.blocked_signals()
    made = forge(now, state, blocked, function, arguments, back)
    _refuse_a_small_stack(thread.process, now.rsp, made.address, room)
    try:
        memory.write(made.address, made.content)
    except MemoryFault:  # a stack that would have to grow, and may not (RLIMIT_AS, RLIMIT_STACK)
        raise NoRoom from None
    course = Course()
    thread.set_registers(made.registers)
    thread.block_signals(_ALL_BUT_FAULTS)
    end = time.monotonic() + _PATIENCE_S
    try:
        while True:
            signal = thread.until_system_call(max(0.0, end - time.monotonic()))
            if signal:
                break
            registers = thread.registers()
            if registers.orig_rax == _SIGRETURN and registers.rsp == made.address + 8:
                thread.block_signals(blocked)
                _resume_system_call(thread, now, state)
                course.returned = True
                return course
            if -_MOST_ERRNO <= registers.signed("rax") < 0 and registers.signed("rax") != _NO_SUCH_CALL:
                course.refused[registers.orig_rax] = -registers.signed("rax")
    except NotStopped:
        # It waits for a lock of the loader: it comes back by itself when it gets it.
        thread.stop_again(_PATIENCE_S)
        signal = 0
    if signal in _FAULTS:
        thread.set_extended_state(state)
        thread.set_registers(now)
        thread.block_signals(blocked)
        raise TargetError(f"loading the agent failed in process {thread.pid} (signal {signal}); the process goes on without it")
    thread.block_signals(blocked)
    thread.release(signal)
    return course


def _resume_system_call(thread: Stopped, now: Registers, state: bytes) -> None:
    """At the beginning of rt_sigreturn: turn it into the system call that had been interrupted, if there is one.

    One that says EINTR itself would do so at once, as the thread is let go: that is made again behind rt_sigreturn.
    """
    number = repeated(now)
    if number is not None and now.signed("rax") != INTERRUPTED:
        thread.set_extended_state(state)
        thread.set_registers(now.but(orig_rax=number, rax=_NO_SUCH_CALL))


def _refuse_a_small_stack(process: Pinned, rsp: int, lowest: int, room: int) -> None:
    for line in process.read("maps").decode(errors="surrogateescape").split("\n")[:-1]:
        span, permissions, *_, name = f"{line} -".split(maxsplit=5)
        start, _, end = span.partition("-")
        if int(start, 16) <= rsp < int(end, 16):
            # The main thread's stack grows by itself, but not for what is written from outside.
            needed = 0 if "[stack]" in name else room
            if int(start, 16) <= lowest - needed and "w" in permissions:
                return
            break
    raise NoRoom
