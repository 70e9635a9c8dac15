"""The main thread begins the session itself, at its next safe point: Py_AddPendingCall, made in it wherever it stands.

That function neither allocates nor waits, so that the thread may be stopped anywhere. Its argument must outlive the
call, and nothing in CPython takes a pending call back: so the text lies in memory that nobody uses, and emptying it
makes the call one that does nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.agent.inject.mapped_library import Loader, spare_memory
from pytrace_ebpf.record.agent.inject.ptrace import NotStopped, Stopped
from pytrace_ebpf.record.agent.inject.remote_call import call, write
from pytrace_ebpf.record.agent.script import one_line
from pytrace_ebpf.record.process.memory import MemoryFault
from pytrace_ebpf.record.process.target import Target

_ROOM = 4096  # bytes of stack; it calls next to nothing


@contextmanager
def pending_call(target: Target, session: str, loader: Loader, agent: Mapping[str, int] | None) -> Iterator[int]:
    """Between `with` and its end the main thread is to begin the session; yields how long it was stopped, in ns.

    Raises TargetError when that cannot be, NoRoom and NotStopped when it cannot be at this moment.
    """
    if agent is not None:
        function, text = agent["pytrace_begin_pending"], session.encode() + b"\0"
    else:
        function, text = _python(target, "PyRun_SimpleString"), one_line(session).encode() + b"\0"
    address = spare_memory(target, len(text))
    write(target.memory, address, text)
    try:
        yield make_pending(target, function, address, loader, agent)
    finally:
        write(target.memory, address, bytes(1))
        write(target.memory, address, bytes(len(text)))


def make_pending(target: Target, function: int, argument: int, loader: Loader, agent: Mapping[str, int] | None) -> int:
    """Have the main thread call `function(argument)` at its next safe point; returns how long it was stopped, in ns. Raises as pending_call().

    Not while the agent that is there has it do something in such a call: Python 3.11 may then never come out of it (probes/agent/errands.c).
    """
    add = _python(target, "Py_AddPendingCall")
    with Stopped(target.process, target.pid) as thread:
        if agent is not None and _is_acting(target, agent):
            raise NotStopped(f"thread {target.pid} of process {target.pid} is about what the agent has it do")
        call(thread, target.memory, add, (function, argument), loader.sigreturn, _ROOM)
    return thread.stop_ns


def _is_acting(target: Target, agent: Mapping[str, int]) -> bool:
    try:
        return any(target.memory.read(agent["pytrace_acting"], 4))
    except MemoryFault:  # it is gone, or has taken away the agent's memory
        return True


def _python(target: Target, name: str) -> int:
    value = target.binary.symbol(name)
    if value is None:
        raise TargetError(f"the Python of process {target.pid} does not export {name}, so no agent can be loaded into it")
    return target.bias + value
