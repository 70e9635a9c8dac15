"""How many files this process may have open, and for how many processes that is enough."""

import resource
from contextlib import suppress

_OF_A_PROCESS = 8  # five in pinned.py, its libpython in target.py, its root and working directory in program_files.py
# The programs, their maps and links, files whose native functions are named, processes that are looked at, connections, the trace.
_LEAST_OTHERS, _MOST_OTHERS = 160, 2048
_MOST_LOOKED_AT, _OF_A_LOOK = 4, 50  # beside each other; files in all for each


def most() -> int:
    """How many may be open at a time."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def allow_all() -> None:
    """Let there be as many as this process may allow itself; a shell's 1,024 are enough for 64 processes. What it starts inherits that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def enough_for() -> int:
    """How many processes can be recorded at a time, while something is left for all else."""
    return max((most() - min(max(most() // 2, _LEAST_OTHERS), _MOST_OTHERS)) // _OF_A_PROCESS, 1)


def looked_at() -> int:
    """How many processes can be looked at beside each other, each with a process that parses and what that takes to start."""
    return min(max(most() // _OF_A_LOOK, 1), _MOST_LOOKED_AT)
