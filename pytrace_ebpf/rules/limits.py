"""What a recording leaves unknown of a rule, in sentences: losses, filters, what was left out, what is recorded by options alone."""

import ast
import builtins
import sys
import sysconfig
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from pytrace_ebpf.derive.calls.own_code import own
from pytrace_ebpf.rules.functions import Functions
from pytrace_ebpf.rules.judge import Judge
from pytrace_ebpf.rules.rule import COROUTINE, REQUEST, Form, Group, Rule
from pytrace_ebpf.trace.losses import CALL_LOSSES, SCHED_LOSSES
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.units import plural

_OF_VALUES = ("value_ring",)
_NAMES = ("function_map",)


def has_calls(trace: Trace) -> bool:
    """Whether calls were recorded, not samples alone."""
    return any(segment["rows"].get("events") for segment in trace.segments)


def is_whole(trace: Trace) -> bool:
    """Whether it has a program from its start."""
    manifest = trace.manifest
    return manifest["argv"][1:2] == ["run"] and not manifest.get("dropped") and not manifest.get("trigger") and trace.whole is trace


def is_narrowed(trace: Trace) -> bool:
    """Whether calls were left out of the recording, as asked for or to bound its cost."""
    filters = trace.manifest["options"].get("filters") or {}
    return any(filters.get(option) for option in ("include", "exclude", "max_depth")) or bool(len(trace.left_out()))


def limits(trace: Trace, rule: Rule, judge: Judge, functions: Functions) -> list[str]:
    """Why calls that violate the rule may be missing from the trace, a clause each; none where it has all of them."""
    return [*_of_recording(trace, rule, judge), *_of_names(trace, rule, functions)]


def _of_recording(trace: Trace, rule: Rule, judge: Judge) -> Iterator[str]:
    if not has_calls(trace):
        yield "no call was recorded"
        return
    losses = trace.losses()
    for classes, what, concerns in (
        (CALL_LOSSES, "events of calls", True),
        (_NAMES, "functions' names", True),
        (SCHED_LOSSES, "scheduling events", rule.form is Form.NO_WAIT or rule.state != "wall"),
        (_OF_VALUES, "values", rule.form in (Form.RAISES, Form.GETS)),
    ):
        lost = int(losses.loc[losses["class"].isin(classes), "count"].sum())
        if lost and concerns:
            yield f"{lost:,} {what} were lost"
    filters = trace.manifest["options"].get("filters") or {}
    for option in ("include", "exclude"):
        if patterns := filters.get(option):
            yield f"it was recorded with --{option} {' '.join(patterns)}"
    if depth := filters.get("max_depth"):
        yield f"it was recorded with --max-depth {depth}"
    left = trace.left_out()["func_id"].to_numpy(np.int64)
    concerned = judge.wanted | judge.others
    if len(left) and (
        rule.form in (Form.ONLY_FROM, Form.NO_WAIT) or bool((left < 0).any()) or concerned[left[(left >= 0) & (left < len(concerned))]].any()
    ):
        count = len(np.unique(left))
        yield f"{plural(count, 'function')} {'was' if count == 1 else 'were'} left out for a time to bound the cost of tracing"
    if rule.form is Form.NO_WAIT and _scheduling(trace) != "bpf":
        yield "what threads waited for was not recorded by eBPF"
    if rule.locked:
        yield "that a thread has a lock is seen only where another one waits for it"
    sources = {source["source"] for source in trace.manifest["sources"]}
    if rule.form is Form.RAISES and sources - {"agent"}:
        yield "that an exception left a call is recorded by the agent alone (--source agent)"


def _scheduling(trace: Trace) -> Any:
    return (trace.manifest.get("scheduling") or {"source": "bpf" if any(s["rows"].get("sched") for s in trace.segments) else None})["source"]


def _of_names(trace: Trace, rule: Rule, functions: Functions) -> Iterator[str]:
    """Patterns that fit nothing may mean what was not recorded at all. Where F is not there no call violates; where G is not, F alone decides."""
    layers = set(functions.table["function_layer"].astype(str))
    filters = trace.manifest["options"].get("filters") or {}
    patterns = dict.fromkeys(pattern for group in rule.groups for pattern in group if pattern not in (COROUTINE, REQUEST))
    missing = [pattern for pattern in patterns if not functions.fitting((pattern,)).any()]
    if "operator" not in layers and (operators := [pattern for pattern in missing if "::" in pattern]):
        yield f"{_listed(operators)} may be an operator, which is recorded with --layers torch alone"
    if not filters.get("c_calls") and "c" not in layers and (in_c := [pattern for pattern in missing if may_be_c(pattern, functions)]):
        yield f"{_listed(in_c)} may be written in C, which is recorded with --c-calls alone"


def _listed(patterns: list[str]) -> str:
    return ", ".join(f"`{pattern}`" for pattern in patterns)


def may_be_c(pattern: str, functions: Functions) -> bool:
    """Whether a pattern that fits no function of Python may mean one that is written in C: of the interpreter, or of a library that was imported."""
    if "/" in pattern or "::" in pattern or pattern.endswith(".py") or _in_python(pattern):
        return False
    head, dot, _ = pattern.partition(".")
    if not dot:
        return any(fnmatchcase(name, pattern) for name in dir(builtins))
    own_heads = {module.partition(".")[0] for module in functions.table.loc[own(functions.table), "module"].astype(str)}
    heads = {*sys.stdlib_module_names, *dir(builtins), *functions.heads} - own_heads
    return any(fnmatchcase(name, head) for name in heads)


def _in_python(pattern: str) -> bool:
    """Whether it names a function that the source of this Python's standard library defines."""
    words = pattern.split(".")
    if words[0] not in sys.stdlib_module_names or not all(word.isidentifier() for word in words):
        return False
    for end in range(len(words) - 1, 0, -1):
        stem = Path(sysconfig.get_path("stdlib"), *words[:end])
        for file in (stem.with_suffix(".py"), stem / "__init__.py"):
            if file.is_file():
                return _defines(ast.parse(file.read_bytes()).body, words[end:])
    return False


def _defines(body: list[ast.stmt], words: list[str]) -> bool:
    for each in body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and each.name == words[0]:
            return len(words) == 1 or _defines(each.body, words[1:])
    return False


def unfitted(rule: Rule, functions: Functions) -> list[str]:
    """What to say where no function that was called is of F or, where nothing can violate the rule then, of G."""
    decide = (rule.functions, rule.others if rule.form in (Form.NEVER, Form.AT_MOST, Form.PRECEDES, Form.NO_WAIT) else ())
    return [_none_of(group, functions) for group in decide if group and not functions.fitting(group).any()]


def _none_of(group: Group, functions: Functions) -> str:
    if len(group) > 1:
        return f"none of {_listed(list(group[:3]))}{f' and {len(group) - 3} others' if len(group) > 3 else ''} was called"
    if group[0] == REQUEST:
        return "no request was seen, or none of a server that is known: `run` and `attach` take --request PATTERN"
    if group[0] == COROUTINE:
        return "no coroutine ran"
    near = functions.nearest(group[0])
    return f"no function that was called fits {_listed([group[0]])}" + (f"; the nearest names: {', '.join(near)}" if near else "")
