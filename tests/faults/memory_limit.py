"""A control group whose memory has a limit, of either version of them; removed at the end."""

import os
import time
from pathlib import Path
from types import TracebackType

_ROOT = Path("/sys/fs/cgroup")


class MemoryLimit:
    """`within`: words before those of a program that is to run in it."""

    def __init__(self, size: int) -> None:
        """`size`: bytes of all processes in it together."""
        first = not (_ROOT / "cgroup.controllers").exists()
        self._path = (_ROOT / "memory" if first else _ROOT) / f"pytrace-ebpf-test-{os.getpid()}"
        self._limit, self._size = self._path / ("memory.limit_in_bytes" if first else "memory.max"), size
        self.within = ("sh", "-c", f'echo $$ > {self._path}/cgroup.procs && exec "$@"', "sh")

    def __enter__(self) -> "MemoryLimit":
        self._path.mkdir()
        self._limit.write_text(str(self._size))
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        while True:
            try:
                return self._path.rmdir()
            except OSError:  # what was killed is still there for a moment
                time.sleep(0.05)
