"""The kernel's list of tracepoints (tracefs): where it is mounted, or by a mount of this process's own that stands in no directory and is gone with its descriptor."""

import os
from contextlib import suppress
from pathlib import Path

from pytrace_ebpf.record.kernel.system_calls import open_file_system

TRACEFS = Path("/sys/kernel/tracing")
PLACES = (TRACEFS, Path("/sys/kernel/debug/tracing"))


def read(name: str) -> str:
    """What a file of it says. Raises OSError, also where there is none to be had: without privileges, or before Linux 5.2 where it is not mounted."""
    for place in PLACES:
        with suppress(OSError):
            return (place / name).read_text()
    root = open_file_system("tracefs")
    try:
        with open(name, opener=lambda path, flags: os.open(path, flags, dir_fd=root)) as file:
            return file.read()
    finally:
        os.close(root)
