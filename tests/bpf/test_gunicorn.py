"""A real web server with workers that it forked before: attached to by its master, every request of every worker is recorded."""

import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest

import pytrace_ebpf
from tests.bpf.conftest import Recorder, lost
from tests.conftest import PATIENCE_S, SOURCES, TARGETS

WORKERS, REQUESTS = 3, 20


class Server:
    """gunicorn with wsgi_app.py; `process` is its master."""

    def __init__(self) -> None:
        words = ["--workers", str(WORKERS), "--bind", "127.0.0.1:0", "--chdir", str(TARGETS), "wsgi_app:app"]
        self.process = subprocess.Popen([sys.executable, "-m", "gunicorn", *words], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        (self._url,) = next(found for found in (re.findall(r"http://[\d.:]+", line) for line in self.process.stderr) if found)
        self.answered: dict[int, int] = {}  # by worker

    def ask(self, requests: int) -> dict[int, int]:
        """Ask until each worker has answered so many requests more; returns what each had answered then."""
        before, deadline = dict(self.answered), time.monotonic() + PATIENCE_S
        while len(self.answered) < WORKERS or any(count - before.get(pid, 0) < requests for pid, count in self.answered.items()):
            assert time.monotonic() < deadline
            with urllib.request.urlopen(self._url, timeout=PATIENCE_S) as answer:
                pid, count = map(int, answer.read().split())
            self.answered[pid] = count
        return dict(self.answered)


@pytest.fixture
def server() -> Iterator[Server]:
    """The server, whose workers have answered."""
    started = Server()
    try:
        started.ask(1)
        yield started
    finally:
        started.process.terminate()
        started.process.communicate()


@pytest.mark.parametrize("source", SOURCES)
def test_every_request_of_three_gunicorn_workers_is_recorded(source: str, server: Server, attach: Callable[..., Recorder]) -> None:
    recorder = attach(server.process.pid, "--source", source)
    before = dict(server.answered)
    after = server.ask(REQUESTS)
    server.process.terminate()
    trace = pytrace_ebpf.open(recorder.finish())
    calls = trace.calls(columns=["pid", "func_id"]).merge(trace.functions(), on="func_id")
    asked = {pid: count - before[pid] for pid, count in after.items()}
    for name, times in {"app": 1, "handle": 10}.items():
        ours = calls[(calls["name"] == name) & calls["file"].str.endswith("wsgi_app.py")]
        assert ours.groupby("pid").size().to_dict() == {pid: times * count for pid, count in asked.items()}
    processes = trace.processes().set_index("pid")
    assert (processes.loc[[server.process.pid, *asked], "source"] == source).all() and not lost(trace)
    assert trace.requests()["pid"].value_counts().to_dict() == asked
