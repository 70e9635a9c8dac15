"""What is sent elsewhere arrives whole, and is read there by the receiver's own library; a server that is slow, gone or hostile costs nothing but what was for it."""

import gzip
import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pandas as pd
import pytest

from pytrace_ebpf.daemon import sending
from pytrace_ebpf.daemon.destination import OTLP, PYROSCOPE
from pytrace_ebpf.daemon.push import Payload, Push, Server
from pytrace_ebpf.daemon.sending import payloads
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.trace.schema import FUNCTIONS
from pytrace_ebpf.view.export import otlp
from pytrace_ebpf.view.export.pprof import Span
from pytrace_ebpf.view.export.profile_windows import held_loops
from tests.conftest import PATIENCE_S
from tests.receiver import Receiver, form
from tests.unit.pprof_format import parse, samples
from tests.unit.view.export.test_profiles import of_otlp

COLUMNS = (
    "pid",
    "node_id",
    "parent_id",
    "func_id",
    "line",
    "samples",
    "off_samples",
    "on_cpu_ns",
    "runq_wait_ns",
    "gil_wait_ns",
    "blocked_ns",
    "unknown_ns",
)
ROWS = pd.DataFrame(
    [
        (7, 0, -1, 0, 3, 0, 0, 0, 0, 0, 0, 0),
        (7, 1, 0, 1, 40, 2, 1, 200, 10, 20, 30, 0),
        (7, 2, 1, 2, 8, 1, 0, 100, 0, 0, 0, 0),
        (9, 3, -1, 0, 4, 1, 1, 100, 0, 0, 0, 5),
        (9, -2, -1, -1, -1, 1, 0, 100, 0, 0, 0, 0),
        (9, -3, -1, -1, -1, 2, 0, 200, 0, 0, 0, 0),
        (9, -1, -1, -1, -1, 4, 0, 400, 0, 0, 0, 0),
    ],
    columns=COLUMNS,
)
FUNCTION_ROWS = [
    (0, "/srv/app.py", "<module>", "<module>", 1, "app", 0, "python"),
    (1, "/usr/lib/python3.11/asyncio/events.py", "_run", "Handle._run", 30, "asyncio.events", 0, "python"),
    (2, "/srv/app.py", "f", "f", 7, "app", 0, "python"),
]
FUNCTIONS_ = pd.DataFrame(FUNCTION_ROWS, columns=FUNCTIONS.arrow.names)
SPAN = Span(1_700_000_001_500_000_000, 10_000_000_000, 100)
RESOURCES = {
    pid: otlp.resource({"pid": pid, "command": command, "executable": "/usr/bin/python3.11", "python_version": "3.11.2"}, "here")
    for pid, command in ((7, "python3 -m shop.web --key=s3cret"), (9, "x y"))
}
APP, RUN, F = ("<module>", "/srv/app.py"), ("Handle._run", "/usr/lib/python3.11/asyncio/events.py"), ("f", "/srv/app.py")
EXPECTED = {
    (7, ((*APP, 3, 1), (*RUN, 40, 30))): {"samples": 3, "wall": 260, "on_cpu": 200, "runq_wait": 10, "gil_wait": 20, "blocked": 30},
    (7, ((*APP, 3, 1), (*RUN, 40, 30), (*F, 8, 7))): {"samples": 1, "wall": 100, "on_cpu": 100},
    (9, ((*APP, 4, 1),)): {"samples": 2, "wall": 105, "on_cpu": 100, "not_recorded": 5},
    (9, (("(unknown)", "", 0, 0),)): {"samples": 1, "wall": 100, "on_cpu": 100},
    (9, (("(further contexts)", "", 0, 0),)): {"samples": 2, "wall": 200, "on_cpu": 200},
}


@pytest.fixture
def receiver(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    made = Receiver(*getattr(request, "param", (200,)))
    yield made
    made.shutdown()
    made.server_close()


def until(push: Push, **wanted: Any) -> dict[str, Any]:
    """Its status, once it is so."""
    ends = time.monotonic() + PATIENCE_S
    while (status := push.status()) | wanted != status and time.monotonic() < ends:
        time.sleep(0.01)
    assert status | wanted == status
    return status


def test_a_collector_gets_every_process_of_a_window(receiver: Receiver) -> None:
    service = pytest.importorskip(
        "opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2", reason="needs pip install opentelemetry-proto"
    )
    push = Push(Server(receiver.url + "/otlp/", {"Authorization": "Bearer s3cret"}))
    for payload in payloads(OTLP, ROWS, FUNCTIONS_, SPAN, RESOURCES):
        push.push(payload)
    receiver.wait()
    until(push, sent=1, waiting=0)
    push.close()
    ((path, headers, body),) = receiver.taken
    assert path == "/otlp/v1development/profiles" and headers["Authorization"] == "Bearer s3cret"
    assert (headers["Content-Type"], headers["Content-Encoding"]) == ("application/x-protobuf", "gzip")
    request = service.ExportProfilesServiceRequest.FromString(gzip.decompress(body))
    names = [{each.key: each.value.string_value for each in resource.resource.attributes}["service.name"] for resource in request.resource_profiles]
    assert names == ["shop.web", "python3.11"] and b"s3cret" not in gzip.decompress(body)
    for resource in request.resource_profiles:  # there are no threads: what of_otlp tells them by is the process
        for profile in resource.scope_profiles[0].profiles:
            assert profile.time_unix_nano == SPAN.unix_ns and profile.period == 100
    found: dict[Any, dict[str, int]] = {}
    for resource in request.resource_profiles:
        (pid,) = [each.value.int_value for each in resource.resource.attributes if each.key == "process.pid"]
        alone = service.ExportProfilesServiceRequest(resource_profiles=[resource], dictionary=request.dictionary)
        found |= {(pid, path): values for (_, _, path), values in of_otlp(alone).items()}
    assert found == EXPECTED


def test_pyroscope_gets_a_profile_of_each_service(receiver: Receiver) -> None:
    push = Push(Server(receiver.url))
    for payload in payloads(PYROSCOPE, ROWS, FUNCTIONS_, SPAN, RESOURCES):
        push.push(payload)
    until(push, sent=2, waiting=0)
    push.close()
    found: dict[Any, dict[str, int]] = {}
    for path, headers, body in receiver.taken:
        asked = {name: value for name, (value,) in parse_qs(urlsplit(path).query).items()}
        assert urlsplit(path).path == "/ingest" and asked["format"] == "pprof" and asked["name"] in ("shop.web", "python3.11")
        assert (asked["from"], asked["until"]) == ("1700000001", "1700000011")
        parts = form(headers["Content-Type"], body)
        profile = parse(parts["profile"])
        assert {profile.string_table[each.type] for each in profile.sample_type} == json.loads(parts["sample_type_config"]).keys()
        (pid,) = {label.num for sample in profile.sample for label in sample.label if profile.string_table[label.key] == "pid"}
        found |= {(pid, stack): {name: value for name, value in values.items() if value} for (_, _, stack), values in samples(profile).items()}
    assert found == EXPECTED


def test_services_beyond_the_largest_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "MOST_SERVICES", 1)
    names = [parse_qs(urlsplit(payload.path).query)["name"] for payload in payloads(PYROSCOPE, ROWS, FUNCTIONS_, SPAN, RESOURCES)]
    assert names == [["others"], ["python3.11"]]


def test_how_long_callbacks_held_the_loop() -> None:
    assert held_loops(ROWS, FUNCTIONS_) == {7: 360}


@pytest.mark.parametrize("receiver", [(503, 429, 200)], indirect=True)
def test_what_may_do_later_is_tried_again(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytrace_ebpf.daemon.push._LEAST_PAUSE_S", 0.01)
    push = Push(Server(receiver.url))
    push.push(Payload("/p", b"one", "text/plain"))
    status = until(push, sent=1, failed=2, waiting=0)
    assert status["why"] is None and [body for *_, body in receiver.taken] == [b"one"] * 3
    push.close()


@pytest.mark.parametrize("receiver", [(400, 302, 200)], indirect=True)
def test_what_is_refused_is_not_tried_again_and_nothing_is_sent_elsewhere(receiver: Receiver) -> None:
    push = Push(Server(receiver.url, {"Authorization": "s3cret"}))
    for body in (b"one", b"two", b"three"):
        push.push(Payload("/p", body, "text/plain"))
    status = until(push, sent=1, refused=2, waiting=0)
    assert [body for *_, body in receiver.taken] == [b"one", b"two", b"three"] and "s3cret" not in repr((status, push._server))
    push.close()


def test_a_server_that_is_gone_costs_what_waits_for_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    push = Push(Server(f"http://127.0.0.1:{port}"), most=2)
    for number in range(50):
        push.push(Payload("/p", bytes([number]), "text/plain"))
    status = until(push, failed=1)
    assert status["dropped"] == 48 and status["waiting"] == 2 and status["why"] == "connection refused"
    push.close()
    assert not push._thread.is_alive()


def test_what_waits_is_bounded_in_bytes_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        push = Push(Server(f"http://127.0.0.1:{silent.getsockname()[1]}"), most_bytes=100)
        push.push(Payload("/p", bytes(200), "text/plain"))
        for _ in range(3):
            push.push(Payload("/p", bytes(60), "text/plain"))
        assert push.status()["dropped"] == 3 and push.status()["waiting"] == 1
        begin = time.monotonic()
        push.close(0.1)
        assert time.monotonic() - begin < PATIENCE_S


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "it did not answer in time"),
        (b"SSH-2.0-x\r\n", "its answer is no HTTP"),
        (b"HTTP/1.1 200 " + b"x" * 100_000, "its answer is no HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 500, "its answer is no HTTP"),
    ],
)
def test_answers_that_are_none(answer: bytes, why: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        push = Push(Server(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=0.3))
        push.push(Payload("/p", b"x", "text/plain"))
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(answer)
            assert until(push, failed=1)["why"] == why
        push.close(0.1)


def test_a_server_that_answers_a_byte_now_and_then_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        push = Push(Server(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=0.2))
        push.push(Payload("/p", b"x", "text/plain"))
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            ends = time.monotonic() + PATIENCE_S
            while not push.status()["failed"] and time.monotonic() < ends:
                try:
                    connection.sendall(b"a")
                except OSError:
                    break
                time.sleep(0.05)
        until(push, failed=1)
        push.close(0.1)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:4318",
        "ftp://x",
        "http://",
        "http://u:s3cret@x",
        "http://x?k=s3cret",
        "http://x/\r\nA: b",
        "http://x:99999",
        "http://[x",
        "http://x y",
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(UsageError) as error:
        Server(url)
    assert "s3cret" not in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "value"), [("A b", "x"), ("A", "x\r\nB: y"), ("A", "é"), ("", "x")])
def test_headers_that_are_none(name: str, value: str) -> None:
    with pytest.raises(UsageError):
        Server("http://x", {name: value})
