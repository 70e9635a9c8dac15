"""The report as a terminal shows it: head, one bar for everything, then what a row is asked to be (view/by.py)."""

import textwrap
from typing import Any

import pandas as pd
from rich.console import Group, RenderableType
from rich.text import Text

from pytrace_ebpf.view import findings, text
from pytrace_ebpf.view.by import BY
from pytrace_ebpf.view.grid import PROSE
from pytrace_ebpf.view.head import head
from pytrace_ebpf.view.states import states_of, with_off


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> Group:
    """The whole report; `facts` is view.summary's with calls, cost, split, by, sort and compensated."""
    if states_of(facts) is text.TWO_STATES:
        facts, table = facts | {"split": with_off(pd.DataFrame([facts["split"]])).to_dict("records")[0]}, with_off(table)
    by = BY[facts["by"]]
    answer = _answer(facts, min(width, PROSE)) if by.with_bar else []
    parts: list[RenderableType] = [*head(facts, facts["calls"], min(width, PROSE), answer), Text()]
    if by.with_bar:
        parts += _overall(facts, min(width, PROSE), ascii_only)
    if facts.get("sorted_by") not in (None, facts["sort"]):
        parts.append(Text(f"Rows are in the order of {text.clean(facts['sorted_by'])}.", "dim"))
    return Group(*parts, *by.shown(facts, table, width, ascii_only, top))


def _answer(facts: dict[str, Any], width: int) -> list[Text]:
    """The findings or, where there are none, the sentence on where the time went; what there is to say where no call was recorded."""
    if facts.get("findings") and facts["split"]["wall_ns"]:
        return findings.lines(facts["findings"], width)
    said = (facts["sentence"] or "") if facts["split"]["wall_ns"] else "No call was recorded."
    return [Text(line, "bold") for line in textwrap.wrap(said, width, break_on_hyphens=False)]


def _overall(facts: dict[str, Any], width: int, ascii_only: bool) -> list[RenderableType]:
    split = facts["split"]
    if not split["wall_ns"]:
        return []
    taken = " (less what tracing cost)" if facts["compensated"] else ""
    title = f"Where the {text.duration(split['wall_ns'])} inside calls went, all threads together{taken}"
    titles = [Text(line, "bold") for line in textwrap.wrap(title, width)]
    states = states_of(facts)
    if facts["sampled"]:
        from pytrace_ebpf.view import sampled

        title = f"Where the {text.duration(split['wall_ns'])}{sampled.where(facts['sampled'])} went, by samples, all threads together"
        titles = [Text(line, "bold") for line in textwrap.wrap(title, width)]
    if facts["sampled"] and not facts["sampled"]["with_off_core"]:
        return [*titles, Text()]
    return [*titles, text.bar(split, width, ascii_only, states=states), text.legend(split, ascii_only, width, states), Text()]
