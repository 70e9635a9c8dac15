"""A comparison as a terminal shows it, and as JSON."""

import textwrap
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Group, RenderableType
from rich.text import Text

from pytrace_ebpf.diff import findings
from pytrace_ebpf.diff.changes import chance, names_of
from pytrace_ebpf.diff.sides import Side
from pytrace_ebpf.experiment.paths import PARTS
from pytrace_ebpf.experiment.report import change
from pytrace_ebpf.experiment.sentence import SURE
from pytrace_ebpf.trace.states import STATES
from pytrace_ebpf.units import plural
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import PROSE, Listing
from pytrace_ebpf.view.names import plain

_PLURAL = {"function": "Functions", "module": "Modules", "operator": "Operators", "path": "Call paths"}
_PHRASES = {f"{state.name}_ns": state.phrase for state in STATES} | {"wall_ns": "of wall time"}
_SURE = (
    SURE,
    {
        True: "beyond the spread of the repeats and of the samples",
        False: "within the spread of the repeats or of the samples, so it may be chance",
        None: "beyond the spread of the samples, but of one run each, so it may be chance",
    },
)  # of calls, of samples
_SAME = 0.02  # of the whole: a smaller change is called none
_NAMED = 0.3  # of what changed: a part of it that is smaller is not worth naming
_BAR = 40


def report(
    before: Side,
    after: Side,
    table: pd.DataFrame,
    whole: dict[str, Any],
    found: pd.DataFrame,
    asked: dict[str, Any],
    width: int,
    ascii_only: bool,
    top: int,
) -> Group:
    """The whole report; `table` of changes.changes, `whole` of changes.whole_change, `found` of findings.changed, `asked`: by, sort, value and per."""
    prose = min(width, PROSE)
    parts: list[RenderableType] = list(_warnings(before, after, prose))
    parts += findings.lines(found, asked["per"], prose)
    parts += _sides(before, after, asked, width, ascii_only)
    parts += [Text(), *_wrapped(sentence(before, after, table, whole, asked), prose), Text()]
    rows = table if not top else table[table["change_ns"].fillna(0) != 0].head(top)
    note = f"{len(rows):,} of {len(table):,}; ~: may be chance" if len(table) else "none was recorded"
    parts.append(text.title(f"{_PLURAL[asked['by']]} by change of {asked['sort']} {_value(asked)}", note, width))
    if len(rows):
        parts += [
            _listing(before, after, rows, asked, width),
            Text(),
            *(Text(line.plain, "dim") for line in _wrapped(_legend(before, after, asked), prose)),
        ]
    return Group(*parts)


def facts(
    before: Side, after: Side, table: pd.DataFrame, whole: dict[str, Any], found: pd.DataFrame, asked: dict[str, Any], top: int
) -> dict[str, Any]:
    """The same as one plain object: times in ns, null for what was not recorded."""
    rows = table.head(top or len(table))
    return {
        **asked,
        "before": _side_facts(before),
        "after": _side_facts(after),
        "findings": plain(found),
        "whole": whole,
        "chance": chance(before, after),
        "sentence": sentence(before, after, table, whole, asked),
        "rows": [{"name": name, **row} for name, row in zip(names_of(before, after, rows, asked["by"]), plain(rows), strict=True)],
    }


def sentence(before: Side, after: Side, table: pd.DataFrame, whole: dict[str, Any], asked: dict[str, Any]) -> str:
    """How much longer or shorter it takes, by which of the four ways, and in what."""
    key = f"{asked['value']}_ns"
    old, new = before.whole[key], after.whole[key]
    if old is None or new is None:
        return f"How much {_value(asked)} there was is not known of all these traces."
    of = f"{_all(before)}{' take' if asked['value'] == 'wall' else ' have'}"
    unit = " a second" if asked["per"] == "second" else ""
    if not old or abs(new - old) < _SAME * old:
        said = f"{of} {text.duration(new)}{unit}{_noun(asked)}, which is what they {'took' if asked['value'] == 'wall' else 'had'} before ({text.duration(old)})"
    else:
        shares = abs(new - old) / old
        by = f"{text.percent(shares, 1)} {'more' if new > old else 'less'}" if shares < 9.995 else f"{new / old:.0f} times as much"
        said = f"{of} {text.duration(new)}{unit}{_noun(asked)} instead of {text.duration(old)}: {by}{_by_which(before.whole, after.whole, asked)}, {_sure(before, whole['clear'])}"
    return f"{said}.{_most(before, after, table, asked)}"


def _most(before: Side, after: Side, table: pd.DataFrame, asked: dict[str, Any]) -> str:
    """The row that changed most, not counting what only waits longer for other threads of the program, and the row that waits most for them."""
    rows = table[table["change_ns"].notna()]
    rows = rows[rows["change_ns"].abs() >= _SAME * (before.whole[f"{asked['value']}_ns"] or 0)]
    if not len(rows) or not rows["change_ns"].iloc[0]:
        return ""
    cause = _causes(rows)
    row = cause.iloc[0].to_dict() | {"index": cause.index[0]}
    name = names_of(before, after, cause, asked["by"])[0]
    old, new = ({part: row[f"{side}_{part}"] for part in ("wall_ns", *PARTS)} for side in ("before", "after"))
    own = "its own " if asked["sort"] == "self" else ""
    sure = _sure(before, row["clear"])
    why = _by_which(old, new, asked) + ("" if before.period_ns else _why(row))
    return f" `{text.clean(name)}` changes most: {_difference(row['change_ns'])} of {own}{_value(asked)}{why}, {sure}.{_waiting(before, after, rows, row, asked)}"


def _causes(rows: pd.DataFrame) -> pd.DataFrame:
    """The one row of them whose time changed most, without that in which it waited for threads of the program; the first where all of it was that."""
    if "waited_ns" not in rows:
        return rows.head(1)
    own = (rows["change_ns"] - rows["waited_ns"]).abs().to_numpy(np.float64)
    at = int(own.argmax())
    return rows.iloc[[at if own[at] >= _NAMED * abs(rows["change_ns"].iloc[0]) else 0]]


def _waiting(before: Side, after: Side, rows: pd.DataFrame, cause: dict[str, Any], asked: dict[str, Any]) -> str:
    """Which function waits longer for it, or less long, where that changed more than what it waits for."""
    first = rows.head(1)
    if "waited_ns" not in rows or first.index[0] == cause["index"] or asked["by"] != "function":
        return ""
    name, ns = names_of(before, after, first, asked["by"])[0], first["waited_ns"].iloc[0]
    return f" `{text.clean(name)}` waits {text.duration(abs(ns))} {'longer' if ns > 0 else 'less'} for the program's other threads."


def _sure(side: Side, clear: Any) -> str:
    return _SURE[bool(side.period_ns)][bool(clear) if text.known(clear) else None]


def _why(row: dict[str, Any]) -> str:
    """Whether it is called more often, or each call takes longer."""
    old, new = row["before_calls"], row["after_calls"]
    if not old or not new:
        return "; it was not called before" if new else "; it is not called any more"
    if abs(new / old - 1) < _SAME:
        return ", with as many calls"
    return (
        f", with {text.percent(abs(new / old - 1), 1)} {'more' if new > old else 'fewer'} calls"
        if new / old < 9.995
        else f", with {new / old:.0f} times as many calls"
    )


def _by_which(old: dict[str, Any], new: dict[str, Any], asked: dict[str, Any]) -> str:
    """Of the four ways the one that most of the change is in; "" where another time is compared than the wall's."""
    if asked["value"] != "wall" or any(not text.known(side[part]) for side in (old, new) for part in PARTS):
        return ""
    total = new["wall_ns"] - old["wall_ns"]
    found = [(new[part] - old[part], part) for part in PARTS if part != "unknown_ns"]
    found = sorted(((ns, part) for ns, part in found if ns * total > 0 and abs(ns) >= _NAMED * abs(total)), key=lambda each: -abs(each[0]))
    return f" ({' and '.join(f'{_difference(ns)} {_PHRASES[part]}' for ns, part in found)})" if found else ""


def _sides(before: Side, after: Side, asked: dict[str, Any], width: int, ascii_only: bool) -> list[RenderableType]:
    bar = min(_BAR, max(10, width - 60))
    longest = max(int(side.whole["wall_ns"] or 0) for side in (before, after))
    figures = [(bar, ""), (6, "wall"), *((max(6, len(state.title)), state.title) for state in STATES), (4, "runs")]
    out = Listing(width, figures, ["trace"], above=width < 120)
    for name, side in (("before", before), ("after", after)):
        whole = side.whole
        split = [text.duration(whole[f"{state.name}_ns"]) for state in STATES]
        shape = text.bar(whole, bar, ascii_only, longest=longest)
        out.add([shape, text.duration(whole["wall_ns"]), *split, str(len(side.runs))], partial(_place, name, side))
    per = "in a second of it" if asked["per"] == "second" else "in a run"
    return [text.title(_all(before), f"{per}, all threads; means of the runs", width), out]


def _place(name: str, side: Side, width: int) -> Text:
    directory = text.cut_left(f"{name}: {text.clean(side.directory)}", width)
    room = width - len(directory) - 2
    return Text.assemble((directory, "bold"), "  ", (text.fit(side.command, room), "dim")) if room > 20 else Text(directory, "bold")


def _listing(before: Side, after: Side, rows: pd.DataFrame, asked: dict[str, Any], width: int) -> Listing:
    value = f"{asked['value']}_ns"
    split = [(f"{state.name}_ns", state.title) for state in STATES] if asked["value"] == "wall" else []
    figures = [
        (8, "change"),
        (7, "of all"),
        (6, "before"),
        (6, "after"),
        *([] if before.period_ns else [(7, "calls"), (7, "a call")]),
        *((max(7, len(title)), title) for _, title in split),
    ]
    what = {"function": "function", "module": "module", "operator": "operator", "path": "call path"}[asked["by"]]
    out = Listing(width, figures, [what], may_go=("before", "a call", "calls"), above=asked["by"] == "path")
    base = before.whole[value]
    for name, row in zip(names_of(before, after, rows, asked["by"]), rows.to_dict("records"), strict=True):
        unsure = text.known(row["clear"]) and not row["clear"]
        style = "" if unsure else "red" if row["change_ns"] > 0 else "green"
        out.add(
            [
                Text(("~" if unsure else "") + change(row[f"after_{value}"], row[f"before_{value}"]), f"dim {style}" if unsure else style),
                _share(row["change_ns"], base),
                text.duration(row[f"before_{value}"]),
                text.duration(row[f"after_{value}"]),
                *([] if before.period_ns else _how_often_and_long(row, value)),
                *(change(row[f"after_{part}"], row[f"before_{part}"]) for part, _ in split),
            ],
            partial(_name, name, row, asked["by"]),
        )
    return out


def _how_often_and_long(row: dict[str, Any], value: str) -> list[str]:
    each = (row[f"{side}_{value}"] / row[f"{side}_calls"] if row[f"{side}_calls"] else 0 for side in ("after", "before"))
    return [_ratio(row["after_calls"], row["before_calls"]), _ratio(*each)]


def _all(side: Side) -> str:
    return f"All {'samples' if side.period_ns else 'calls'} together"


def _name(name: str, row: dict[str, Any], by: str, width: int) -> Text | str:
    if by == "function":
        return text.function(name, row["file"], row["first_line"], width)
    return text.cut_left(text.clean(name), width)


def _share(ns: Any, whole: float | None) -> str:
    if not whole or not text.known(ns):
        return text.NOTHING
    share = text.percent(abs(ns), whole)
    return share if share[0] in "<0" and not share.startswith("0.") else f"{'+' if ns > 0 else '-'}{share}"


def _ratio(new: Any, old: Any) -> str:
    """How many times as much: "x1.5"; "=" for as much, "new" and "gone" where there was or is none."""
    if not text.known(new) or not text.known(old) or not (new or old):
        return text.NOTHING
    if not old or not new:
        return "new" if new else "gone"
    ratio = new / old
    return "=" if abs(ratio - 1) < 0.005 else f"x{ratio:.2f}" if ratio < 9.995 else f"x{ratio:.0f}" if ratio < 99_999.5 else "x>99999"


def _difference(ns: Any) -> str:
    return f"{text.duration(abs(ns))} {'less' if ns < 0 else 'more'}"


def phrase_of(value: str) -> str:
    """A time of changes.VALUES, in words."""
    return "time" if value == "wall" else f"time {_PHRASES[value + '_ns']}"


def _value(asked: dict[str, Any]) -> str:
    return phrase_of(asked["value"])


def _noun(asked: dict[str, Any]) -> str:
    return "" if asked["value"] == "wall" else f" {_PHRASES[asked['value'] + '_ns']}"


def _legend(before: Side, after: Side, asked: dict[str, Any]) -> str:
    by_chance = chance(before, after)
    sure = (
        "Record several runs of each side into one directory, and the report says what is more than chance."
        if by_chance is None
        else f"~: the runs of the two sides overlap. Runs of one and the same program lie apart by chance once in {round(1 / by_chance):,} rows."
    )
    sure += (
        " ~ has also what lies within two standard errors of the samples, as one row in twenty does that changed by nothing."
        if before.period_ns
        else ""
    )
    split = " From on CPU on: what each part of the time has more or less." if asked["value"] == "wall" else ""
    often = " calls, a call: how many times as many, and as long, as before."
    return f"of all: of the time of {_all(before).lower()} before.{'' if before.period_ns else often}{split} {sure}"


def _warnings(before: Side, after: Side, width: int) -> list[Text]:
    lost = {side.directory: sum(run.lost for run in side.runs) for side in (before, after)}
    said = [f"LOST {plural(count, 'event')} in {name}: pytrace-ebpf info says what that means." for name, count in lost.items() if count]
    if before.sources != after.sources:
        said.append(
            f"Recorded by {' and '.join(before.sources) or 'nothing'} before and by {' and '.join(after.sources) or 'nothing'} after, whose costs differ."
        )
    if before.command != after.command:
        said.append("The two sides are different command lines: functions are matched by module and name.")
    return [Text(line, "yellow") for each in said for line in textwrap.wrap(text.clean(each), width)]


def _side_facts(side: Side) -> dict[str, Any]:
    runs = [{"trace": run.trace, "seconds": run.seconds, "whole": run.whole, "calls": run.calls, "lost": run.lost} for run in side.runs]
    return {
        "directory": side.directory,
        "command": side.command,
        "whole": side.whole,
        "calls": side.calls,
        "sources": list(side.sources),
        "runs": runs,
    }


def _wrapped(said: str, width: int) -> list[Text]:
    return [Text(line) for line in textwrap.wrap(said, width, break_on_hyphens=False)]
