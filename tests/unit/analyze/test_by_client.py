"""What was asked of client libraries joins its calls, the function of the program that asked, and what its waits were for."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import pytrace_ebpf
from pytrace_ebpf.analyze.clients.by_client import by_client
from pytrace_ebpf.derive import streams
from pytrace_ebpf.trace.kinds import CallKind
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.view import client as view
from tests.unit.synthetic import Script, write_trace

PID, RESERVE, EXECUTE, SEND, LOAD, CONNECT, MS = 10, 0, 1, 2, 3, 4, 1_000_000
LIBRARY = "/usr/lib/python3/dist-packages"
FUNCTIONS = [
    (RESERVE, "/app/shop.py", "reserve", "reserve", 67, "shop", 0),
    (EXECUTE, f"{LIBRARY}/orm/session.py", "execute", "Session.execute", 5, "orm.session", 0),
    (SEND, f"{LIBRARY}/driver/cursor.py", "execute", "Cursor.execute", 9, "driver.cursor", 0),
    (LOAD, f"{LIBRARY}/pool.py", "run", "run", 1, "pool", 0),
]
POSTGRES = (7, "tcp", "127.0.0.1:5432", "127.0.0.1:40000", False, PID, 3, 0, 0, 0)
RECVFROM = 45
EXECUTE_LINE, SEND_LINE = 11, 21  # that they are called from, as Script has it
UPDATE, SELECT = "UPDATE stock SET left_over = left_over - ?", "SELECT ?"


def asked(script: Script, library: str, statement: str | None) -> tuple[Any, ...]:
    return (script.now, PID, script.tid, library, statement, "complete" if statement else "unread")


def told(tmp_path: Path) -> Trace:
    """reserve() asks twice through two libraries, the inner one of which waits for the database, and once for something else; a pool asks too."""
    script, rows = Script(PID, PID).snapshot(), []
    script.enter(RESERVE)
    for ns in (300, 500):
        script.run(10).enter(EXECUTE)
        rows.append(asked(script, "orm", UPDATE))
        script.run(20).enter(SEND)
        rows.append(asked(script, "driver", "UPDATE of the driver"))
        script.wait(ns, syscall=RECVFROM, resource=7, queued=0).run(5).leave().run(1).leave()
    script.run(10).enter(SEND)
    rows.append(asked(script, "driver", SELECT))
    script.run(40).leave().run(10).leave().enter(LOAD).run(5).enter(SEND)
    rows.append(asked(script, "driver", None))
    script.run(7).leave().leave().run(5)
    path = write_trace(
        tmp_path / "trace",
        events=script.events,
        sched=script.sched,
        functions=FUNCTIONS,
        client_calls=rows,
        resources=[POSTGRES],
        cuts=[400],
        end_ns=script.now,
    )
    return pytrace_ebpf.open(path)


def test_the_outermost_call_is_told_with_who_asked_and_whom(tmp_path: Path) -> None:
    table = by_client(told(tmp_path))
    assert table.astype(object).where(table.notna(), None).to_numpy().tolist() == [
        [RESERVE, EXECUTE_LINE, "orm", UPDATE, "postgres 127.0.0.1:5432", 2, 852, 426, 526, 800, 0, 0],
        [RESERVE, SEND_LINE, "driver", SELECT, None, 1, 40, 40, 40, 0, 0, 0],
        [-1, -1, "driver", None, None, 1, 7, 7, 7, 0, 0, 0],
    ]


def failing(tmp_path: Path) -> Trace:
    """reserve() asks three times, twice of which no connection can be made, and sleeps each time."""
    script, rows = Script(PID, PID).snapshot(), []
    for times in range(3):
        script.enter(RESERVE).run(10).enter(EXECUTE)
        rows.append(asked(script, "orm", UPDATE))
        script.run(20).enter(CONNECT).run(MS)
        if times:
            unwind(unwind(script)).wait(50 * MS).leave()
        else:
            script.leave().leave().wait(50 * MS).leave()
    functions = [*FUNCTIONS, (CONNECT, "/usr/lib/python3.11/socket.py", "create_connection", "create_connection", 827, "socket", 0)]
    path = write_trace(tmp_path / "trace", events=script.events, sched=script.sched, functions=functions, client_calls=rows, end_ns=script.now + MS)
    return pytrace_ebpf.open(path)


def unwind(script: Script) -> Script:
    """An exception leaves the innermost function."""
    func, frame = script.stack.pop()
    script.events.append((script.now, PID, script.tid, CallKind.UNWIND, func, frame, 10 * func + 3))
    return script


def test_what_was_asked_in_vain_is_told_and_what_a_sleep_comes_after(tmp_path: Path) -> None:
    trace = failing(tmp_path)
    row = by_client(trace).iloc[0]
    assert (row["count"], row["failed"], row["unconnected"]) == (3, 2, 2)
    first = trace.findings().iloc[0]
    assert first["rule"] == "sleep" and f", after `{UPDATE}` could not connect 2 times: 3 times," in first["sentence"]
    found, facts = view.found(trace, trace.tree(), {})
    screen = io.StringIO()
    Console(file=screen, width=160).print(*view.report(facts, found, 160, False, 20))
    assert "no connection 2 times: UPDATE stock" in screen.getvalue()


def test_every_call_has_its_statement_in_the_table(tmp_path: Path) -> None:
    trace = told(tmp_path)
    rows = trace.statements()
    assert rows["func_id"].tolist() == [EXECUTE, SEND, EXECUTE, SEND, SEND, SEND] and rows["own_func_id"].tolist() == [*[RESERVE] * 5, -1]
    calls = trace.calls(["call_id", "func_id", "start_ns"])
    joined = rows.merge(calls, on="call_id", suffixes=("", "_of_it"))
    assert len(joined) == 6 and (joined["start_ns"] == joined["ts"]).all() and (joined["func_id"] == joined["func_id_of_it"]).all()
    window = trace.window(0, 200)
    assert window.statements()["statement"].tolist() == [UPDATE, "UPDATE of the driver"]


def test_a_line_says_who_asked_whom_for_what(tmp_path: Path) -> None:
    trace = told(tmp_path)
    table, facts = view.found(trace, trace.tree(), {})
    out = io.StringIO()
    Console(file=out, width=190, legacy_windows=False).print(*view.report(facts, table, 190, True, 10))
    lines = out.getvalue().splitlines()
    assert lines[2].split() == [
        "2",
        "852ns",
        "426ns",
        "526ns",
        "reserve",
        f"/app/shop.py:{EXECUTE_LINE}",
        "postgres",
        "127.0.0.1:5432",
        *UPDATE.split(),
    ]
    assert lines[4].split()[4:] == ["(none", "of", "its", "own", "code)", "driver", "(could", "not", "be", "read)"]


@pytest.mark.parametrize(("options", "said"), [({"clients": "none"}, "was not recorded"), ({}, "No call of a client library")])
def test_an_empty_report_says_why(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    script = Script(PID, PID).enter(RESERVE).run(5).leave()
    sources = [{"pid": PID, "source": "agent", "why": ""}]
    trace = pytrace_ebpf.open(
        write_trace(tmp_path / "t", events=script.events, functions=FUNCTIONS, manifest={"options": options, "sources": sources})
    )
    table, facts = view.found(trace, trace.tree(), {})
    assert said in str(view.report(facts, table, 100, True, 10)[0])


def test_a_trace_is_gone_over_once_and_anew_where_what_was_kept_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, passes, go_over = told(tmp_path), list[Any](), streams.calls_of
    monkeypatch.setattr(streams, "calls_of", lambda trace, *others: passes.append(trace) or go_over(trace, *others))
    first = by_client(trace)
    assert by_client(pytrace_ebpf.open(tmp_path / "trace")).equals(first) and len(passes) == 1
    for kept in (tmp_path / "trace" / streams.FOLDER).iterdir():
        kept.write_bytes(kept.read_bytes()[:-9])
    assert by_client(trace).equals(first) and len(passes) == 2
    assert not len(by_client(trace.window(0, 1))) and by_client(trace).equals(first) and len(passes) == 2
