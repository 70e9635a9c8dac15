"""How a stopped thread of this machine's processor is made to call a function and come back by itself: x86_64.py or aarch64.py.

It comes back through a forged signal frame. The kernel restores a thread so after any signal handler: the handler returns
into the code of `rt_sigreturn`, with a frame that holds all registers. So nothing depends on the tracer once the thread runs, even
if it is killed at that moment.
"""

import platform
from collections.abc import Mapping
from typing import Any, Protocol, Self

from pytrace_ebpf.record.agent.inject import aarch64, x86_64
from pytrace_ebpf.record.agent.inject.ptrace import Stopped
from pytrace_ebpf.record.agent.inject.registers import Call, Interrupted


class Registers(Protocol):
    """Those of a stopped thread; each processor has its own class."""

    @property
    def sp(self) -> int:
        """The stack pointer."""

    def stands_in(self, number: int, pc: int, sp: int) -> bool:
        """Whether the stop interrupted that system call, which /proc/PID/syscall shows with this program counter and stack pointer."""

    def with_stack(self, sp: int) -> Self:
        """A copy with another stack pointer."""


class Machine(Protocol):
    """A processor's file. What it says of registers and of a state it takes back as it is."""

    def registers_of(self, thread: Stopped) -> Any:
        """Registers of a stopped thread."""

    def set_registers(self, thread: Stopped, registers: Any) -> None:
        """As it will go on."""

    def state_of(self, thread: Stopped) -> Any:
        """The registers of its floating point and vector units."""

    def set_state(self, thread: Stopped, state: Any) -> None:
        """As it will go on."""

    def forge(
        self, now: Any, state: Any, blocked: int, back: int, function: int, arguments: tuple[int | bytes, ...], interrupted: Interrupted
    ) -> Call:
        """Make the thread that stands at `now` call `function(*arguments)`, at most three, and come back by itself.

        state    state_of()
        blocked  its signal mask
        back     address of the code of rt_sigreturn
        """

    def is_back(self, now: Any, made: Call) -> bool:
        """Whether a thread that stands at the beginning or end of a system call is about to be put back."""

    def refused(self, now: Any) -> tuple[int, int] | None:
        """(number, errno) of the system call at whose end a thread stands, where the kernel refused it."""

    def resume(self, thread: Stopped, now: Any, state: Any, interrupted: Interrupted) -> None:
        """At the beginning of rt_sigreturn: have it go on in the system call that had been interrupted, with the time that it had left."""


_MACHINES: Mapping[str, Machine] = {"x86_64": x86_64, "aarch64": aarch64}
machine: Machine = _MACHINES.get(platform.machine(), x86_64)
