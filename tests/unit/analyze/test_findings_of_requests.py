"""Findings of a server: what lies in its requests is said as a share of their time, and what does not of the time at work."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.schema import CallKind
from tests.unit.analyze.test_findings import (
    ASK,
    DATABASE,
    EPOLL_WAIT,
    FUNCTIONS,
    HANDLE,
    MAIN,
    MS,
    ONCE,
    OTHER,
    RECV,
    RECVFROM,
    SELECT,
    SERVE,
    thread,
    traced,
)  # fmt: skip
from tests.unit.synthetic import Script

GET, POST = len(FUNCTIONS), len(FUNCTIONS) + 1
SERVED = [*FUNCTIONS, (GET, "/app/shop.py", "do_GET", "Shop.do_GET", 60, "shop"), (POST, "/app/shop.py", "do_POST", "Shop.do_POST", 70, "shop")]


def served(path: Path, *scripts: Script) -> Any:
    return traced(path, *scripts, functions=SERVED)


def asks(script: Script, entry: int, ms: int, computes: int = 10) -> Script:
    return script.enter(entry).run(computes * MS).enter(ASK).enter(RECV).wait(ms * MS, syscall=RECVFROM, resource=DATABASE).leave().leave().leave()


def by_rule(trace: Any) -> dict[str, Any]:
    return {f"{row['rule']} {row['function']}": row for row in trace.findings().to_dict("records")}


def test_what_requests_of_one_endpoint_wait_for_is_a_share_of_their_time(tmp_path: Path) -> None:
    server, batch = thread(7, SERVE), thread(8, MAIN, OTHER).run(240 * MS)
    for _ in range(3):
        asks(server, GET, 30)
    found = by_rule(served(tmp_path, server, batch))
    peer = found["peer ask"]
    assert peer["of"] == "3 requests of Shop.do_GET" and peer["of_share"] == pytest.approx(0.75, abs=0.001)
    assert peer["share"] == pytest.approx(90 / 360, abs=0.001)
    assert peer["sentence"].startswith("`ask` (shop.py:51) waits 75 % of the time of 3 requests of `Shop.do_GET`, 90.0ms, in `SocketIO.readinto`")
    assert found["computes Shop.do_GET"]["of"] == "3 requests of Shop.do_GET" and found["computes Shop.do_GET"]["of_share"] == pytest.approx(
        0.25, abs=0.001
    )
    other = found["computes crunch"]
    assert other["of"] is None or pd.isna(other["of"])
    assert other["of_share"] == other["share"] == pytest.approx(240 / 360, abs=0.001) and " 67 % of the time, 240ms" in other["sentence"]


def test_what_requests_of_several_wait_for_is_a_share_of_all(tmp_path: Path) -> None:
    server = asks(asks(thread(7, SERVE), GET, 30), POST, 50)
    peer = by_rule(served(tmp_path, server))["peer ask"]
    assert (
        peer["of"] == "2 requests"
        and peer["of_share"] == pytest.approx(0.8, abs=0.001)
        and "80 % of the time of 2 requests, 80.0ms" in peer["sentence"]
    )


def test_what_mostly_lies_elsewhere_is_of_the_time_at_work(tmp_path: Path) -> None:
    server, batch = asks(thread(7, SERVE), GET, 30), asks(thread(8, MAIN), HANDLE, 30)
    peer = by_rule(served(tmp_path, server, batch))["peer ask"]
    assert pd.isna(peer["of"]) and peer["of_share"] == peer["share"] == pytest.approx(0.75, abs=0.001)


def test_a_window_has_the_part_of_requests_that_lies_in_it(tmp_path: Path) -> None:
    trace = served(tmp_path, asks(asks(thread(7, SERVE), GET, 30), GET, 30))
    peer = by_rule(trace.window(0, 40 * MS))["peer ask"]
    assert peer["of"].endswith("requests of Shop.do_GET") or peer["of"] == "1 request of Shop.do_GET"
    assert peer["of_share"] == pytest.approx(0.75, abs=0.001)


ANSWERS, PAY, FETCH = range(POST + 1, POST + 4)
COROUTINES = [
    *(row if len(row) > 6 else (*row, 0) for row in SERVED),
    (ANSWERS, "/lib/python3.11/site-packages/aiohttp/web_protocol.py", "_handle_request", "RequestHandler._handle_request", 567, "aiohttp.web_protocol", 0x80),
    (PAY, "/app/shop.py", "pay", "pay", 80, "shop", 0x80),
    (FETCH, "/lib/python3.11/site-packages/asyncpg/connection.py", "fetch", "Connection.fetch", 600, "asyncpg.connection", 0x80),
]  # fmt: skip
CHAIN = ((ANSWERS, 0), (PAY, 1), (FETCH, 2))


def resumed(loop: Script, request: int, begins: bool = False, ends: bool = False) -> None:
    """The coroutines of a request run for 1 ms, until the innermost waits or all are done."""
    for func, depth in CHAIN:
        loop.events.append((loop.now, 7, 7, CallKind.ENTRY if begins else CallKind.RESUME, func, 100 * request + 16 * depth, 10 * func + 1))
    loop.run(MS)
    for func, depth in reversed(CHAIN):
        loop.events.append((loop.now, 7, 7, CallKind.RETURN if ends else CallKind.YIELD, func, 100 * request + 16 * depth, 10 * func + 5))


def looped(held_ms: int, idle_ms: int) -> tuple[Script, list[Any]]:
    """An event loop that answers three requests at once: first it is held, then it waits. With what the clients were asked for."""
    loop, statements = thread(7, MAIN, ONCE), list[Any]()
    for request in range(1, 4):
        statements.append((loop.now, 7, 7, "asyncpg", f"SELECT {'?' * request}" if request > 2 else "SELECT *", "complete"))
        resumed(loop, request, begins=True)
    loop.enter(OTHER).run(held_ms * MS).leave()
    loop.enter(SELECT).wait(idle_ms * MS, syscall=EPOLL_WAIT).leave()
    for request in range(1, 4):
        resumed(loop, request, ends=True)
    return loop, statements


@pytest.mark.parametrize(("held_ms", "idle_ms"), [(10, 90), (90, 10)])
def test_what_coroutines_await_counts_while_their_loop_has_nothing_to_run(held_ms: int, idle_ms: int, tmp_path: Path) -> None:
    loop, statements = looped(held_ms, idle_ms)
    found = by_rule(traced(tmp_path, loop, functions=COROUTINES, client_calls=statements))
    awaits = found["awaits pay"]
    assert awaits["ns"] == 3 * idle_ms * MS and awaits["of"] == "3 requests of pay" and awaits["of_share"] == pytest.approx(idle_ms / 105, abs=0.03)
    assert "`pay` (shop.py:" in awaits["sentence"] and " awaits `Connection.fetch` " in awaits["sentence"]
    assert awaits["sentence"].endswith(", mostly for `SELECT *`: 3 times, " + ("90.0ms" if idle_ms == 90 else "10.0ms") + " each.")
    assert found["computes crunch"]["ns"] == held_ms * MS and awaits["command"].endswith(" --by client")
    assert next(iter(found)) == ("awaits pay" if idle_ms == 90 else "computes crunch")
    assert sum(row["share"] for row in found.values() if row["rule"] != "idle") <= 1.0001


def test_a_coroutine_of_no_request_may_wait_for_ever(tmp_path: Path) -> None:
    loop = looped(10, 90)[0]
    functions = [row for row in COROUTINES if row[0] != ANSWERS] + [(ANSWERS, "/app/shop.py", "forever", "forever", 90, "shop", 0x80)]
    found = by_rule(traced(tmp_path, loop, functions=functions))
    assert not any(name.startswith("awaits") for name in found) and next(iter(found)) == "computes crunch"


def test_a_report_says_whose_time_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = traced(tmp_path, looped(10, 90)[0], functions=COROUTINES)
    assert main(["report", str(trace.directory)]) == 0
    head, first = capsys.readouterr().out.splitlines()[:2]
    assert head == "Threads were at work, and requests suspended, for 286ms. Most of that went to:" and first.startswith("1. `pay` (shop.py:")
