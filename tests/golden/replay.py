"""What was recorded as bytes, through the code that records: batches as the rings and arenas gave them, to tables of a trace."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from pytrace_ebpf.rebuild.decoding import Line
from pytrace_ebpf.record.agent import arena
from pytrace_ebpf.record.agent.traced import Traced, lookups
from pytrace_ebpf.record.cpython.functions import Functions, ProbeIds
from pytrace_ebpf.record.cpython.qualnames import unknown
from pytrace_ebpf.record.filters import Filters
from pytrace_ebpf.record.native import layers, tensors
from pytrace_ebpf.record.output.collect import Collector
from pytrace_ebpf.record.output.tables import call_columns, sched_columns
from pytrace_ebpf.record.process.pinned import Descriptor
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.process.readings import Readings
from pytrace_ebpf.record.recorder import Rows
from pytrace_ebpf.record.scheduling.perf_switches import PerfSwitches
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.record.usdt.call_sites import CallSites
from pytrace_ebpf.record.usdt.calls import UsdtCalls
from pytrace_ebpf.record.usdt.held import Held

Recorded = Mapping[str, np.ndarray]  # arrays by name, those of several drains with their number: calls.0, calls.1, ...
Tables = dict[str, pa.Table]
LONG_NS = 1 << 62
_RECORD = {"what": "event", "data": "value", "freed_blocks": "allocations"}  # by the last field of its struct


def batches(recorded: Recorded, name: str) -> list[np.ndarray]:
    """The arrays of one kind, in order."""
    numbers = sorted(int(key.partition(".")[2]) for key in recorded if key.partition(".")[0] == name)
    return [recorded[f"{name}.{number}"] for number in numbers]


def tables(*drained: Rows, of: Functions | None = None) -> Tables:
    """The tables of one segment with all of it."""
    collector = Collector(0)
    for rows in [*drained, of.cut() if of else {}]:
        collector.add(rows)
    collector.drained_ns = LONG_NS  # whatever this machine's clock says
    return dict(collector.cut()[2])


def usdt(recorded: Recorded, folder: Path) -> Tables:
    """Rings of calls_usdt.c."""
    functions = Functions()
    source = UsdtCalls(Recording(functions, Processes()), 1, Filters(), follow=True)
    calls, sites, introduced = (batches(recorded, name) for name in ("calls", "sites", "functions"))
    probes = SimpleNamespace(
        drain_calls=lambda take: take(calls.pop(0)), drain_sites=lambda: [sites.pop(0)], drain_functions=lambda: introduced.pop(0)
    )
    ids = ProbeIds(functions, source._lookups)
    loaded = SimpleNamespace(probes=probes, ids=ids, sites=CallSites((3, 11), ids), held=Held(ids.pending), target=None)
    source._loaded["replayed"] = loaded  # type: ignore[index,assignment]
    return tables(*[source.drain() for _ in range(len(calls))], of=functions)


def agent(recorded: Recorded, folder: Path) -> Tables:
    """An arena of the agent's, its clock being the kernel's."""
    path, header = folder / "arena", recorded["header.0"]
    with path.open("wb") as file:
        for name, at in (("header", 0), ("table", arena.CHUNK_TABLE), ("functions", arena.FUNCTIONS_START)):
            file.seek(at)
            file.write(recorded[f"{name}.0"].tobytes())
        for number, chunk in enumerate(batches(recorded, "chunk")):
            file.seek(arena.CHUNKS_START + number * int(header["chunk_bytes"][0]))
            file.write(chunk.tobytes())
        file.truncate(arena.CHUNKS_START + int(recorded["arena_bytes.0"][0]))
    dtypes = {"opcode": np.dtype("V32")} | {_RECORD[of.names[-1]]: of for of in {chunk.dtype for chunk in batches(recorded, "chunk")}}
    dtypes |= {"arena": header.dtype, "chunk": recorded["table.0"].dtype}
    with path.open("r+b") as file:
        read = arena.Arena(Descriptor(os.dup(file.fileno())), dtypes, LONG_NS)
        pieces, functions = read.news(), Functions()
        traced = Traced(read, SimpleNamespace(pid=read.pid), 0, lookups(Readings(None, ""), 0, unknown))  # type: ignore[arg-type]
        traced.introduce(functions)
        tids = {piece.tid: piece.tid for piece in pieces}
        clock: Any = SimpleNamespace(line=Line(read.started & (1 << 48) - 1, read.started, 1.0), now_ns=LONG_NS)
        calls, values, allocations = (
            [piece for piece in pieces if piece.stream == stream] for stream in (arena.CALLS, arena.VALUES, arena.ALLOCATIONS)
        )
        rows = {"events": list(traced.events(calls, tids, clock))}
        rows["allocations"] = traced.allocations.take(read, allocations, tids, read.pid, traced.values.moments)
        return tables(rows | {"observed": traced.values.take(read, values, tids, read.pid)}, of=functions)


def sched(recorded: Recorded, folder: Path) -> Tables:
    """The ring of sched.c."""
    return tables({"sched": [sched_columns(records) for records in batches(recorded, "sched")]})


def perf(recorded: Recorded, folder: Path) -> Tables:
    """Rings of perf_event_open."""
    source, raw = PerfSwitches(), batches(recorded, "perf")
    for each in raw:
        source._rings.append(SimpleNamespace(drain=each.tobytes, full=False))  # type: ignore[arg-type]
    return tables(source.drain())


def native(recorded: Recorded, folder: Path) -> Tables:
    """Rings of native.c; functions by their number there."""
    func_ids = np.arange(1 << 13, dtype=np.int32)
    return tables({
        "events": [call_columns(records) for records in batches(recorded, "calls")],
        "arguments": [tensors.argument_columns(records, func_ids) for records in batches(recorded, "arguments")],
        "errors": [layers._error_columns(records) for records in batches(recorded, "errors")],
    })  # fmt: skip


REPLAYS: dict[str, Callable[[Recorded, Path], Tables]] = {
    "usdt": usdt, "agent": agent, "sched": sched, "perf": perf, "native": native,
}  # fmt: skip


def plain(made: Tables) -> dict[str, list[dict[str, Any]]]:
    """Tables as what JSON can hold: rows, in their order."""
    return {name: table.to_pylist() for name, table in sorted(made.items()) if table.num_rows}
