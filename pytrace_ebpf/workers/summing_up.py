"""The process that runs/summing.py starts: it keeps up with the trace whose directory comes by stdin.

It ends when its stdin is closed, which happens whichever way the recording ends.
"""

import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path

_REST = 9  # it rests so many times as long as it worked, and
_LEAST_REST_S = 2.0
_FIRST_TO_GO = b"1000"  # oom_score_adj of proc(5)


class Over(Exception):  # noqa: N818 - no error
    """The recording has ended."""


def step_back() -> None:
    """Lowest priority for cores and memory; main does the same for the disk."""
    os.nice(19)
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_bytes(_FIRST_TO_GO)


def wait(seconds: float) -> None:
    """Raises Over once the recording has ended."""
    if select.select([sys.stdin], [], [], seconds)[0]:
        raise Over


def main() -> None:
    """Until the recording has ended."""
    with suppress(Over):
        _keep_up()


def _keep_up() -> None:
    step_back()
    directory = Path(os.fsdecode(sys.stdin.buffer.readline().rstrip(b"\n")))

    import psutil
    import pyarrow as pa

    import pytrace_ebpf
    from pytrace_ebpf.derive.sums import keep_up
    from pytrace_ebpf.errors import PytraceError

    with suppress(OSError, AttributeError, psutil.Error):
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    pa.set_cpu_count(1)
    while True:
        began = time.monotonic()
        with suppress(PytraceError):  # a segment that is just being written, or nothing yet
            trace = pytrace_ebpf.open(directory)
            trace.progress = lambda _what, _share: wait(0)
            keep_up(trace)
        wait(max(_LEAST_REST_S, _REST * (time.monotonic() - began)))
