"""What an agent counted of one process's instructions: records that lie in its arena and are counted up there, so that each look gives what was added."""

import time

import numpy as np

from pytrace_ebpf.record.agent.arena import Arena, Damaged
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.trace.opcodes import SPECIALIZED, STATES, instructions

_MOST = 1 << 62
_MOST_LINE = 1 << 31


class Opcodes:
    """Of one arena. What it keeps is as large as the arena's records of instructions at most."""

    def __init__(self) -> None:
        self._before: dict[int, np.ndarray] = {}  # by chunk

    def take(self, arena: Arena) -> np.ndarray:
        """What was added since the last time, dtype opcode: records that were counted up, with the differences. Raises Damaged."""
        added = [np.empty(0, arena.dtype("opcode"))]
        for chunk, records in arena.opcodes():
            _check(records)
            before = self._before.get(chunk, records[:0])
            grown = records.copy()
            for name in ("count", "ticks"):
                if len(before) > len(records) or (records[name][: len(before)] < before[name]).any():
                    raise Damaged("counts fewer instructions than it did")
                grown[name][: len(before)] -= before[name]
            self._before[chunk] = records
            added.append(grown[(grown["count"] > 0) | (grown["ticks"] > 0)])
        return np.concatenate(added)


def columns(records: np.ndarray, func_ids: np.ndarray, pid: int, version: str, ns_per_tick: float) -> Columns:
    """Columns of `opcodes` of what take() gave. `func_ids`: by the agent's function ids; `version` of Python, as 3.11."""
    known, functions = instructions(version), records["function"]
    states = known.states(records["opcode"], records["form"])
    return {
        "ts": np.full(len(records), time.monotonic_ns()),
        "pid": np.full(len(records), pid, np.int32),
        "func_id": np.where(functions < len(func_ids), func_ids[np.minimum(functions, len(func_ids) - 1)], -1).astype(np.int32),
        "line": np.where(records["line"] > 0, records["line"].astype(np.int32), -1),
        "opcode": known.names[records["opcode"]],
        "specialized": np.where(states == SPECIALIZED, known.names[records["form"]], None),
        "state": np.array(STATES, object)[states],
        "hits": records["count"].astype(np.int64),
        "wall_ns": np.rint(records["ticks"] * ns_per_tick).astype(np.int64),
    }


def _check(records: np.ndarray) -> None:
    if not ((records["count"] < _MOST) & (records["ticks"] < _MOST) & (records["line"] < _MOST_LINE)).all():
        raise Damaged("holds counts of instructions that no agent writes")
