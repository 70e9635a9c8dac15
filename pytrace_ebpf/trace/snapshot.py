"""A picture of running programs, of the last seconds: what a live view shows, and what is sent to it as a line of JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from pytrace_ebpf.trace.states import SPLIT

TIMES = (*SPLIT, "unknown_ns")
"""The four states of a thread, and the time in which its state is not known."""
SELF_TIMES = tuple(f"self_{name}" for name in TIMES)

Rows = list[dict[str, Any]]
OUTSIDE = -2  # of func_id: no function of Python's; -1 one whose name is not known


@dataclass(frozen=True)
class Facts:
    """What concerns a picture as a whole; times are nanoseconds of those `seconds_ns` that it is of.

    end_ns     CLOCK_MONOTONIC at its end; 0: nothing was recorded yet
    samples    stacks, `switches` rows of scheduling, `lost` rows of both, since the one before it, which was over `since_ns` ago
    lost_ever  since the recording began
    spent_ns   CPU time of the tracer in `since_ns`: its own, and that of its programs in the kernel; None: not known
    period_ns  time that a sample stands for
    """

    end_ns: int = 0
    seconds_ns: int = 0
    since_ns: int = 0
    samples: int = 0
    switches: int = 0
    lost: int = 0
    lost_ever: int = 0
    spent_ns: int | None = None
    period_ns: int = 0


@dataclass(frozen=True)
class Snapshot:
    """Rows are dictionaries of plain values; names are as the program chose them.

    processes  pid, command, python (version), ended (bool)
    threads    pid, tid, name, ended (bool); of one moment, when it was seen last or, where it is in the same state since, of now: state (of switches.STATES,
               "" not known), kind (of WAIT_KINDS, ""), syscall ("" none), since_ns (how long it is or was in that state), cpu (-1 not known), func_id
               (OUTSIDE); TIMES, idle_ns, gil_held_ns, samples
    functions  pid, tid, func_id, TIMES and idle_ns (with what it called), SELF_TIMES and self_idle_ns, samples
    lines      pid, tid, func_id, line, TIMES and idle_ns (of the line itself), samples
    requests   pid, tid, func_id (of what answers them), TIMES and idle_ns, samples
    waits      pid, tid, kind, syscall, resource (what is behind the descriptor, in words; "" nothing), func_id (innermost function of Python's), by_tid (that
               ended it; 0 none), wait_ns, queue_ns (then in the run queue), idle_ns, samples
    findings   a sentence each, the most time first: what the threads' time goes to
    idle_ns: blocked without anything to do, of blocked_ns
    names      by func_id: qualname, module, file, first_line
    others     by thread id: names of other programs' threads that ended waits, or took a core
    """

    facts: Facts = field(default_factory=Facts)
    processes: Rows = field(default_factory=list)
    threads: Rows = field(default_factory=list)
    functions: Rows = field(default_factory=list)
    lines: Rows = field(default_factory=list)
    requests: Rows = field(default_factory=list)
    waits: Rows = field(default_factory=list)
    findings: Sequence[str] = ()
    names: Mapping[int, tuple[str, str, str, int]] = field(default_factory=dict)
    others: Mapping[int, str] = field(default_factory=dict)


_TABLES = tuple(each.name for each in fields(Snapshot) if each.name not in ("facts", "findings", "names", "others"))


def encode(snapshot: Snapshot) -> str:
    """One line of JSON, in ASCII; the rows of a table as columns."""
    tables = {name: _columns(getattr(snapshot, name)) for name in _TABLES}
    return json.dumps(
        {
            "facts": asdict(snapshot.facts),
            **tables,
            "findings": list(snapshot.findings),
            "names": dict(snapshot.names),
            "others": dict(snapshot.others),
        }
    )


def decode(line: str) -> Snapshot:
    """What encode() was given. Raises ValueError, also KeyError and TypeError, for anything else."""
    given = json.loads(line)
    names = {int(number): tuple(name) for number, name in given["names"].items()}
    others = {int(tid): str(name) for tid, name in given["others"].items()}
    return Snapshot(
        Facts(**given["facts"]),
        **{name: _rows(given[name]) for name in _TABLES},
        findings=tuple(map(str, given["findings"])),
        names=names,
        others=others,
    )


def _columns(rows: Rows) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _rows(columns: dict[str, list[Any]]) -> Rows:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
