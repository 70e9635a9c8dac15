"""The last seconds of a recording in memory: segments as they would be written, and what was known and open where they begin.

Nothing is encoded and nothing goes to a disk until a trace is wanted, so nothing of the program's is left there, and no disk is worn out or
filled. Memory is bounded by Keep.size, or 1 GiB; where that is less than the time asked for, the time becomes shorter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pytrace_ebpf.lazy_imports import pa, pc
from pytrace_ebpf.rebuild.stacks import Stacks
from pytrace_ebpf.record.options import Keep
from pytrace_ebpf.record.output.horizon import Horizon, opened

_MOST = 1 << 30
_PATIENCE = 4  # segments longer than asked for, until one begins at a moment to which no later row is older
_TIDY = 64  # segments after which what ended is forgotten, and small tables become one


@dataclass
class Segment:
    """The rows of some time by table."""

    start_ns: int
    end_ns: int
    tables: Mapping[str, pa.Table]
    opened: pa.Table | None = None  # the calls that are open at its end, as rows of `events`
    clean: bool = True  # nothing that came later is from before its end

    @property
    def bytes(self) -> int:
        """Memory of its rows."""
        return sum(table.nbytes for table in (*self.tables.values(), *(() if self.opened is None else (self.opened,))))


class Held:
    """The newest segments, oldest first."""

    def __init__(self, keep: Keep) -> None:
        """Raises HostError where the compiled library is missing."""
        self._keep_ns = None if keep.seconds is None else int(keep.seconds * 1e9)
        self._most = keep.size or _MOST
        self._horizon = Horizon()
        self._functions: list[pa.Table] = []  # of what was dropped: what is held may refer to any of them
        self._bytes = self._dropped = 0
        self._last: Segment | None = None  # that was dropped
        self.segments: deque[Segment] = deque()
        self.drops_nothing = False
        self.is_short = False  # there was no room for all the time asked for

    def add(self, segment: Segment) -> None:
        """Take in the next one, and drop those that need not be held any more. Raises HostError."""
        earliest = min((table["ts"].to_numpy().min() for name, table in _rows(segment) if name in ("events", "sched")), default=segment.end_ns)
        for held in self.segments:
            held.clean = held.clean and earliest >= held.end_ns
        self.segments.append(segment)
        self._bytes += segment.bytes
        for _ in range(0 if self.drops_nothing else self._expired()):
            self._drop(self.segments.popleft())

    def begin_at(self, ts: int) -> None:
        """Drop what is from before a moment, which what was added last is not the first to be after. Raises HostError."""
        while self.segments and self.segments[0].end_ns <= ts:
            self._drop(self.segments.popleft())
        stacks, late = Stacks(), list[Segment]()
        for at, whole in enumerate(self.segments):
            before, after = _cut(whole, ts)
            for events in (None if at or not self._last else self._last.opened, before.tables.get("events")):
                if events is not None:
                    stacks.take(events)
            self._horizon.take({name: table for name, table in before.tables.items() if name == "sched" or (not at and name != "events")})
            if not at and "functions" in before.tables:
                self._functions.append(before.tables["functions"])
            late.append(replace(after, tables=after.tables if not at else {**whole.tables, **_timed(after)}, start_ns=max(whole.start_ns, ts)))
        self._last = Segment(ts, ts, {}, opened(stacks.open_calls(), ts))
        self.segments = deque(late)
        self._bytes = sum(segment.bytes for segment in self.segments)

    def _expired(self) -> int:
        """How many of the oldest are to be dropped."""
        count = clean = forced = 0
        size, end_ns = self._bytes, self.segments[-1].end_ns
        for at, held in enumerate(list(self.segments)[:-1], 1):
            old = self._keep_ns is not None and held.end_ns <= end_ns - self._keep_ns
            if not old and size <= self._most:
                break
            forced = at if size > self._most else forced
            self.is_short = self.is_short or (not old and self._keep_ns is not None)
            size -= held.bytes
            count, clean = at, at if held.clean else clean
        return max(clean, forced) or (count if count >= _PATIENCE else 0)

    def _drop(self, segment: Segment) -> None:
        self._bytes -= segment.bytes
        self._horizon.take({name: table for name, table in segment.tables.items() if name != "events"})
        self._last = replace(segment, tables={})
        if "functions" in segment.tables:
            self._functions.append(segment.tables["functions"])
        self._dropped += 1
        if self._dropped % _TIDY == 0:
            self._horizon.beginning(segment.end_ns)
            self._functions = [pa.concat_tables(self._functions)] if self._functions else []

    def beginning(self) -> Segment | None:
        """The segment without length with which a trace of what is held begins; None where it begins with the recording."""
        if self._last is None:
            return None
        at_ns, open_calls = self._last.end_ns, {} if self._last.opened is None else {"events": self._last.opened}
        functions = {"functions": pa.concat_tables(self._functions)} if self._functions else {}
        return Segment(at_ns, at_ns, self._horizon.beginning(at_ns) | functions | open_calls)


def _cut(whole: Segment, ts: int) -> tuple[Segment, Segment]:
    """The two parts of a segment before and after a moment; what is of no moment is in both, but for functions and losses."""
    before, after = dict[str, pa.Table](), dict[str, pa.Table]()
    for name, table in whole.tables.items():
        is_after = pc.greater_equal(table["ts"], ts) if "ts" in table.column_names else None
        if is_after is not None:
            before[name], after[name] = table.filter(pc.invert(is_after)), table.filter(is_after)
            continue
        lives = name in ("threads", "processes")
        if name != "losses":
            before[name] = _until(table, ts) if lives else table
        if name != "functions":
            after[name] = _since(table, ts) if lives else table
    return Segment(whole.start_ns, ts, before), Segment(ts, whole.end_ns, after, whole.opened, whole.clean)


def _timed(segment: Segment) -> dict[str, pa.Table]:
    """What is of moments."""
    return {name: table for name, table in segment.tables.items() if "ts" in table.column_names}


def _until(table: pa.Table, ts: int) -> pa.Table:
    """Threads or processes as they were known at a moment: those that had begun, and what ended later had not ended."""
    table = table.filter(pc.less(table["start_ns"], ts))
    at = table.column_names.index("end_ns")
    had_ended = pc.fill_null(pc.less_equal(table["end_ns"], ts), False)
    return table.set_column(at, table.schema.field(at), pc.if_else(had_ended, table["end_ns"], pa.scalar(None, pa.int64())))


def _since(table: pa.Table, ts: int) -> pa.Table:
    """Threads or processes of a recording that began at a moment."""
    at = table.column_names.index("start_ns")
    return table.set_column(at, table.schema.field(at), pc.max_element_wise(table["start_ns"], pa.scalar(ts, pa.int64())))


def _rows(segment: Segment) -> list[tuple[str, pa.Table]]:
    return [(name, table) for name, table in segment.tables.items() if table.num_rows]
