"""What runs the sampling programs: timers of the cores, and threads that come back to one."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.kernel.abilities import calling
from pytrace_ebpf.record.kernel.btf import KernelTypes
from pytrace_ebpf.record.kernel.map import listed_cpus
from pytrace_ebpf.record.kernel.system_calls import KPROBE, RAW_TRACEPOINT, load_program, open_cpu_clock, open_kprobe, open_raw_tracepoint

_TRACEPOINT = "sched_exit_tp"  # Linux 6.16
_FUNCTION, _SYMBOLS = "finish_task_switch", Path("/proc/kallsyms")
_ONLINE = Path("/sys/devices/system/cpu/online")


class Clocks:
    """One timer on each core that is online now, until close()."""

    def __init__(self, program: int, period_ns: int) -> None:
        """Raises HostError if the kernel refuses."""
        self._descriptors: list[int] = []
        try:
            for cpu in listed_cpus(_ONLINE):
                self._descriptors.append(open_cpu_clock(program, cpu, period_ns))
        except OSError as error:
            self.close()
            raise HostError(f"the kernel refuses to sample by its clock ({error.strerror}); see pytrace-ebpf doctor") from error

    def close(self) -> None:
        """Stop them."""
        while self._descriptors:
            os.close(self._descriptors.pop())


class Returns:
    """Runs a program whenever a thread gets a core: in the thread's own context, before it goes on."""

    def __init__(self, load: Callable[[int], int], kernel: KernelTypes) -> None:
        """`load` returns the descriptor of the program as one of that type, and is asked for one type alone. `why_not`: a sentence where it cannot be run, else empty."""
        self.why_not, self._descriptor = "", -1
        place = f"at its tracepoint {_TRACEPOINT}"
        try:
            if kernel.has_tracepoint(_TRACEPOINT):
                self._descriptor = open_raw_tracepoint(_TRACEPOINT, load(RAW_TRACEPOINT))
            else:
                place = f"in {_FUNCTION}, and has no tracepoint {_TRACEPOINT}"
                self._descriptor = _probe(load(KPROBE))
        except (OSError, HostError) as error:
            self.why_not = f"stacks off the core are not sampled: this kernel runs nothing {place} ({error})"

    def close(self) -> None:
        """Detach the program."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def why_not_off_the_core() -> str:
    """Why stacks off the core cannot be sampled here, as a try shows; empty where they can."""
    loaded: list[int] = []

    def load(kind: int) -> int:
        loaded.append(load_program("tried", kind, calling()))
        return loaded[-1]

    tried = Returns(load, KernelTypes())
    tried.close()
    for program in loaded:
        os.close(program)
    return tried.why_not


def _probe(program: int) -> int:
    """A kprobe on the function that each thread runs first when it has got a core. Raises OSError."""
    refused: OSError = FileNotFoundError(errno.ENOENT, "there is no such function")
    for name in _names():
        try:
            return open_kprobe(program, name)
        except OSError as error:
            refused = error
    raise refused


def _names() -> Iterator[str]:
    """Of that function: compilers rename one of which they drop an argument."""
    yield _FUNCTION
    yield f"{_FUNCTION}.isra.0"
    with _SYMBOLS.open() as lines:
        yield from {line.split()[2] for line in lines if f" {_FUNCTION}." in line}
