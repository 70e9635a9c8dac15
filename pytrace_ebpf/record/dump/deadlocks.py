"""Threads that wait for each other for ever: cycles of who waits for whom."""

from collections.abc import Iterable

from pytrace_ebpf.record.dump.cycles import cycles
from pytrace_ebpf.record.dump.threads import Thread


def deadlocks(threads: Iterable[Thread]) -> list[list[int]]:
    """The cycles among threads, each from its lowest thread id on, then the one that it waits for, and so on.

    Only of threads that were on no core while it was found out what they wait for, so that all of it was true at one moment, and that wait without
    a time limit.
    """
    still = (each for each in threads if each.waited and each.waited.holder and each.is_still and not each.is_timed)
    return cycles({each.tid: [each.waited.holder] for each in still if each.waited})
