"""trace.sql(): the tables of the format and nothing else, checked as everything that is read; trace.iter_calls()."""

import sys
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pytrace_ebpf
from pytrace_ebpf.errors import HostError, TraceError
from pytrace_ebpf.trace import sql
from pytrace_ebpf.trace.schema import TABLES
from tests.unit.synthetic import sample, write_trace


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return sample(tmp_path / "trace")


@pytest.mark.parametrize("name", TABLES)
def test_every_table_of_the_format_is_one_of_its_own(path: Path, name: str) -> None:
    trace = pytrace_ebpf.open(path)
    answer, frame = trace.sql(f"select * from {name}"), getattr(trace, name)()
    assert list(answer.columns) == list(frame.columns) and len(answer) == len(frame)


@pytest.mark.parametrize("name", TABLES)
def test_of_a_window_a_query_sees_what_its_methods_give(path: Path, name: str) -> None:
    window = pytrace_ebpf.open(path).window(1_005_000_000, 1_030_000_000, tid=4001)
    answer, frame = window.sql(f"select * from {name}"), getattr(window, name)()
    assert list(answer.columns) == list(frame.columns) and len(answer) == len(frame)
    assert "tid" not in answer or set(answer["tid"]) <= {4001} or name == "neighbours"


def test_an_answer_is_that_of_the_rows(path: Path) -> None:
    trace = pytrace_ebpf.open(path)
    calls = trace.calls()
    expected = calls[(calls["tid"] == 4001) & (calls["status"] == "complete")].groupby("func_id")["wall_ns"].sum()
    answer = trace.sql("select func_id, sum(wall_ns) as ns from calls where tid = 4001 and status = 'complete' group by func_id order by func_id")
    assert dict(zip(answer["func_id"], answer["ns"], strict=True)) == expected.to_dict()
    assert answer["ns"].dtype == "int64"
    below = trace.sql("select count(*) as n from calls above join calls below on below.parent_id = above.call_id")
    assert below["n"].tolist() == [(calls["parent_id"] >= 0).sum()]


def test_only_what_a_query_names_is_derived(path: Path) -> None:
    trace = pytrace_ebpf.open(path)
    assert trace.sql("select count(*) as n from threads")["n"].tolist() == [3]
    assert not any((path / name).exists() for name, table in TABLES.items() if table.derived)
    trace.sql("select * from waits limit 1")
    assert [name for name, table in TABLES.items() if table.derived and (path / name).exists()] == ["waits"]


def test_later_rows_of_a_key_replace_earlier_ones(tmp_path: Path) -> None:
    rows = [(0, "a.py", "f", "f", 1, "a"), (1, "a.py", "g", "g", 2, "a"), (0, "a.py", "f", "C.f", 1, "a")]
    trace = pytrace_ebpf.open(write_trace(tmp_path, functions=rows))
    assert trace.sql("select qualname from functions where func_id = 0")["qualname"].tolist() == ["C.f"]


def test_a_column_that_an_older_trace_has_not_is_filled_in(path: Path) -> None:
    for part in (path / "sched").glob("*.parquet"):
        pq.write_table(pq.read_table(part).drop_columns(["holder_tid"]), part)
    trace = pytrace_ebpf.open(path)
    assert trace.sql("select count(*) as n from sched where holder_tid = -1")["n"].tolist() == [len(trace.sched())]


def test_null_is_null_and_no_number_is_a_float(path: Path) -> None:
    answer = pytrace_ebpf.open(path).sql("select null::bigint as a, 3::bigint as b, sum(3::bigint) as c, 10::hugeint ** 30 as d")
    assert [str(t) for t in answer.dtypes] == ["Int64", "int64", "int64", "float64"] and answer["a"].isna().all()


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('{other}')",
        "select * from '{other}'",
        "select * from read_text('{other}')",
        "select * from glob('{folder}/*')",
        "copy calls to '{fresh}'",
        "export database '{fresh}'",
        "attach '{fresh}' as other",
        "set enable_external_access = true",
        "set temp_directory = '{fresh}'",
        "install httpfs",
        "load '{other}'",
        "select * from secret",
    ],
)
def test_a_query_sees_and_writes_no_file_and_no_variable(path: Path, tmp_path: Path, query: str) -> None:
    secret = pd.DataFrame({"secret": [1]})  # a variable of who asks
    other, fresh = tmp_path / "other", tmp_path / "fresh"
    other.write_text("a,b\n1,2\n")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(duckdb.Error):
        pytrace_ebpf.open(path).sql(query.format(other=other, folder=tmp_path, fresh=fresh))
    assert sorted(tmp_path.iterdir()) == before and len(secret)


def spoil(part: Path, name: str, values: pa.Array) -> None:
    table = pq.read_table(part)
    pq.write_table(table.set_column(table.column_names.index(name), table.schema.field(name), values), part)


def test_what_no_recorder_writes_comes_to_no_query(path: Path) -> None:
    part = path / "sched" / "part-00001.parquet"
    spoil(part, "kind", pc.add(pq.read_table(part)["kind"], pa.scalar(100, pa.int8())))
    with pytest.raises(TraceError, match="its kind has an impossible value"):
        pytrace_ebpf.open(path).sql("select max(kind) from sched")


def test_text_that_is_none_comes_to_no_query(path: Path) -> None:
    part = path / "threads" / sorted(p.name for p in (path / "threads").iterdir())[-1]
    count = pq.read_metadata(part).num_rows
    spoil(part, "name", pa.Array.from_buffers(pa.string(), count, pa.array([b"\xff\xfe"] * count).buffers()))
    with pytest.raises(TraceError, match="does not open"):
        pytrace_ebpf.open(path).sql("select name from threads")


def test_a_part_that_is_a_link_comes_to_no_query(path: Path, tmp_path: Path) -> None:
    part = path / "sched" / "part-00000.parquet"
    part.rename(tmp_path / "elsewhere")
    part.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TraceError, match="does not open"):
        pytrace_ebpf.open(path).sql("select count(ts) from sched")


def test_what_does_not_fit_into_memory_is_put_aside(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sql._CONFINED, "memory_limit", "40MB")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    trace, before = pytrace_ebpf.open(path), sorted(tmp_path.iterdir())
    texts = "select range as number, repeat('x', 40) || range as text from range(1000000)"
    answer = trace.sql(f"select sum(place * number) as n from (select number, row_number() over (order by text) as place from ({texts}))")
    assert len(answer) == 1 and sorted(tmp_path.iterdir()) == before


def test_without_duckdb_one_sentence_says_what_to_install(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(HostError, match=r"pip install 'pytrace-ebpf\[sql\]'"):
        pytrace_ebpf.open(path).sql("select 1")


@pytest.mark.parametrize("where", [{}, {"tid": 4001}, {"depth": 1, "start_ns": 1_005_000_000, "end_ns": 1_030_000_000}])
def test_calls_in_pieces_are_the_same_calls(path: Path, where: dict[str, int]) -> None:
    trace = pytrace_ebpf.open(path)
    pieces = list(trace.iter_calls(**where, rows=7))
    assert max(map(len, pieces)) <= 7 and min(map(len, pieces)) > 0
    whole = pd.concat(pieces).sort_values("call_id", ignore_index=True)
    pd.testing.assert_frame_equal(whole, trace.calls(**where), check_categorical=False)
    assert list(next(trace.iter_calls(columns=["line", "wall_ns"], **where)).columns) == ["line", "wall_ns"]


def test_pieces_of_no_calls_are_none(tmp_path: Path) -> None:
    assert list(pytrace_ebpf.open(write_trace(tmp_path)).iter_calls()) == []


def test_a_trace_says_what_it_is_in_a_line(path: Path) -> None:
    said = repr(pytrace_ebpf.open(path))
    assert str(path) in said and "'python3 app.py'" in said and "269 call events, none lost" in said
    assert "\n" not in said and " at 0x" not in said


def test_what_does_not_fit_into_memory_goes_to_a_directory_of_its_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = pytrace_ebpf.open(path)
    query = "select count(*) as n, sum(length(word)) as size from (select distinct md5(range::varchar) as word from range(3000000)) cross join (select 1 from threads limit 1)"
    whole = trace.sql(query)
    monkeypatch.setattr(sql, "_MEMORY", "120MiB")
    spilled = trace.sql(query)
    assert whole["n"].tolist() == spilled["n"].tolist() == [3_000_000] and whole["size"].tolist() == spilled["size"].tolist()
    monkeypatch.setitem(sql._CONFINED, "max_temp_directory_size", "1MiB")
    with pytest.raises(HostError, match="or more than is free in"):
        trace.sql(query)


def test_a_query_that_needs_more_memory_than_there_is_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "_MEMORY", "30MiB")
    with pytest.raises(HostError, match="this query needs more than 30MiB of memory at once"):
        pytrace_ebpf.open(path).sql("select len(list(range)) from range(20000000)")
