"""What memory the calls of each function used: amounts that the compiled pass charges to the calls that were open, summed by function."""

from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.arrow_table import from_frame
from pytrace_ebpf.analyze.rebuilt.incremental import Growth, State, checked_rows
from pytrace_ebpf.analyze.rebuilt.passes import engine_of, segments
from pytrace_ebpf.analyze.rebuilt.read_ahead import PIECE
from pytrace_ebpf.analyze.rebuilt.sums import MOST_NODES, within
from pytrace_ebpf.analyze.time.split import thread_keys
from pytrace_ebpf.rebuild.engine import CHARGE, Engine
from pytrace_ebpf.rebuild.library import CHARGES, GONE_SINCE, LEVEL, PEAK
from pytrace_ebpf.trace.derived import Settled
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import MEMORY
from pytrace_ebpf.trace.streams.faults import FAULT_KINDS, FAULTS, GROWN
from pytrace_ebpf.trace.streams.memory import ALLOCATIONS
from pytrace_ebpf.trace.streams.native_memory import NATIVE_BLOCKS
from pytrace_ebpf.trace.writing import write

FAULTS_USED = ("minor_faults", "major_faults", "grown_bytes")  # by their kind in FAULTS
ALLOCATED = ("blocks", "bytes", "freed_blocks", "freed_bytes")  # columns of ALLOCATIONS
NATIVE = ("native_bytes", "native_freed_bytes")  # the second is GONE_SINCE
AMOUNTS = (*FAULTS_USED, *ALLOCATED, *NATIVE)

_OF_ROW = {**{name: len(FAULTS_USED) + place for place, name in enumerate(ALLOCATED)}, "peak_bytes": PEAK, "level_bytes": LEVEL}

_USED = np.dtype([("func_id", "i8"), ("calls", "i8"), ("own", "i8", (CHARGES,)), ("total", "i8", (CHARGES,))])

Ints = npt.NDArray[np.int64]
Charges = npt.NDArray[np.void]
Used = npt.NDArray[np.void]  # by function: what its calls used by themselves, and with those below them; of PEAK the highest of each


def derive(trace: Trace, into: Path) -> Settled | None:
    """Write what functions used as a Parquet part into the folder `into`; of a trace that has grown since, only the new segments are read."""
    growth = Growth(trace, MEMORY, into, partial(engine_of, trace.whole, rows=False, nodes=MOST_NODES))
    try:
        before, waiting = _resumed(growth.state)
    except (KeyError, ValueError):
        growth.refuse()
        before, waiting = _resumed(None)
    used = _charged(trace, growth, before, waiting)
    write(MEMORY, from_frame(MEMORY, _table(trace, used)), into / "part-00000.parquet")
    return growth.settled


def _table(trace: Trace, used: Used) -> pd.DataFrame:
    known, table = _known(trace), pd.DataFrame({name: used[name] for name in ("func_id", "calls")})
    for what, name in enumerate(AMOUNTS):
        for prefix, values in (("", used["total"]), ("self_", used["own"])):
            table[prefix + name] = pd.Series(values[:, what] if known[name] else pd.NA, table.index, "Int64")
    for of in ("blocks", "bytes"):
        table[f"kept_{of}"] = table[of] - table[f"freed_{of}"]
    table["native_kept_bytes"] = table["native_bytes"] - table["native_freed_bytes"]
    table["peak_bytes"] = pd.Series(used["own"][:, PEAK] if known["bytes"] else pd.NA, table.index, "Int64")
    return table[table["calls"] > 0].reset_index(drop=True)


def _known(trace: Trace) -> dict[str, bool]:
    """Which amounts were recorded."""
    faults = trace.manifest.get("faults")
    allocated = dict.fromkeys(ALLOCATED, trace.manifest["options"].get("memory") is True)
    native = dict.fromkeys(NATIVE, trace.manifest.get("native_memory") is not None)
    return {**dict.fromkeys(FAULTS_USED, faults is not None), "grown_bytes": bool(faults and faults["growth"]), **allocated, **native}


def _charged(trace: Trace, growth: Growth[Engine], before: Used, waiting: Charges) -> Used:
    """In one pass, with what was used `before`. Memory is bounded by the tree and what happened in two segments.

    `waiting`: charges of before of which it is not known yet whose they are.
    """
    whole = trace.whole
    engine, first, last = (growth.engines, growth.first, None) if whole is trace else within(trace, rows=False, nodes=MOST_NODES)
    engine.charge(waiting)
    for number, (events, end_ns) in enumerate(segments(whole, engine, first, last), first):
        segment = whole.segments[number]
        fresh = np.concatenate([read(whole, segment["index"]) for read in (_faults, _allocations, _native_blocks)])
        charges = np.concatenate((waiting, fresh if whole is trace else fresh[_within(fresh, trace)]))
        charges = charges[np.lexsort((charges["ts"], charges["key"]))]
        engine.charge(charges)
        for _ in engine.take(events, end_ns, PIECE):
            pass
        engine.settle(segment["start_ns"])  # a thread hands over an event one segment later at most
        waiting = charges[engine.uncharged()]
        if growth.due(number + 1):
            growth.settle((), {"used": _added(before, _used(engine)), "waiting": waiting})
    engine.finish(trace.end_ns)
    return _added(before, _used(engine))


def _within(charges: Charges, window: Trace) -> npt.NDArray[np.bool_]:
    there = (charges["ts"] >= window.start_ns) & (charges["ts"] < window.end_ns)
    return there & ((charges["what"] != GONE_SINCE) | (charges["since"] >= window.start_ns))


def _resumed(state: State | None) -> tuple[Used, Charges]:
    """What was used in the segments that were read before, and what waits; None: of none. Raises KeyError, and ValueError for what is no such state."""
    if state is None:
        return np.zeros(0, _USED), np.zeros(0, CHARGE)
    waiting = checked_rows(state["waiting"], CHARGE)
    if (waiting["what"] > LEVEL).any():
        raise ValueError("no such state")
    return checked_rows(state["used"], _USED), waiting


def _used(engine: Engine) -> Used:
    """By function what the calls in the engine's tree used; of one that is open, what it has used so far."""
    nodes, own = engine.nodes(), engine.charged()
    out = np.zeros(len(nodes), _USED)
    out["func_id"], out["own"], out["total"] = nodes["func_id"], own, _with_those_below(nodes, own)
    out["calls"] = nodes["calls"]
    out["total"][(nodes["outermost"] & 1) == 0] = 0  # recursion counts once
    return _added(out[nodes["depth"] >= 0])


def _added(*parts: Used) -> Used:
    """One row for each function."""
    rows = np.concatenate(parts)
    functions, place = np.unique(rows["func_id"], return_inverse=True)
    out = np.zeros(len(functions), _USED)
    out["func_id"] = functions
    for name in ("calls", "own", "total"):
        np.add.at(out[name], place, rows[name])
    out["own"][:, PEAK] = 0
    np.maximum.at(out["own"][:, PEAK], place, rows["own"][:, PEAK])
    return out


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
