"""How many files this process may have open, and for how many processes that is enough."""

import resource
from contextlib import suppress

_OF_A_PROCESS = 7  # four in pinned.py, its libpython in target.py, its root and working directory in program_files.py
_MOST_OTHERS = 2048  # probes, files whose native functions are named, connections, the trace


def most() -> int:
    """How many may be open at a time."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def allow_all() -> None:
    """Let there be as many as this process may allow itself; a shell's 1,024 are enough for 73 processes. What it starts inherits that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def enough_for() -> int:
    """How many processes can be recorded at a time, while something is left for all else."""
    return (most() - min(most() // 2, _MOST_OTHERS)) // _OF_A_PROCESS
