"""Where the kernel has the fields of its structs that samples.c reads."""

from pytrace_ebpf import processors
from pytrace_ebpf.record.kernel.btf import KernelTypes


def fields(kernel: KernelTypes) -> dict[str, int]:
    """By setting of samples.c. Raises HostError where one is not known."""
    return {
        "thread_pointer": kernel.require("task_struct", "thread") + kernel.require("thread_struct", processors.here().thread_pointer),
        **{f"task_{field}": kernel.require("task_struct", field) for field in ("start_time", "pid", "tgid", "mm")},
        "task_state": kernel.require("task_struct", "__state", "state"),  # since Linux 5.14, and before
    }
