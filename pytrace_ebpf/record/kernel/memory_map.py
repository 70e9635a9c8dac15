"""Reads those files of /proc/PID for which the kernel takes the lock of a process's memory map, which that process can hold for as long as it likes."""

from pytrace_ebpf.record import waiting
from pytrace_ebpf.record.kernel.page_servers import Freeing

NAMES = ("maps", "cmdline", "environ")


def reading(pid: int) -> waiting.On:
    """In here this process reads such a file of process `pid`."""
    return waiting.On(f"process {pid}, whose memory map is read", Freeing(pid))


def read(pid: int, name: str, most: int = -1) -> bytes:
    """The contents of such a file, or its first `most` bytes. Raises OSError where the process has ended, or is another user's."""
    with open(f"/proc/{pid}/{name}", "rb") as file, reading(pid):  # noqa: PTH123 - thousands of them
        return file.read(most)
