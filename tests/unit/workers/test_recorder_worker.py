"""What records for several who asked tells each of them in the order that they wait for it."""

import json
import socket
import threading
from types import SimpleNamespace
from typing import Any

from pytrace_ebpf.daemon.api import protocol
from pytrace_ebpf.workers.daemon_recorder import Request, Serving


def request(number: int) -> tuple[Any, socket.socket]:
    """One as it was read, and the client's end of its connection."""
    ours, theirs = socket.socketpair()
    made = Request.__new__(Request)
    made.number, made.connection, made.part, made.since, made.has_begun = number, ours, None, 0.0, False
    made._saying = threading.Lock()
    made.args = SimpleNamespace(pid=7, duration=1000.0)  # type: ignore[assignment]
    return made, theirs


def test_who_joins_hears_of_progress_once_it_has_begun() -> None:
    control, daemons = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    serving = Serving(control)
    (first, one), (second, other) = request(1), request(2)
    serving._requests = [first, second]
    serving._begin(first)
    status: Any = SimpleNamespace(said=[])
    serving._show(status)
    serving._begin(second)
    second.say({"begun": [], "said": ["joined"]})
    serving._show(status)
    assert [json.loads(daemons.recv(1000)) for _ in range(2)] == [{"id": 1, "is": "begun"}, {"id": 2, "is": "begun"}]
    lines = [protocol.Lines(each, 10_000) for each in (one, other)]
    assert ["progress" in (lines[0].receive(10) or {}) for _ in range(2)] == [True, True]
    assert ["begun" in (lines[1].receive(10) or {}), "progress" in (lines[1].receive(10) or {})] == [True, True]
    for each in (control, daemons, first.connection, second.connection, one, other):
        each.close()
