"""PEP 768 from outside: Python 3.14 and later run a script at their next safe point when their memory says so.

Only threads that run, or are about to, are asked: a blocked one would run the script whenever it wakes. Each is
stopped for the moment in which its memory is written, for the structure of a thread that ends meanwhile is memory
that belongs to somebody else.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.agent.inject.ptrace import NotStopped, Stopped
from pytrace_ebpf.record.agent.inject.remote_call import write
from pytrace_ebpf.record.cpython.layout import debugger_support
from pytrace_ebpf.record.process.memory import MemoryFault
from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.record.process.target import Target

# Bits of eval_breaker that make the thread look, and do nothing where there is nothing to do. Other threads may set
# theirs at this very moment: a spurious bit is harmless, a lost one is not. Bit 0, the request to drop the GIL, is the
# other way round: a thread that drops it without a waiter waits for ever, and a lost request is repeated after 5 ms. Nothing is set
# that was just cleared, for a thread clears its own bits, and it is stopped.
_LOOK = 0b101110
_MOST_THREADS = 1 << 16


@dataclass(frozen=True)
class _Support:
    """Byte offsets of the six fields of debugger_support."""

    eval_breaker: int
    support: int  # in the thread's state
    enabled: int  # in the interpreter's state
    pending: int  # in `support`
    path: int  # in `support`
    path_size: int


def is_possible(target: Target) -> bool:
    """Whether the target's Python has it and did not turn it off."""
    support = _support(target)
    if support is None or target.layout is None:
        return False
    try:
        return target.memory.i32(_interpreter(target) + support.enabled) == 1
    except MemoryFault:
        return False


@contextmanager
def script_pending(target: Target, tids: list[int], path: str) -> Iterator[int]:
    """Between `with` and its end these threads are to run the script `path`; yields the longest stop of one in ns.

    Threads that have not come to it by the end are not to run it any more. A thread that is gone, or cannot be stopped,
    is passed over.
    """
    support = _support(target)
    assert support is not None
    text = path.encode() + b"\0"
    if len(text) > support.path_size:
        raise TargetError(f"the agent's directory has a name that is too long for process {target.pid}")
    stops, armed = [0], []
    try:
        for tid in tids:
            thread = Stopped(target.process, tid)
            with suppress(NotStopped, TargetError, MemoryFault), thread:
                state = _thread_state(target, tid)
                if state:
                    write(target.memory, state + support.support + support.path, text)
                    write(target.memory, state + support.support + support.pending, struct.pack("<i", 1))
                    breaker = target.memory.u8(state + support.eval_breaker)
                    write(target.memory, state + support.eval_breaker, bytes([breaker | _LOOK]))
                    armed.append(tid)
            stops.append(thread.stop_ns)
        yield max(stops)
    finally:
        for tid in armed:
            _disarm(target, support, tid)


def _disarm(target: Target, support: _Support, tid: int) -> None:
    with suppress(NotStopped, TargetError, MemoryFault):
        state = _thread_state(target, tid)
        if not state or target.memory.i32(state + support.support + support.pending) == 0:
            return
        with Stopped(target.process, tid):
            state = _thread_state(target, tid)
            if state:
                write(target.memory, state + support.support + support.pending, struct.pack("<i", 0))
                write(target.memory, state + support.support + support.path, bytes(1))


def _support(target: Target) -> _Support | None:
    position = debugger_support(target.python_version)
    if position is None or not target.binary.debug_offsets:
        return None
    return _Support(*struct.unpack_from("<6Q", target.binary.debug_offsets, position))


def _interpreter(target: Target) -> int:
    assert target.runtime is not None and target.layout is not None
    return target.memory.u64(target.runtime + target.layout.runtime_main_interpreter)


def _thread_state(target: Target, tid: int) -> int:
    """Address of the thread's PyThreadState in the main interpreter, 0 where it has none."""
    layout, memory = target.layout, target.memory
    assert layout is not None and layout.thread_native_id is not None
    number = _number_in_target(target.process, tid)
    state = memory.u64(_interpreter(target) + layout.interpreter_threads)
    for _ in range(_MOST_THREADS):
        if not state or memory.u64(state + layout.thread_native_id) == number:
            break
        state = memory.u64(state + layout.thread_next)
    return state


def _number_in_target(process: Pinned, tid: int) -> int:
    """What a thread is called in the target's own pid namespace."""
    try:
        lines = process.read(f"task/{tid}/status").decode(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        raise TargetError(f"thread {tid} of process {process.pid} has ended") from None
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), tid)
