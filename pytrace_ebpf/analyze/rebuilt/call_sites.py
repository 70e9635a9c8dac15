"""The places that functions were called from, with the sums of the calls made there: from the same pass as the tree."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pytrace_ebpf.analyze.rebuilt.sums import sums_of
from pytrace_ebpf.analyze.rebuilt.tree import columns_of
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALL_SITES
from pytrace_ebpf.trace.writing import write


def derive(trace: Trace, into: Path) -> None:
    """Write the call sites of `trace` as a Parquet part into the folder `into`."""
    write(CALL_SITES, table(sums_of(trace).sites), into / "part-00000.parquet")


def table(sites: npt.NDArray[np.void]) -> pa.Table:
    """`sites` (rebuild.library.SITE) as schema.CALL_SITES, in the order of its first columns."""
    sites = sites[np.lexsort((sites["func_id"], sites["line"], sites["caller_id"]))]
    columns = {
        **{name: sites[name] for name in ("caller_id", "func_id", "calls")},
        "call_line": pa.array(sites["line"], mask=sites["line"] < 0),
        **dict(columns_of("", sites["total"], sites["calls"])),
        "self_ns": sites["self_wall"],
    }
    return pa.table([pa.array(columns[field.name], field.type) for field in CALL_SITES.arrow], schema=CALL_SITES.arrow)
