"""The source of a process whose stacks are sampled and whose calls are not recorded: nothing is attached to it."""

import time

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.cost.measured import Measured
from pytrace_ebpf.record.process.target import Target
from pytrace_ebpf.record.recorder import Rows
from pytrace_ebpf.record.source import CallSource, Recording
from pytrace_ebpf.trace.sampled import SAMPLES_ALONE


class NoCalls(CallSource):
    """Registers processes with the recording, which is all that sampling needs."""

    name = SAMPLES_ALONE

    def __init__(self, recording: Recording) -> None:
        self._processes = recording.processes

    def prepare(self, target: Target) -> None:
        """There is nothing to prepare."""

    def begin(self, target: Target) -> None:
        """Register a program that is about to execute its first instruction."""
        self.attach(target)

    def attach(self, target: Target) -> None:
        """Register a running process. Raises TargetError."""
        target.process.check()
        self._processes.add_python(target, self.name, time.monotonic_ns())

    def detach(self, pids: set[int]) -> None:
        """Nothing is attached."""

    def drain(self) -> Rows:
        """No events."""
        return {"events": []}

    def cost_per_call(self) -> Measured | None:
        """None: no call is recorded."""
        return None


def serves(target: Target) -> tuple[bool, str]:
    """Whether the stacks of a process can be sampled, and the reason as a sentence."""
    version = target.version_text or "this Python, whose version is not known,"
    if target.layout is None or target.runtime is None:
        return False, f"the structures of CPython {version} are not known"
    if target.free_threaded:
        return False, f"CPython {version} runs without a GIL, for which sampling is not made"
    return True, f"the stacks of CPython {version} are read from outside, and no call is recorded; --source records calls as well"


def refuse_unknown(target: Target) -> str:
    """The reason of serves(). Raises TargetError if the process cannot be sampled."""
    served, why = serves(target)
    if not served:
        raise TargetError(f"process {target.pid} cannot be sampled: {why}")
    return why
