"""What calls were given and returned, each value with the id of its call."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from pytrace_ebpf.analyze.observed.joined import Joined, Waiting, has_values, joined
from pytrace_ebpf.analyze.rebuilt.incremental import Growth
from pytrace_ebpf.analyze.rebuilt.passes import engine_of
from pytrace_ebpf.trace.derived import Settled
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import VALUES
from pytrace_ebpf.trace.segments import part_name
from pytrace_ebpf.trace.writing import stream


def derive(trace: Trace, into: Path) -> Settled | None:
    """Write the values of `trace` as Parquet parts into the folder `into`: one for the calls that ended in each segment."""
    if not has_values(trace):
        return None
    growth = Growth(trace, VALUES, into, partial(engine_of, trace.whole, rows=True))
    try:
        waiting = Waiting(growth.state)
    except (KeyError, ValueError, pa.ArrowException):
        growth.refuse()
        waiting = Waiting()
    for number, pieces in enumerate(joined(trace, ["call_id"], waiting, growth), growth.first):
        if _write(pieces, into / part_name(number)):
            growth.parts.append(part_name(number))
        if growth.due(number + 1):
            growth.settle(growth.parts, waiting.state())
    return growth.settled


def _write(pieces: Iterator[Joined], path: Path) -> bool:
    """Write a part; returns whether there was anything to be written."""
    writer = None
    for piece in pieces:
        writer = writer or stream(VALUES, path)
        writer.write_table(_rows(piece))
    if writer:
        writer.close()
    return writer is not None


def _rows(found: Joined) -> pa.Table:
    ids = found.calls["call_id"].to_numpy()[found.call]
    order = pa.array(np.argsort(ids, kind="stable"))  # of one call they are in order already: arguments come first
    columns = {name: found.values[name] for name in VALUES.arrow.names if name != "call_id"}
    return pa.table({"call_id": ids, **columns}, schema=VALUES.arrow).take(order)
