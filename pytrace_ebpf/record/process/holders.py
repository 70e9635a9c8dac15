"""Which processes of this host have pipes and sockets open, as /proc tells: its links are the kernel's own words."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pytrace_ebpf.record.process.matching import processes


def holders(within_s: float, clock: Callable[[], float] = time.monotonic) -> dict[str, list[int]]:
    """Process ids by link (pipe:[4711], socket:[4712]), as far as there is time to look by `clock`, the newest processes first."""
    found: dict[str, list[int]] = {}
    until_s = clock() + within_s
    for pid in reversed(processes()):
        if clock() > until_s:
            break
        with suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                link = str(descriptor.readlink())
                if link.startswith(("pipe:", "socket:")):
                    found.setdefault(link, []).append(pid)
    return found


def command(pid: int) -> str:
    """The kernel's name for a process, empty where it is gone: its command line is memory of its own."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return ""
