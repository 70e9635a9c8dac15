"""What set a trace of a flight recorder off: the first lines of its report, and where to look."""

import textwrap
from collections import Counter
from typing import Any

from rich.text import Text

from pytrace_ebpf.units import plural
from pytrace_ebpf.view import text

_ALONE = "To see it alone add: "
_MARGIN = 0.1  # of what is shown around a call
_KINDS_SHOWN = 3


def trigger_lines(facts: dict[str, Any], width: int) -> list[Text]:
    """Which condition came true, when, in which call and thread, and the options that show that alone; nothing of any other trace."""
    found = facts.get("trigger")
    if not found:
        return []
    lines = [Text(line, "bold yellow") for line in _wrap(sentence(found), width)]
    if found["condition"].startswith("--from-call "):
        return [Text(line) for line in _wrap(sentence(found), width)]
    if not facts.get("window") and (where := _window(found, facts)):
        lines.append(Text(f"{_ALONE}{where}"))
    return lines + [Text(line) for line in _wrap(_others(found), width)]


def sentence(found: dict[str, Any]) -> str:
    """What came true and where, of view.summary.trigger."""
    start_ns = found["trace_start_ns"]
    at = text.duration(max(0, found["ts"] - start_ns))
    if found["condition"].startswith("--from-call "):
        return f"Recorded from the first call of {found['name']} on ({found['condition']})."
    if found["tid"] < 0:
        return f"SET OFF by {found['condition']}, {at} after the beginning."
    thread = f"{found['thread']} ({found['tid']})" if found.get("thread") else str(found["tid"])
    who = f"thread {thread} of process {found['pid']}"
    if found.get("waited_ns") is not None:
        did = f"{who} waited {text.duration(found['waited_ns'])} of the {text.duration(found['ts'] - found['start_ns'])} before {at}"
    else:
        did = f"{found['name']} in {who} {_took(found)}, {_from(found, start_ns)}"
    return f"SET OFF by {found['condition']}: {did}."


def _took(found: dict[str, Any]) -> str:
    if found.get("end_ns") is None:
        return f"had taken {text.duration(found['ts'] - found['start_ns'])} and went on"
    return f"took {text.duration(found['end_ns'] - found['start_ns'])}"


def _from(found: dict[str, Any], start_ns: int) -> str:
    before = start_ns - found["start_ns"]
    return f"and had begun {text.duration(before)} before this trace" if before > 0 else f"from {text.duration(-before)} on"


def _window(found: dict[str, Any], facts: dict[str, Any]) -> str:
    """Options of report for the time of the call, and some before and after it, in its thread."""
    if found["tid"] < 0 or found.get("start_ns") is None:
        return ""
    end_ns = max(found.get("end_ns") or found["ts"], found["ts"])
    margin = _MARGIN * (end_ns - found["start_ns"])
    begin, end = (min(max(0.0, at - facts["start_ns"]), facts["wall_ns"]) / 1e9 for at in (found["start_ns"] - margin, end_ns + margin))
    return f"--from {begin:.6f} --until {end:.6f} --tid {found['tid']}" if end - begin >= 1e-6 else ""


def _others(found: dict[str, Any]) -> str:
    """What else came true: in the same trace, and before it without a trace."""
    more = Counter({found["condition"]: found["count"] - 1})
    for each in found["more"]:
        more[each["condition"]] += each["count"]
    sentences = [f"{_times(more)} came true after it." if +more else ""]
    sentences += [f"{found['unlisted']:,} more are not listed." if found["unlisted"] else ""]
    skipped = Counter(found["skipped"])
    sentences += [f"Since the trace before, {_times(skipped)} came true too early for a trace (--every)." if +skipped else ""]
    return " ".join(filter(None, sentences))


def _times(counts: Counter[str]) -> str:
    counts = +counts
    listed = [f"{condition} ({count:,} times)" if count > 1 else condition for condition, count in counts.most_common(_KINDS_SHOWN)]
    return ", ".join(listed) + (f" and {plural(len(counts) - _KINDS_SHOWN, 'other condition')}" if len(counts) > _KINDS_SHOWN else "")


def _wrap(words: str, width: int) -> list[str]:
    return textwrap.wrap(text.clean(words), width, break_on_hyphens=False, break_long_words=False)
