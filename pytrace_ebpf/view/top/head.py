"""What stands above the rows: of what and of which time they are, the split of it all, the GIL, and what the looking costs."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from pytrace_ebpf.trace.snapshot import TIMES, Rows, Snapshot
from pytrace_ebpf.trace.states import STATES
from pytrace_ebpf.units import plural
from pytrace_ebpf.view import colours, text
from pytrace_ebpf.view.grid import NARROW
from pytrace_ebpf.view.top.picked import name_of, of_choice
from pytrace_ebpf.view.top.selection import VIEWS, Choice

_TITLES = {f"{state.name}_ns": state.title for state in STATES}
_HOLDERS = 3
_FINDINGS = 3
_MUCH = 0.05  # of a core, for the tracer


def head(snapshot: Snapshot, choice: Choice, width: int, ascii_only: bool, mark: str = "") -> Text:
    """Four lines; `mark`: a word on the right of the first, in colour."""
    lines = [_what(snapshot, choice, width, mark), _split(snapshot, choice, width, ascii_only), _gil(snapshot, choice), _cost(snapshot)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines)


def findings(snapshot: Snapshot, width: int) -> Text:
    """What the time of all threads goes to, a line each; empty where that is not known."""
    lines = [Text(text.fit(f"{number}. {text.clean(said)}", width), "bold") for number, said in enumerate(snapshot.findings[:_FINDINGS], 1)]
    return Text("\n").join(lines)


def tabs(choice: Choice, shown: int, width: int) -> Text:
    """The views, the chosen one among them, and what narrows it."""
    out = Text()
    for view in VIEWS:
        style = "bold reverse" if view == choice.view else ""
        out.append(" ", style).append(view[0].upper(), f"{style} underline").append(f"{view[1:]} ", style).append(" ")
    of = {"functions": "own time" if choice.own else "with what they call"}.get(choice.view, "")
    note = [plural(shown, "row"), *filter(None, [of]), f"by {choice.sort}"]
    left = width - out.cell_len - cell_len("; ".join(note))
    while note and left < 0:
        left += cell_len(note.pop(0)) + 2
    return out.append(" " * max(0, left)).append("; ".join(note), "dim")


def narrowed(snapshot: Snapshot, choice: Choice, width: int) -> Text:
    """What is shown alone, as a sentence; empty where everything is."""
    said = []
    if choice.func_id is not None:
        said.append(f"function {text.clean(name_of(snapshot, choice.func_id)[0])}")
    if choice.tid is not None:
        name = next((row["name"] for row in snapshot.threads if row["tid"] == choice.tid), "")
        said.append(f"thread {text.clean(name)} {choice.tid}")
    elif choice.pid is not None:
        said.append(f"process {choice.pid}")
    if choice.text:
        said.append(f"what has '{text.clean(choice.text)}' in it")
    return Text(text.fit(f"only {', '.join(said)}    Esc shows all", width), "bold") if said else Text()


def _what(snapshot: Snapshot, choice: Choice, width: int, mark: str) -> Text:
    processes = [row for row in snapshot.processes if choice.pid in (None, row["pid"])]
    last = f"last {snapshot.facts.seconds_ns / 1e9:.0f} s" if snapshot.facts.seconds_ns else ""
    right = Text.assemble((last, "dim"), " " if mark else "", (f" {mark} " if mark else "", "bold reverse"))
    room = width - right.cell_len - 2
    out = Text("pytrace-ebpf top  ", "bold")
    living = [row for row in processes if not row["ended"]] or processes
    if len(living) == 1:
        row = living[0]
        python = f"Python {text.clean(row['python'])}  " if row["python"] and width >= 120 else ""
        out.append(f"{row['pid']}  ", "dim").append(python, "dim").append(text.clean(row["command"]))
    elif living:
        out.append(f"{len(living):,} processes  ").append(text.clean(", ".join(sorted({row["command"] for row in living}))), "dim")
    out.truncate(room, overflow="ellipsis")
    return out.append(" " * max(1, width - out.cell_len - right.cell_len)).append_text(right)


def _split(snapshot: Snapshot, choice: Choice, width: int, ascii_only: bool) -> Text:
    """The split of all threads' time."""
    threads = of_choice(snapshot.threads, Choice(pid=choice.pid, tid=choice.tid))
    whole = {name: sum(row[name] for row in threads) for name in TIMES}
    total = sum(whole.values())
    said = Text()
    for key, label, glyph, plain, colour in text.STATES:
        if total and (whole[key] or key != "unknown_ns"):
            title = label if width >= NARROW else _TITLES.get(key, label)
            said.append("  ").append(plain if ascii_only else glyph, colour).append(f" {title} {text.percent(whole[key], total)}")
    said.append(f"  {plural(len(threads), 'thread')}", "dim")
    cells = max(0, width - said.cell_len)
    return text.bar(whole, cells, ascii_only).append_text(said)


def _gil(snapshot: Snapshot, choice: Choice) -> Text:
    """Of the process in which threads wait for the GIL most, else the one that holds it most."""
    of: dict[int, Rows] = {}
    for row in of_choice(snapshot.threads, Choice(pid=choice.pid)):
        of.setdefault(row["pid"], []).append(row)
    ns = snapshot.facts.seconds_ns
    if not of or not ns:
        return Text()
    pid = max(of, key=lambda pid: (sum(row["gil_wait_ns"] for row in of[pid]), sum(row["gil_held_ns"] for row in of[pid])))
    held, waiting = sum(row["gil_held_ns"] for row in of[pid]), sum(row["gil_wait_ns"] for row in of[pid]) / ns
    holders = sorted(of[pid], key=lambda row: -row["gil_held_ns"])[:_HOLDERS]
    out = Text.assemble("GIL", f" of {pid}" if len(of) > 1 else "", " held ", (text.percent(held, ns), "bold"))
    out.append(f", {waiting:.1f} threads wait for it" if waiting >= 0.05 else ", nobody waits for it", colours.GIL_WAIT if waiting >= 0.5 else "")
    who = ", ".join(f"{text.clean(row['name'])} {text.percent(row['gil_held_ns'], ns)}" for row in holders if row["gil_held_ns"])
    return out.append(f"; {who}" if who else "", "dim")


def _cost(snapshot: Snapshot) -> Text:
    facts = snapshot.facts
    since = max(facts.since_ns, 1) / 1e9
    parts: list[Text] = []
    if facts.period_ns:
        parts.append(Text(f"{1e9 / facts.period_ns:.0f} Hz"))
    parts += [Text(f"{text.count(facts.samples / since)} samples/s"), Text(f"{text.count(facts.switches / since)} switches/s")]
    parts.append(Text(f"{facts.lost_ever:,} LOST", "bold red") if facts.lost_ever else Text("0 lost"))
    if facts.spent_ns is not None:
        share = facts.spent_ns / max(facts.since_ns, 1)
        parts.append(Text(f"tracer {text.percent(share, 1)} of a core", colours.GIL_WAIT if share > _MUCH * 4 else ""))
    return Text("  ").join(_dimmed(parts))


def _dimmed(parts: Sequence[Text]) -> list[Text]:
    return [part if part.style else Text(part.plain, "dim") for part in parts]
