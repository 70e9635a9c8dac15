"""Which threads had the core while one waited for it, from the switches alone."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from pytrace_ebpf.derive.arrow_table import to_arrow
from pytrace_ebpf.derive.read_ahead import sched_groups
from pytrace_ebpf.derive.scheduling.rivals import EXTERNAL, SCHED, Rivals
from pytrace_ebpf.derive.scheduling.windows import windows_of
from pytrace_ebpf.trace.derived import Settled
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import RIVALS, SCHED_LOSSES
from pytrace_ebpf.trace.segments import part_name
from pytrace_ebpf.trace.writing import write

_AT_ONCE = 1 << 18  # rows of scheduling


def derive(trace: Trace, into: Path) -> Settled | None:
    """Write schema.RIVALS of `trace`, a part for some segments that follow each other."""
    whole = trace.whole
    if not whole.rivals_known:
        return None
    rivals = Rivals(windows_of(whole.losses(), (*SCHED_LOSSES, "external_ring")))
    number = 0
    for place, switches in sched_groups(whole, whole.segments, SCHED, _AT_ONCE):
        external = whole.parts("external_switches", whole.segments[place : place + len(switches)], EXTERNAL)
        rows = rivals.take(pa.concat_tables(switches), pa.concat_tables(external))
        if not len(rows):
            continue
        columns = {
            f"{prefix}{name}": pa.array((rows[key] >> shift & 0xFFFFFFFF).astype(np.int32))
            for prefix, key in (("", "key"), ("rival_", "rival"))
            for name, shift in (("pid", 32), ("tid", 0))
        }
        write(RIVALS, to_arrow(RIVALS, rows, columns), into / part_name(number))
        number += 1
    return None
