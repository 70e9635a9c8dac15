"""Makes a stopped thread call one C function, such that it comes back also when the tracer is killed meanwhile.

Everything that the thread needs lies on its own stack, below all that is in use, before one change of its registers
sends it off. From then on it is on its own: it returns through the forged signal frame. While the tracer lives it
improves on that: signals wait until the call is over, and an interrupted system call goes on as if nothing had been,
with the time it had left.
"""

import time
from dataclasses import dataclass, field

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.agent.inject.machine import machine
from pytrace_ebpf.record.agent.inject.ptrace import NotStopped, Stopped
from pytrace_ebpf.record.agent.inject.registers import Interrupted
from pytrace_ebpf.record.process.memory import Memory, MemoryFault
from pytrace_ebpf.record.process.pinned import Pinned

_FAULTS = (4, 5, 7, 8, 11)  # SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV: of the instruction itself
_ALL_BUT_FAULTS = (1 << 64) - 1 & ~sum(1 << number - 1 for number in _FAULTS)
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


def call(
    thread: Stopped, memory: Memory, function: int, arguments: tuple[int | bytes, ...], back: int, room: int, first: int | None = None
) -> Course:
    """Call `function(*arguments)` in a stopped thread and let the thread go on where it stood.

    back   address of the code of rt_sigreturn
    room   bytes of stack that the function may need
    first  where the thread was seen to wait in a system call, what that was given first

    Raises NoRoom (nothing has changed then) and TargetError when the function crashed, in which case the thread has
    been put back without it.
    """
    now, state, blocked = machine.registers_of(thread), machine.state_of(thread), thread.blocked_signals()
    interrupted = Interrupted(_instruction(memory, now.pc), first)
    made = machine.forge(now, state, blocked, back, function, arguments, interrupted)
    _refuse_a_small_stack(thread.process, now.sp, made.address, room)
    try:
        memory.write(made.address, made.content)
    except MemoryFault:  # a stack that would have to grow, and may not (RLIMIT_AS, RLIMIT_STACK)
        raise NoRoom from None
    course = Course()
    machine.set_registers(thread, made.registers)
    thread.block_signals(_ALL_BUT_FAULTS)
    end = time.monotonic() + _PATIENCE_S
    try:
        while True:
            signal = thread.until_system_call(max(0.0, end - time.monotonic()))
            if signal:
                break
            registers = machine.registers_of(thread)
            if machine.is_back(registers, made):
                thread.block_signals(blocked)
                machine.resume(thread, now, state, interrupted)
                course.returned = True
                return course
            if refused := machine.refused(registers):
                course.refused[refused[0]] = refused[1]
    except NotStopped:
        # It waits for a lock of the loader: it comes back by itself when it gets it.
        thread.stop_again(_PATIENCE_S)
        signal = 0
    if signal in _FAULTS:
        machine.set_state(thread, state)
        machine.set_registers(thread, now)
        thread.block_signals(blocked)
        raise TargetError(f"loading the agent failed in process {thread.pid} (signal {signal}); the process goes on without it")
    thread.block_signals(blocked)
    thread.release(signal)
    return course


def _instruction(memory: Memory, address: int) -> bytes:
    try:
        return memory.read(address, 4)
    except MemoryFault:
        return b""


def _refuse_a_small_stack(process: Pinned, sp: int, lowest: int, room: int) -> None:
    for line in process.read("maps").decode(errors="surrogateescape").split("\n")[:-1]:
        span, permissions, *_, name = f"{line} -".split(maxsplit=5)
        start, _, end = span.partition("-")
        if int(start, 16) <= sp < int(end, 16):
            # The main thread's stack grows by itself, but not for what is written from outside.
            needed = 0 if "[stack]" in name else room
            if int(start, 16) <= lowest - needed and "w" in permissions:
                return
            break
    raise NoRoom
