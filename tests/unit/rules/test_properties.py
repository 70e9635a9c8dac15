"""What is found in one compiled pass is what a slow reading of the calls finds, wherever segments are cut; where events are lost nothing is said to hold."""

import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pytrace_ebpf
from pytrace_ebpf.derive import one_pass
from pytrace_ebpf.rules import check as rules_check
from pytrace_ebpf.rules.check import HOLDS, UNKNOWN, Checked, check
from pytrace_ebpf.rules.file import read_text
from pytrace_ebpf.rules.rule import COROUTINE, Rule
from tests.unit.derive.test_calls_properties import plain, story
from tests.unit.rules.reference import Call, violating
from tests.unit.synthetic import CallKind, write_trace

RULES = read_text(
    """
[rules]
never = "never f0"
within = "never f0 within f1 or f3"
only = "f2 only within f1"
own = "f3 only within f3"
from = "f1 only from m1"
before = "f0 before f4"
process = "f1 before f2 in the same process"
then = "every f0 then f1 within 20ns"
soon = "every f3 then f4 within 3ns in the same process"
tasks = "f0 before f3 in the same task"
follows = "every f1 then f4 within 30ns in the same task"
takes = "f1 takes at most 9ns"
cpu = "f2 or f0 takes at most 4ns on-cpu"
most = "at most 1 f0 in one f2"
none = "at most 0 f1 or f0 in one f1"
""",
    "rules.toml",
)
FUNCTIONS = [(k, f"/m{k // 2}.py", f"f{k}", f"f{k}", 1, f"m{k // 2}", *((0x80,) if k > 2 else ())) for k in range(5)]
RUN = {"argv": ["pytrace-ebpf", "run", "--", "python3"]}


def is_of(group: tuple[str, ...], call: Call) -> bool:
    return call["func_id"] >= 0 and (call["func_id"] > 2 if group == (COROUTINE,) else _fits(group, call))


def _fits(group: tuple[str, ...], call: Call) -> bool:
    return any(pattern in (f"f{call['func_id']}", f"m{call['func_id'] // 2}") for pattern in group)


def recorded(rows: dict[str, Any]) -> tuple[list[Call], Checked]:
    with tempfile.TemporaryDirectory() as folder:
        path = write_trace(Path(folder) / "trace", **rows | {"functions": FUNCTIONS, "manifest": {**rows["manifest"], **RUN}})
        trace = pytrace_ebpf.open(path)
        return plain(trace.calls()), check(trace, RULES, each=True)


def named(rows: dict[str, Any]) -> dict[str, Any]:
    """The same, of calls that have a name from their beginning on."""
    begins = (CallKind.ENTRY, CallKind.OPEN, CallKind.RESUME)
    return rows | {"events": [(*row[:4], row[5] % 5 if row[3] in begins and row[4] < 0 else row[4], *row[5:]) for row in rows["events"]]}


def last_of(rows: dict[str, Any]) -> dict[int, int]:
    return {row[2]: row[0] for row in sorted(rows["events"])}


def found_of(checked: Checked, rule: Rule) -> list[int]:
    return sorted(checked.violations.loc[checked.violations["rule"] == rule.name, "call_id"].tolist())


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**40), st.sampled_from(("whole", "ends")))
def test_equals_the_reference(seed: int, scenario: str) -> None:
    rows = named(story(seed, scenario) | {"losses": []})
    with patch.object(one_pass, "PIECE", 1 + seed % 40), patch.object(rules_check, "_AT_ONCE", 1 + seed % 7):
        calls, checked = recorded(rows)
    for rule, verdict in zip(RULES, checked.verdicts, strict=True):
        found = found_of(checked, rule)
        expected = violating(calls, last_of(rows), rule, is_of)
        if any("cannot be judged" in each for each in verdict.unknown):
            assert set(found) <= set(expected), (rule, verdict)
        else:
            assert found == expected, (rule, verdict)
        assert verdict.violations == len(found) and (verdict.state != HOLDS or not expected)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**40))
def test_where_events_were_lost_nothing_holds_and_what_is_found_is_so(seed: int) -> None:
    """Of a thread's calls up to the first loss all is known."""
    rows = named(story(seed, "whole") | {"losses": []})
    whole, _ = recorded(rows)
    length = max(1, rows["end_ns"] - 90)
    lost = sorted((90 + seed % length, 90 + (seed >> 8) % length))
    gap = [row for row in rows["events"] if not lost[0] <= row[0] <= lost[1]]
    _, checked = recorded(rows | {"events": gap, "losses": [("call_ring", *lost, len(rows["events"]) - len(gap) or 1)]})
    wrong = {call_id for rule in RULES for call_id in violating(whole, last_of(rows), rule, is_of)}
    starts = {(call["tid"], call["start_ns"]) for call in whole if call["call_id"] in wrong}
    assert not any(verdict.state == HOLDS for verdict in checked.verdicts)
    assert {verdict.state for verdict in checked.verdicts if not verdict.violations} <= {UNKNOWN}
    for row in checked.violations.itertuples():
        assert (row.tid, row.ts) in starts or row.rule == "never", row  # one that was called, though its begin was lost
