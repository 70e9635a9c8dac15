"""The places that functions were called from, with the sums of the calls made there: from the same pass as the tree."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pytrace_ebpf.analyze.rebuilt.sums import sums_of
from pytrace_ebpf.analyze.rebuilt.tree import columns_of
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CALL_SITES

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def derive(trace: Trace, into: Path) -> None:
    """Write the call sites of `trace` as a Parquet part into the folder `into`."""
    pq.write_table(table(sums_of(trace).nodes), into / "part-00000.parquet", compression="lz4")


def table(nodes: npt.NDArray[np.void]) -> pa.Table:
    """The sites of a tree's `nodes` (rebuild.library.NODE) as schema.CALL_SITES."""
    keys, site = _sites(nodes)
    made = (nodes["depth"] >= 0) & (nodes["calls"] > 0)
    whole = _sums(nodes[made & _outermost(nodes, site)], "total", site[made & _outermost(nodes, site)], len(keys))
    own = _sums(nodes[made], "self", site[made], len(keys))
    columns = {
        "caller_id": keys["caller_id"],
        "call_line": pa.array(keys["line"], mask=keys["line"] < 0),
        "func_id": keys["func_id"],
        "calls": own["calls"],
        **dict(columns_of("", whole["sums"], whole["calls"])),
        **dict(columns_of("self_", own["sums"], own["calls"])),
    }
    found = pa.table([pa.array(columns[field.name], field.type) for field in CALL_SITES.arrow], schema=CALL_SITES.arrow)
    return found.filter(pa.array(own["calls"] > 0))


def _sites(nodes: npt.NDArray[np.void]) -> tuple[npt.NDArray[np.void], Ints]:
    """The sites that there are, in the order of (caller, line, callee), and which one each node's calls are of."""
    caller, line, func = (nodes[name].astype(np.int64) for name in ("caller_id", "line", "func_id"))
    _, place = np.unique((caller << 32) + line, return_inverse=True)
    _, first, site = np.unique((place.reshape(-1) << 32) + func, return_index=True, return_inverse=True)
    return nodes[first], site.reshape(-1)


def _outermost(nodes: npt.NDArray[np.void], site: Ints) -> Bools:
    """Of each node, whether no call above it is of the same site. Of those that the tree had no room for, whether none is of the same function."""
    parent, func, of_function = nodes["parent"].astype(np.int64), nodes["func_id"], (nodes["outermost"] & 1) != 0
    found = of_function.copy()
    at = np.flatnonzero(~of_function & (parent > 0))
    above = parent[at]
    while len(at):  # a step up for all of them; most meet one of their own soon
        ended = nodes["depth"][above] < 0
        again, top = ~ended & (site[above] == site[at]), ended | ((func[above] == func[at]) & of_function[above])
        found[at[top & ~again]] = True
        on = ~again & ~top
        at, above = at[on], parent[above[on]]
    return found


def _sums(nodes: npt.NDArray[np.void], name: str, site: Ints, sites: int) -> npt.NDArray[np.void]:
    """`calls` and `sums` (NODE's total or self, by `name`) of the nodes of each site."""
    out = np.zeros(sites, [("calls", "i8"), ("sums", nodes.dtype[name])])
    np.add.at(out["calls"], site, nodes["calls"])
    for each in nodes.dtype[name].names or ():
        np.add.at(out["sums"][each], site, nodes[name][each])
    return out
