"""Asks a process without rights (parsing/sandbox.py) about the memory of a process, as that is read here: see watched.py."""

from typing import Any

from pytrace_ebpf.record import waiting
from pytrace_ebpf.record.kernel.page_servers import Freeing
from pytrace_ebpf.record.kernel.registering import pages
from pytrace_ebpf.record.parsing.sandbox import Answer, PerThread, Sandbox
from pytrace_ebpf.record.process.pinned import Pinned


def ask(asked: Sandbox | PerThread, task: str, given: dict[str, Any], process: Pinned, kind: type[Answer], seconds: float, of: str) -> Answer:
    """What `task` says of the memory of `process`, as Sandbox.ask() has it; `of`: what a failure is counted for, in this process."""
    files = [process.memory_to_read, *([process.pagemap] if process.pagemap is not None else [])]
    own = asked.of_this_thread() if isinstance(asked, PerThread) else asked
    wait = waiting.On(f"process {process.pid}, whose memory is read", Freeing(process.pid, lambda: own.pid))
    return own.ask(task, {**given, "kept": process.memory.kept()}, files, kind, seconds, (of, *process.key), (pages, wait))
