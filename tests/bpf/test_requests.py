"""Requests of real servers of the standard library: every one is recorded, and the cause of the slow one is named."""

from collections.abc import Callable

import pytest

from tests.conftest import Python, Target


@pytest.mark.usually("agent")
def test_requests_of_wsgi_and_of_coroutines(python: Python, source: str, target: Callable[..., Target], traced: Callable[..., tuple]) -> None:
    trace, said = traced(target("service", "--wait", python=python), "--source", source, "--request", "service:handle")
    rows = trace.requests()
    rows["endpoint"] = rows["endpoint_func_id"].map(trace.functions().set_index("func_id")["qualname"])
    assert rows.groupby(["kind", "endpoint"], observed=True).size().to_dict() == {
        ("WSGI", "orders"): said["requests"],
        ("asked", "handle"): said["requests"],
    }
    known = rows.dropna(subset=["blocked_ns"])
    assert (known[["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns", "awaited_ns"]].sum(axis=1) == known["wall_ns"]).all()
    slowest = known.loc[known.groupby("endpoint")["wall_ns"].idxmax()].set_index("endpoint")
    assert slowest.loc["orders", "blocked_ns"] >= 100_000_000 and slowest.loc["orders", "awaited_ns"] == 0
    assert slowest.loc["handle", "awaited_ns"] >= 100_000_000
