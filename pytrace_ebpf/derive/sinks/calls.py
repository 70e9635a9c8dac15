"""The calls of a trace as rows: a part for those that ended in each segment.

A call that is its thread's last so far comes with a later segment. One piece is written while the next is rebuilt. Memory is bounded by one segment
and the calls that are open; in addition, by how often threads without calls got a core (calls/workers.py).
"""

from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from pytrace_ebpf.derive.calls import rows as call_rows
from pytrace_ebpf.derive.calls.workers import Workers
from pytrace_ebpf.derive.sink import Needs, Sink
from pytrace_ebpf.derive.store import State
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.schema import CALLS
from pytrace_ebpf.trace.segments import part_name


class Calls(Sink):
    """Writes schema.CALLS."""

    table = CALLS

    def needs(self) -> Needs:
        return Needs(rows=True)

    def begin(self, engines: Shards, first: int, state: State | None) -> None:
        self._workers = Workers(self.trace, first, state)
        self._place = first
        self._writer: call_rows.Writer | None = None
        self._aside = ThreadPoolExecutor(1, "writer")
        self._written: Future[None] | None = None

    def state(self) -> State:
        return self._workers.state()

    def rows(self, engine: Engine, rows: pa.Table) -> None:
        self._writer = self._writer or call_rows.Writer(self.into / part_name(self._place))
        filled = self._workers.fill(rows)
        if self._written:
            self._written.result()
        self._written = self._aside.submit(self._writer.write, filled)

    def taken(self, place: int) -> None:
        self._end_part()
        self._place = place + 1

    def end(self) -> None:
        self._end_part()
        self._aside.shutdown()

    def _end_part(self) -> None:
        if self._writer and self._written:
            self._written.result()
            self._writer.close()
            self.parts.append(part_name(self._place))
        self._writer = self._written = None
