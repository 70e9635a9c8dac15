"""What was found of a rule, in sentences."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from pytrace_ebpf.formatting import clean, duration
from pytrace_ebpf.rules.check import HOLDS, UNKNOWN, VIOLATED, Verdict
from pytrace_ebpf.rules.rule import Form, Group, Rule
from pytrace_ebpf.trace.states import BY_NAME
from pytrace_ebpf.units import plural

_OF_ITSELF = (Form.TAKES, Form.AT_MOST, Form.RAISES, Form.NO_WAIT)  # what is wrong lies in the function, not where it is called
_SHOWN = 8  # functions of a path, the innermost ones


def said(rule: Rule, row: Any) -> str:
    """A sentence on one row of Checked.violations."""
    times = f"{row.count:,} times" if row.count > 1 else "once"
    first = ", first " if row.count > 1 else ", "
    return f"{_what(rule, row, times)}{first}{_place(row, rule.form in _OF_ITSELF)}, in process {row.pid}, thread {row.tid}."


def _what(rule: Rule, row: Any, times: str) -> str:
    name, others = f"`{clean(row.function)}`", names(rule.others)
    match rule.form:
        case Form.NEVER:
            return f"{name} is called {times}" + (f" within {others}" if others else "")
        case Form.ONLY_WITHIN:
            return f"{name} is called {times} outside of {others}"
        case Form.ONLY_FROM:
            by = f"`{clean(row.caller)}`" if isinstance(row.caller, str) else "nothing that was recorded"
            return f"{name} is called {times} by {by}, which is not of {others}"
        case Form.PRECEDES:
            return f"{name} is called {times} before a call of {names(rule.functions)} has returned"
        case Form.THEN:
            return f"no call of {others} follows {name} within {duration(rule.limit_ns)}, {times}"
        case Form.TAKES:
            state = "" if rule.state == "wall" else f" {BY_NAME[rule.state].phrase}"
            return f"{name} takes longer than {duration(rule.limit_ns)}{state} {times}, the longest {duration(row.value)}"
        case Form.AT_MOST:
            return f"{name} has more than {rule.most:,} calls of {names(rule.functions)} within it {times}, the most {row.value:,}"
        case Form.RAISES:
            return f"an exception that is none of {' or '.join(rule.exceptions) or 'those allowed'} leaves {name} {times}"
        case Form.GETS:
            return f"{name} is given another `{rule.argument}` {times}"
        case Form.NO_WAIT:
            than = f" longer than {duration(rule.limit_ns)}" if rule.limit_ns else ""
            within = "" if rule.locked or not others else f", within {others}"
            return f"{name} waits{than}{' while it has a lock' if rule.locked else ''} {times}, the longest {duration(row.value)}{within}"


def _place(row: Any, of_itself: bool) -> str:
    if isinstance(row.caller_file, str) and not (of_itself and row.file):
        return f"called at {clean(PurePath(row.caller_file).name)}:{row.call_line}"
    return f"of {clean(PurePath(row.file).name)}:{row.line}" if isinstance(row.file, str) and row.file else "called where no line is known"


def names(group: Group) -> str:
    """A group as the rule has it."""
    return " or ".join(group)


def path(row: Any) -> str:
    """The path that it was called by, its inner end."""
    shown: Sequence[str] = row.path[-_SHOWN:]
    return ("... > " if len(row.path) > _SHOWN else "") + " > ".join(clean(name) for name in shown)


def judged(verdict: Verdict) -> str:
    """What was looked at, and why it is not known, a sentence or two."""
    counted = f"{plural(verdict.calls, 'wait' if verdict.rule.form is Form.NO_WAIT else 'call')} {'was' if verdict.calls == 1 else 'were'} judged"
    if verdict.rule.form is Form.NO_WAIT:
        counted = "no wait is too long" if verdict.state == HOLDS else ""
    reasons = "; ".join(verdict.unknown)
    return "; ".join(part for part in (counted if verdict.state == HOLDS else "", reasons, *verdict.notes) if part)


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many rules hold."""
    by_state = {state: sum(verdict.state == state for verdict in verdicts) for state in (VIOLATED, UNKNOWN, HOLDS)}
    words = {VIOLATED: ("is violated", "are violated"), UNKNOWN: ("cannot be known", "cannot be known"), HOLDS: ("holds", "hold")}
    parts = [f"{count:,} {words[state][count != 1]}" for state, count in by_state.items() if count]
    return f"Of {plural(len(verdicts), 'rule')} {', '.join(parts)}."
