"""The first line speaks of the program's own code: who called the library in which time goes; threads that wait for work are passed over."""

import json
from pathlib import Path
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.functions.own_code import NONE, by_own_code, own_callers
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.libraries import in_library
from tests.unit.synthetic import Script, write_trace

MS = 1_000_000
READ, FUTEX, EPOLL_WAIT = 0, 202, 232
LIBRARY = "/usr/lib/python3.11"
FUNCTIONS = [
    (0, "/app/shop.py", "reserve", "reserve", 10, "shop"),
    (1, "/app/shop.py", "price", "price", 30, "shop"),
    (2, f"{LIBRARY}/socket.py", "readinto", "SocketIO.readinto", 692, "socket"),
    (3, f"{LIBRARY}/http/client.py", "read", "HTTPResponse.read", 450, "http.client"),
    (4, f"{LIBRARY}/concurrent/futures/thread.py", "_worker", "_worker", 69, "concurrent.futures.thread"),
    (5, f"{LIBRARY}/json/decoder.py", "decode", "JSONDecoder.decode", 332, "json.decoder"),
    (6, f"{LIBRARY}/asyncio/base_events.py", "_run_once", "BaseEventLoop._run_once", 1845, "asyncio.base_events"),
    (7, f"{LIBRARY}/selectors.py", "select", "EpollSelector.select", 451, "selectors"),
]


def service(tmp_path: Path, idle: int = 1000, computing: bool = False, through_price: int = 20) -> Path:
    """`reserve` waits 100 ms in a socket, `price` less; a thread of a pool waits for work, or computes, for `idle` ms."""
    handler, pool = Script(7, 7, now=10).snapshot(), Script(7, 8, cpu=1, now=10).snapshot()
    handler.enter(0).run(MS).enter(3).enter(2).wait(100 * MS, syscall=READ, waker=8).leave().leave().leave()
    handler.enter(1).run(MS).enter(2).wait(through_price * MS, syscall=READ, waker=8).leave().leave()
    pool.enter(4)
    pool = pool.run(idle * MS) if computing else pool.wait(idle * MS, syscall=FUTEX, waker=7)
    pool.leave()
    events, sched = (sorted((row for each in (handler, pool) for row in getattr(each, name)), key=lambda row: row[0]) for name in ("events", "sched"))
    return write_trace(tmp_path / "trace", events=events, sched=sched, functions=FUNCTIONS, end_ns=max(handler.now, pool.now) + MS)


def first_line(path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["report", "--json", str(path)]) == 0
    return json.loads(capsys.readouterr().out)["sentence"]


def test_time_in_a_library_is_that_of_the_own_code_that_led_there(tmp_path: Path) -> None:
    trace = pytrace_ebpf.open(service(tmp_path))
    callers = own_callers(trace.tree(), trace.functions())
    rows = by_own_code(trace.tree(), callers, 2)
    assert rows["own_func_id"].tolist() == [0, 1] and (rows["self_blocked_ns"] // MS).tolist() == [100, 20]
    assert by_own_code(trace.tree(), callers, 4)["own_func_id"].tolist() == [NONE]
    assert by_own_code(trace.tree(), callers, 0)["own_func_id"].tolist() == [0]
    whole = trace.tree()
    for func_id in range(5):
        found = by_own_code(whole, callers, func_id)
        for name in ("self_ns", "self_on_cpu_ns", "self_runq_wait_ns", "self_gil_wait_ns", "self_blocked_ns"):
            assert found[name].sum() == whole[name][whole["func_id"] == func_id].sum()


def test_the_first_line_names_who_called_the_library_and_passes_over_a_thread_without_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = first_line(service(tmp_path), capsys)
    assert said == (
        "`reserve` (shop.py:10) spends 100ms in `SocketIO.readinto`: that is waiting in read (io-read), woken by `_worker`."
        " Left out: threads that wait for work, 89 % of the time."
    )


def test_a_thread_of_a_library_that_computes_is_not_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert first_line(service(tmp_path, computing=True), capsys) == "`_worker` computes."


def test_an_event_loop_that_waits_for_whatever_comes_waits_for_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = Script(7, 7, now=10).snapshot().enter(0).enter(6)
    for _ in range(5):
        loop.enter(7).wait(100 * MS, syscall=EPOLL_WAIT).leave().enter(1).run(10 * MS).leave()
    path = write_trace(tmp_path / "trace", events=loop.leave().leave().events, sched=loop.sched, functions=FUNCTIONS, end_ns=loop.now + MS)
    assert first_line(path, capsys) == "`price` computes. Left out: threads that wait for work, 91 % of the time."


def test_where_several_functions_called_it_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No more than half of the time lies below one."""
    path = service(tmp_path, through_price=100)
    trace = pytrace_ebpf.open(path)
    rows = by_own_code(trace.tree(), own_callers(trace.tree(), trace.functions()), 2)
    assert abs(int(rows["self_ns"][0]) - int(rows["self_ns"][1])) < MS
    said = first_line(path, capsys)
    assert "SocketIO.readinto" in said


def test_of_a_program_that_only_waits_for_work_it_says_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = Script(7, 8, cpu=1, now=10).snapshot().enter(4).wait(1000 * MS, syscall=FUTEX, waker=7).leave()
    path = write_trace(tmp_path / "trace", events=pool.events, sched=pool.sched, functions=FUNCTIONS, end_ns=pool.now + MS)
    assert "`_worker`" in first_line(path, capsys)


def test_each_wait_has_the_function_of_own_code_that_it_is_in_and_the_line_that_left_it(tmp_path: Path) -> None:
    """Of an event loop none: what it waits for is not what its caller waits for."""
    handler = Script(7, 7, now=10).snapshot().enter(0).wait(MS).enter(3).enter(2).wait(MS, syscall=READ).leave().leave()
    handler.enter(1).enter(2).wait(MS, syscall=READ).leave().leave().enter(6).wait(MS).enter(7).wait(MS, syscall=EPOLL_WAIT).leave()
    handler.enter(1).wait(MS).leave().leave().leave().wait(MS)
    path = write_trace(tmp_path / "trace", events=handler.events, sched=handler.sched, functions=FUNCTIONS, end_ns=handler.now + MS)
    waits = pytrace_ebpf.open(path).waits()
    found = list(zip(waits["own_func_id"], waits["own_line"].fillna(-1), waits["own_called_func_id"], strict=True))
    assert found == [(0, -1, -1), (0, 31, 3), (1, 21, 2), (-1, -1, -1), (-1, -1, -1), (1, -1, -1), (-1, -1, -1)]


def test_own_code_is_what_is_not_of_a_library(tmp_path: Path) -> None:
    files = {
        "/app/shop.py": True, "/srv/python3/app.py": True, "/home/me/lib/shop.py": True, "<stdin>": True, "<ipython-input-3-5f>": True,
        "/usr/lib/python3.11/json/decoder.py": False, "/usr/lib/python3/dist-packages/yaml.py": False, "/venv/lib/python3.11/site-packages/x.py": False,
        "/opt/python/lib/python3.13t/queue.py": False, "/usr/lib/python311.zip/queue.py": False, "<frozen importlib._bootstrap>": False, "<string>": False,
    }  # fmt: skip
    assert {file: not in_library(file) for file in files} == files
