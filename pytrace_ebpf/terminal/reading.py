"""A trace opened for a command: whatever is wrong with it is one sentence and exit code 5."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TypeVar

import pyarrow as pa

import pytrace_ebpf
from pytrace_ebpf.errors import DEBUG, DroppedError, HostError, PytraceError, TraceError
from pytrace_ebpf.terminal import progress
from pytrace_ebpf.trace.reader import Trace

# What computing with rows raises that contradict each other: trace/limits.py knows each value, not what they mean together.
_CONTRADICTIONS = (ArithmeticError, LookupError, TypeError, ValueError, RecursionError, pa.ArrowException)
_TRIES = 5

_Answer = TypeVar("_Answer")


def rights() -> Callable[[], AbstractContextManager[None]]:
    """Whose rights files are written with: under sudo those of the user who called it."""
    if os.name != "posix":
        return nullcontext
    from pytrace_ebpf.record.rights.user import as_caller

    return as_caller


@contextmanager
def opened(directory: str, what: str = "Reading") -> Iterator[Trace]:
    """The trace in `directory`. Raises TraceError, too, for what goes wrong with its rows while the block runs.

    A line of progress on `what` the block does may be shown meanwhile: print after the block.
    """
    if sys.platform == "linux":
        from pytrace_ebpf.record.output.ready import keep_freed_memory

        keep_freed_memory()
    with damage_reported(directory), progress.shown(what) as report:
        trace = pytrace_ebpf.open(directory)
        trace.progress = report
        yield trace


def answer(directory: str, question: Callable[[Trace], _Answer]) -> _Answer:
    """question(trace) of the trace in `directory`; asked again, a few times, where a running recording dropped what it was to read.

    What could be derived until then is kept, so that each time there is less to read.
    """
    for _ in range(_TRIES - 1):
        with suppress(DroppedError), opened(directory) as trace:
            return question(trace)
    with opened(directory) as trace:
        return question(trace)


@contextmanager
def damage_reported(directory: object) -> Iterator[None]:
    """Raise TraceError for what goes wrong with the rows of what lies in `directory`; with PYTRACEDEBUG set, what it was."""
    try:
        yield
    except PytraceError:
        raise
    except MemoryError as error:  # Arrow's, too
        raise HostError(
            f"{directory} needs more memory than this host, or a limit of this process (ulimit -v, a cgroup), gives; a piece of it, by --from, "
            "--pid or --tid, may do with less"
        ) from error
    except _CONTRADICTIONS as error:
        if DEBUG in os.environ:
            raise
        said = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        raise TraceError(
            f"{directory} cannot be understood ({said}): it is damaged, or this is a fault of pytrace-ebpf, and {DEBUG}=1 shows where."
        ) from error
