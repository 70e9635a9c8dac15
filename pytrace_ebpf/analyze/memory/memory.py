"""What memory the calls of each function used: amounts that the compiled pass charges to the calls that were open, summed by function."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.parquet as pq

from pytrace_ebpf.analyze.arrow_table import from_frame
from pytrace_ebpf.analyze.rebuilt.passes import segments
from pytrace_ebpf.analyze.rebuilt.read_ahead import PIECE
from pytrace_ebpf.analyze.rebuilt.sums import MOST_NODES, within
from pytrace_ebpf.analyze.time.split import thread_keys
from pytrace_ebpf.rebuild.engine import CHARGE
from pytrace_ebpf.rebuild.library import GONE_SINCE, LEVEL, PEAK
from pytrace_ebpf.trace.memory import FAULT_KINDS, GROWN
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import ALLOCATIONS, FAULTS, MEMORY, NATIVE_BLOCKS

FAULTS_USED = ("minor_faults", "major_faults", "grown_bytes")  # by their kind in schema.FAULTS
ALLOCATED = ("blocks", "bytes", "freed_blocks", "freed_bytes")  # columns of schema.ALLOCATIONS
NATIVE = ("native_bytes", "native_freed_bytes")  # the second is GONE_SINCE
AMOUNTS = (*FAULTS_USED, *ALLOCATED, *NATIVE)

_OF_ROW = {**{name: len(FAULTS_USED) + place for place, name in enumerate(ALLOCATED)}, "peak_bytes": PEAK, "level_bytes": LEVEL}

Ints = npt.NDArray[np.int64]
Charges = npt.NDArray[np.void]


def derive(trace: Trace, into: Path) -> None:
    """Write what functions used as a Parquet part into the folder `into`."""
    pq.write_table(from_frame(MEMORY, _by_function(trace)), into / "part-00000.parquet", compression="lz4")


def _by_function(trace: Trace) -> pd.DataFrame:
    sums = _charged(trace)
    calls = sums.nodes["depth"] >= 0
    whole = calls & ((sums.nodes["outermost"] & 1) != 0)
    functions, place = np.unique(sums.nodes["func_id"], return_inverse=True)
    total = _with_those_below(sums.nodes, sums.own)

    def summed(values: Ints, mask: npt.NDArray[np.bool_]) -> Ints:
        out = np.zeros(len(functions), np.int64)
        np.add.at(out, place[mask], values[mask])
        return out

    known = _known(trace)
    table = pd.DataFrame({"func_id": functions, "calls": summed(sums.nodes["calls"], calls)})
    for what, name in enumerate(AMOUNTS):
        for prefix, values, mask in (("", total, whole), ("self_", sums.own, calls)):
            table[prefix + name] = pd.Series(summed(values[:, what], mask) if known[name] else pd.NA, table.index, "Int64")
    for of in ("blocks", "bytes"):
        table[f"kept_{of}"] = table[of] - table[f"freed_{of}"]
    table["native_kept_bytes"] = table["native_bytes"] - table["native_freed_bytes"]
    peak = np.zeros(len(functions), np.int64)
    np.maximum.at(peak, place[calls], sums.own[calls, PEAK])
    table["peak_bytes"] = pd.Series(peak if known["bytes"] else pd.NA, table.index, "Int64")
    return table[table["calls"] > 0].reset_index(drop=True)


def _known(trace: Trace) -> dict[str, bool]:
    """Which amounts were recorded."""
    faults = trace.manifest.get("faults")
    allocated = dict.fromkeys(ALLOCATED, trace.manifest["options"].get("memory") is True)
    native = dict.fromkeys(NATIVE, trace.manifest.get("native_memory") is not None)
    return {**dict.fromkeys(FAULTS_USED, faults is not None), "grown_bytes": bool(faults and faults["growth"]), **allocated, **native}


class _Sums(NamedTuple):
    """Of each node of the tree (rebuild.library.NODE) what its calls used by themselves: shape (nodes, CHARGES)."""

    nodes: npt.NDArray[np.void]
    own: Ints


def _charged(trace: Trace) -> _Sums:
    """In one pass. Memory is bounded by the tree and what happened in two segments."""
    engine, first, last = within(trace, rows=False, nodes=MOST_NODES)
    whole, open_charges = trace.whole, np.zeros(0, CHARGE)
    for segment, (events, end_ns) in zip(whole.segments[first:last], segments(whole, engine, first, last), strict=True):
        fresh = np.concatenate([read(whole, segment["index"]) for read in (_faults, _allocations, _native_blocks)])
        within_window = (fresh["ts"] >= trace.start_ns) & (fresh["ts"] < trace.end_ns)
        within_window &= (fresh["what"] != GONE_SINCE) | (fresh["since"] >= trace.start_ns)
        charges = np.concatenate((open_charges, fresh[within_window]))
        charges = charges[np.lexsort((charges["ts"], charges["key"]))]
        engine.charge(charges)
        for _ in engine.take(events, end_ns, PIECE):
            pass
        engine.settle(segment["start_ns"])  # a thread hands over an event one segment later at most
        open_charges = charges[engine.uncharged()]
    engine.finish(trace.end_ns)
    return _Sums(engine.nodes(), engine.charged())


def _faults(trace: Trace, index: int) -> Charges:
    rows = trace.part(FAULTS.name, index)
    pid, tid, ts, kind, grown = (rows[name].to_numpy() for name in ("pid", "tid", "ts", "kind", "grown_bytes"))
    out = np.zeros(len(rows), CHARGE)
    out["key"], out["ts"], out["what"] = thread_keys(pid, tid), ts, kind
    out["amount"] = np.where(kind == GROWN, grown, 1)
    return out[np.isin(kind, FAULT_KINDS)]


def _allocations(trace: Trace, index: int) -> Charges:
    rows = trace.part(ALLOCATIONS.name, index)
    out = np.zeros((len(_OF_ROW), len(rows)), CHARGE)
    out["key"] = thread_keys(rows["pid"].to_numpy(), rows["tid"].to_numpy())
    out["ts"] = rows["ts"].to_numpy()
    for of, (name, what) in zip(out, _OF_ROW.items(), strict=True):
        of["what"], of["amount"] = what, rows[name].to_numpy()
    return out.T.reshape(-1)  # row by row: a peak is above the level before


def _native_blocks(trace: Trace, index: int) -> Charges:
    rows = trace.part(NATIVE_BLOCKS.name, index)
    pid, tid, ts, level, since, whose = (rows[name].to_numpy() for name in ("pid", "tid", "ts", "level_bytes", "allocated_ns", "allocated_tid"))
    out = np.zeros(len(rows), CHARGE)
    out["key"], out["ts"], out["amount"], out["since"] = thread_keys(pid, tid), ts, np.abs(level), since
    out["what"] = np.where(level < 0, GONE_SINCE, AMOUNTS.index("native_bytes"))
    return out[(level >= 0) | (whose == tid)]  # as of Python's memory: what another thread frees is kept


def _with_those_below(nodes: npt.NDArray[np.void], own: Ints) -> Ints:
    """Sums of each node and all below it."""
    total = own.copy()
    order = np.argsort(nodes["depth"], kind="stable")[::-1]
    ends = np.flatnonzero(np.diff(nodes["depth"][order])) + 1
    for level in np.split(order, ends):
        if len(level) and nodes["depth"][level[0]] > 0:
            np.add.at(total, nodes["parent"][level], total[level])
    return total
