"""What was waited for behind a descriptor: how it is named, and where it is said."""

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.waits.resources import for_work, labels, of_clients
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.record.output.horizon import Horizon
from pytrace_ebpf.record.scheduling import resources
from pytrace_ebpf.trace.schema import RESOURCES, TABLES
from pytrace_ebpf.view.sentence import top_function
from tests.unit.synthetic import SAMPLE_FUNCTIONS, Row, Script, table_of, write_trace

MS = 1_000_000
RECVFROM, ACCEPT4, EPOLL_WAIT, FSYNC = 45, 288, 232, 74


def row(number: int, kind: str, name: str = "", local: str = "", listens: bool = False, peer: int = 0, command: str = "") -> Row:
    return (number, kind, name, local, listens, 7, 3, peer, 9, number, command)


ROWS = {
    "postgres 10.0.0.7:5432": row(1, "tcp", "10.0.0.7:5432", "10.0.0.2:41000"),
    "tcp 10.0.0.7:7001": row(2, "tcp", "10.0.0.7:7001", "10.0.0.2:41001"),
    "listening 0.0.0.0:50000": row(3, "tcp", "0.0.0.0:50000", "0.0.0.0:50000", listens=True),
    "clients of 10.0.0.2:50000": row(4, "tcp", "10.0.0.9:33000", "10.0.0.2:50000"),  # of the one that listens
    "clients of 10.0.0.2:8000": row(5, "tcp", "10.0.0.9:33000", "10.0.0.2:8000"),  # by its ports alone
    "dns 10.0.0.3:53": row(6, "udp", "10.0.0.3:53", "10.0.0.2:41000"),
    "udp 0.0.0.0:9999": row(7, "udp", "0.0.0.0:9999", "0.0.0.0:9999"),
    "redis [::1]:6379": row(8, "tcp", "[::1]:6379", "[::1]:41000"),
    "unix /run/app.sock": row(9, "unix", "/run/app.sock", peer=4711),
    "unix socket of 4711": row(10, "unix", peer=4711),
    "unix socket": row(11, "unix"),
    "/var/lib/app/log": row(12, "file", "/var/lib/app/log"),
    "pipe": row(13, "pipe"),
    "timerfd": row(14, "timerfd"),
    "child git": row(15, "child", "git", peer=4712),
    "pipe of ffmpeg": row(16, "pipe", peer=4713, command="ffmpeg"),
    "unix socket of worker (4714)": row(17, "unix", peer=4714, command="worker"),
    "gunicorn 127.0.0.1:7002": row(18, "tcp", "127.0.0.1:7002", "127.0.0.1:41001", peer=4715, command="gunicorn"),
    "lock of postgres 127.0.0.1:5433": (*row(20, "tcp", "127.0.0.1:5433", "127.0.0.1:41001", peer=4717, command="postgres"), 9, 5),
    "postgres 127.0.0.1:5434": (*row(21, "tcp", "127.0.0.1:5434", "127.0.0.1:41001", peer=4718, command="postgres"), 9, 4),
    "postgres 127.0.0.1:5432": row(19, "tcp", "127.0.0.1:5432", "127.0.0.1:41001", peer=4716, command="pgbouncer"),  # the usual name
}


def frame(rows: Any) -> pd.DataFrame:
    return table_of("resources", list(rows)).to_pandas()


@pytest.mark.parametrize("called", ROWS)
def test_names(called: str) -> None:
    assert labels(frame(ROWS.values()))[ROWS[called][0]] == called


def test_connections_to_one_server_have_one_name() -> None:
    """One of them ended before anybody looked."""
    ends = [row(1, "tcp", "127.0.0.1:7002", "127.0.0.1:41001", peer=4715, command="gunicorn"), row(2, "tcp", "127.0.0.1:7002", "127.0.0.1:41002")]
    assert labels(frame(ends)).tolist() == ["gunicorn 127.0.0.1:7002"] * 2


def test_what_has_no_name_is_not_named() -> None:
    assert labels(frame([row(1, "epoll"), row(2, "other"), row(3, "file")])).isna().all()
    assert not len(labels(frame([])))


def test_who_is_served() -> None:
    assert of_clients(frame(ROWS.values()))["resource_id"].tolist() == [3, 4, 5]


def trace_of(path: Path, *waits: dict[str, int]) -> Any:
    """A thread in Client.fetch that waits so, one after the other, for 10, 20, ... ms."""
    script = Script(7, 7, now=10).snapshot().enter(5)
    for number, each in enumerate(waits, 1):
        script.run(1000).wait(10 * MS * number, **each)
    script.leave()
    rows = list(ROWS.values())
    return pytrace_ebpf.open(write_trace(path, events=script.events, sched=script.sched, functions=SAMPLE_FUNCTIONS, resources=rows))


def test_a_wait_is_for_what_epoll_found_ready_else_for_what_it_was_called_with(tmp_path: Path) -> None:
    waits = trace_of(
        tmp_path,
        {"syscall": RECVFROM, "resource": 1},
        {"syscall": EPOLL_WAIT, "resource": 90, "ready": 2},
        {"syscall": EPOLL_WAIT, "resource": 90},
        {},
    ).waits()
    assert waits["resource_id"].dtype == "Int64" and waits["resource_id"].tolist() == [1, 2, 90, pd.NA]


def test_a_preempted_thread_waits_for_nothing(tmp_path: Path) -> None:
    script = Script(7, 7, now=10).snapshot().enter(5).run(10).preempted(5 * MS, by=9).leave()
    trace = pytrace_ebpf.open(write_trace(tmp_path, events=script.events, sched=script.sched, functions=SAMPLE_FUNCTIONS))
    assert trace.waits()["resource_id"].isna().all() and len(trace.resources()) == 0


def test_each_resource_has_a_row_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace_of(
        tmp_path,
        {"syscall": RECVFROM, "resource": 1},
        {"syscall": RECVFROM, "resource": 2},
        {"syscall": RECVFROM, "resource": 1},
        {"syscall": RECVFROM},
    )
    assert main(["report", "--by", "wait", "--json", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)["rows"]
    assert [(each["resource"], each["waits"], each["total_ns"] // MS) for each in found] == [
        ("postgres 10.0.0.7:5432", 2, 40),
        (None, 1, 40),
        ("tcp 10.0.0.7:7001", 1, 20),
    ]
    assert main(["report", "--by", "wait", str(tmp_path)]) == 0
    assert "postgres 10.0.0.7:5432 (recvfrom)" in capsys.readouterr().out


def test_a_name_that_a_program_chose_moves_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = Script(7, 7, now=10).snapshot().enter(5).wait(10 * MS, syscall=RECVFROM, resource=1).leave()
    named = [row(1, "unix", "/run/a\x1b[31m\x07\n.sock")]
    write_trace(tmp_path, events=script.events, sched=script.sched, functions=SAMPLE_FUNCTIONS, resources=named)
    for words in (["report"], ["report", "--by", "wait"]):
        assert main([*words, str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert "unix /run/a" in out and not {"\x1b", "\x07"} & set(out)


def test_the_first_line_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace_of(tmp_path, {"syscall": RECVFROM, "resource": 1}, {"syscall": RECVFROM, "resource": 1})
    assert main(["report", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1. `Client.fetch` (io.py:51) waits 100 % of the time" in said and "for postgres 10.0.0.7:5432 (recvfrom)" in said


def test_the_sentence_names_the_call_where_no_resource_has_most() -> None:
    part = {"kind": "net", "syscall": "recvfrom", "func_id": -2}
    parts = [{**part, "resource": name, "ns": 40} for name in ("a", "b", "c")]
    top = {"self_ns": 100, "func_id": 5} | dict.fromkeys(("self_on_cpu_ns", "self_runq_wait_ns", "self_gil_wait_ns"), 0) | {"self_blocked_ns": 100}
    said = top_function(top, 100, lambda: {"blocked": parts}, {5: "fetch"})
    assert said == "`fetch` is waiting in recvfrom (net), woken by no thread of this program."


def test_who_waits_for_clients_waits_for_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Script(7, 7, now=10).snapshot().enter(2).wait(900 * MS, syscall=ACCEPT4, resource=3).leave()
    client = Script(7, 8, cpu=1, now=10).snapshot().enter(5).wait(100 * MS, syscall=RECVFROM, resource=1).leave()
    events, sched = (
        sorted((each for script in (server, client) for each in getattr(script, name)), key=lambda r: r[0]) for name in ("events", "sched")
    )
    write_trace(tmp_path, events=events, sched=sched, functions=SAMPLE_FUNCTIONS, resources=list(ROWS.values()))
    assert for_work(pytrace_ebpf.open(tmp_path)).to_dict() == {2: 900 * MS}
    assert main(["report", str(tmp_path)]) == 0
    first = " ".join(capsys.readouterr().out.split())
    assert first.startswith("Threads were at work for 100ms. Most of that went to: 1. `Client.fetch` (io.py:51) waits 100 % of the time, 100ms, fo")


HEAD = np.dtype([("id", "u8"), ("inode", "u8"), ("device", "u4"), ("mode", "u4"), ("pid", "u4"), ("descriptor", "i4")])
SOCKET = np.dtype(
    [
        ("head", HEAD), ("local", "u4", 4), ("remote", "u4", 4), ("local_port", "u2"), ("remote_port", "u2"), ("family", "u2"), ("type", "u2"),
        ("state", "u1"), ("named", "u1"), ("anonymous", "u2"), ("peer", "u4"), ("name", "S128"),
    ]
)  # fmt: skip
STREAM, LISTEN = socket.SOCK_STREAM, 10


def address(text: str) -> np.ndarray:
    packed = socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)
    return np.frombuffer(packed.ljust(16, b"\0"), "<u4")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"family": 2, "type": STREAM, "local": "10.0.0.2", "local_port": 41000, "remote": "10.0.0.7", "remote_port": 5432},
         ("tcp", "10.0.0.7:5432", "10.0.0.2:41000", False)),
        ({"family": 10, "type": STREAM, "local": "::1", "local_port": 41000, "remote": "fe80::7", "remote_port": 80},
         ("tcp", "[fe80::7]:80", "[::1]:41000", False)),
        ({"family": 10, "type": STREAM, "local": "::ffff:10.0.0.2", "local_port": 8000, "remote": "::ffff:10.0.0.9", "remote_port": 33000},
         ("tcp", "10.0.0.9:33000", "10.0.0.2:8000", False)),
        ({"family": 2, "type": STREAM, "state": LISTEN, "local": "0.0.0.0", "local_port": 8000, "remote": "0.0.0.0"},
         ("tcp", "0.0.0.0:8000", "0.0.0.0:8000", True)),
        ({"family": 2, "type": socket.SOCK_DGRAM, "local": "0.0.0.0", "local_port": 53, "remote": "0.0.0.0"}, ("udp", "0.0.0.0:53", "0.0.0.0:53", False)),
        ({"family": 1, "type": STREAM, "named": 1, "name": b"/run/app.sock\0"}, ("unix", "/run/app.sock", "", False)),
        ({"family": 1, "type": STREAM, "named": 1, "name": b"\0app\xff"}, ("unix", "@app\\xff", "", False)),
        ({"family": 1, "type": STREAM}, ("unix", "", "", False)),
        ({"family": 16}, ("socket", "", "", False)),
        ({}, ("pipe", "", "", False)),
        ({"anonymous": 1, "name": b"[timerfd]"}, ("timerfd", "", "", False)),
        ({"anonymous": 1, "name": b"[perf_event]"}, ("other", "[perf_event]", "", False)),
    ],
)  # fmt: skip
def test_what_the_kernel_has_of_a_socket(fields: dict[str, Any], expected: tuple[str, str, str, bool]) -> None:
    event = np.zeros(2, SOCKET)  # of which the first one is another
    for name, value in fields.items():
        given = address(value) if isinstance(value, str) else socket.htons(value) if name == "remote_port" else value
        event[name][1] = given
    columns = resources._columns(*resources._sockets(event))
    assert tuple(columns[name][1] for name in ("kind", "name", "local_name", "listens")) == expected
    assert [*columns] == [column.name for column in RESOURCES.columns]


@pytest.mark.parametrize(
    ("names", "whole", "path"),
    [(b"log\0app\0var\0", True, "/var/app/log"), (b"log\0app\0", False, ".../app/log"), (b"", True, "/"), (b"a\xff\0", True, "/a\\xff")],
)
def test_paths(names: bytes, whole: bool, path: str) -> None:
    event = np.zeros(1, [("head", HEAD), ("length", "u4"), ("names", "S64")])
    event["names"], event["length"] = names + b"left over", len(names) | (resources._WHOLE if whole else 0)
    event["head"]["mode"] = 0o100644
    columns = resources._columns(*resources._paths(event))
    assert (columns["kind"][0], columns["name"][0]) == ("file", path)


def test_a_trace_that_begins_later_has_what_it_still_names(tmp_path: Path) -> None:
    horizon = Horizon()
    horizon.take({"resources": table_of("resources", list(ROWS.values()))})
    horizon.take({"sched": table_of("sched", [(10, 7, 7, 1, 0, 1, RECVFROM, 3, 0, 0, -1, 1)])})
    kept = horizon.beginning(100)["resources"]
    assert kept.schema == TABLES["resources"].arrow and sorted(kept["resource_id"].to_pylist()) == sorted(each[0] for each in ROWS.values())
    assert kept["resource_id"].to_pylist()[-1] == 1  # which was used last
