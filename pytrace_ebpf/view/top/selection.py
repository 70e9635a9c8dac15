"""What of a picture is shown, and in which order."""

from dataclasses import dataclass, replace

from pytrace_ebpf.trace.states import BY_NAME, STATES

VIEWS = ("functions", "threads", "lines", "waits", "requests", "clients")
LABELS = tuple(state.label for state in STATES)
_BY_TIME = ("work", *LABELS, "all", "name")
SORTS = {
    "functions": _BY_TIME,
    "threads": ("work", *LABELS, "GIL held", "core", "name"),
    "lines": _BY_TIME,
    "requests": ("work", *LABELS, "all", "threads", "name"),
    "waits": ("work", "all", "waited", BY_NAME["runq_wait"].label, "times", "kind", "name"),
    "clients": ("work", "all", "waited", BY_NAME["runq_wait"].label, "times", "threads", "name"),
}
"""By view what it can be sorted by, the usual first. work: all time but that in which threads wait for something to do."""


@dataclass(frozen=True)
class Choice:
    """`own`: times of functions themselves, not of what they call; `text`: what a row has in it; pid, tid, func_id: of which alone rows are shown, None for all."""

    view: str = VIEWS[0]
    sort: str = SORTS[VIEWS[0]][0]
    backwards: bool = False
    own: bool = True
    text: str = ""
    pid: int | None = None
    tid: int | None = None
    func_id: int | None = None
    orders: tuple[tuple[str, tuple[str, bool]], ...] = ()  # of the other views: by what, and whether backwards

    def seen_as(self, view: str) -> "Choice":
        """Another view of the same; each is sorted as it was last."""
        orders = dict(self.orders) | {self.view: (self.sort, self.backwards)}
        sort, backwards = orders.get(view, (SORTS[view][0], False))
        func_id = self.func_id if view in ("lines", "waits") else None
        return replace(self, view=view, sort=sort, backwards=backwards, func_id=func_id, orders=tuple(orders.items()))

    def sorted_by_next(self) -> "Choice":
        """By the next column."""
        sorts = SORTS[self.view]
        return replace(self, sort=sorts[(sorts.index(self.sort) + 1) % len(sorts)], backwards=False)

    @property
    def is_narrowed(self) -> bool:
        """Whether not everything is shown."""
        return bool(self.text) or (self.pid, self.tid, self.func_id) != (None, None, None)

    def widened(self) -> "Choice":
        """Of everything."""
        return replace(self, text="", pid=None, tid=None, func_id=None)
