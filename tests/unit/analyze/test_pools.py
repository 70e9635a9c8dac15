"""Of a pool it is said how many of how many were out while somebody waited, and which line of the program's own had them."""

from pathlib import Path
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.clients.by_client import by_client
from pytrace_ebpf.analyze.clients.pools import pools
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.reader import Trace
from tests.unit.synthetic import FUTEX, Script, write_trace

US, MS, PID, POOL, OTHER_POOL = 1_000, 1_000_000, 7, 0xA000, 0xB000
REPORT, STATEMENT, GET, PUT, WAIT = range(5)
LIBRARY = "/usr/lib/python3/dist-packages"
FUNCTIONS = [
    (REPORT, "/app/shop.py", "report", "report", 80, "shop"),
    (STATEMENT, "/app/shop.py", "statement", "statement", 70, "shop"),
    (GET, f"{LIBRARY}/psycopg_pool/pool.py", "getconn", "ConnectionPool.getconn", 194, "psycopg_pool.pool"),
    (PUT, f"{LIBRARY}/psycopg_pool/pool.py", "putconn", "ConnectionPool.putconn", 324, "psycopg_pool.pool"),
    (WAIT, "/usr/lib/python3.11/threading.py", "wait", "Condition.wait", 288, "threading"),
]
GET_LINE = 10 * GET + 1  # that it is called from, as Script has it


class Acts:
    """Threads that take from pools and give back, and what the agent reads of that."""

    def __init__(self) -> None:
        self.scripts, self.calls = list[Script](), list[Any]()

    def thread(self, tid: int, function: int) -> Script:
        self.scripts.append(Script(PID, tid, cpu=tid % 2, now=10).snapshot().enter(function).run(US))
        return self.scripts[-1]

    def asks(self, script: Script, function: int, pool: int = POOL) -> Script:
        """Begin to take or to give back."""
        name = FUNCTIONS[function][3]
        self.calls.append((script.now, PID, script.tid, "psycopg pool", name, "complete", pool))
        return script.enter(function).run(US)

    def holds(self, tid: int, function: int, ms: int, pool: int = POOL, after: int = 0) -> Script:
        script = self.thread(tid, function).run(after)
        self.asks(script, GET, pool).leave().run(ms * MS)
        return self.asks(script, PUT, pool).leave()

    def trace(self, path: Path) -> Trace:
        for script in self.scripts:
            while script.stack:
                script.leave()
        events, sched = (
            sorted((row for each in self.scripts for row in getattr(each, name)), key=lambda row: row[0]) for name in ("events", "sched")
        )
        rows: dict[str, Any] = {"events": events, "sched": sched, "client_calls": sorted(self.calls, key=lambda row: row[0])}
        end_ns = max(script.now for script in self.scripts) + MS
        return pytrace_ebpf.open(write_trace(path / "trace", functions=FUNCTIONS, end_ns=end_ns, **rows))


def exhausted() -> Acts:
    """report() has both connections of a pool for 40 ms each, in turn with itself; statement() waits 80 ms for one. Another pool has one out, and more."""
    acts = Acts()
    for tid in (8, 9):
        acts.holds(tid, REPORT, 40)
        script = acts.scripts[-1].run(US)
        acts.asks(script, GET).leave().run(40 * MS)
        acts.asks(script, PUT).leave()
    acts.holds(10, STATEMENT, 90, OTHER_POOL)
    acts.holds(11, STATEMENT, 90, OTHER_POOL)
    acts.holds(12, STATEMENT, 90, OTHER_POOL)
    waits = acts.asks(acts.thread(7, STATEMENT).run(MS), GET).enter(WAIT)
    waits.wait(80 * MS, syscall=FUTEX, address=0x9000, waker=8, queued=0).leave().leave()
    acts.asks(waits.run(MS), PUT).leave()
    return acts


def test_a_pool_has_its_size_what_was_out_and_who_had_it(tmp_path: Path) -> None:
    rows = pools(exhausted().trace(tmp_path)).to_dict("records")
    first = rows[0]
    assert (first["own_func_id"], first["own_line"], first["library"], first["count"]) == (STATEMENT, GET_LINE, "psycopg pool", 4)
    assert (first["size"], first["had_func_id"], first["had_line"], first["had_share"]) == (2, REPORT, GET_LINE, 1.0)
    assert first["total_ns"] == 80 * MS + 4 * US and first["out"] == pytest.approx(2, abs=0.05)


def test_the_finding_says_so_and_what_was_given_back_is_no_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = exhausted().trace(tmp_path)
    found = trace.findings()
    first = found[found["rule"] == "pool"].iloc[0]
    assert f"`statement` (shop.py:{GET_LINE}) waits" in first["sentence"] and first["other"] == "report"
    assert f"for a connection of a psycopg pool of 2, all out, had by `report` (shop.py:{GET_LINE})." in first["sentence"]
    assert by_client(trace)["statement"].unique().tolist() == ["ConnectionPool.getconn"]
    assert main(["report", str(trace.directory), "--by", "wait"]) == 0
    assert "psycopg pool" in capsys.readouterr().out


def test_what_was_out_before_is_that_of_who_gives_it_back(tmp_path: Path) -> None:
    """report() had one connection when recording began, and gives it back after 30 ms; another thread of it was waiting, of which no pool is known."""
    acts = Acts()
    acts.asks(acts.thread(8, REPORT).run(30 * MS), PUT).leave()
    waited = Script(PID, 9, cpu=1, now=10).snapshot().open(REPORT).open(GET).run(US)
    acts.scripts.append(waited.wait(31 * MS, syscall=FUTEX, address=0x9000, waker=8, queued=0).leave().run(MS))
    acts.asks(waited, PUT).leave()
    waits = acts.asks(acts.thread(7, STATEMENT).run(MS), GET).enter(WAIT)
    waits.wait(32 * MS, syscall=FUTEX, address=0x9000, waker=9, queued=0).leave().leave().run(MS)
    first = pools(acts.trace(tmp_path)).to_dict("records")[0]
    assert (first["own_func_id"], first["size"], first["had_func_id"], first["had_line"]) == (STATEMENT, 1, REPORT, -1)


def test_who_gets_nothing_has_nothing(tmp_path: Path) -> None:
    """One that is still waiting at the end has none out."""
    acts = Acts()
    acts.holds(8, REPORT, 50)
    waits = acts.asks(acts.thread(7, STATEMENT).run(MS), GET).enter(WAIT).wait(40 * MS, syscall=FUTEX, address=0x9000, queued=0)
    waits.stack.clear()
    rows = pools(acts.trace(tmp_path)).set_index("own_func_id")
    assert rows.loc[STATEMENT, "size"] == 1 and rows.loc[STATEMENT, "had_func_id"] == REPORT


def test_without_pools_there_are_none(tmp_path: Path) -> None:
    acts = Acts()
    acts.thread(7, STATEMENT).run(MS)
    assert not len(pools(acts.trace(tmp_path)))
