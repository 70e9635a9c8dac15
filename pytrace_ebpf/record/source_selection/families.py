"""Processes that belong together, and the busiest of each family: an idle master must not decide for the workers that it forked, nor for those to come."""

from collections.abc import Iterable

from pytrace_ebpf.record.source_selection.cost_estimate import CostEstimate

_MOST = 1 << 12  # processes that are remembered: a service may start any number of them


class Families:
    """Who belongs to whom, and what was expected, or measured since, of the dearest of them."""

    def __init__(self) -> None:
        self._head: dict[int, int] = {}  # process -> whom its family is known by
        self._busiest: dict[int, CostEstimate] = {}  # by that

    def join(self, parents: Iterable[tuple[int, int]]) -> None:
        """Take in processes, (pid, ppid), that are looked at together, in any order."""
        above = dict(parents)
        for pid, ppid in above.items():
            top, steps = pid, 0
            while ppid in above and steps < len(above):  # numbers that were used again could lead round in a circle
                top, ppid, steps = ppid, above[ppid], steps + 1
            self._head[pid] = self._head.get(ppid, top)
        while len(self._head) > _MOST:
            self._head.pop(next(iter(self._head)))
        for head in self._busiest.keys() - self._head.values():
            del self._busiest[head]

    def note(self, estimate: CostEstimate) -> None:
        """Take in what was expected or measured of a process."""
        head = self._head.setdefault(estimate.pid, estimate.pid)
        if head not in self._busiest or self._busiest[head].share < estimate.share:
            self._busiest[head] = estimate

    def busiest(self, pid: int) -> CostEstimate | None:
        """What is known of the dearest process of the family of `pid`; None where none was looked at."""
        return self._busiest.get(self._head.get(pid, pid))

    def of(self, pid: int) -> set[int]:
        """The family of `pid`, itself included."""
        head = self._head.get(pid, pid)
        return {pid} | {other for other, top in self._head.items() if top == head}
