"""The files of a trace say what their columns mean, can be skipped by any of them, and their ids join."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import pytrace_ebpf
from pytrace_ebpf.cli import main
from pytrace_ebpf.derive.calls.rows import SOUGHT
from pytrace_ebpf.trace.identity import NAMES
from pytrace_ebpf.trace.joins import joins
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import TABLES
from tests.fuzz.test_flipped_bits import recorded  # noqa: F401 - a fixture
from tests.unit.synthetic import sample

DERIVED = ("calls", "tree", "call_sites", "thread_times", "waits", "tasks")
FREE_TEXT = ("value", "text")


@pytest.fixture
def trace(recorded: Path, tmp_path: Path) -> Trace:  # noqa: F811
    """One with some derived tables."""
    opened = pytrace_ebpf.open(shutil.copytree(recorded, tmp_path / "trace"))
    for name in DERIVED:
        getattr(opened, name)()
    return opened


def parts(trace: Trace, name: str) -> list[Path]:
    return sorted((trace.directory / name).glob("*.parquet"))


def test_a_part_of_each_table_says_what_its_columns_mean(trace: Trace) -> None:
    for name, spec in TABLES.items():
        if spec.derived and name not in DERIVED:
            continue
        said = [metadata for part in parts(trace, name) if b"pytrace_ebpf.table" in (metadata := pq.read_schema(part).metadata or {})]
        assert said, name
        for metadata in said:
            assert metadata[b"pytrace_ebpf.table"].decode() == name and metadata[b"pytrace_ebpf.meaning"].decode() == spec.meaning
            columns = json.loads(metadata[b"pytrace_ebpf.columns"])
            assert columns == {column.name: {"unit": column.unit, "meaning": column.meaning} for column in spec.columns}


def unbounded(name: str, column: Any) -> bool:
    """Whether that it has no bounds is right: of calls those have them by which calls are sought."""
    return name == "calls" and column.path_in_schema not in SOUGHT


def test_every_part_has_the_bounds_of_its_columns(trace: Trace) -> None:
    seen = 0
    for name in (*(name for name, spec in TABLES.items() if not spec.derived), *DERIVED):
        for part in parts(trace, name):
            metadata = pq.read_metadata(part)
            for group in (metadata.row_group(at) for at in range(metadata.num_row_groups)):
                for column in (group.column(at) for at in range(group.num_columns)):
                    known = not group.num_rows or (
                        column.statistics is not None and (column.statistics.has_min_max or column.statistics.null_count == group.num_rows)
                    )
                    nested = column.path_in_schema.endswith("element")
                    assert known or nested or column.path_in_schema in FREE_TEXT or name == "events" or unbounded(name, column), (
                        name,
                        column.path_in_schema,
                    )
                    seen += known
    assert seen > 50


def test_ids_join(trace: Trace) -> None:
    made = joins()
    named = {(join.table, column) for join in made for column in join.columns}
    ids = {
        (table.name, c.name) for table in TABLES.values() for c in table.columns if c.name.endswith("_id") and (table.name, c.name) != ("usage", "id")
    }
    keys = {(join.other, column) for join in made for column in join.other_columns}
    elsewhere = {(table, column) for table, column in ids if column in ("trace_id", "span_id", *NAMES)}  # of distributed tracing, containers, hosts
    assert ids - elsewhere <= named | keys
    frames = {name: getattr(trace, name)() for name in (*DERIVED, "functions", "threads", "processes", "samples", "stacks", "profile")}
    joined = 0
    for join in made:
        if join.table not in DERIVED or join.other not in frames or "waker_pid" in join.columns:  # which may be of a program that is not traced
            continue
        ours = frames[join.table][list(join.columns)].dropna().astype(np.int64)
        ours = ours[(ours.iloc[:, -1] > 0) | ((ours.iloc[:, -1] == 0) & (join.other not in ("threads", "processes")))].drop_duplicates()
        others = frames[join.other][list(join.other_columns)].astype(np.int64).drop_duplicates()
        found = ours.merge(others, left_on=list(join.columns), right_on=list(join.other_columns))
        assert len(found) == len(ours), join
        joined += len(found)
    assert joined


def test_named_calls_are_calls_with_their_functions(trace: Trace) -> None:
    calls, functions = trace.calls(), trace.functions()
    named = trace.named_calls()
    assert list(named.columns) == [*calls.columns, "qualname", "module", "file", "first_line"] and len(named) == len(calls)
    merged = calls.merge(functions, on="func_id", how="left")
    for column in ("qualname", "module", "file"):
        assert named[column].astype(object).tolist() == merged[column].astype(object).where(merged[column].notna(), np.nan).tolist()
        assert isinstance(named[column].dtype, pd.CategoricalDtype)
    assert list(trace.named_calls(["wall_ns"], depth=0).columns) == ["wall_ns", "qualname", "module", "file", "first_line"]
    assert trace.named_calls(["func_id"]).columns[0] == "func_id"


def test_a_flipped_bit_of_what_is_derived_is_no_other_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = sample(tmp_path / "whole")
    questions = (["report", "--json", "--by", "wait"], ["report", "--json", "--by", "function", "--top", "0"], ["report", "--json", "--by", "task"])

    def said(trace: Path) -> list[tuple[int, str]]:
        found = []
        for question in questions:
            code = main.main([question[0], str(trace), *question[1:]])
            found.append((code, capsys.readouterr().out.replace(str(trace), str(whole))))
        return found

    pytrace_ebpf.open(whole).calls()
    figures = said(whole)
    rng, recorded_tables = random.Random(29), {name for name, spec in TABLES.items() if not spec.derived}
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file() and len(path.relative_to(whole).parts) > 1)
    files = [path for path in files if path.parts[0] not in recorded_tables]
    assert {"calls", "waits", "sums"} <= {path.parts[0] for path in files}
    for number in range(30):
        trace = shutil.copytree(whole, tmp_path / "trace")
        path = rng.choice(files)
        content = bytearray((trace / path).read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        (trace / path).write_bytes(content)
        for (code, found), (_, figure) in zip(said(trace), figures, strict=True):
            assert code == 5 or (code, found) == (0, figure), (path, number)
        shutil.rmtree(trace)
