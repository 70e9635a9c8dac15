"""When the program began that a process runs: a file that has not changed since then is what the program read, if it read it."""

import os
import time
from pathlib import Path

from pytrace_ebpf.record.process import stat
from pytrace_ebpf.record.process.pinned import Pinned

_NS_PER_TICK = 10**9 // os.sysconf("SC_CLK_TCK")
_FORKED = 0x40  # PF_FORKNOEXEC: it runs the program that the process ran which forked it
_STACK, _ARGUMENTS = 25, 45  # in stat.fields(): where these begin, which a fork keeps and a new program has elsewhere; 0 for who may not know
_MOST_FORKS = 64


def began_ns(process: Pinned) -> int | None:
    """A moment on the wall clock by which the program had begun and not yet read a file of Python's; None where that is not known.

    A forked process runs its creator's program, which began earlier; where the creator is gone nobody knows when. A start is
    known to a clock tick, the end of which counts: an interpreter takes longer to come to its first file.
    """
    try:
        fields, seen = process.stat_fields(), 0
        while int(fields[stat.FLAGS]) & _FORKED:
            before, seen = fields, seen + 1
            fields = stat.fields(Path(f"/proc/{before[stat.PARENT]}/stat").read_bytes())
            same = all(fields[place] == before[place] != "0" for place in (_STACK, _ARGUMENTS))
            if not same or seen > _MOST_FORKS:
                return None
        ticks = int(fields[stat.START]) + 1
    except (OSError, IndexError, ValueError):
        return None
    return ticks * _NS_PER_TICK + time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
