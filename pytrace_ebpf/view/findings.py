"""What a report opens with: the largest findings, a sentence each with the words of `report` that show it, and what was left out."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from pytrace_ebpf.view import text
from pytrace_ebpf.view.names import plain

_SHOWN, _LEAST = 5, 0.05
_IDLE, _AWAITS = "idle", "awaits"
_BY, _TOGETHER = "--by ", "--by\0"  # in one line


def found(trace: Any) -> list[dict[str, Any]]:
    """Trace.findings() as plain rows: the largest, and that on idle threads; [] where that is alone, as nothing is found then."""
    rows = plain(trace.findings())
    of_work = [row for row in rows if row["rule"] != _IDLE]
    largest = [row for row in of_work[:_SHOWN] if row is of_work[0] or row["share"] >= _LEAST]
    return largest and [*largest, *(row for row in rows if row["rule"] == _IDLE)]


def sentences(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each with the words of `report` that show it."""
    return [f"{row['sentence']} [{_words(row)}]" if row["rule"] != _IDLE else row["sentence"] for row in findings]


def lines(findings: Sequence[Mapping[str, Any]], width: int) -> list[Text]:
    """The same in lines of at most `width` cells, numbered, below what they are shares of."""
    if not findings:
        return []
    sampled = ", by samples" if text.known(findings[0]["confidence"]) else ""
    who = "Threads were at work, and requests suspended," if any(row["rule"] == _AWAITS for row in findings) else "Threads were at work"
    out = [Text(f"{who} for {text.duration(findings[0]['ns'] / findings[0]['share'])}{sampled}. Most of that went to:")]
    for number, (row, sentence) in enumerate(zip(findings, sentences(findings), strict=True), 1):
        numbered = row["rule"] != _IDLE
        begin = f"{number}. " if numbered else ""
        wrapped = textwrap.wrap(begin + sentence.replace(_BY, _TOGETHER), width, subsequent_indent=" " * len(begin), break_on_hyphens=False)
        out += [Text(line.replace(_TOGETHER, _BY), "bold" if numbered else "dim") for line in wrapped]
    return out


def _words(row: Mapping[str, Any]) -> str:
    return f"--by {row['command'].partition(' --by ')[2]}"
