"""Requests have the trace context that they came with, each its own where several take turns on a thread; and can be asked for by it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytrace_ebpf.analyze.requests.one_request import one_request
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.view import requests as view
from tests.conftest import PATIENCE_S
from tests.unit.analyze.test_requests import ASYNC, WEB, opened

A, B, C = (digit * 32 for digit in "abc")
ONE, TWO, THREE = (digit * 16 for digit in "123")


def ids(trace: Any) -> list[tuple[int, Any, Any]]:
    rows = trace.requests(["start_ns", "trace_id", "span_id"]).astype(object)
    return [tuple(row) for row in rows.where(rows.notna(), None).to_numpy().tolist()]


@pytest.mark.parametrize("cuts", [(), (15, 65, 79, 85, 121, 150)])
def test_a_context_is_of_the_request_within_which_it_was_seen(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    contexts = [
        (5, 7, 7, "w3c", A, ONE),  # before the first
        (12, 7, 7, "w3c", A, TWO), (14, 7, 7, "opentelemetry", A, THREE), (20, 7, 7, "opentelemetry", A, ONE),
        (15, 7, 8, "opentelemetry", C, ONE),  # another thread
        (110, 7, 7, "w3c", B, ONE), (111, 7, 7, "w3c", C, TWO),
        (195, 7, 7, "w3c", C, ONE),  # between two
    ]  # fmt: skip
    assert ids(opened(tmp_path, *WEB, cuts=cuts, trace_contexts=contexts)) == [(10, A, THREE), (100, B, ONE), (200, None, None)]


@pytest.mark.parametrize("cuts", [(), (2, 4, 21, 31, 42, 47)])
def test_coroutines_that_take_turns_have_their_own(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    contexts = [(3, 7, 7, "w3c", A, ONE), (22, 7, 7, "w3c", B, TWO), (41, 7, 7, "w3c", C, THREE)]
    assert ids(opened(tmp_path, *ASYNC, cuts=cuts, trace_contexts=contexts)) == [(1, B, TWO), (3, A, ONE), (60, None, None)]


def served(path: Path) -> Any:
    return opened(path / "trace", *WEB, trace_contexts=[(12, 7, 7, "w3c", A, ONE), (110, 7, 7, "w3c", A, TWO), (205, 7, 7, "w3c", B, THREE)])


def test_a_report_of_one_trace_id_has_its_requests_alone(tmp_path: Path) -> None:
    trace = served(tmp_path)
    table, facts = view.found(trace, trace.tree(), {"requests": (), "slowest": 10, "request_id": A.upper()})
    assert table["requests"].tolist() == [2] and [each["span_id"] for each in facts["slowest"]] == [TWO, ONE]


def test_what_there_is_not_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(served(tmp_path).directory)
    assert main(["report", path, "--request-id", C]) == 2
    assert f"No request of this trace is trace id {C}; 3 of 3 requests have one." in capsys.readouterr().err
    assert main(["report", path, "--request-id", "12345"]) == 2
    assert "is request 12345." in capsys.readouterr().err
    assert main(["export", path, "--to", "otlp", "--request-id", A, "-o", str(tmp_path / "o")]) == 2
    assert "2 requests have this trace id; name one by its number: --request-id " in capsys.readouterr().err
    assert main(["export", path, "--to", "pprof", "--request-id", A]) == 2


def test_each_sample_of_an_export_links_to_the_span(tmp_path: Path) -> None:
    service = pytest.importorskip(
        "opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2", reason="needs pip install opentelemetry-proto"
    )
    trace = served(tmp_path)
    assert main(["export", str(trace.directory), "--to", "otlp", "--request-id", B, "-o", str(tmp_path / "o")]) == 0
    found = service.ExportProfilesServiceRequest.FromString((tmp_path / "o").read_bytes())
    (first, link) = found.dictionary.link_table
    assert (link.trace_id.hex(), link.span_id.hex(), first.trace_id) == (B, THREE, b"")
    profiles = [each for resource in found.resource_profiles for scope in resource.scope_profiles for each in scope.profiles]
    samples = [sample for each in profiles for sample in each.samples]
    assert samples and {sample.link_index for sample in samples} == {1}
    wall = next(each for each in profiles if found.dictionary.string_table[each.sample_type.type_strindex] == "wall")
    assert sum(sample.values[0] for sample in wall.samples) == 10 == wall.duration_nano


def test_the_command_shows_one_request(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "pytrace_ebpf", "report", str(served(tmp_path).directory), "--request-id", A]
    said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    assert said.replace("\n", " ").count(f"trace {A}") == 2 and B not in said


def test_a_request_says_what_it_asked_of_whom_and_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [(65, 7, 7, "driver", "SELECT ?", "complete"), (130, 7, 7, "driver", "UPDATE a", "complete")]
    trace = opened(tmp_path / "web", *WEB, client_calls=asked)
    found = [one_request(trace, row).asked for row in trace.requests().to_dict("records")]
    assert [list(each[["statement", "count", "total_ns"]].itertuples(index=False, name=None)) for each in found] == [
        [("SELECT ?", 1, 12)],
        [("UPDATE a", 1, 30)],
        [],
    ]
    assert main(["report", str(trace.directory), "--by", "request", "--slowest", "2"]) == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert "`UPDATE a` of driver took 30ns in 1 call." in said and "`SELECT ?` of driver took 12ns in 1 call." in said
    turns = opened(tmp_path / "turns", *ASYNC, client_calls=[(6, 7, 7, "driver", "SELECT ?", "complete")])
    found = [one_request(turns, row).asked for row in turns.requests().to_dict("records")]
    assert [each["total_ns"].tolist() for each in found] == [[], [44 - 6], []]
