"""What runs the sampling programs: timers of the cores, and threads that come back to one."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.kernel.map import listed_cpus
from pytrace_ebpf.record.kernel.system_calls import KPROBE, RAW_TRACEPOINT, open_cpu_clock, open_kprobe, open_raw_tracepoint

_TRACEPOINT = "sched_exit_tp"  # Linux 6.16
_FUNCTIONS = ("finish_task_switch", "finish_task_switch.isra.0")  # GCC renames a function of which it drops an argument
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

    def __init__(self, load: Callable[[int], int]) -> None:
        """`load` returns the descriptor of the program as one of that type. `why_not`: a sentence where the kernel has no such place, else empty."""
        self.why_not, self._descriptor = "", -1
        with suppress(OSError):
            self._descriptor = open_raw_tracepoint(_TRACEPOINT, load(RAW_TRACEPOINT))
            return
        for function in _FUNCTIONS:
            with suppress(OSError):
                self._descriptor = open_kprobe(load(KPROBE), function)
                return
        self.why_not = f"this kernel has neither the tracepoint {_TRACEPOINT} nor probes on {_FUNCTIONS[0]}: stacks off the core are not sampled"

    def close(self) -> None:
        """Detach the program."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
