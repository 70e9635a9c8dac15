"""The places that functions were called from, with the sums of the calls made there: from the same pass as the tree."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pytrace_ebpf.derive.sinks.tree import columns_of
from pytrace_ebpf.derive.sums import Sums
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALL_SITES


def of_sums(_: Trace, sums: Sums) -> pa.Table:
    """The call sites as schema.CALL_SITES."""
    return table(sums.sites)


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
