"""Keeps the sums of a trace while it is recorded, so that its first report finds them there: a process next to the one that records.

It runs where a core would be idle, and only there; it reads what is on the disk and has the rights of who called, so the
recording neither waits for it nor depends on it. Where memory runs short it is the first to go.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytrace_ebpf import self_command
from pytrace_ebpf.record.rights.user import caller_ids

if TYPE_CHECKING:
    from pytrace_ebpf.record.session import Session, Status

_AFTER_S = 10.0  # what is recorded until then is summed within a second by the first report
_PATIENCE_S = 1.0


@contextmanager
def beside(session: "Session", drops: bool, show: Callable[["Status"], None]) -> Iterator[Callable[["Status"], None]]:
    """Sum up the calls that `session` records, for as long as the block runs; yields `show` that does so. `drops`: the trace loses old segments, and is left."""
    child: subprocess.Popen[bytes] | None = None

    def look(status: "Status") -> None:
        nonlocal child
        show(status)
        if child is None and not drops and status.calls and status.seconds >= _AFTER_S:
            with suppress(OSError):
                child = _start(session.directory)

    try:
        yield look
    finally:
        if child is not None:
            _end(child)


def _start(directory: Path) -> "subprocess.Popen[bytes]":
    rights: dict[str, Any] = caller_ids()
    child = self_command.start_worker("summing_up", stdin=subprocess.PIPE, **rights)
    assert child.stdin
    child.stdin.write(bytes(directory.absolute()) + b"\n")
    child.stdin.flush()
    return child


def _end(child: "subprocess.Popen[bytes]") -> None:
    """What it has kept is whole, whenever it ends."""
    assert child.stdin
    with suppress(OSError):
        child.stdin.close()
    try:
        child.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
