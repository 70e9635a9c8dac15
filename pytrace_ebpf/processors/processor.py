"""What there is to know of a processor."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Usdt:
    """How a USDT note writes where a probe's arguments are."""

    operand: re.Pattern[str]  # groups: sign, size, and of a register `register`, of memory `base` and `displacement`
    split: re.Pattern[str]  # what is between two operands
    places: Mapping[str, int]  # register -> its place among the words of what a uprobe's program is given (struct pt_regs or its beginning)
    wide: Mapping[str, str]  # a register's other names -> the one in `places`


@dataclass(frozen=True)
class Code:
    """Machine code, as capstone writes it, and where an interpreter's frame is in that before a probe."""

    capstone: tuple[str, str]  # capstone's names of the architecture and the mode
    longest: int  # bytes of an instruction
    every: int  # they begin at multiples of so many bytes
    addresses: Callable[[bytes, int], Iterator[int]]  # that some code, which lies at an address, may refer to
    jumps: Callable[[bytes, int], Iterator[int]]  # that it may go to, where that needs more than a byte to say
    at_call: int  # the rule where a function begins: struct unwind_rule of probes/unwind.h without its pc
    call: str
    kept: frozenset[str]  # registers that a called function leaves as they were
    move: frozenset[str]  # instructions of which `frame` tells
    frame: Mapping[
        tuple[int, int], re.Pattern[str]
    ]  # by version of Python, the operands of that by which the frame is given to a function, or its place read: groups, the register


@dataclass(frozen=True)
class Processor:
    """One processor, as Linux and its C libraries use it."""

    machine: str  # `uname -m`
    name: str
    elf: int  # e_machine
    debian: str  # what Debian calls it
    audit: int  # AUDIT_ARCH_..., by which a seccomp filter knows it
    calls: Mapping[str, int]  # numbers of those system calls that are made, looked at or let through; the others it does not have
    thread_id: tuple[int, int]  # where struct pthread keeps the kernel's id of the thread: glibc, musl
    thread_pointer: str  # where the kernel's struct thread_struct begins to have it: what pthread_self() is, or is right below
    counter: str  # the kernel's name of the clock source that a program can read itself
    usdt: Usdt
    code: Code
    sigreturn: re.Pattern[bytes]  # the code that makes the system call rt_sigreturn
    sigreturn_in_vdso: bool  # else it is in the C library
    gil_wider: int  # by so many bytes than on x86-64 are the two pthread_mutex_t in CPython's GIL
    loader: str  # the file name of glibc's dynamic loader
    nop5: bytes = b""  # the nop that the kernel makes a call where a probe is placed on it; b"" = it does not
    lacks: Mapping[str, str] = field(default_factory=dict)  # an option, or what is asked for -> one sentence: why it does not work there yet

    def call(self, name: str) -> int:
        """The number of a system call; -2, which no call has, where the processor has no such call."""
        return self.calls.get(name, NO_CALL)


NO_CALL = -2
