"""Who processes are, as reports, exports and metrics say it."""

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.identity_patterns import Who
from pytrace_ebpf.trace.schema import PROCESSES
from pytrace_ebpf.view.identities import identities, sentences
from pytrace_ebpf.view.metrics import Totals, text
from tests.unit.daemon.test_push import ROWS
from tests.unit.synthetic import GIL, write_trace

SHOP = {
    "service_name": "shop", "service_version": "1.4", "deployment_environment": "prod", "k8s_namespace_name": "store", "k8s_pod_name": "shop-0",
    "k8s_container_name": "web", "k8s_node_name": "n1", "host_id": "77", "container_id": "ab" * 32, "service_instance_id": "i1",
}  # fmt: skip


def process(pid: int, command: str = "python3 app.py", **said: str) -> tuple[Any, ...]:
    known = {"pid": pid, "ppid": 1, "executable": "/usr/bin/python3", "command": command, "python_version": "3.11.2", "source": "usdt"}
    known |= {"gil_start": GIL[0], "gil_end": GIL[1], "start_ns": 0, "interpreters": 1} | said
    return tuple(known.get(column.name) for column in PROCESSES.columns)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    events = [(ts, pid, pid, kind, 0, 0, 1) for pid in (7, 9) for ts, kind in ((10, 0), (1000, 1))]
    return write_trace(
        tmp_path / "trace", events=events, functions=[(0, "/srv/app.py", "f", "f", 1, "app", 0, "python")], processes=[process(7, **SHOP), process(9)]
    )


def test_the_report_names_the_service_and_the_pod_once(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(trace)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("store/shop-0") == 1 and "service shop 1.4 (prod), pod store/shop-0, container web, node n1" in printed
    assert main(["report", str(trace), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["identities"]
    assert found["processes"] == 1 and found["service_name"] == "shop" and "service_instance_id" not in found
    assert main(["info", str(trace)]) == 0
    assert "service shop 1.4" in capsys.readouterr().out


@pytest.mark.parametrize("to", ["pprof", "otlp", "perfetto"])
def test_exports_have_the_attributes(trace: Path, tmp_path: Path, to: str) -> None:
    assert main(["export", str(trace), "--to", to, "-o", str(tmp_path / "out")]) == 0
    content = (tmp_path / "out").read_bytes()
    content = gzip.decompress(content) if to == "pprof" else content
    for said in (b"service shop 1.4",) if to == "perfetto" else (b"k8s.pod.name", b"shop-0", b"container.id", SHOP["container_id"].encode()):
        assert said in content
    assert to != "otlp" or (b"app.py" in content and b"deployment.environment.name" in content)


def test_metrics_have_labels_of_the_pod() -> None:
    totals = Totals()
    totals.add(ROWS, {}, {7: "shop", 9: "job"}, {7: {"k8s.pod.name": 'shop"0', "service.version": "1.4", "host.id": "77"}})
    lines = [line for line in text({}, totals).splitlines() if line.startswith("pytrace_ebpf_process_samples_total")]
    assert lines[0].startswith('pytrace_ebpf_process_samples_total{pid="7",service="shop",service_version="1.4",k8s_pod_name="shop\\"0"}')
    assert lines[1].startswith('pytrace_ebpf_process_samples_total{pid="9",service="job"}')
    waits = pd.DataFrame([(7, "net", 2 * 10**9), (7, "net", 10**9), (9, "lock", 5 * 10**8), (77, "lock", 1)], columns=["pid", "kind", "total_ns"])
    totals.add(ROWS, {}, {7: "shop", 9: "job"}, waits=waits)
    lines = [line for line in text({}, totals).splitlines() if line.startswith("pytrace_ebpf_wait_seconds_total")]
    assert lines == [
        'pytrace_ebpf_wait_seconds_total{pid="7",service="shop",service_version="1.4",k8s_pod_name="shop\\"0",kind="net"} 3',
        'pytrace_ebpf_wait_seconds_total{pid="9",service="job",kind="lock"} 0.5',
    ]
    totals.ended(7)
    assert not totals.labels.get(7) and 7 not in totals.waits


def test_of_several_the_first_ones_are_said(trace: Path) -> None:
    rows = pd.DataFrame([process(pid, **SHOP | {"k8s_pod_name": f"shop-{pid // 2}"}) for pid in range(9)], columns=PROCESSES.arrow.names)
    found = identities(rows)
    assert [each["processes"] for each in found] == [2, 2, 2, 2, 1]
    lines = sentences(found)
    assert len(lines) == 4 and lines[0].endswith(": 2 processes") and lines[3] == "and 2 more services or containers"
    assert identities(pytrace_ebpf.open(trace).processes()[lambda rows: rows["pid"] == 9]) == []


@pytest.mark.parametrize(
    ("written", "pids"),
    [
        ("service=shop", {7}), ("service=app.py", {9}), ("service=s*p", {7}), ("pod=shop-0", {7}), ("pod=store/shop-*", {7}), ("pod=other/*", set()),
        ("container=web", {7}), ("container=abab", {7}), ("container=*", {7}), ("unit=*", set()), ("service=*", {7, 9}), ("service=", None), ("shop", None),
    ],
)  # fmt: skip
def test_processes_are_named_by_who_they_are(trace: Path, written: str, pids: set[int] | None) -> None:
    wanted = Who.parsed(written)
    assert (None if wanted is None else {row["pid"] for row in pytrace_ebpf.open(trace).processes().to_dict("records") if wanted.fits(row)}) == pids


def test_a_report_of_a_service(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(trace), "--match", "service=shop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["window"]["pid"] == 7
    assert main(["report", str(trace), "--match", "service=*", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["window"] is None
    for wrong, said in (("service=none", "fits no process"), ("shop", "says nothing of who")):
        assert main(["report", str(trace), "--match", wrong]) == 2 and said in capsys.readouterr().err


def test_a_report_of_some_of_the_processes_is_as_if_they_alone_had_been_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [(ts, pid, pid, kind, pid % 2, 0, 1) for pid in range(6) for ts, kind in ((10, 0), (1000 + pid, 1))]
    functions = [(number, "/srv/app.py", f"f{number}", f"f{number}", 1, "app", 0, "python") for number in range(2)]
    rows = [process(pid, **(SHOP if pid % 2 else {})) for pid in range(6)]
    path = write_trace(tmp_path / "trace", events=sorted(events), functions=functions, processes=rows, cuts=[500, 1003])
    assert main(["report", str(path), "--match", "service=shop", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (
        said["processes"] == 3
        and said["calls"] == 3
        and [(row["qualname"], row["calls"], row["total_ns"]) for row in said["rows"]] == [("f1", 3, 3 * 990 + 1 + 3 + 5)]
    )
    assert main(["report", str(path), "--match", "service=shop", "--confidential"]) == 0
    assert "service shop 1.4" in (printed := capsys.readouterr().out) and str(tmp_path) not in printed
    assert main(["export", str(path), "--to", "folded", "--match", "service=shop", "-o", "-"]) == 0
