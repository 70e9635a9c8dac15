"""Changes a process from its probes to the agent while it is recorded: no event is missing in between, and none is there twice.

The agent comes while the probes are still recorded. A thread's events are those of the probes until the agent's first one of it, which opens the calls that
are open then; there the calls that the probes had seen begin end, as where a program is replaced.
"""

from typing import TYPE_CHECKING

import numpy as np

from pytrace_ebpf.record.output import tables
from pytrace_ebpf.record.process.target import Target
from pytrace_ebpf.record.recorder import Rows
from pytrace_ebpf.record.source import CallSource, Undrained

if TYPE_CHECKING:
    from pytrace_ebpf.record.usdt.calls import UsdtCalls


def change(target: Target, usdt: "UsdtCalls", agent: CallSource) -> Rows:
    """The rows of both until then. Raises TargetError, or HostError, where the agent cannot come; then the probes go on."""
    agent.prepare(target)
    agent.attach(target)
    by_agent, rows = agent.drain(), Undrained()
    begins = _first_of_threads(by_agent, target.pid)
    by_probes = usdt.let_go(target.pid)
    by_probes["events"] = [_before(columns, target.pid, begins) for columns in by_probes.get("events", ())]
    rows.extend(by_probes)
    for tid, ts in begins.items():
        rows.reset([(target.pid, tid)], ts - 1)
    rows.extend(by_agent)
    return rows.take()


def _first_of_threads(rows: Rows, pid: int) -> dict[int, int]:
    """When the first event of each thread of a process was."""
    found: dict[int, int] = {}
    for columns in rows.get("events", ()):
        mine = columns["pid"] == pid
        tids, ts = columns["tid"][mine], columns["ts"][mine]
        for tid in np.unique(tids).tolist():
            found[tid] = min(found.get(tid, 1 << 62), int(ts[tids == tid].min()))
    return found


def _before(columns: tables.Columns, pid: int, begins: dict[int, int]) -> tables.Columns:
    """Without the events of that process from where its threads' other ones begin."""
    wanted = np.ones(len(columns["ts"]), bool)
    for tid, ts in begins.items():
        wanted &= (columns["pid"] != pid) | (columns["tid"] != tid) | (columns["ts"] < ts - 1)
    return tables.where(columns, wanted)
