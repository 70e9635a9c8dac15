"""What calls were given and returned, each value with the id of its call."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pytrace_ebpf.analyze.observed.joined import Joined, joined
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import VALUES


def derive(trace: Trace, into: Path) -> None:
    """Write the values of `trace` as Parquet parts into the folder `into`: one for the calls that ended in each segment."""
    for number, pieces in enumerate(joined(trace, ["call_id"])):
        writer = None
        for piece in pieces:
            writer = writer or pq.ParquetWriter(into / f"part-{number:05d}.parquet", VALUES.arrow, compression="lz4")
            writer.write_table(_rows(piece))
        if writer:
            writer.close()


def _rows(found: Joined) -> pa.Table:
    ids = found.calls["call_id"].to_numpy()[found.call]
    order = pa.array(np.argsort(ids, kind="stable"))  # of one call they are in order already: arguments come first
    columns = {name: found.values[name] for name in VALUES.arrow.names if name != "call_id"}
    return pa.table({"call_id": ids, **columns}, schema=VALUES.arrow).take(order)
