"""The first lines of a report: what was lost, what was traced, and what tracing it cost."""

import textwrap
from typing import Any

from rich.text import Text

from pytrace_ebpf.view import text

_PIDS_SHOWN = 8
# What a loss of each class means for the reader.
LOST = {
    "call_ring": "function events: calls that ran meanwhile are marked in_loss",
    "function_ring": "function names: asked for again at the next call",
    "function_map": "functions: their calls are shown as unknown",
    "sched_ring": "scheduling events: the split of that time is unknown",
    "sched_missed": "switches that the kernel kept from the tracer: the split of that time is unknown",
    "thread_map": "threads: their scheduling was not seen",
    "stack_depth": "frames too deep to be read",
    "argument_ring": "tensors: those calls of operators have no shapes",
}


def head(facts: dict[str, Any], calls: int, width: int) -> list[Text]:
    """The lines of the head, each at most `width` cells, from view.summary's facts with `cost`."""
    target = facts["target"]
    command = target.get("command") or target.get("executable") or "(unknown program)"
    python = f"Python {target['python_version']}" if target.get("python_version") else "not a Python"
    counts = [
        *([_plural(facts["processes"], "process", "processes")] if facts["processes"] > 1 else []),
        _plural(facts["threads"], "thread"),
        _plural(calls, "call"),
    ]
    about = [python, f"pid {target.get('pid', '?')}", f"{text.duration(facts['wall_ns'])} recorded", *counts]
    cost = cost_sentence(facts.get("cost"), facts["wall_ns"], calls) + waited_sentence(facts.get("waited_ns", 0))
    lines = [
        *loss_lines(facts, width),
        *unserved_lines(facts, width),
        *scheduling_lines(facts, width),
        *native_lines(facts, width),
        Text(text.fit(command, width), "bold"),
        *(Text(line) for line in [*_wrap("   ".join(about), width), *_wrap(cost, width)]),
    ]
    return lines


def loss_lines(facts: dict[str, Any], width: int) -> list[Text]:
    """What is missing from the trace: one line each, loud; one quiet line where nothing is."""
    lines = [Text(line, "bold red") for line in _wrap(cut_sentence(facts), width)]
    for name, number in facts["lost"].items():
        windows = [w for w in facts["losses"] if w["class"] == name]
        within = f" within {text.duration(sum(w['end_ns'] - w['start_ns'] for w in windows))}" if windows else ""
        meaning = LOST.get(name, "events")
        lines += [Text(line, "bold red") for line in _wrap(f"LOST {number:,}{within}: {meaning} ({name}).", width)]
    return lines or [Text("Nothing was lost.", "green")]


def unserved_lines(facts: dict[str, Any], width: int) -> list[Text]:
    """Which processes have no calls, and why: one sentence for each reason."""
    pids: dict[str, list[str]] = {}
    for source in facts.get("sources", []):
        if not source.get("source"):
            pids.setdefault(str(source.get("why")).rstrip("."), []).append(str(source.get("pid")))
    sentences = [f"No calls of process {', '.join(of[:_PIDS_SHOWN])}{', ...' if of[_PIDS_SHOWN:] else ''}: {why}." for why, of in pids.items()]
    return [Text(line, "yellow") for sentence in sentences for line in _wrap(sentence, width)]


def native_lines(facts: dict[str, Any], width: int) -> list[Text]:
    """What was asked for of native layers and could not be had: a sentence each."""
    missing = (facts.get("native") or {}).get("missing", [])
    return [Text(line, "yellow") for sentence in missing for line in _wrap(sentence, width)]


def scheduling_lines(facts: dict[str, Any], width: int) -> list[Text]:
    """What is not known of scheduling, and why; nothing where eBPF recorded it."""
    scheduling = facts.get("scheduling") or {"source": "bpf"}
    if scheduling["source"] == "bpf":
        return []
    missing = "Run queue, GIL wait and blocked are not told apart" if scheduling["source"] else "When threads ran and waited is not known"
    return [Text(line, "yellow") for line in _wrap(f"{missing}: {scheduling['why'].rstrip('.')}.", width)]


def cut_sentence(facts: dict[str, Any]) -> str:
    """"" for a complete trace."""
    if facts["state"] == "cut":
        return (
            "CUT: the tracer ended without finishing this trace (killed?). Its closed segments, "
            f"the first {text.duration(facts['wall_ns'])}, are all here."
        )
    if facts["state"] == "recording":
        return f"NOT FINISHED: still being recorded, or cut just now; the first {text.duration(facts['wall_ns'])} are here."
    return ""


def waited_sentence(waited_ns: int) -> str:
    """"" where the program never waited for the tracer."""
    return f" The program waited {text.duration(waited_ns)} for the tracer to read what it wrote." if waited_ns else ""


def cost_sentence(cost: dict[str, Any] | None, wall_ns: int, calls: int) -> str:
    """What the tracing cost the program, in one sentence."""
    if not cost:
        return "What the tracing cost was not measured."
    native = cost["native_calls"] or 0
    apart = f", and {native:,} native ones x {text.duration(cost['native_ns_per_call'])}" if native else ""
    return (
        f"Tracing cost about {text.duration(cost['total_ns'])} ({text.percent(cost['total_ns'], wall_ns)} of the time recorded): "
        f"{calls - native:,} x {text.duration(cost['ns_per_call'])}, as measured with {cost['source']}{apart}."
    )


def _plural(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _wrap(sentence: str, width: int) -> list[str]:
    return textwrap.wrap(text.clean(sentence), width, break_on_hyphens=False)
