"""Compares what two machines read of a trace: same.py FOLDER FOLDER, as read.py writes them. 1, and what differs, where anything does."""

import sys
from pathlib import Path

import pandas as pd


def differences(one: Path, other: Path) -> list[str]:
    """The names of files that are not the same, tables cell for cell, others byte for byte."""
    names = sorted({file.name for folder in (one, other) for file in folder.iterdir()} - {"machine"})
    found = []
    for name in names:
        files = one / name, other / name
        if not all(file.exists() for file in files):
            found.append(name)
        elif name.endswith(".parquet"):
            first, second = (pd.read_parquet(file) for file in files)
            if not (first.equals(second) and first.dtypes.equals(second.dtypes)):
                found.append(name)
        elif files[0].read_bytes() != files[1].read_bytes():
            found.append(name)
    return found


def main(one: Path, other: Path) -> int:
    """Say it."""
    tables = {file.stem: len(pd.read_parquet(file)) for file in sorted(one.glob("*.parquet"))}
    reports = len(list(one.glob("*.txt")))
    machines = " and ".join((folder / "machine").read_text() for folder in (one, other))
    if found := differences(one, other):
        print(f"{machines} differ in {', '.join(found)}")
        return 1
    rows = ", ".join(f"{name} {rows:,}" for name, rows in tables.items() if rows)
    print(f"{machines}: {reports} reports the same byte for byte, and {sum(tables.values()):,} rows cell for cell ({rows})")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
