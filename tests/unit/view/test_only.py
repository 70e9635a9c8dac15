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


def test_threads_by_the_time_in_calls_of_some_functions(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {row["tid"]: row for row in rows(capsys, path, "--by", "thread", "--only", "function=SocketIO.*")}
    reading = rows(capsys, path, "--only", "function=SocketIO.*")
    assert set(found) == {7, 8} and [found[tid]["calls"] for tid in (7, 8)] == [2, 2]
    for name in ("wall", "on_cpu", "blocked"):
        assert sum(row[f"{name}_ns"] for row in found.values()) == reading[0]["total_ns" if name == "wall" else f"{name}_ns"]
    below = {row["qualname"]: row["calls"] for row in rows(capsys, path, "--only", "task=price")}
    assert below == {"price": 2, "SocketIO.readinto": 2}, "what is called in it, too"
    own = {row["tid"]: row for row in rows(capsys, path, "--by", "thread", "--only", "own")}
    assert own[7]["calls"] == 1 and own[7]["wall_ns"] == rows(capsys, path, "--tid", "7", "--only", "function=shop:<module>")[0]["total_ns"]


def workers(tmp_path: Path) -> Path:
    """Three threads that answer requests and read, `worker-1` twice; `worker-2` helps, and waits for a lock, too."""
    scripts = [Script(7, tid, cpu=tid % 2, now=10).snapshot() for tid in (7, 8, 9)]
    for script, times in zip(scripts, (1, 2, 1), strict=True):
        for _ in range(times):
            script.enter(PRICE).run(MS).enter(READ).run(MS).wait(5 * MS, syscall=RECVFROM).leave().leave()
    scripts[2].enter(HELPER).run(MS).wait(9 * MS, syscall=FUTEX, address=0x9000, waker=7).leave()
    events, sched = (sorted((row for each in scripts for row in getattr(each, name)), key=lambda row: row[0]) for name in ("events", "sched"))
    threads = [(7, 7, "MainThread", 0, None), (7, 8, "worker-1", 0, None), (7, 9, "worker-2", 0, None)]
    end_ns = max(script.now for script in scripts) + MS
    return write_trace(tmp_path / "trace", events=events, sched=sched, functions=FUNCTIONS, threads=threads, end_ns=end_ns)


def test_some_threads_have_what_each_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In every report, also those that go by the tree of calls: of a thread or two that is a part of the whole one."""
    path = workers(tmp_path)
    for by, column in {
        "function": "total_ns",
        "thread": "on_cpu_ns",
        "core": "busy_ns",
        "wait": "total_ns",
        "line": "calls",
        "request": "requests",
    }.items():
        words = ("--by", by, *(("--request", "price") if by == "request" else ()))
        several = rows(capsys, path, *words, "--only", "thread=worker-*")
        each = [row for tid in ("8", "9") for row in rows(capsys, path, *words, "--tid", tid)]
        assert sum(row[column] for row in several) == sum(row[column] for row in each) > 0, by
        assert sum(row[column] for row in rows(capsys, path, *words, "--only", "thread=*")) == sum(
            row[column] for row in rows(capsys, path, *words)
        ), by
    trace = pytrace_ebpf.open(path)
    tree = trace.window(tid=(8, 9)).tree()
    assert tree["node_id"].tolist() == list(range(len(tree))) and set(tree["tid"]) == {8, 9}
    assert (tree.loc[tree["depth"] >= 0, "parent_id"].map(tree["tid"]) == tree.loc[tree["depth"] >= 0, "tid"]).all()
    assert len(trace.window(tid=(8, 9)).window(tid=(7, 9)).threads()) == 1 and len(trace.window(tid=(8,)).window(tid=9).threads()) == 0


@pytest.mark.parametrize(
    ("by", "column"),
    [
        ("function", "calls"),
        ("thread", "wall"),
        ("core", "slices"),
        ("wait", "longest_ns"),
        ("line", "calls"),
        ("request", "p99"),
        ("function", "qualname"),
    ],
)
def test_any_report_is_sorted_by_a_column_of_its_rows(by: str, column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = workers(tmp_path)
    words = ("--by", by, "--sort", column, *(("--request", "*") if by == "request" else ()))
    found = rows(capsys, path, *words)
    values = [row[column if column in row else f"{column}_ns"] for row in found]
    assert len(values) > 1 and values == sorted(values, reverse=column != "qualname")
    assert len(found) == len(rows(capsys, path, *words[:2], *words[4:]))
    assert main(["report", str(path), *words]) == 0
    assert f"Rows are in the order of {column}." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sort", "length"], "--sort length is no column of --by function: give one of qualname, file"),
        (["--sort", "self", "--by", "wait"], "--sort self is no column of --by wait: give one of kind, syscall"),
        (["--only", "own", "--by", "core"], "--only own has no effect with --by core"),
        (["--only", "task=f", "--by", "wait"], "--only task has no effect with --by wait, only with --by task or function"),
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
