"""Which old segments are dropped while a recording goes on: groups of segments, and at the end of each what was open then."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from pytrace_ebpf.lazy_imports import pa
from pytrace_ebpf.record.options import Keep
from pytrace_ebpf.record.output.merging import GROUP, Merge

_GROUPS = 16  # groups in what is kept: at most about one group more than asked for is on disk


@dataclass
class Group:
    """Segments that are dropped together: their lines in the list of segments, their parts, and with what the trace begins after them."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    parts: set[tuple[str, str]] = field(default_factory=set)  # (table, file)
    bytes: int = 0
    segments: int = 0
    start_ns: int = 0
    end_ns: int = 0
    beginning: dict[str, pa.Table] = field(default_factory=dict)
    clean: bool = True  # nothing that came later is from before its end

    def add(self, line: dict[str, Any], tables: dict[str, pa.Table], part: str, size: int) -> None:
        """Take in a segment."""
        self.start_ns = self.start_ns if self.lines else line["start_ns"]
        self.lines.append(line)
        self.parts |= {(name, part) for name in tables}
        self.bytes += size
        self.segments += 1
        self.end_ns = line["end_ns"]

    def merge(self, merge: Merge, grown: int) -> None:
        """Take in that some of its parts have become one, and how many bytes more it has by that."""
        self.lines.append(merge.line)
        self.parts -= {(merge.table, old) for old in merge.olds}
        self.parts.add((merge.table, merge.part))
        self.bytes += grown


class Groups:
    """The groups that a recording still has, oldest first; the last one is open."""

    def __init__(self, keep: Keep | None) -> None:
        """None: all are kept."""
        self._keep = keep
        self.closed: deque[Group] = deque()
        self.open = Group()

    def meet(self, tables: dict[str, pa.Table]) -> None:
        """See to which ends of groups the rows of a new segment are older."""
        earliest = min((table["ts"].to_numpy().min() for name, table in tables.items() if name in ("events", "sched")), default=None)
        for group in self.closed:
            group.clean = group.clean and (earliest is None or earliest >= group.end_ns)

    @property
    def full(self) -> bool:
        """Whether the open group is to be closed."""
        group, keep = self.open, self._keep or Keep()
        old = keep.seconds is not None and group.end_ns - group.start_ns >= keep.seconds * 1e9 / _GROUPS
        return group.segments >= GROUP or old or (keep.size is not None and group.bytes >= keep.size / _GROUPS)

    def close(self) -> None:
        """Close the open group, and begin another."""
        if self._keep is not None:
            self.closed.append(self.open)
        self.open = Group()

    def expired(self, end_ns: int, size: int) -> list[Group]:
        """The oldest closed groups that exceed what is to be kept of a trace of `size` bytes that ends at `end_ns`; they stay here until drop().

        What follows them begins at a moment to which no later row is older, where there is such.
        """
        keep = self._keep or Keep()
        count = 0
        for group in self.closed:
            too_old = keep.seconds is not None and end_ns - group.end_ns >= keep.seconds * 1e9
            too_large = keep.size is not None and size > keep.size * (1 - 2 / _GROUPS)  # room for an open group and a beginning
            if not (too_old or too_large):
                break
            count += 1
            size -= group.bytes
        groups = list(self.closed)[:count]
        clean = max((at for at, group in enumerate(groups, 1) if group.clean), default=0)
        return groups[: clean or (count if count >= _GROUPS // 4 else 0)]

    def drop(self, groups: list[Group]) -> None:
        """Forget these, the oldest."""
        for _ in groups:
            self.closed.popleft()
