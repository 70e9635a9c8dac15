"""Metrics as Prometheus' own parser reads them, over the port at which they are served; whatever names programs have, and however many there are."""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytrace_ebpf.daemon import metrics_port
from pytrace_ebpf.daemon.metrics_port import MetricsPort
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.services import service
from pytrace_ebpf.view.export.profile_windows import held_loops
from pytrace_ebpf.view.metrics import Totals, text
from tests.conftest import PATIENCE_S
from tests.unit.daemon.test_push import FUNCTIONS_, ROWS

parser = pytest.importorskip("prometheus_client.parser", reason="needs pip install prometheus-client")
STATUS = {
    "samples": 1234, "lost": 5, "windows": 7, "windows_not_written": 1, "bytes": 4096, "cpu_s": 1.25, "rss_bytes": 250_000_000, "sampled": 3, "ignored": 9,
    "too_many": 0, "uptime_s": 70.5, "reloads": 2, "traces_removed": 0, "directory": "/var/lib/x", "recordings": {"begun": 1},
    "push": [{"server": "http://localhost:4318", "sent": 6, "dropped": 2, "refused": 0, "failed": 3, "waiting": 1, "why": None}],
}  # fmt: skip


def read(written: str) -> dict[str, dict[frozenset[Any], float]]:
    """Every metric's series, by their labels."""
    out: dict[str, dict[frozenset[Any], float]] = {}
    for family in parser.text_string_to_metric_families(written):
        assert family.documentation and family.type in ("counter", "gauge"), family
        for sample in family.samples:
            own = out.setdefault(sample.name, {})
            assert frozenset(sample.labels.items()) not in own, sample
            own[frozenset(sample.labels.items())] = sample.value
    return out


def labels(**given_: str) -> frozenset[Any]:
    return frozenset(given_.items())


def totals(names: dict[int, str], windows: int = 1, **more: Any) -> Totals:
    out = Totals(**more)
    for _ in range(windows):
        out.add(ROWS, held_loops(ROWS, FUNCTIONS_), names)
    return out


def test_processes_have_their_time_by_state_since_the_daemon_began() -> None:
    found = read(text({}, totals({7: "web", 9: "job"}, windows=3)))
    states = {"on_cpu": 300, "runq_wait": 10, "gil_wait": 20, "blocked": 30, "unknown": 0}
    seconds = found["pytrace_ebpf_thread_seconds_total"]
    for name, ns in states.items():
        assert seconds[labels(pid="7", service="web", state=name)] == pytest.approx(3 * ns / 1e9)
    assert found["pytrace_ebpf_process_samples_total"][labels(pid="9", service="job")] == 3 * 9
    assert found["pytrace_ebpf_asyncio_loop_held_seconds_total"] == {labels(pid="7", service="web"): pytest.approx(3 * 360 / 1e9)}


def test_the_daemons_own_figures() -> None:
    found = read(text(STATUS, Totals()))
    nothing = labels()
    assert {name: found[f"pytrace_ebpf_{name}"][nothing] for name in ("samples_total", "lost_total", "cpu_seconds_total", "resident_memory_bytes")} == {
        "samples_total": 1234, "lost_total": 5, "cpu_seconds_total": 1.25, "resident_memory_bytes": 250_000_000,
    }  # fmt: skip
    assert found["pytrace_ebpf_push_dropped_total"] == {labels(push="1", server="http://localhost:4318"): 2}
    assert len(found) == 13 + 4


def test_so_many_processes_have_series_of_their_own_and_the_others_one_together() -> None:
    many = Totals(most=3)
    for pid in range(30):
        many.add(ROWS[ROWS["pid"] == 7].assign(pid=pid), {pid: 5}, {pid: f"s{pid}"})
    found = read(text({}, many))
    samples = found["pytrace_ebpf_process_samples_total"]
    assert samples == {
        labels(pid="0", service="s0"): 4,
        labels(pid="1", service="s1"): 4,
        labels(pid="2", service="s2"): 4,
        labels(service="(others)"): 4 * 27,
    }
    many.ended(1)
    many.add(ROWS, {}, {7: "web"})
    assert labels(pid="7", service="web") in read(text({}, many))["pytrace_ebpf_process_samples_total"]
    assert all(len(of) <= 4 for of in (many.times, many.names, many.held))


@given(name=st.text())
@settings(max_examples=40)
def test_names_that_programs_chose_are_one_label_each(name: str) -> None:
    found = read(text({}, totals({7: name, 9: 'x"} 1\npytrace_ebpf_lost_total 99\\'})))
    assert "pytrace_ebpf_lost_total" not in found
    for series in found.values():
        for each in series:
            assert dict(each).keys() <= {"pid", "service", "state"} and all(len(value) <= 64 for _, value in each)
    assert {dict(each)["pid"] for each in found["pytrace_ebpf_process_samples_total"]} == {"7", "9"}


@pytest.mark.parametrize(
    ("command", "executable", "name"),
    [
        ("python3 /srv/app.py --password s3cret", "", "app.py"), ("/opt/v/bin/python3.13t -X dev -m shop.web -k s3cret", "", "shop.web"),
        ("python -mshop", "", "shop"), ("python3 -c 's3cret = 1'", "", "python"), ("python3 -Wignore -u a/b.py", "", "b.py"), ("python3", "", "python3"),
        ("/usr/bin/gunicorn app:x", "/usr/bin/python3.11", "python3.11"), ("", "/usr/bin/python3.9", "python3.9"), ("python3 -m", "", "python"),
        ("python3 - s3cret", "", "python"), ("python3 'a\nb.py", "", "python"), ("", "", ""), ("python3 " + "x" * 999, "", "x" * 64),
        ("python3 '\x1b[31m.py'", "", "python"), ("python3 /srv/été.py", "", "été.py"),
        # What is no script though it does not begin with a dash: values and code behind options that are written together, and a title of its own.
        ("python3 -Ic s3cret tok=s3cret", "", "python"), ("python3 -uX s3cret app.py", "", "app.py"), ("python3 -um shop.web s3cret", "", "shop.web"),
        ("python3 -BW s3cret -m shop", "", "shop"), ("python3 --check-hash-based-pycs s3cret app.py", "", "app.py"), ("python3 --jit s3cret", "", "python"),
        ("tok=s3cret", "/usr/bin/python3.11", "python3.11"), ("s3cret", "/usr/bin/python3.11", "python3.11"), ("tok=s3cret app.py", "", ""),
        ("python3 tok=s3cret", "", "python"), ("python3 'db://u:s3cret@host'", "", "python"), ("python3 -m 's3cret!'", "", "python"), ("python3 -z s3cret", "", "python"),
        ("'worker s3cret'", "/usr/bin/python3.11", "python3.11"), ("python3 -mc s3cret", "", "c"),
    ],
)  # fmt: skip
def test_what_a_program_is_called(command: str, executable: str, name: str) -> None:
    assert service(command, executable) == name


@pytest.fixture
def port() -> Iterator[MetricsPort]:
    served = MetricsPort(0, lambda: text(STATUS, totals({7: "web", 9: "job"})))
    yield served
    served.close()


def ask(port: MetricsPort, path: str = "/metrics", host: str | None = None, method: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port.port, timeout=PATIENCE_S)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    found = answer.status, answer.headers.get("Content-Type", ""), answer.read().decode()
    connection.close()
    return found


def test_prometheus_asks_and_is_answered(port: MetricsPort) -> None:
    status, kind, body = ask(port)
    assert status == 200 and kind.startswith("text/plain; version=0.0.4") and len(read(body)) == 20
    assert ask(port, "/metrics?x=1")[0] == 200 and ask(port, host=f"localhost:{port.port}")[0] == 200


@pytest.mark.parametrize("words", [{"path": "/"}, {"path": "/../etc/passwd"}, {"host": "evil.example"}, {"method": "POST"}, {"method": "DELETE"}])
def test_nothing_else_is_answered(port: MetricsPort, words: dict[str, str]) -> None:
    status, _, body = ask(port, **words)
    assert status in (404, 501) and "pytrace_ebpf_" not in body


def test_who_connects_and_says_nothing_or_rubbish_does_not_keep_others_waiting(port: MetricsPort) -> None:
    address = ("127.0.0.1", port.port)
    for said in (b"\x00" * 100_000, b"GET " + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b"GET /metrics HTTP/9.9\r\n\r\n", json.dumps(STATUS).encode()):
        with socket.create_connection(address) as connection:
            try:
                connection.sendall(said)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass
            except OSError:
                pass  # it has been left already
    with socket.create_connection(address) as silent, socket.create_connection(address) as slow:
        begin = time.monotonic()
        slow.sendall(b"GET /metrics HTTP/1.1\r\nA")
        assert ask(port)[0] == 200
        assert time.monotonic() - begin < PATIENCE_S
        assert silent.fileno() >= 0
    assert ask(port)[0] == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="connects as other users")
@pytest.mark.parametrize("known", ["sock_diag", "list"])
def test_silent_connections_of_a_user_take_no_place_of_anothers(port: MetricsPort, known: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if known == "list":
        monkeypatch.setattr(metrics_port, "_asked_for", refuse)
    with ExitStack() as left:
        silent = [
            left.enter_context(silent_user(port.port, user, 3 * metrics_port.MOST_OF_ONE))
            for user in range(70_001, 70_001 + 2 * metrics_port.MOST // metrics_port.MOST_OF_ONE)
        ]
        assert all(each.stdout and each.stdout.readline() == b"ready\n" for each in silent)
        for _ in range(3):
            assert ask(port)[0] == 200
        held = Counter(each.user for each in list(port._server._connections.values()))
        assert sum(held.values()) <= metrics_port.MOST and max(held.values(), default=0) <= metrics_port.MOST_OF_ONE
        assert set(held) <= {*range(70_001, 70_100), 0, None}


def refuse(*_: object) -> None:
    raise OSError(2, "no such protocol")


@contextmanager
def silent_user(port: int, user: int, count: int) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of a user that keeps so many connections, says nothing, and connects again where it was left."""
    with subprocess.Popen(
        [sys.executable, "-c", SILENT, str(port), str(count)], user=user, group=user, extra_groups=[], stdout=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


SILENT = """
import select, socket, sys, time
port, count = map(int, sys.argv[1:])
connections, said = [], False
while True:
    while len(connections) < count:
        connections.append(socket.create_connection(("127.0.0.1", port)))
    said = said or print("ready", flush=True) is None
    left = select.select(connections, [], [])[0]
    connections = [each for each in connections if each not in left]
    time.sleep(0.3)
"""


def test_it_is_of_this_host_alone_and_a_port_that_is_taken_is_one_sentence(port: MetricsPort) -> None:
    assert port._server.server_address[0] == "127.0.0.1"
    with pytest.raises(HostError, match="choose another port") as error:
        MetricsPort(port.port, str)
    assert "\n" not in str(error.value)
