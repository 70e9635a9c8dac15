"""Findings of a server: what lies in its requests is said as a share of their time, and what does not of the time at work."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.unit.analyze.test_findings import ASK, DATABASE, FUNCTIONS, HANDLE, MAIN, MS, OTHER, RECV, RECVFROM, SERVE, thread, traced
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
