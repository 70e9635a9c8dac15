"""What rules mean, call by call and as slowly as can be: violations as sets of call_ids, of made-up traces without doubts."""

from collections.abc import Callable
from typing import Any

from pytrace_ebpf.rules.rule import COROUTINE, Form, Rule

Call = dict[str, Any]


def violating(calls: list[Call], last_ns: dict[int, int], rule: Rule, is_of: Callable[[tuple[str, ...], Call], bool]) -> list[int]:
    """call_ids of what violates the rule, in order; `calls`: rows of trace.calls(), `last_ns`: by tid when its last event was; `is_of`: whether a call is of a group."""
    by_id = {call["call_id"]: call for call in calls}

    def above(call: Call) -> list[Call]:
        out = []
        while call["parent_id"] != -1:
            call = by_id[call["parent_id"]]
            out.append(call)
        return out

    own = [call for call in calls if is_of(rule.functions, call)]
    others = [call for call in calls if is_of(rule.others, call)] if rule.others else []
    begun = [call for call in own if not call["resumed"]]
    scopes: dict[str, Callable[[Call], Any]] = {
        "process": lambda call: call["pid"],
        "thread": lambda call: call["tid"],
        "task": lambda call: _task(calls, call, above, is_of),
    }
    scope = scopes[rule.scope]
    match rule.form:
        case Form.NEVER:
            found = [call for call in begun if not rule.others or any(is_of(rule.others, each) for each in above(call))]
        case Form.ONLY_WITHIN:
            found = [call for call in begun if not any(is_of(rule.others, each) for each in above(call))]
        case Form.ONLY_FROM:
            found = [call for call in begun if not any(is_of(rule.others, each) or is_of(rule.functions, each) for each in above(call)[:1])]
        case Form.PRECEDES:
            ended = [call for call in own if not call["yielded"] and _has_ended(call, last_ns)]
            found = [
                call
                for call in others
                if not call["resumed"] and not any(scope(each) == scope(call) and each["end_ns"] <= call["start_ns"] for each in ended)
            ]
        case Form.THEN:
            ended = [call for call in own if not call["yielded"] and _has_ended(call, last_ns)]
            began = [call for call in others if not call["resumed"]]
            found = [
                call
                for call in ended
                if not any(scope(each) == scope(call) and 0 <= each["start_ns"] - call["end_ns"] <= rule.limit_ns for each in began)
            ]
        case Form.TAKES:
            found = [call for call in own if (call[f"{rule.state}_ns"] or 0) > rule.limit_ns]
        case Form.AT_MOST:
            found = [call for call in _whole(others, above, rule, is_of) if call["within"](begun) > rule.most]
        case _:
            raise AssertionError(rule.form)
    return sorted(call["call_id"] for call in found)


def _has_ended(call: Call, last_ns: dict[int, int]) -> bool:
    """Of one that was open from the start up to the end the status says the first alone; its return would have a line."""
    after = call["end_ns"] - last_ns[call["tid"]]
    return call["status"] != "open_at_end" and (after < 0 or (after == 0 and (call["status"] != "open_at_start" or call["line"] != -1)))


def _whole(others: list[Call], above: Callable[[Call], list[Call]], rule: Rule, is_of: Callable[[tuple[str, ...], Call], bool]) -> list[Call]:
    """The last resume of each outermost call, with `within`, which counts calls within all of its resumes."""
    outermost = [call for call in others if not any(is_of(rule.others, each) for each in above(call))]
    found = []
    for call in outermost:
        if call["yielded"]:
            continue
        pieces = [call]
        if call["resumed"]:
            same = [each for each in outermost if each["pid"] == call["pid"] and each["frame"] == call["frame"]]
            same = sorted(
                (each for each in same if (each["start_ns"], each["call_id"]) < (call["start_ns"], call["call_id"])),
                key=lambda each: (each["start_ns"], each["call_id"]),
            )
            while same and (last := same.pop())["yielded"]:
                pieces.append(last)
                if not last["resumed"]:
                    break
        spans = [(piece["call_id"], piece["last_descendant_id"]) for piece in pieces]
        found.append({**call, "within": lambda begun, spans=spans: sum(any(a < each["call_id"] <= b for a, b in spans) for each in begun)})
    return found


def _task(calls: list[Call], call: Call, above: Callable[[Call], list[Call]], is_of: Callable[[tuple[str, ...], Call], bool]) -> Any:
    """Of the outermost coroutine around a call the call_id of its first resume; else its thread."""
    around = [each for each in (call, *above(call)) if is_of((COROUTINE,), each)]
    if not around:
        return "thread", call["tid"]
    last = around[-1]
    if last["frame"] == 0 or not last["resumed"]:
        return "task", last["call_id"]
    outermost = [each for each in calls if is_of((COROUTINE,), each) and not any(is_of((COROUTINE,), up) for up in above(each))]
    same = [each for each in outermost if (each["pid"], each["frame"]) == (last["pid"], last["frame"]) and each["start_ns"] <= last["start_ns"]]
    same = sorted(same, key=lambda each: (each["start_ns"], each["call_id"]))
    at = same.index(last)
    while at > 0 and same[at]["resumed"] and same[at - 1]["yielded"]:
        at -= 1
    return "task", same[at]["call_id"]
