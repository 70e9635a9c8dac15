"""What the daemon's configuration says of servers and of the metrics' port, and that windows come to both."""

import gzip
import os
import platform
import socket
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pytrace_ebpf.daemon.configuration import Configuration, load
from pytrace_ebpf.daemon.sinks import Sinks
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.record.live.sink import Closed
from pytrace_ebpf.trace.schema import FUNCTIONS, PROFILE
from pytrace_ebpf.view.metrics import CONTENT_TYPE
from tests.receiver import Receiver
from tests.unit.daemon.test_push import FUNCTION_ROWS, PATIENCE_S, ROWS, receiver
from tests.unit.view.test_metrics import STATUS, ask, labels, read

__all__ = ["receiver"]  # a fixture
SECOND = 10**9


def configured(tmp_path: Path, text: str) -> Configuration:
    (tmp_path / "daemon.toml").write_text(text)
    return load(tmp_path / "daemon.toml")


def test_servers_and_the_port_are_read(tmp_path: Path) -> None:
    secret = tmp_path / "headers"
    secret.write_text("Authorization: Bearer s3cret\n\nX-Scope-OrgID: 7\n")
    secret.chmod(0o600)
    found = configured(
        tmp_path,
        f'metrics_port = 9464\n[[push]]\nkind = "otlp"\nurl = "http://x:4318/a"\n[[push]]\nkind = "pyroscope"\nurl = "https://y"\n'
        f'headers_file = "{secret}"\ntimeout = "2s"\n',
    )
    assert found.metrics_port == 9464 and [each.kind for each in found.push] == ["otlp", "pyroscope"]
    assert found.push[1].server.headers == {"Authorization": "Bearer s3cret", "X-Scope-OrgID": "7"} and found.push[1].server.timeout_s == 2
    assert found.push[0].server.timeout_s == 10 and "s3cret" not in repr(found)
    assert configured(tmp_path, "").push == () and configured(tmp_path, "").metrics_port == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("metrics_port = 70000", "metrics_port is 70000"), ("metrics_port = true", "metrics_port is True"), ("push = 3", "write [[push]]"),
        ('[[push]]\nurl = "http://x"', "push 1: kind is missing"), ('[[push]]\nkind = "otlp"', "push 1: url is missing"),
        ('[[push]]\nkind = "otlp"\nurl = "x"', "push 1: the address"), ('[[push]]\nkind = "kafka"\nurl = "http://x"', "one of otlp, pyroscope"),
        ('[[push]]\nkind = "otlp"\nurl = "http://u:s3cret@x"', "give a header instead"), ('[[push]]\nkind = "otlp"\nurls = "http://x"', "did you mean url?"),
        ('[[push]]\nkind = "otlp"\nurl = "http://x"\ntimeout = "1h"', "timeout is '1h'"),
        ('[[push]]\nkind = "otlp"\nurl = "http://x"\nhz = 9', "hz is no key of a push: write it above the first [[push]]"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_them_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        configured(tmp_path, text)
    assert said in str(error.value) and "s3cret" not in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("made", ["missing", "readable", "link", "fifo", "line", "newline"])
def test_files_of_headers_that_are_refused(tmp_path: Path, made: str) -> None:
    secret = tmp_path / "headers"
    if made == "fifo":
        os.mkfifo(secret, 0o600)
    elif made != "missing":
        kept = tmp_path / "kept" if made == "link" else secret
        kept.write_text({"line": "s3cret", "newline": "A: s3cret\x01"}.get(made, "A: s3cret"))
        kept.chmod(0o640 if made == "readable" else 0o600)
        if made == "link":
            secret.symlink_to(kept)
    with pytest.raises(UsageError) as error:
        configured(tmp_path, f'[[push]]\nkind = "otlp"\nurl = "http://x"\nheaders_file = "{secret}"\n')
    assert "push 1: " in str(error.value) and "s3cret" not in str(error.value) and "\n" not in str(error.value)


def window(sinks: Sinks, pids: tuple[int, ...] = (7, 9)) -> None:
    rows = ROWS[ROWS["pid"].isin(pids)]
    now = time.monotonic_ns()
    filled = {name: rows.get(name, 0) for name in PROFILE.arrow.names} | {"start_ns": now - 10 * SECOND, "end_ns": now}
    table = pa.Table.from_pandas(rows.assign(**filled)[PROFILE.arrow.names], PROFILE.arrow, preserve_index=False)
    functions = pa.Table.from_pylist([dict(zip(FUNCTIONS.arrow.names, row, strict=True)) for row in FUNCTION_ROWS], FUNCTIONS.arrow)
    processes: dict[int, dict[str, Any]] = {
        pid: {"pid": pid, "command": f"python3 s{pid}.py", "executable": "/usr/bin/python3", "python_version": "3.11.2"} for pid in pids
    }
    sinks.take(Closed(now - 10 * SECOND, now, {}, {"sampling": {"period_ns": 100}}), table, functions, processes)


def test_windows_come_to_every_server_and_to_prometheus(tmp_path: Path, receiver: Receiver) -> None:

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said: list[str] = []
    text = f'metrics_port = {port}\n[[push]]\nkind = "otlp"\nurl = "{receiver.url}"\n[[push]]\nkind = "pyroscope"\nurl = "{receiver.url}"\n'
    sinks = Sinks(configured(tmp_path, text), said.append)
    try:
        window(sinks)
        for _ in range(3):
            receiver.wait()
        assert sorted(path.partition("?")[0] for path, *_ in receiver.taken) == ["/ingest", "/ingest", "/v1development/profiles"]
        ends = time.monotonic() + PATIENCE_S
        while sum(each["sent"] for each in sinks.status()["push"]) < 3 and time.monotonic() < ends:
            time.sleep(0.01)
        sinks.publish(STATUS | sinks.status())
        assert sinks._port and not said
        status, kind, body = ask(sinks._port)
        found = read(body)
        assert status == 200 and kind == CONTENT_TYPE
        assert found["pytrace_ebpf_asyncio_loop_held_seconds_total"] == {labels(pid="7", service="s7.py"): pytest.approx(360e-9)}
        server = receiver.url
        assert found["pytrace_ebpf_push_sent_total"] == {labels(push="1", server=server): 1, labels(push="2", server=server): 2}
        window(sinks, (9,))  # 7 has ended
        sinks.publish(STATUS)
        samples = read(ask(sinks._port)[2])["pytrace_ebpf_process_samples_total"]
        assert samples == {labels(pid="9", service="s9.py"): 18}
    finally:
        sinks.close()
    assert platform.node().encode() in b"".join(gzip.decompress(body) for path, _, body in receiver.taken if "/v1" in path)


def test_a_port_that_is_taken_is_said_and_the_rest_goes_on(tmp_path: Path, receiver: Receiver) -> None:
    said: list[str] = []
    sinks = Sinks(
        configured(tmp_path, f'metrics_port = {receiver.server_address[1]}\n[[push]]\nkind = "otlp"\nurl = "{receiver.url}"\n'), said.append
    )
    window(sinks)
    sinks.publish(STATUS)
    receiver.wait()
    assert len(said) == 1 and "choose another port" in said[0] and sinks.status()["metrics_port"] is None
    sinks.close()
