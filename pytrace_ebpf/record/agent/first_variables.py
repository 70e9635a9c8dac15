"""Puts the agent's library into the variables of a program that stands at its first instruction, where what started it had taken it out.

A wrapper that clears its environment does (`env -i`, `su -`), and so does the agent itself in a program that enters another root, where its library is not yet.
The kernel has put the program's arguments and variables on its stack (create_elf_tables() of fs/binfmt_elf.c): how many arguments, pointers to them, a 0, pointers
to the variables, a 0, the auxiliary vector; their text lies further up. All that but the text is written anew, a little lower.
"""

import os
import re
import struct

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.process import stat
from pytrace_ebpf.record.process.memory import MemoryFault
from pytrace_ebpf.record.process.target import Target, parse_mappings

_GLIBC_LOADER = re.compile(r"/ld(-linux|64|-\d)[^/]*$")  # another may refuse what needs glibc, and the program with it
_MOST = 1 << 17  # bytes of each; so many are mapped below
_NAME = b"LD_PRELOAD="


def preload(target: Target, library: str) -> None:
    """Have a program load a library, before others that it loads so; the calling thread holds it at its first instruction by ptrace.

    Nothing is changed where it would load it already, where its variables cannot be found, or where it has run on since.
    """
    wanted = os.fsencode(library)
    try:
        if wanted not in target.process.read("environ") and any(
            _GLIBC_LOADER.search(each.path) for each in parse_mappings(target.process.read("maps"))
        ):
            _preload(target, wanted)
    except (OSError, ValueError, StopIteration, MemoryFault, HostError, TargetError):  # it was killed, or is not laid out so
        pass


def _preload(target: Target, library: bytes) -> None:
    from pytrace_ebpf.record.agent.inject.machine import machine  # imported here: few programs need it, and they wait for all imports
    from pytrace_ebpf.record.agent.inject.ptrace import Stopped

    fields = target.process.stat_fields()
    start, arguments, text_at, text_end = (int(fields[at]) for at in (stat.STACK, stat.ARGUMENTS, stat.VARIABLES, stat.VARIABLES_END))
    if not 0 < arguments - start <= _MOST or not 0 <= text_end - text_at <= _MOST:
        return
    text = target.memory.read(text_at, text_end - text_at) if text_end > text_at else b""
    size = (arguments - start) // 8
    words = list(struct.unpack(f"<{size}Q", target.memory.read(start, 8 * size)))
    first = words[0] + 2
    last = words.index(0, first)
    end = next(at for at in range(last + 1, size, 2) if words[at] == 0) + 2
    which = next((at for at in range(first, last) if words[at] >= text_at and text.startswith(_NAME, words[at] - text_at)), last)
    before = text[words[which] - text_at + len(_NAME) :].partition(b"\0")[0] if which < last else b""

    thread = Stopped(target.process, target.pid)  # already
    now = machine.registers_of(thread)
    if now.sp != start:  # it has run up to where its libpython is mapped: its loader knows its variables already
        return
    added = _NAME + library + (b":" + before if before else b"") + b"\0"
    added_at = now.sp + 8 * end - len(added)
    words[which : last if which == last else which + 1] = [added_at]
    words = words[: end + (which == last)]
    below = (added_at - 8 * len(words)) // 16 * 16
    target.memory.write(below, struct.pack(f"<{len(words)}Q", *words).ljust(added_at - below, b"\0") + added)
    machine.set_registers(thread, now.with_stack(below))
