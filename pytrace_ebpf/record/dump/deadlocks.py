"""Threads, and tasks of asyncio, that wait for each other for ever: cycles of who waits for whom."""

from collections.abc import Iterable, Mapping, Sequence

from pytrace_ebpf.record.cpython.task_locks import LOCK
from pytrace_ebpf.record.dump.threads import Task, Thread


def deadlocks(threads: Iterable[Thread]) -> list[list[int]]:
    """The cycles among threads, each from its lowest thread id on, then the one that it waits for, and so on.

    Only of threads that were on no core while it was found out what they wait for, so that all of it was true at one moment, and that wait without
    a time limit.
    """
    still = (each for each in threads if each.waited and each.waited.holder and each.is_still and not each.is_timed)
    return _cycles({each.tid: [each.waited.holder] for each in still if each.waited})


def task_deadlocks(tasks: Iterable[Task]) -> list[list[int]]:
    """The cycles among tasks, by their addresses, likewise: of those that await other tasks (of a gather() all), or a Lock that a task has.

    Only of tasks that wait without a time limit, and waited for the same before and after it was looked for who has it.
    """
    still = (each for each in tasks if each.is_still and not each.is_timed)
    return _cycles({each.address: [*each.awaited, *(each.waits_on.holders if each.waits_on and each.waits_on.kind == LOCK else [])] for each in still})


def _cycles(waits: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """One cycle of each group of those that wait for each other; `waits`: for all of whom each waits."""
    left, behind = {one: {other for other in others if other in waits} for one, others in waits.items()}, dict[int, list[int]]()
    for one, others in left.items():
        for other in others:
            behind.setdefault(other, []).append(one)
    free = [one for one, others in left.items() if not others]
    while free:
        for one in behind.get(ended := free.pop(), ()):
            left[one].remove(ended)
            if not left[one]:
                free.append(one)
    left = {one: others for one, others in left.items() if others}
    cycles, seen = list[list[int]](), set[int]()
    for one in sorted(left):
        path = list[int]()
        while one not in seen:
            seen.add(one)
            path.append(one)
            one = min(left[one])
        if one in path:
            cycle = path[path.index(one) :]
            at = cycle.index(min(cycle))
            cycles.append(cycle[at:] + cycle[:at])
    return cycles
