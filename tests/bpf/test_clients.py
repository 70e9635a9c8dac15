"""What real client libraries are asked for: each statement as often as the program asked, of whom, and no secret of it anywhere in the trace."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.clients.by_client import by_client
from pytrace_ebpf.analyze.clients.pools import pools
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import TABLES
from tests.bpf.conftest import COMMAND, lost
from tests.conftest import PATIENCE_S, TARGETS

Run = Callable[..., tuple[Path, "subprocess.CompletedProcess[str]"]]
SECRET = "hunter7"
PROGRAM = [sys.executable, str(TARGETS / "clients.py")]


def recorded(run: Run, *options: str) -> tuple[Trace, dict, dict]:
    """A trace, what the program says, and the rows of `report --by client` by function, library and statement."""
    directory, ended = run(PROGRAM, "-q", "--source", "agent", *options)
    assert ended.returncode == 0, ended.stderr
    trace = pytrace_ebpf.open(directory)
    names = trace.functions().set_index("func_id")["name"]
    rows = by_client(trace)
    rows["key"] = rows["own_func_id"].map(names).astype(str) + " " + rows["library"] + " " + rows["statement"]
    return trace, json.loads(ended.stdout.splitlines()[-1]), rows.set_index("key").to_dict("index")


@pytest.mark.usually("agent")
def test_each_is_counted_as_the_program_asked(run: Run) -> None:
    trace, said, rows = recorded(run)
    assert {key: rows[key]["count"] for key in said["asked"] if key in rows} == said["asked"]
    assert not lost(trace)
    for key in said["asked"]:
        if any(library in key for library in ("requests", "urllib3", "urllib ", "httpx")):
            assert rows[key]["resource"].split()[-1] == said["server"], key  # after tcp, or the command there
            assert 0 < rows[key]["waited_ns"] <= rows[key]["total_ns"], key
    (sql,) = [key for key in said["asked"] if "SQLAlchemy SELECT" in key]
    assert 0 < rows[sql]["total_ns"] <= said["sql_ns"]
    names = trace.functions().set_index("func_id")["name"]
    short = pools(trace).iloc[0]
    assert (names[short["own_func_id"]], names[short["had_func_id"]], short["size"], short["count"]) == ("borrow", "keep", 3, 1)
    assert short["out"] > 2.5 and short["had_share"] > 0.9


def texts(trace: Trace) -> str:
    """All that is in its tables, but for the command lines of processes."""
    return "".join(trace.sql(f"SELECT * FROM {name}").to_csv() for name in TABLES if name not in ("processes", "usage"))


def test_no_secret_is_in_the_trace(run: Run) -> None:
    assert SECRET not in texts(recorded(run)[0])


def test_with_raw_all_of_it_is(run: Run) -> None:
    assert f"token={SECRET}" in texts(recorded(run, "--clients", "raw")[0])


def test_asked_for_nothing_nothing_is_told(run: Run) -> None:
    trace, _, rows = recorded(run, "--clients", "none")
    assert not rows and not len(trace.client_calls())
    said = subprocess.run([*COMMAND, "report", trace.directory, "--by", "client"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert "was not recorded" in said.stdout


def test_filters_do_not_hide_what_clients_are_asked_for(run: Run) -> None:
    _, said, rows = recorded(run, "--include", "clients")
    assert {key: rows[key]["count"] for key in said["asked"] if key in rows} == said["asked"]


def test_what_is_excluded_is_not_told(run: Run) -> None:
    _, said, rows = recorded(run, "--exclude", "subprocess", "--exclude", "concurrent")
    left = {key: count for key, count in said["asked"].items() if "subprocess" not in key and "concurrent" not in key}
    assert {key: rows[key]["count"] for key in said["asked"] if key in rows} == left


def test_requests_have_the_ids_of_their_spans(run: Run) -> None:
    directory, ended = run([sys.executable, str(TARGETS / "spans.py")], "-q", "--source", "agent")
    assert ended.returncode == 0, ended.stderr
    requests = pytrace_ebpf.open(directory).requests().sort_values("start_ns")
    assert requests[["trace_id", "span_id"]].to_numpy().tolist() == json.loads(ended.stdout.splitlines()[-1])["spans"]
