"""`report --only`, `--imports`, `--request` and `--sort`: rows of what was asked for, with sums that are exact."""

import json
from pathlib import Path
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.functions.collapsed import imports_as_one, into_own_code
from pytrace_ebpf.cli.main import main
from tests.unit.synthetic import FUTEX, Script, write_trace

MS = 1_000_000
LIBRARY = "/usr/lib/python3.11"
RECVFROM = 45
MAIN, PRICE, READ, FIND, BODY, INNER, HELPER = range(7)
FUNCTIONS = [
    (MAIN, "/app/shop.py", "<module>", "<module>", 1, "shop"),
    (PRICE, "/app/shop.py", "price", "price", 20, "shop"),
    (READ, f"{LIBRARY}/socket.py", "readinto", "SocketIO.readinto", 692, "socket"),
    (FIND, "<frozen importlib._bootstrap>", "_find_and_load", "_find_and_load", 1165, "importlib._bootstrap"),
    (BODY, f"{LIBRARY}/json/__init__.py", "<module>", "<module>", 1, "json"),
    (INNER, f"{LIBRARY}/json/decoder.py", "<module>", "<module>", 1, "json.decoder"),
    (HELPER, "/app/tools.py", "helper", "helper", 5, "tools"),
]
SUMS = ["self_ns", "self_on_cpu_ns", "self_runq_wait_ns", "self_gil_wait_ns", "self_blocked_ns", "self_unknown_ns"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The program imports two modules, then waits twice for a peer through `price`; another thread does so through `helper`."""
    one = Script(7, 7, now=10).snapshot().enter(MAIN).run(MS).enter(FIND).run(MS).enter(BODY).run(2 * MS).enter(FIND).enter(INNER).run(3 * MS)
    one.leave().leave().run(MS).wait(MS).leave().leave()
    for _ in range(2):
        one.enter(PRICE).run(MS).enter(READ).wait(5 * MS, syscall=RECVFROM).leave().leave()
    two = Script(7, 8, cpu=1, now=10).snapshot().enter(HELPER).enter(READ).wait(9 * MS, syscall=RECVFROM).leave().run(MS)
    two.wait(2 * MS, syscall=FUTEX, address=0x9000, waker=7).leave().enter(READ).run(MS).leave()
    one.leave()
    events, sched = (sorted((row for each in (one, two) for row in getattr(each, name)), key=lambda row: row[0]) for name in ("events", "sched"))
    threads = [(7, 7, "MainThread", 0, None), (7, 8, "helping-1", 0, None)]
    return write_trace(tmp_path / "trace", events=events, sched=sched, functions=FUNCTIONS, threads=threads, end_ns=one.now + MS)


def rows(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> list[dict[str, Any]]:
    assert main(["report", str(path), "--json", "--top", "0", *words]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["wrong_sums"] == []
    found: list[dict[str, Any]] = facts["rows"]
    return found


def test_imports_are_one_row_unless_asked_for(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {row["qualname"]: row for row in rows(capsys, path)}
    assert set(found) == {"<module>", "price", "SocketIO.readinto", "helper", "imports (2 modules)"}
    one = found["imports (2 modules)"]
    assert (one["calls"], one["total_ns"], one["self_ns"]) == (4, 8 * MS + 5_000, 8 * MS + 5_000) and one["self_on_cpu_ns"] == 7 * MS
    every = rows(capsys, path, "--imports")
    assert {"_find_and_load", "SocketIO.readinto"} <= {row["qualname"] for row in every} and len(every) == 7
    for name in ("self_ns", "calls", *SUMS):
        assert sum(row[name] for row in every) == sum(row[name] for row in found.values())
    assert "<import>" in {row["module"] for row in rows(capsys, path, "--by", "module")}
    assert main(["report", str(path)]) == 0
    assert "--imports shows what they call" in capsys.readouterr().out


def test_a_tree_without_imports_is_left_as_it_is(path: Path) -> None:
    trace = pytrace_ebpf.open(path)
    tree, functions = trace.tree(), trace.functions()
    folded, named = imports_as_one(tree, functions[functions["func_id"] != FIND])
    assert folded is tree and len(named) == len(functions) - 1


def test_only_own_code_has_the_time_of_the_libraries_that_it_called(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {row["qualname"]: row for row in rows(capsys, path, "--only", "own")}
    assert set(found) == {"<module>", "price", "helper"}
    assert (found["price"]["calls"], found["price"]["self_ns"], found["price"]["self_on_cpu_ns"]) == (2, 12 * MS + 10_000, 2 * MS)
    assert found["<module>"]["self_ns"] == 9 * MS + 5_000 and found["helper"]["self_ns"] == 12 * MS + 10_000
    trace = pytrace_ebpf.open(path)
    tree = trace.tree()
    below = tree[(tree["depth"] >= 0) & ~((tree["func_id"] == READ) & (tree["depth"] == 0))]  # what no own code called has no place
    own = into_own_code(tree, trace.functions())
    assert [int(own[name].sum()) for name in SUMS] == [int(below[name].sum()) for name in SUMS]


def test_functions_modules_and_threads(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def names(*words: str) -> list[str]:
        return [row["qualname"] for row in rows(capsys, path, *words)]

    assert names("--only", "function=SocketIO.*") == ["SocketIO.readinto"]
    assert sorted(names("--only", "module=json*")) == ["<module>", "<module>"]
    assert sorted(names("--only", "thread=helping-*")) == ["SocketIO.readinto", "helper"]
    waits = rows(capsys, path, "--by", "wait", "--only", "own")
    assert {row["qualname"] for row in waits} == {"price", "helper", "<module>"}
    assert {row["qualname"] for row in rows(capsys, path, "--by", "wait", "--only", "module=tools")} == {"SocketIO.readinto", "helper"}
    assert [row["tid"] for row in rows(capsys, path, "--by", "thread", "--only", "thread=helping-1")] == [8]
    assert {row["caller_qualname"] for row in rows(capsys, path, "--by", "line", "--only", "own")} == {"<module>", "price", "helper"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "own", "--by", "core"], "--only own has no effect with --by core"),
        (["--only", "task=f"], "--only task has no effect with --by function, only with --by task"),
        (["--only", "mine"], "--only mine is not known: give own, function=PATTERN"),
        (["--only", "own=x"], "--only own=x is not known"),
        (["--only", "function=nothing"], "--only function=nothing fits none of the 7 functions"),
        (["--only", "thread=nobody"], "--only thread=nobody fits none of the 2 threads"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_a_sentence(path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(path), *words]) == 2
    assert said in capsys.readouterr().err


def test_lines_are_sorted_as_asked(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for sort in ("self", "total"):
        times = [row[f"{sort}_ns"] for row in rows(capsys, path, "--by", "line", "--sort", sort)]
        assert times == sorted(times, reverse=True)
    assert main(["report", str(path), "--by", "line", "--sort", "total"]) == 0
    assert "Lines that call, by total time of what they call" in capsys.readouterr().out


def test_requests_of_one_function_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that it answers, whichever they are; `--request` names further ones, and nothing else is shown then."""
    functions = [
        (0, "/app/web.py", "do_GET", "Shop.do_GET", 9, "web"),
        (1, "/app/web.py", "do_POST", "Shop.do_POST", 19, "web"),
        (2, "/app/web.py", "consume", "consume", 29, "web"),
    ]
    one = Script(7, 7, now=10).snapshot()
    for func in (0, 1, 1, 2, 2, 2):
        one.enter(func).run(MS).leave()
    path = write_trace(tmp_path / "trace", events=one.events, sched=one.sched, functions=functions)

    def found(*words: str) -> dict[str, int]:
        return {row["qualname"]: row["requests"] for row in rows(capsys, path, "--by", "request", *words)}

    assert found() == {"Shop.do_GET": 1, "Shop.do_POST": 2}
    assert found("--request", "do_POST") == {"Shop.do_POST": 2}
    assert found("--request", "consume") == {"consume": 3}
    assert found("--request", "Shop.*") == found()


def test_imports_are_one_row_of_waits_and_no_lines_of_their_own(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_waits = rows(capsys, path, "--by", "wait")
    (one,) = [row for row in of_waits if row["kind"] == "imports"]
    every = rows(capsys, path, "--by", "wait", "--imports")
    assert one["qualname"] is None and not [row for row in every if row["kind"] == "imports"]
    assert one["total_ns"] > 0 and sum(row["total_ns"] for row in of_waits) == sum(row["total_ns"] for row in every)
    assert sum(row["waits"] for row in of_waits) == sum(row["waits"] for row in every)
    lines, all_lines = rows(capsys, path, "--by", "line"), rows(capsys, path, "--by", "line", "--imports")
    assert any(row["qualname"] == "_find_and_load" for row in lines), "the line that imports is one, with all of it"
    assert [row["caller_qualname"] for row in lines if row["qualname"] == "imports"] == [None]
    assert not any(row["caller_qualname"] == "_find_and_load" for row in lines) and any(
        row["caller_qualname"] == "_find_and_load" for row in all_lines
    )
    assert main(["report", str(path), "--by", "line"]) == 0
    assert "--imports shows what imports call." in capsys.readouterr().out
    assert main(["report", str(path), "--by", "wait"]) == 0
    assert "(--imports shows what they call)" in capsys.readouterr().out
