"""Rules checked against a recorded trace: each holds, is violated, or cannot be known. One pass; docs/rules.md says what each form means."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.derive.one_pass import run
from pytrace_ebpf.derive.sink import Needs, RowsOf, Sink
from pytrace_ebpf.derive.store import State
from pytrace_ebpf.derive.sums import MOST_NODES
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.rules import values
from pytrace_ebpf.rules.calls import COLUMNS, Calls, folded, joined
from pytrace_ebpf.rules.functions import Functions, by_id
from pytrace_ebpf.rules.in_time import AtMost, Before, Then
from pytrace_ebpf.rules.judge import Judge, NoWait, OfPaths, OfValues, Recording, Takes
from pytrace_ebpf.rules.limits import has_calls, is_narrowed, is_whole, limits, unfitted
from pytrace_ebpf.rules.paths import Paths
from pytrace_ebpf.rules.rule import Form, Group, Rule
from pytrace_ebpf.rules.waits import too_long, under_lock
from pytrace_ebpf.trace.losses import CALL_LOSSES
from pytrace_ebpf.trace.reader import Trace

NEVER = np.iinfo(np.int64).max
_AT_ONCE = 1 << 18  # calls that are judged together, of a segment that has more: some 130 bytes each
HOLDS, VIOLATED, UNKNOWN = "holds", "violated", "unknown"
VIOLATIONS = (
    "rule", "text", "count", "call_id", "pid", "tid", "ts", "value", "worst_call_id", "function", "file", "line", "caller", "caller_file", "call_line", "path",
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What became of a rule: `state`, one of HOLDS, VIOLATED and UNKNOWN; `calls`, how many were judged; `violations`, how many violate it; `unknown`, clauses on what is
    not known; `notes`, what else is to be said."""

    rule: Rule
    state: str
    calls: int
    violations: int
    unknown: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Checked:
    """Verdicts, one for each rule; `violations` has a row for each path that calls violate a rule by, or for each such call; columns VIOLATIONS.

    count: calls; call_id, pid, tid, ts (ns, when it began): of the first; value: of the worst by this, worst_call_id: ns, or how many; 0 where they are alike.
    function (qualname), file, line (its first): of what was called; caller (qualname, None: none was recorded), caller_file and call_line: where from, None
    unknown; path: qualnames, the outermost first.
    """

    verdicts: list[Verdict]
    violations: pd.DataFrame


def check(trace: Trace, rules: Sequence[Rule], each: bool = False) -> Checked:
    """Check them all in one pass; `each`: a row for each call, in place of one for each path. Memory is bounded by the paths, and what each judge says."""
    functions = Functions(trace)
    judges = [_judge(trace, rule, functions, each) for rule in rules]
    sink = _Rules(trace, judges, functions)
    if has_calls(trace) and any(judge.wanted.any() for judge in judges):
        run(trace, sink)
    named = by_id(functions.table)
    tables = [_violations(judge, sink.paths, named, each) for judge in judges]
    verdicts = [_verdict(trace, judge, functions, int(table["count"].sum())) for judge, table in zip(judges, tables, strict=True)]
    kept = [table for table in tables if len(table)]
    return Checked(verdicts, pd.concat(kept, ignore_index=True) if kept else pd.DataFrame(columns=list(VIOLATIONS)))


def _judge(trace: Trace, rule: Rule, functions: Functions, each: bool) -> Judge:
    losses = trace.losses()
    lost = losses.loc[losses["class"].isin(CALL_LOSSES), "start_ns"]
    of = functions, Recording(is_whole(trace), is_narrowed(trace), int(lost.min()) if len(lost) else NEVER), each
    match rule.form:
        case Form.PRECEDES:
            return Before(rule, *of)
        case Form.THEN:
            return Then(rule, *of)
        case Form.AT_MOST:
            return AtMost(rule, *of)
        case Form.TAKES:
            return Takes(rule, *of, trace)
        case Form.NO_WAIT:
            return NoWait(rule, *of, under_lock(trace, rule, functions) if rule.locked else too_long(trace, rule, functions))
        case Form.RAISES | Form.GETS:
            return OfValues(rule, *of, *values.of(trace, rule))
    return OfPaths(rule, *of)


class _Rules(Sink):
    """Hands the calls that judges want to them, a segment at a time, with the paths that they came by."""

    def __init__(self, trace: Trace, judges: Sequence[Judge], functions: Functions) -> None:
        super().__init__(trace)
        self._judges = judges
        groups: dict[Group, np.ndarray] = {}
        self._wanted = functions.mask(())
        for judge in judges:
            groups |= judge.above
            self._wanted |= judge.wanted
        self.paths = Paths(groups, functions.in_python)

    def needs(self) -> Needs:
        return Needs(rows_of=RowsOf(np.flatnonzero(self._wanted)), nodes=MOST_NODES, one_engine=True)

    def begin(self, engines: Shards, first: int, state: State | None) -> None:
        self._engine = engines.engines[0]
        self._pieces: list[Calls] = []

    def rows(self, engine: Engine, rows: pa.Table) -> None:
        columns = engine.rows()
        mask = self._wanted[columns["func_id"]]
        self._pieces.append(Calls({name: columns[name][mask] for name in COLUMNS}))
        if sum(map(len, self._pieces)) >= _AT_ONCE:
            self.taken(-1)

    def taken(self, place: int) -> None:
        if not self._pieces:
            return
        calls, self._pieces = joined(self._pieces), []
        self.paths.grow(self._engine.nodes())
        for judge in self._judges:
            judge.take(calls, self.paths)

    def end(self) -> None:
        self.taken(-1)
        for judge in self._judges:
            judge.end(self.paths, self.trace.end_ns)


def _violations(judge: Judge, paths: Paths, functions: pd.DataFrame, each: bool) -> pd.DataFrame:
    """What it found, with names: columns VIOLATIONS. What differs in its thread alone, or in how often a function called itself, is one."""
    table = judge.found.table
    if not len(table):
        return pd.DataFrame(columns=list(VIOLATIONS))
    by_node = {node: tuple(func_id for func_id, _ in groupby(paths.functions(node))) for node in table["node"].unique().tolist()}
    numbers = {path: number for number, path in enumerate(dict.fromkeys(by_node.values()))}
    table = table.assign(path=table["node"].map(lambda node: numbers[by_node[node]]))
    table = table if each else folded(table, "path")
    named = functions.reindex(table["func_id"])
    by_number = list(numbers)
    qualnames = functions["qualname"].to_dict()
    callers = [paths.caller(np.array([node]))[0] for node in table["node"]]
    caller_files = [functions["file"].get(paths.function[node]) if node >= 0 else None for node in callers]
    known = (table["call_line"] > 0).to_numpy(bool) & np.array([file is not None for file in caller_files])
    rows = {
        "rule": judge.rule.name, "text": judge.rule.text, **{name: table[name].to_numpy() for name in ("count", "call_id", "pid", "tid")},
        "ts": table["start_ns"].to_numpy(), "value": table["value"].to_numpy(), "worst_call_id": table["worst_call_id"].to_numpy(),
        "function": named["qualname"].to_numpy(), "file": named["file"].to_numpy(), "line": named["first_line"].to_numpy(),
        "caller": [qualnames.get(paths.function[node], "?") if node >= 0 else None for node in callers],
        "caller_file": [file if sure else None for file, sure in zip(caller_files, known, strict=True)],
        "call_line": pd.array([line if sure else None for line, sure in zip(table["call_line"].tolist(), known, strict=True)], "Int64"),
        "path": [[qualnames.get(func_id, "?") for func_id in by_number[number]] for number in table["path"]],
    }  # fmt: skip
    return pd.DataFrame(rows).sort_values(["count", "ts"], ascending=[False, True], kind="stable", ignore_index=True)


def _verdict(trace: Trace, judge: Judge, functions: Functions, violations: int) -> Verdict:
    unknown = limits(trace, judge.rule, judge, functions)
    unknown += [f"{count:,} cannot be judged: {why}" for why, count in judge.doubts.items()]
    state = VIOLATED if violations else UNKNOWN if unknown else HOLDS
    return Verdict(judge.rule, state, judge.calls, violations, tuple(unknown), tuple(unfitted(judge.rule, functions)))
