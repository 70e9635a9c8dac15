"""Timers of the cores that run a BPF program at equal intervals."""

import os
from pathlib import Path

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.kernel.map import listed_cpus
from pytrace_ebpf.record.kernel.system_calls import open_cpu_clock

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
