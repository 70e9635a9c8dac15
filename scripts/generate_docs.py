"""Writes docs/format.md from trace/schema.py; with --check only says whether the committed file still agrees."""

import argparse
import sys
from pathlib import Path

import pyarrow as pa

from pytrace_ebpf.trace.schema import FORMAT_VERSION, LOSS_CLASSES, TABLES, Column, Table

REPOSITORY = Path(__file__).parent.parent
FORMAT_MD = REPOSITORY / "docs" / "format.md"

HEAD = f"""\
# The trace directory

Format version {FORMAT_VERSION}. Generated from `pytrace_ebpf/trace/schema.py` by `make docs`; do not edit.

A trace is a directory: `manifest.json`, and one folder of Parquet parts per table. Parts are closed about
every second and then named in the manifest, which is replaced atomically; a part that the manifest does not
name is no part of the trace. All times are nanoseconds of CLOCK_MONOTONIC; the manifest's clock anchors lead
to wall-clock time. A number that nobody measured is null, never zero.

`calls/`, `waits/`, `tasks/` and `operators/` are derived from the other tables and can be deleted; they are
built again when they are asked for.

Where native layers were asked for, the manifest's `native` says what came of it: `layers`; `functions`, how many of each library
have probes; `tensors_read`, and `tensors_unknown`, those of them that are not laid out as is known, whose shapes are null; and
`missing`, a sentence for everything that was asked for and is not in the trace.
"""


def type_name(column: Column) -> str:
    """The type as a reader of Parquet thinks of it."""
    return "string (dictionary)" if pa.types.is_dictionary(column.type) else str(column.type).replace("item: ", "")


def section(table: Table) -> str:
    """One table in Markdown."""
    key = f" Key: {', '.join(f'`{name}`' for name in table.key)}; a later row replaces an earlier one." if table.key else ""
    rows = [
        f"| `{c.name}` | {type_name(c)}{', may be null' if c.nullable else ''} | {c.unit} | {c.meaning} |" for c in table.columns
    ]
    return "\n".join([f"\n## {table.name}\n", table.meaning + key, "", "| column | type | unit | meaning |", "|---|---|---|---|", *rows, ""])


def format_md() -> str:
    """The whole of docs/format.md."""
    losses = f"\nClasses of loss: {', '.join(f'`{name}`' for name in LOSS_CLASSES)}.\n"
    return HEAD + "".join(section(table) + (losses if table.name == "losses" else "") for table in TABLES.values())


def main() -> int:
    """Exit code 1 when --check finds a difference."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true", help="write nothing")
    if arguments.parse_args().check:
        if FORMAT_MD.exists() and FORMAT_MD.read_text() == format_md():
            return 0
        print("docs/format.md differs from the schema: run make docs", file=sys.stderr)
        return 1
    FORMAT_MD.write_text(format_md())
    return 0


if __name__ == "__main__":
    sys.exit(main())
