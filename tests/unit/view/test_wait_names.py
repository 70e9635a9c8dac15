"""A wait in threading, queue and the like is named by what the program called, by its own function, and by who ended the wait."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.cli import main
from pytrace_ebpf.view import waits
from pytrace_ebpf.view.names import in_full
from tests.unit.synthetic import Script, write_trace

FUTEX, MS = 202, 10**6
WORKER, PRODUCE, GET, PUT, WAIT, NOTIFY, BOOTSTRAP = range(7)
FUNCTIONS = [
    (WORKER, "/app/service.py", "worker", "worker", 11, "service"),
    (PRODUCE, "/app/service.py", "produce", "produce", 20, "service"),
    (GET, "/usr/lib/python3.11/queue.py", "get", "Queue.get", 31, "queue"),
    (PUT, "/usr/lib/python3.11/queue.py", "put", "Queue.put", 41, "queue"),
    (WAIT, "/usr/lib/python3.11/threading.py", "wait", "Condition.wait", 51, "threading"),
    (NOTIFY, "/usr/lib/python3.11/threading.py", "notify", "Condition.notify", 61, "threading"),
    (BOOTSTRAP, "/usr/lib/python3.11/threading.py", "_bootstrap", "Thread._bootstrap", 71, "threading"),
]


@pytest.fixture
def trace(tmp_path: Path) -> Any:
    """Thread 7 gets twice from a queue, each time by another lock in it; thread 8 puts; thread 9 is the library's own and idle."""
    worker = Script(7, 7, now=10).snapshot().enter(WORKER)
    for address in (0x9000, 0xA000):
        worker.enter(GET).enter(WAIT).wait(4 * MS, syscall=FUTEX, address=address, waker=8).leave().leave()
    worker.leave().exit()
    producer = Script(7, 8, now=10).snapshot().enter(PRODUCE).enter(PUT).enter(NOTIFY).run(9 * MS).leave().leave().leave().exit()
    idle = Script(7, 9, now=10).snapshot().enter(BOOTSTRAP).enter(WAIT).wait(2 * MS, syscall=FUTEX, address=0xB000, waker=8).leave().leave().exit()
    scripts = (worker, producer, idle)
    events, sched = (sorted((row for script in scripts for row in getattr(script, name)), key=lambda row: row[0]) for name in ("events", "sched"))
    threads = [(7, 7, "main", 0, None), (7, 8, "producer", 0, None), (7, 9, "pool", 0, None)]
    return pytrace_ebpf.open(write_trace(tmp_path, events=events, sched=sched, functions=FUNCTIONS, threads=threads))


def test_each_wait_has_both_ends(trace: Any) -> None:
    columns = ["func_id", "primitive_func_id", "caller_func_id", "waker_func_id", "waker_primitive_func_id", "waker_caller_func_id"]
    found = trace.waits()
    found = found[found["kind"] == "lock"].set_index("tid")[columns]
    assert found.loc[7].to_numpy().tolist() == [[WAIT, GET, WORKER, NOTIFY, PUT, PRODUCE]] * 2
    assert found.loc[9].tolist() == [WAIT, -1, WAIT, NOTIFY, PUT, PRODUCE]  # no function of the program called


def test_they_are_one_row_whatever_lock_is_inside(trace: Any) -> None:
    table = waits.found(trace, pd.DataFrame(), {})[0]
    first, second = table[table["kind"] == "lock"].to_dict("records")
    assert (first["waits"], first["primitive"], first["qualname"]) == (2, "Queue.get", "worker")
    assert (first["partner_primitive"], first["partner_qualname"], first["partner_func_ns"]) == ("Queue.put", "produce", first["total_ns"])
    assert pd.isna(first["lock_address"]) and pd.isna(first["syscall"])
    assert (second["waits"], second["lock_address"], second["qualname"]) == (1, 0xB000, "Condition.wait")


def test_the_report_says_it(trace: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["report", str(trace.directory), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["sentence"]
    assert "`worker` waits 100 % of its time, 8.00ms, in `Queue.get` for `Queue.put` by `produce` (service.py:20)." in said
    assert main.main(["report", str(trace.directory), "--by", "wait"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "Queue.get" in line)
    assert re.search(r"Queue\.get +worker  /app/service\.py:11 +Queue\.put by produce  /app/service\.py:20", line)


@pytest.mark.parametrize("width", [60, 100])
def test_at_any_width_the_names_are_there(trace: Any, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    main.main(["report", str(trace.directory), "--by", "wait"])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "Queue.get" in line)
    assert "worker" in line and "by produce" in line and len(line.rstrip()) < width


def test_without_its_class_a_function_is_called_by_its_module() -> None:
    functions = pd.DataFrame(
        {"func_id": [4, 2, 3], "qualname": ["get", "Queue.get", None], "module": ["queue", "queue", None]},
    )
    assert in_full(functions).to_dict() == {4: "queue.get", 2: "Queue.get", 3: "?.?"}


def test_a_recording_without_the_library_has_its_locks(tmp_path: Path) -> None:
    script = Script(7, 7, now=10).snapshot().enter(WORKER).wait(MS, syscall=FUTEX, address=0x9000).leave().exit()
    found = pytrace_ebpf.open(
        write_trace(tmp_path, events=script.events, sched=script.sched, functions=FUNCTIONS[:2], threads=[(7, 7, "main", 0, None)])
    )
    (row,) = waits.found(found, pd.DataFrame(), {})[0].query("kind == 'lock'").to_dict("records")
    assert (row["lock_address"], row["primitive_func_id"], row["qualname"]) == (0x9000, -1, "worker") and pd.isna(row["primitive"])
