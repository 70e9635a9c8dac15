"""Writes all that a trace says: read.py TRACE FOLDER. Each report into FOLDER/report-....txt, with its exit code, each table into FOLDER/NAME.parquet."""

import contextlib
import io
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

import pytrace_ebpf
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.view import source_text
from pytrace_ebpf.view.by import BY

TABLES = (
    "processes", "threads", "functions", "events", "sched", "calls", "tree", "waits", "call_sites", "lines", "thread_times",
    "memory", "tasks", "requests", "operators", "values",
)  # fmt: skip


def recorded(trace: Path, into: Path) -> None:
    """A copy of a trace, without what was derived of it already."""
    into.mkdir()
    for each in trace.iterdir():
        if each.is_file():
            shutil.copy(each, into)
        elif list(each.glob("part-*")) and not (each / "made-from.parquet").exists():
            shutil.copytree(each, into / each.name)


def write(trace: str, folder: Path) -> None:
    """Everything, by the machine that this runs on."""
    (folder / "machine").write_text(platform.machine())
    source_text._LARGEST = -1  # a report by line shows none, then: the sources are on one of the two machines alone
    for by in BY:
        for option in ([], ["--json"]):
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                code = main(["report", trace, "--by", by, *option])
            (folder / f"report-{by}{''.join(option)}.txt").write_text(f"{said.getvalue()}\n{code}\n")
    for name in TABLES:
        frame = getattr(pytrace_ebpf.open(trace), name)()
        frame.to_parquet(folder / f"{name}.parquet")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        recorded(Path(sys.argv[1]), Path(place, "trace"))
        os.chdir(place)  # reports name the trace as it was given
        write("trace", Path(sys.argv[2]))
