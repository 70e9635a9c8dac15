"""What client libraries were asked for, each time with its call and the function of the program that asked: no rows of calls are kept.

Memory is bounded by a segment, and by what was asked since the last event of each thread.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.derive.calls.innermost import NO_CALL, Moments
from pytrace_ebpf.derive.calls.observed import packed, unpacked
from pytrace_ebpf.derive.calls.own_code import foreign
from pytrace_ebpf.derive.scheduling.split import thread_keys
from pytrace_ebpf.derive.sink import Needs, Sink
from pytrace_ebpf.derive.store import State
from pytrace_ebpf.rebuild.answers import Answers
from pytrace_ebpf.rebuild.library import NO_ANSWER
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.segments import part_name
from pytrace_ebpf.trace.streams.clients import CLIENT_CALLS, STATEMENTS
from pytrace_ebpf.trace.writing import write

_HELD = "held"


class Statements(Sink):
    """Writes schema.STATEMENTS."""

    table = STATEMENTS

    @property
    def idle(self) -> bool:
        return not any(segment["rows"].get(CLIENT_CALLS.name) for segment in self.trace.segments)

    def needs(self) -> Needs:
        return Needs(alone=True)  # engines are asked for the moments of one sink

    def begin(self, engines: Shards, first: int, state: State | None) -> None:
        self._moments, self._held = Moments(engines, foreign(self.trace.functions())), CLIENT_CALLS.arrow.empty_table()
        if state is not None:
            self._moments.resume(state)
            self._held = unpacked(CLIENT_CALLS, state[_HELD])
        if self.trace.whole is not self.trace:  # what rebuilds a window may begin before it
            for segment in self.trace.segments:
                self._add(segment)

    def state(self) -> State:
        return self._moments.state() | {_HELD: packed(self._held)}

    def events(self, place: int, switches: pa.Table | None, events: Iterator[pa.Table]) -> Iterator[pa.Table]:
        if self.trace.whole is self.trace:
            self._add(self.segments[place])
        return events

    def _add(self, segment: dict[str, Any]) -> None:
        rows = self.trace.part(CLIENT_CALLS.name, segment["index"])
        if self.trace.whole is not self.trace:
            rows = rows.filter((pc.field("ts") >= self.trace.start_ns) & (pc.field("ts") < self.trace.end_ns))
        self._held = pa.concat_tables([self._held, rows]).unify_dictionaries().combine_chunks()
        self._moments.ask(*self._asked())

    def _asked(self) -> tuple[np.ndarray, np.ndarray]:
        pid, tid, ts = (self._held[name].to_numpy() for name in ("pid", "tid", "ts"))
        return thread_keys(pid, tid), ts

    def taken(self, place: int) -> None:
        answers = self._moments.answers(*self._asked())
        known = (answers.call_id != NO_ANSWER) & (answers.func_id != NO_ANSWER)
        if known.any():
            self._write(known, answers)

    def end(self) -> None:
        answers = self._moments.answers(*self._asked())
        # Of a window of one thread the calls of others are not rebuilt.
        self._write((answers.call_id >= 0) | (self.trace.whole is self.trace), answers)

    def _write(self, rows: np.ndarray, answers: Answers) -> None:
        """Write those of what is held, and hold them no more."""
        names = {"call_id": answers.call_id, "func_id": answers.func_id, "own_func_id": answers.own, "own_line": answers.own_line}
        calls = {name: np.maximum(column[rows], NO_CALL) for name, column in names.items()}
        calls["own_line"][calls["own_line"] == 0] = -1
        held, self._held = self._held.filter(pa.array(rows)), self._held.filter(pa.array(~rows))
        table = pa.table({**{name: held[name] for name in CLIENT_CALLS.arrow.names}, **calls})
        if len(table):
            self.parts.append(part_name(len(self.parts)))
            write(STATEMENTS, table.select(STATEMENTS.arrow.names).cast(STATEMENTS.arrow), self.into / self.parts[-1])
