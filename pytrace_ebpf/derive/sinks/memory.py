"""What memory the calls of each function used: amounts that the compiled pass charges to the calls that were open, summed by function."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.derive.arrow_table import from_frame
from pytrace_ebpf.derive.scheduling.split import thread_keys
from pytrace_ebpf.derive.sink import Needs, Sink
from pytrace_ebpf.derive.store import State, checked_rows
from pytrace_ebpf.derive.sums import MOST_NODES
from pytrace_ebpf.rebuild.engine import CHARGE, Engine
from pytrace_ebpf.rebuild.library import CHARGES, GONE_SINCE, LEVEL, PEAK
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import MEMORY
from pytrace_ebpf.trace.segments import part_name
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


class Memory(Sink):
    """Writes schema.MEMORY. Memory is bounded by the tree and what happened in two segments."""

    table = MEMORY

    def needs(self) -> Needs:
        return Needs(nodes=MOST_NODES, one_engine=True)

    def begin(self, engines: Shards, first: int, state: State | None) -> None:
        self._before, self._charges = _resumed(state)
        (self._engine,) = engines.engines
        self._engine.charge(self._charges)

    def state(self) -> State:
        return {"used": self._used(), "waiting": self._charges}

    def events(self, place: int, switches: pa.Table | None, events: Iterator[pa.Table]) -> Iterator[pa.Table]:
        whole = self.trace.whole
        index = self.segments[place]["index"]
        fresh = np.concatenate([read(whole, index) for read in (_faults, _allocations, _native_blocks)])
        charges = np.concatenate((self._charges, fresh if whole is self.trace else fresh[_within(fresh, self.trace)]))
        self._charges = charges[np.lexsort((charges["ts"], charges["key"]))]
        self._engine.charge(self._charges)
        return events

    def taken(self, place: int) -> None:
        self._engine.settle(self.segments[place]["start_ns"])  # a thread hands over an event one segment later at most
        self._charges = self._charges[self._engine.uncharged()]

    def end(self) -> None:
        write(MEMORY, from_frame(MEMORY, _table(self.trace, self._used())), self.into / part_name(0))

    def _used(self) -> Used:
        return _added(self._before, _used(self._engine))


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
