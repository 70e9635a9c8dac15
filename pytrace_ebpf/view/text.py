"""How single values look: durations, counts, sizes, names cut to a width, and the four-way bar."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from pytrace_ebpf.formatting import NOTHING as NOTHING
from pytrace_ebpf.formatting import clean as clean
from pytrace_ebpf.formatting import duration as duration
from pytrace_ebpf.formatting import known as known
from pytrace_ebpf.formatting import percent as percent
from pytrace_ebpf.formatting import three
from pytrace_ebpf.trace import states
from pytrace_ebpf.trace.schema import OF_THE_INTERPRETER
from pytrace_ebpf.view import colours

States: TypeAlias = Sequence[tuple[str, str, str, str, str]]
# The states of a thread and "not recorded": column, label, glyph, ASCII glyph, colour.
STATES: States = (
    *((f"{state.name}_ns", state.label, state.glyph, state.ascii_glyph, state.colour) for state in states.STATES),
    ("unknown_ns", "not recorded", "?", "?", colours.UNKNOWN),
)
# The same where kinds of waiting are not distinguished.
TWO_STATES: States = (STATES[0], ("off_cpu_ns", "off CPU", "·", ".", colours.BLOCKED), STATES[-1])
_LEAST_PLACE = 10  # cells of file and line below which they say nothing


def count(number: Any, width: int = 9) -> str:
    """A count with thousands separators, or with k, M, G where `width` cells do not hold it."""
    if not known(number):
        return NOTHING
    number = int(number)
    if len(exact := f"{number:,}") <= width:
        return exact
    scale, letter = next((s, name) for s, name in ((1e3, "k"), (1e6, "M"), (1e9, "G")) if number < 999.5 * s or name == "G")
    return three(number / scale) + letter


def size(number: float) -> str:
    """Bytes with three figures ("12.3 MB", decimal units)."""
    if number < 1000:
        return f"{number:.0f} B"
    unit = "kB" if number < 999.5e3 else "MB" if number < 999.5e6 else "GB"
    return f"{three(number / {'kB': 1e3, 'MB': 1e6, 'GB': 1e9}[unit])} {unit}"


def cut_left(name: str, width: int) -> str:
    """`name` in at most `width` cells; its end is what is kept."""
    if cell_len(name) <= width:
        return name
    while name and cell_len(name) > width - 1:
        name = name[max(1, (cell_len(name) - width) // 2) :]
    return ("…" + name)[:width]


def function(qualname: Any, file: Any, line: Any, width: int) -> Text:
    """A function's name and as much of its place as `width` cells hold, both cut from the left."""
    if not known(qualname):
        return Text(cut_left("(unknown function)", width), "dim")
    name, path = clean(qualname), clean(file)
    place = path + (f":{line}" if known(line) and int(line) > 0 else "")
    room = width - cell_len(name) - 2
    shorter = place
    while cell_len(shorter) > room and "/" in shorter:
        shorter = shorter.lstrip("/").partition("/")[2]
    if cell_len(shorter) > room:
        shorter = cut_left(shorter, room) if room >= _LEAST_PLACE else ""
    return Text.assemble(name, "  ", (shorter, "dim")) if shorter else Text(cut_left(name, width))


def allot(parts: Sequence[int], cells: int) -> list[int]:
    """Cells per part, summing to `cells`, by largest remainder; all 0 if the parts are."""
    total = sum(parts)
    if total <= 0:
        return [0] * len(parts)
    out = [p * cells // total for p in parts]
    by_rest = sorted(range(len(parts)), key=lambda i: -(parts[i] * cells % total))
    for i in by_rest[: cells - sum(out)]:
        out[i] += 1
    return out


def bar(row: dict[str, Any], cells: int, ascii_only: bool, prefix: str = "", longest: int = 0, states: States = STATES) -> Text:
    """The split of `row` (keys prefix + those of `states`) as glyphs; unknown time is shown as unknown.

    `cells` long for `longest` ns, in proportion for less, at least one for any time at all; without `longest` always `cells`.
    """
    parts, text = _split(row, prefix, states), Text()
    if longest and sum(parts):
        cells = max(1, round(cells * min(1.0, sum(parts) / longest)))
    for (_, _, glyph, plain, colour), n in zip(states, allot(parts, cells), strict=True):
        text.append((plain if ascii_only else glyph) * n, colour)
    return text


def legend(row: dict[str, Any], ascii_only: bool, width: int, states: States = STATES) -> Text:
    """Names each glyph, with how much of `row` it stands for, in lines of at most `width` cells."""
    parts = _split(row, "", states)
    text, room = Text(), width
    for (key, label, glyph, plain, colour), part in zip(states, parts, strict=True):
        if key == "unknown_ns" and not part:
            continue
        share = percent(part, sum(parts)) if known(row.get(key)) else NOTHING
        said = f" {label} {share}"
        apart = "" if not text else "   " if len(said) + 5 <= room else "\n"
        room = (room if apart == "   " else width) - len(apart.strip("\n")) - len(said) - 2
        text.append(apart).append((plain if ascii_only else glyph) * 2, colour).append(said)
    return text


def title(heading: str, note: str, width: int) -> Text:
    """A table's heading and as many of its note's clauses, joined by semicolons, as `width` cells hold."""
    clauses = note.split("; ")
    while clauses and cell_len(heading) + 3 + cell_len("; ".join(clauses)) > width:
        clauses.pop()
    return Text.assemble((heading, "bold"), f"   {'; '.join(clauses)}" if clauses else "")


def _split(row: dict[str, Any], prefix: str, states: States) -> list[int]:
    """Nanoseconds of each of `states`; 0 for null, which then shows in unknown_ns."""
    values = [row.get(prefix + key) for key, *_ in states]
    return [0 if value is None or not known(value) else int(value) for value in values]


def thread(name: Any, pid: int | None, width: int) -> str:
    """A thread's name, and which process it is of where that is not None, in at most `width` cells; the number is never cut."""
    of = "" if pid is None else f" of pid {pid}"
    return fit(name, width - len(of)) + of


def fit(name: Any, width: int) -> str:
    """A free text in at most `width` cells, cut at its end."""
    name = clean(name)
    return name if cell_len(name) <= width else set_cell_size(name, width - 1) + "…"


def waited_for(row: dict[str, Any], width: int) -> str:
    """What a row of analyze.waits.by_wait or analyze.samples.by_wait waited for, in `width` cells."""
    if known(row["primitive"]):
        return fit(row["primitive"], width)
    if known(row.get("lock_address")):
        kind = f"{row['kind']} "
        return kind + cut_left(f"{int(row['lock_address']):#x}", width - len(kind))
    if known(row["resource"]):
        call = f" ({row['syscall']})" if known(row["syscall"]) else ""
        return cut_left(clean(row["resource"]), width - len(call)) + call
    told = not known(row["syscall"]) or row["kind"] in OF_THE_INTERPRETER
    return fit(row["kind"] + ("" if told else f" {row['syscall']}"), width)
