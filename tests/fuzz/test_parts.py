"""Parquet parts with other bytes or other values than were written: read, or refused in a sentence."""

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytrace_ebpf.trace.schema import TABLES, Column
from tests.fuzz import found
from tests.fuzz.reading import try_commands
from tests.fuzz.test_manifest import EXAMPLES, nothing_is_hushed_up  # noqa: F401 - a fixture
from tests.unit.synthetic import sample

RECORDED = ["events", "sched", "functions", "threads", "processes", "usage"]
fuzzed = settings(max_examples=EXAMPLES, deadline=None, derandomize="PYTRACE_FUZZ" not in os.environ, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample(tmp_path_factory.mktemp("fuzz") / "good")


@pytest.fixture(scope="module")
def part_names(good: Path) -> list[str]:
    return sorted(str(part.relative_to(good)) for part in good.glob("*/part-*.parquet"))


def fresh(good: Path) -> Path:
    trace = good.with_name("trace")
    shutil.rmtree(trace, ignore_errors=True)
    shutil.copytree(good, trace)
    return trace


def values_of(column: Column) -> st.SearchStrategy[Any]:
    """Values that the column's type can hold, the ones at its ends often."""
    kind = column.arrow
    if pa.types.is_integer(kind):
        top = 1 << (kind.bit_width - 1)
        return (
            st.sampled_from([-top, -2, -1, 0, 1, 2, 3, 5, 4000, 4001, 1_000_000_000, 1 << 40, 1 << 60, top - 1]).filter(lambda n: -top <= n < top)
            | st.integers(-top, top - 1)
            | st.none()
        )
    if pa.types.is_floating(kind):
        return st.floats() | st.none()
    if pa.types.is_boolean(kind):
        return st.booleans() | st.none()
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(["python", "gc", "process", "core"]) | st.none()


@st.composite
def replacements(draw: st.DrawFn) -> tuple[str, str, list[tuple[int, Any]]]:
    """(table, column, [(row, value)]): rows by number, modulo how many there are."""
    table = draw(st.sampled_from(RECORDED))
    column = draw(st.sampled_from(TABLES[table].columns))
    return table, column.name, draw(st.lists(st.tuples(st.integers(0, 400), values_of(column)), min_size=1, max_size=8))


def check_values(good: Path, several: list[Any]) -> None:
    trace = fresh(good)
    for name, column, rows in several:
        part = sorted((trace / name).glob("*.parquet"))[-1]
        table = pq.read_table(part)
        kind = table.schema.field(column).type
        values = table[column].to_pylist()
        for row, value in rows:
            values[row % len(values)] = value
        array = pa.array(values, kind.value_type if pa.types.is_dictionary(kind) else kind)
        array = array.dictionary_encode() if pa.types.is_dictionary(kind) else array
        pq.write_table(table.set_column(table.column_names.index(column), pa.field(column, kind), array), part)
    try_commands(trace, 2)


@fuzzed
@given(st.lists(replacements(), min_size=1, max_size=3))
def test_other_values_are_computed_with_or_refused(good: Path, several: list[Any]) -> None:
    check_values(good, several)


def check_bytes(good: Path, names: list[str], which: int, several: list[Any], end: int | None) -> None:
    trace = fresh(good)
    part = trace / names[which % len(names)]
    content = bytearray(part.read_bytes())
    for place, byte in several:
        content[-1 - place % len(content)] = byte  # from the end, where the footer is
    part.write_bytes(content[: None if end is None else end % len(content)])
    try_commands(trace, 2)


@fuzzed
@given(
    st.integers(0, 100),
    st.lists(st.tuples(st.integers(0, 2000) | st.integers(0, 1 << 20), st.integers(0, 255)), max_size=8),
    st.none() | st.integers(0, 1 << 20),
)
def test_other_bytes_are_read_or_refused(good: Path, part_names: list[str], which: int, several: list[Any], end: int | None) -> None:
    check_bytes(good, part_names, which, several, end)


@pytest.mark.parametrize("several", found("values"))
def test_what_was_found_in_values(good: Path, several: list[Any]) -> None:
    check_values(good, several)


@pytest.mark.parametrize(("which", "several", "end"), found("bytes"))
def test_what_was_found_in_bytes(good: Path, part_names: list[str], which: int, several: list[Any], end: int | None) -> None:
    check_bytes(good, part_names, which, several, end)
