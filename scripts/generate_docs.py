"""Writes docs/format.md, docs/columns.md and docs/joins.md from trace/schema.py, and into docs/architecture.md which package imports which and what streams there are.

With --check only says whether the committed files still agree.
"""

import argparse
import ast
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from pytrace_ebpf.trace.declared import STREAMS
from pytrace_ebpf.trace.joins import joins
from pytrace_ebpf.trace.schema import FORMAT_VERSION, LOSS_CLASSES, MERGED_TABLES, TABLES, Column, Table
from pytrace_ebpf.trace.stream import Stream, flag

REPOSITORY = Path(__file__).parent.parent
DOCS = REPOSITORY / "docs"

HEAD = f"""\
# The trace directory

Format version {FORMAT_VERSION}. Generated from `pytrace_ebpf/trace/schema.py` by `make docs`; do not edit.

A trace is a directory: `manifest.json`, `segments.jsonl`, and one folder of Parquet parts per table. A segment is closed about every
second, in a recording of many hours less often: its parts are written (`TABLE/part-INDEX.parquet`), then a line is added to
`segments.jsonl`, then the manifest is replaced atomically. A part that no line names is no part of the trace, only an empty table's columns,
and a last line without its end counts for nothing: so a killed tracer leaves all segments that it closed. All times are nanoseconds of
CLOCK_MONOTONIC; the manifest's clock anchors lead to wall-clock time. A number that nobody measured is null, never zero.

A line of `segments.jsonl` is one of two objects. A segment: `index`, `start_ns`, `end_ns`, `rows` (how many by table; none of a table
that is not there) and `calls` (how many were entered or open). Or it says that the parts of a small table have become one:
`{{"merged": TABLE, "first": I, "last": J, "rows": N}}` stands for `TABLE/part-I-J.parquet` (`part-I.parquet` where I is J) in the place of
what these segments had. A later such line replaces those within its range. Tables that are merged: {", ".join(f"`{name}`" for name in MERGED_TABLES)}.
Checksums are CRC-32: `sums` of a segment's parts by table, `sum` of a merged part, and `check`, the last field of each line and of the manifest, of
all bytes before it. They are compared as a part is read; `pytrace-ebpf info TRACE --verify` reads all.
A part without rows, which holds but a schema for other tools, has none. A trace from before has none, and opens. Parquet's own
checksums of pages are there too, and of derived tables the only ones.

The files describe themselves: the first part of a table, and every one with many rows, has in its Parquet metadata `pytrace_ebpf.table`, `pytrace_ebpf.meaning`,
`pytrace_ebpf.key` and `pytrace_ebpf.columns`, the unit and the meaning of each column as JSON (`pyarrow.parquet.read_schema(part).metadata`, DuckDB's `parquet_kv_metadata`). Each
part has the least and the largest value of its columns, and Parquet's page index, so that an engine skips what a condition rules
out. Left out are free texts, which nobody seeks by their order, and in `calls/` columns by which calls are not sought: the bounds of all
would take 40 ns a call. Pages of `events` have their own bounds of `ts` and `kind`; of other columns mostly those of the whole row
group stand there. Which id joins what: [joins.md](joins.md).

With `--retain` old segments are dropped while it records. Then the list is replaced atomically by one that begins with a segment without
length: what was known and open at that moment, `sched` with each thread's last row and `events` with its open calls. The trace begins
there, as any trace of a running program does; `functions` has all that were ever seen. The manifest's `start_ns` stays that of the
recording, and its `dropped` counts `segments` and `bytes`; to a reader `start_ns` is that of the first segment.

With `--trigger` what is recorded is held in memory, and a trace of it is written when something happens ([flight-recorder.md](flight-recorder.md)). It
begins likewise, and its `start_ns` is where it does; its `events` and `lost` count what is in it. The manifest's `trigger` says what set it off:
`condition`, `ts` (when it came true), `pid`, `tid`, `func_id` and `name` (MODULE.QUALNAME) of the call, -1 and empty for none; `start_ns`
and `end_ns` of the call, no `end_ns` while it went on, or of the time in which the thread waited `waited_ns`; `count`, how often it came true within
that second. `more` lists in the same way what came true while the trace was written, a hundred at most, `unlisted` counts what is beyond that, and `skipped`,
by condition, what came true without a trace since the trace before.

The manifest of a whole trace of at most 4,096 segments, of which none was dropped, lists them too (`segments`), for readers that read
nothing else. In format version 1, which is still read, the manifest lists the segments (`segments`), and nothing is merged or dropped.

The directory is made with mode 0700 and its files with 0600; under sudo they belong to who called it, from the first moment on.
Readers follow no link in it and read regular files only. The manifest's `ended` is null, or says in a sentence why the recording
ended before it was to: at `--max-size`, or where the disk was full; then `end_ns` is the end of what is there. What a manifest
must look like stands in `pytrace_ebpf/trace/manifest.py` as data, what the list must in `trace/segments.py`, and between which values a
column lies in `trace/limits.py`: whatever says otherwise is refused as damaged, before anything computes with it.

`calls/`, `tree/`, `call_sites/`, `lines/`, `thread_times/`, `waits/`, `tasks/`, `requests/`, `operators/` and `values/` are derived from the others and can be deleted; they are
built again when they are asked for. Every folder opens by itself, empty or not: `pandas.read_parquet("trace/calls")`, Polars'
`scan_parquet("trace/calls")`, DuckDB's `read_parquet('trace/calls/*.parquet')` (of `calls/` from DuckDB 2.0 on, which knows the
encoding BYTE_STREAM_SPLIT for integers; `trace.sql()` serves with older ones). Derived tables are kept in the trace where that belongs to who reads it, else in a private
directory below `TMPDIR` for as long as the reader lives. `sums/` is derived as well and no table: between segments, at most a byte
for each event, the state of what rebuilds the calls and the sums of those that ended since the one before. From it a trace that
grew is read on, and a window of a trace begun (`pytrace_ebpf/derive/checkpoints.py`). So is `settled/`: of `calls/`, `waits/`, `tasks/`, `requests/`, `values/`,
`operators/`, `lines/` and `memory/` of a trace that is still recorded, what goes on after its last segment, so that they too are derived of the new segments alone once it
has grown (`pytrace_ebpf/derive/store.py`). So is `gil/`, who held the GIL by what each segment
shows, and `cores/`, the sums of the report by core, of which the same holds; and `calls_of/`, of a recording that has ended, the calls in which client libraries
were asked for something (`pytrace_ebpf/derive/streams.py`). Only the version that wrote them reads them.

The manifest's `target` is the process that was asked for, or the first of several; `targets` has the `pid` and `command` of each (of
a hundred at most; children are in `processes`). `options.match` is the pattern by which they were found, or null.

Where `options.filters.lines` is `exact`, `events` has rows of kind 7 and 8 too, and `lines` sums them up. Where `options.filters.opcodes` is, `opcodes` has rows.

Where `options.observed.args` is not empty, values are inside: `observed` has what the functions of these patterns were given and returned, but for
what has a name of `options.observed.redact`. `trace.values().merge(trace.calls(), on="call_id")` has what each value's call cost.

The manifest's `sources` has an object for each process: `pid`, `source` (`usdt`, `agent`, or null for no calls), `why`, and, for a
running one that was looked at before, `foreseen`: `cpu_share`, the cores that it used; `calls_per_s`, or null where they were not
counted; and `share`, the seconds that its probes would have added to each of its own (not counted: the most; on 3.11 about so many).
`threads_taken`, where it is there, is how many of its threads were seen, when recording ended, to have had a profile function of the
program's own instead of the agent's (up to 3.11).
Of some hundred processes that ended the oldest are only counted, in `others`, with another of the same source.

Where native layers were asked for, the manifest's `native` says what came of it: `layers`; `functions`, how many of each library
have probes; `tensors_read`, and `tensors_unknown`, those of them that are not laid out as is known, whose shapes are null; and
`missing`, a sentence for everything that was asked for and is not in the trace.
"""

COLUMNS_HEAD = """\
# What does this number mean

Every column of every table, in the order of the alphabet. Generated from `pytrace_ebpf/trace/schema.py` by `make docs`; do not edit.
`TRACE.calls()`, `TRACE.waits()` and so on give the tables as DataFrames ([In a notebook](notebook.md)), `TRACE.sql()` by their names, and each is
a folder of Parquet files. [The trace directory](format.md) has the same columns table by table, with types.

What `report` shows is made of these (all it shows: [Reading a report](reading-a-report.md)):

| in a report | is the sum of | in words |
|---|---|---|
| total | [`wall_ns`](#wall_ns) of the calls that are [`outermost`](#outermost) | from entry to return, with the calls below; recursion counts once |
| self | [`self_wall_ns`](#self_wall_ns) | without the calls below |
| on CPU | [`on_cpu_ns`](#on_cpu_ns), [`self_on_cpu_ns`](#self_on_cpu_ns) | the thread had a core |
| run q. | [`runq_wait_ns`](#runq_wait_ns), [`self_runq_wait_ns`](#self_runq_wait_ns) | it could have run, but had no core |
| GIL | [`gil_wait_ns`](#gil_wait_ns), [`self_gil_wait_ns`](#self_gil_wait_ns) | it waited for another thread to let go of the GIL |
| blocked | [`blocked_ns`](#blocked_ns), [`self_blocked_ns`](#self_blocked_ns) | it waited for anything else |

For every call the last four sum to its wall time, and those with `self_` to its self time. All
times are nanoseconds of CLOCK_MONOTONIC. Null means that nobody measured it, never zero.
"""


JOINS_HEAD = """\
# Which id joins what

Generated from `pytrace_ebpf/trace/schema.py` by `make docs`; do not edit. In SQL, `trace.sql()` or any engine that reads Parquet:

    SELECT f.module, f.qualname, count(*) AS calls, sum(c.self_wall_ns) / 1e6 AS self_ms
    FROM calls c JOIN functions f USING (func_id)
    GROUP BY ALL ORDER BY self_ms DESC LIMIT 10

and in pandas `trace.named_calls()`, which has the function, file and module of each call beside it, or

    trace.waits().merge(trace.functions().add_prefix("waker_"), on="waker_func_id", how="left")

-1 stands for no row, and of a thread 0; a thread of a program that is not traced is in `neighbours` or nowhere. `functions`,
`threads` and `processes` have one row for each of these ids; `calls` for a `call_id`. Tables that have no id of a call
(`samples`, `faults`, `allocations`, `usage`) are joined by thread and time: the calls with `start_ns <= ts < end_ns` on the same `pid` and `tid`. `observed`,
`arguments` and `errors` are recorded so, and are joined already in `values` and `operators`.

"""


def type_name(column: Column) -> str:
    """The type as a reader of Parquet thinks of it."""
    return "string (dictionary)" if pa.types.is_dictionary(column.arrow) else str(column.arrow).replace("item: ", "")


def as_text(words: str) -> str:
    """In Markdown, where <gc> would be a tag."""
    return words.replace("<", "&lt;")


def section(table: Table) -> str:
    """One table in Markdown."""
    key = f" Key: {', '.join(f'`{name}`' for name in table.key)}; a later row replaces an earlier one." if table.key else ""
    rows = [f"| `{c.name}` | {type_name(c)}{', may be null' if c.nullable else ''} | {c.unit} | {as_text(c.meaning)} |" for c in table.columns]
    return "\n".join([f"\n## {table.name}\n", as_text(table.meaning) + key, "", "| column | type | unit | meaning |", "|---|---|---|---|", *rows, ""])


def format_md() -> str:
    """Table by table."""
    losses = f"\nClasses of loss: {', '.join(f'`{name}`' for name in LOSS_CLASSES)}.\n"
    return HEAD + "".join(section(table) + (losses if table.name == "losses" else "") for table in TABLES.values())


def columns_md() -> str:
    """Name by name. A meaning that several tables share stands there once."""
    meanings: dict[str, dict[tuple[str, str], list[str]]] = {}
    for table in TABLES.values():
        for c in table.columns:
            meaning = f"{as_text(c.meaning)}{'; may be null' if c.nullable else ''}"
            meanings.setdefault(c.name, {}).setdefault((c.unit, meaning), []).append(f"[{table.name}](format.md#{table.name})")
    lines = [COLUMNS_HEAD]
    for name, by_meaning in sorted(meanings.items()):
        lines.append(f"## `{name}`\n")
        lines += [f"* {', '.join(tables)}: {f'**{unit}**, ' if unit else ''}{meaning}" for (unit, meaning), tables in by_meaning.items()]
        lines.append("")
    return "\n".join(lines)


def joins_md() -> str:
    """Which column of one table names a row of another."""
    lines = [JOINS_HEAD]
    for table in TABLES.values():
        rows = [join for join in joins() if join.table == table.name and (join.columns != join.other_columns or join.other != table.name)]
        if rows:
            lines += [f"## {table.name}\n", "| column | is a row of | by its |", "|---|---|---|"]
            for join in rows:
                ours, others = (", ".join(f"`{name}`" for name in names) for names in (join.columns, join.other_columns))
                lines.append(f"| {ours} | [{join.other}](format.md#{join.other}) | {others} |")
            lines.append("")
    return "\n".join(lines)


def imports() -> dict[str, set[str]]:
    """Which packages below pytrace_ebpf/ each of them imports, wherever in a module."""
    root, found = REPOSITORY / "pytrace_ebpf", dict[str, set[str]]()
    for path in sorted(root.glob("*/**/*.py")):
        package = path.relative_to(root).parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            found.setdefault(package, set()).update(name.split(".")[1] for name in names if name.startswith("pytrace_ebpf."))
    return {package: (names & found.keys()) - {package} for package, names in found.items()}


def in_order(uses: dict[str, set[str]]) -> list[str]:
    """The packages, each after all that it imports. Raises ValueError where some import each other in a circle."""
    order: list[str] = []
    while len(order) < len(uses):
        free = [package for package in sorted(uses) if package not in order and uses[package] <= set(order)]
        if not free:
            raise ValueError(f"these import each other: {', '.join(sorted(uses.keys() - set(order)))}")
        order += free
    return order


def architecture_md() -> str:
    """The page as it is, with the imports and streams as they are."""
    uses = imports()
    order = in_order(uses)
    width = max(map(len, order)) + 2
    above = [name for name in order if any(name in used for used in uses.values())]
    rows = [f"{'':{width}}{'  '.join(above)}"]
    for package in order:
        dots = "  ".join(("●" if name in uses[package] else "·").center(len(name)) for name in above)
        rows.append(f"{package:{width}}{dots}".rstrip())
    drawing = "\n".join(["", "", *(f"    {row}" for row in rows), "", ""])
    text = _with("imports", drawing, (DOCS / "architecture.md").read_text())
    return _with("streams", "\n".join(["", "", *map(_row, (_TITLES, ["---"] * len(_TITLES), *map(described, STREAMS))), "", ""]), text)


_TITLES = ["option", "tables", "losses", "recorder", "report", "cannot go with", "users may ask"]


def described(stream: Stream) -> list[str]:
    """A stream, as in _TITLES."""
    without = {"`--rootless`": stream.needs_ebpf, "samples alone": stream.needs_calls, "`--source usdt`": stream.needs_agent}
    excluded = [*(what for what, holds in without.items() if holds), *(f"`{flag(name)}`" for name in stream.excludes)]
    return [
        ", ".join(f"`{flag(name)}`" for name in stream.options),
        ", ".join(f"[{table.name}](format.md#{table.name})" for table in stream.tables) or "[events](format.md#events)",
        ", ".join(f"`{loss.name}`" for loss in stream.losses),
        f"`{stream.recorder.removeprefix('pytrace_ebpf.record.')}`" if stream.recorder else "the source of calls",
        f"`--by {stream.by}`" if stream.report else "",
        ", ".join(excluded),
        "yes" if stream.users else "no",
    ]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _with(what: str, made: str, text: str) -> str:
    """`text` with what is `made` between the marks of this name."""
    return re.sub(rf"(<!-- {what}: [^>]*-->)(.*?)(<!-- end of {what} -->)", lambda found: f"{found[1]}{made}{found[3]}", text, flags=re.DOTALL)


def main() -> int:
    """Exit code 1 when --check finds a difference."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true", help="write nothing")
    check = arguments.parse_args().check
    for name, text in (("format.md", format_md()), ("columns.md", columns_md()), ("joins.md", joins_md()), ("architecture.md", architecture_md())):
        path = DOCS / name
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"docs/{name} differs from the code: run make docs", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
