"""A confidential copy of a trace has no text but names of code: whatever else stands in any column, or in the manifest."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pytrace_ebpf
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.confidential import _HARMLESS, Confidential, Hiding, _file, _thread, manifest
from pytrace_ebpf.trace.schema import TABLES, Table
from tests.unit.synthetic import sample

SECRET = "s3cret"


def planted(spec: Table) -> pa.Table:
    """Two rows whose texts all have it, but for those that are enumerations and names of code."""

    def value(column: Any) -> Any:
        if "string" not in column.type:
            return None if column.nullable else [] if column.type.startswith("list") else False if column.type == "bool" else 0
        text = "tcp" if column.name == "kind" else "python" if f"{spec.name}.{column.name}" in _HARMLESS else f"/home/{SECRET}/{SECRET}.d/x.py"
        return [text] if column.type.startswith("list") else text

    row = {column.name: value(column) for column in spec.columns}
    return pa.table({name: pa.array([row[name]] * 2, spec.arrow.field(name).type) for name in spec.arrow.names}, schema=spec.arrow)


@pytest.mark.parametrize(
    "spec", [spec for spec in TABLES.values() if not spec.derived and spec.name not in Hiding.left_out], ids=lambda spec: spec.name
)
def test_no_column_has_other_texts(spec: Table) -> None:
    rows = planted(spec)
    table = Hiding().rows(spec, rows)
    assert len(table) == 2 and table.schema == spec.arrow and SECRET not in str(table.to_pylist())
    for column in spec.columns:  # what is no text is as it was
        if "string" not in column.type:
            assert table[column.name].to_pylist() == rows[column.name].to_pylist()


def test_no_key_of_the_manifest_has(tmp_path: Path) -> None:
    of = json.loads((sample(tmp_path / "trace") / "manifest.json").read_text())

    def spoiled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: spoiled(each) for name, each in value.items()} | {SECRET: SECRET}
        return [*map(spoiled, value), SECRET] if isinstance(value, list) else SECRET if isinstance(value, str) else value

    whole = {
        "ended": SECRET,
        "trigger": {"condition": SECRET},
        "patterns": [{"pattern": SECRET}],
        "native": {"missing": [SECRET]},
        "dropped": None,
    } | of
    harmless = {
        name: whole[name] for name in ("state", "clock", "cost", "events", "lost", "entry_line", "sampling", "sources", "scheduling") if name in whole
    }
    whole = (
        {name: spoiled(value) for name, value in whole.items()}
        | harmless
        | {"targets": [{"pid": 1, "command": SECRET}], "target": {"pid": 1, "command": f"x {SECRET}"}}
    )
    whole |= {"host": {"hostname": SECRET, "cpus": 2}, "sources": [{"source": "usdt", "why": SECRET, "pid": 1}]}
    assert SECRET not in json.dumps(
        manifest(whole | {"options": {"output": SECRET, "match": [SECRET], "filters": {"lines": "hits", "include": [SECRET]}}})
    )


def test_it_reads_as_the_trace_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sample(tmp_path / "trace")
    trace = pytrace_ebpf.open(path)
    hidden = Confidential(trace)
    assert hidden.calls().equals(trace.calls()) and hidden.waits()["kind"].astype(str).tolist() == trace.waits()["kind"].astype(str).tolist()
    assert hidden.functions()["qualname"].tolist() == trace.functions()["qualname"].tolist()
    said = {}
    for option in ((), ("--confidential",)):
        assert main(["report", str(path), "--json", *option]) == 0
        said[option] = json.loads(capsys.readouterr().out)
    assert said["--confidential",]["split"] == said[()]["split"] and said["--confidential",]["trace"] == "TRACE"
    assert str(tmp_path) not in json.dumps(said["--confidential",])


def test_paths_and_names() -> None:
    assert _file("/home/me/venv/lib/python3.11/site-packages/flask/app.py") == "./site-packages/flask/app.py"
    assert _file("/usr/lib/python3.11/asyncio/events.py") == "./lib/python3.11/asyncio/events.py"
    assert [_file(name) for name in ("/home/me/shop/views.py", "views.py", "<string>", "<s3cret>", "<frozen os>", "")] == [
        "views.py", "views.py", "<string>", "<code>", "<frozen os>", "",
    ]  # fmt: skip
    assert [_thread(name) for name in ("MainThread", "Thread-3 (work)", "ThreadPoolExecutor-0_1", "alice's", "")] == [
        "MainThread", "Thread-3 (work)", "ThreadPoolExecutor-0_1", "thread", "",
    ]  # fmt: skip
