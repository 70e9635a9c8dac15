"""Where nobody asked for a source or a budget: what tracing takes is compared with what was expected, and more than twice that is not gone on with."""

from collections.abc import Iterable

from pytrace_ebpf.record.cost.spent import Lately
from pytrace_ebpf.record.source_selection.cost_estimate import MOST_SHARE
from pytrace_ebpf.record.source_selection.sources import Sources

TIMES = 2  # as much as was expected
_LEAST = 0.05  # of a core, that tracing a process may take in any case: such a program does little
_AT_LEAST_S = 0.4  # that it is too much before the source is changed: much may begin for a moment
_SOON_S = 0.1  # the same before calls are left out, which ends as soon as there are fewer
_SAID = 3  # processes that are named


class Watch:
    """Judges each look. Of a process's probes too dear, the source is to change; of the agent, or where no source can, calls are to be left out."""

    def __init__(self, sources: Sources, leaves_out: bool) -> None:
        """`leaves_out`: whether calls may be left out, where no other source is cheaper."""
        self._sources, self._leaves_out = sources, leaves_out
        self._dear: dict[int, Lately] = {}  # processes that have been traced at too high a cost, since when that is so

    def look(self, lately: Iterable[Lately]) -> str:
        """Ask the sources to change what has become too dear. Returns why calls are to be left out from now on, a sentence; "" where they are not."""
        bound = list[Lately]()
        dear = dict[int, Lately]()
        for each in lately:
            if each.share <= MOST_SHARE or each.cores <= self._most(each) or not self._sources.is_priced(each.source):
                continue
            since = dear[each.pid] = each.after(self._dear.get(each.pid))
            changes = each.source == "usdt" and each.pid not in self._sources.unchangeable
            if changes and since.seconds >= _AT_LEAST_S:
                self._sources.too_dear(each.pid, since.cores)
            elif not changes and self._leaves_out and since.seconds >= _SOON_S:
                bound.append(since)
        self._dear = dear
        if not bound:
            return ""
        bound.sort(key=lambda each: -each.share)
        named = ", ".join(f"{each.share * 100:.0f} % of the CPU time of process {each.pid}" for each in bound[:_SAID])
        more = f" and as much of {len(bound) - _SAID} more" if len(bound) > _SAID else ""
        return f"tracing takes {named}{more}: from now on so many calls are left out that it is {MOST_SHARE * 100:.0f} % (--source agent leaves out none)"

    def _most(self, each: Lately) -> float:
        """Cores that tracing a process may take."""
        changes = each.source == "usdt" and each.pid not in self._sources.unchangeable
        estimate = self._sources.estimate(each.pid) if changes else None
        return max(_LEAST, TIMES * (estimate or 0.0))
