"""What calls were given and returned, each value with the id of its call: a part for the calls that ended in each segment."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pytrace_ebpf.derive.calls.observed import Joined, ObservedSink
from pytrace_ebpf.derive.store import State
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.schema import VALUES
from pytrace_ebpf.trace.segments import part_name
from pytrace_ebpf.trace.writing import stream


class Values(ObservedSink):
    """Writes schema.VALUES."""

    table = VALUES
    columns = ("call_id",)

    def begin(self, engines: Shards, first: int, state: State | None) -> None:
        super().begin(engines, first, state)
        self._place = first
        self._writer: pq.ParquetWriter | None = None

    def found(self, joined: Joined) -> None:
        self._writer = self._writer or stream(VALUES, self.into / part_name(self._place))
        self._writer.write_table(_rows(joined))

    def taken(self, place: int) -> None:
        self._end_part()
        self._place = place + 1

    def end(self) -> None:
        self._end_part()

    def _end_part(self) -> None:
        if self._writer:
            self._writer.close()
            self.parts.append(part_name(self._place))
        self._writer = None


def _rows(found: Joined) -> pa.Table:
    ids = found.calls["call_id"].to_numpy()[found.call]
    order = pa.array(np.argsort(ids, kind="stable"))  # of one call they are in order already: arguments come first
    columns = {name: found.values[name] for name in VALUES.arrow.names if name != "call_id"}
    return pa.table({"call_id": ids, **columns}, schema=VALUES.arrow).take(order)
