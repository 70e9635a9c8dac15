"""From where on a lock, a function and a wait are worth a sentence: exact, at the thresholds."""

from typing import Any

import pandas as pd
import pytest

from pytrace_ebpf.analyze.waits.reasons import NOBODY
from pytrace_ebpf.view import sentence

FUNCTIONS = pd.DataFrame(
    [(0, "save", "/app/orders.py", 12), (1, "report", "/app/totals.py", 3), (2, "idle", "/app/orders.py", 40)],
    columns=["func_id", "qualname", "file", "first_line"],
)
NAMES = FUNCTIONS.set_index("func_id")["qualname"]
SECOND = 1_000_000_000


def by_function(*self_ns: int) -> pd.DataFrame:
    return pd.DataFrame({"func_id": range(len(self_ns)), "self_ns": self_ns})


def lock(ns: int, waker: int = 1) -> dict[str, int]:
    return {"func_id": 0, "waker_func_id": waker, "ns": ns}


def row(whole: int, on_cpu: int, queued: int, gil: int, blocked: int) -> dict[str, int]:
    return {
        "func_id": 0,
        "self_ns": whole,
        "self_on_cpu_ns": on_cpu,
        "self_runq_wait_ns": queued,
        "self_gil_wait_ns": gil,
        "self_blocked_ns": blocked,
    }


def said(one: dict[str, int], all_ns: int = 100, **reasons: Any) -> str:
    return sentence.top_function(one, all_ns, lambda: {"gil": [], "blocked": [], "runq": [], **reasons}, NAMES)


def test_a_lock_is_named_from_two_hundredths_of_all_time_on() -> None:
    expected = "`save` waits 100 % of its time, 2.00s, for a lock that `report` (totals.py:3) releases."
    assert sentence.contended_lock(lock(2 * SECOND), by_function(2 * SECOND, 98 * SECOND), FUNCTIONS) == expected
    assert sentence.contended_lock(lock(2 * SECOND - 1), by_function(2 * SECOND - 1, 98 * SECOND + 1), FUNCTIONS) == ""


def test_a_lock_is_named_from_three_tenths_of_its_functions_time_on() -> None:
    expected = "`save` waits 30 % of its time, 3.00s, for a lock that itself, in other threads, releases."
    assert sentence.contended_lock(lock(3 * SECOND, 0), by_function(10 * SECOND), FUNCTIONS) == expected
    assert sentence.contended_lock(lock(3 * SECOND - 1, 0), by_function(10 * SECOND), FUNCTIONS) == ""


def test_a_function_is_worth_a_sentence_from_a_tenth_of_all_time_on() -> None:
    assert said(row(10, 10, 0, 0, 0)) == "`save` computes."
    assert said(row(9, 9, 0, 0, 0)) == "" and said(row(0, 0, 0, 0, 0), 0) == ""
    assert sentence.waits_for_work(0.1) == "Left out: threads that wait for work, 10 % of the time." and sentence.waits_for_work(0.099) == ""


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((70, 0, 30, 0), "30 % of `save` is waiting for the GIL."),
        ((70, 0, 29, 1), "`save` computes."),
        ((35, 0, 30, 35), ""),  # the GIL is not what it waits for most, and nothing else is half of it
        ((50, 0, 0, 50), "50 % of `save` is waiting, for several things."),
        ((51, 0, 0, 49), ""),
        ((50, 20, 0, 30), "`save` computes; 20 % of its time it has no core."),
        ((50, 19, 0, 31), ""),
        ((55, 45, 0, 0), "`save` computes; half of its time it has no core."),
        ((45, 55, 0, 0), "`save` computes; 55 % of its time it has no core."),
    ],
)
def test_where_its_time_goes(parts: tuple[int, int, int, int], expected: str) -> None:
    assert said(row(100, *parts)) == expected


def test_who_holds_the_gil_mostly_or_most_often() -> None:
    waits = row(100, 0, 0, 100, 0)
    held = [{"func_id": 1, "ns": 50}, {"func_id": 2, "ns": 30}, {"func_id": 0, "ns": 20}, {"func_id": NOBODY, "ns": 500}]
    assert said(waits, gil=held) == "100 % of `save` is waiting for the GIL, mostly held by `report`."
    held[0]["ns"] = 49
    assert said(waits, gil=held) == "100 % of `save` is waiting for the GIL, most often held by `report`."
    held[2]["ns"] = 60
    assert said(waits, gil=held) == "100 % of `save` is waiting for the GIL, most often held by itself in other threads."


@pytest.mark.parametrize(
    ("blocked", "kind", "syscall", "func_id", "expected"),
    [
        (100, "lock", None, 1, "`save` is waiting for a lock, woken by `report`."),
        (94, "lock", None, NOBODY, "94 % of `save` is waiting for a lock, woken by no thread of this program."),
        (95, "sleep", None, 1, "`save` is sleeping."),
        (100, "wait-child", "wait4", 1, "`save` is waiting for a child process."),
        (100, "page-fault", None, 1, "`save` is waiting for memory to be read in."),
        (100, "object-lock", None, 1, "`save` is waiting for an object's own lock, woken by `report`."),
        (100, "stop-the-world", None, 2, "`save` is stopped, with all other threads, woken by `idle`."),
        (60, "disk", "fsync", 9, "60 % of `save` is waiting in fsync (disk)."),
        (60, "disk", None, 2, "60 % of `save` is waiting (disk), woken by `idle`."),
    ],
)
def test_what_it_waits_for(blocked: int, kind: str, syscall: str | None, func_id: int, expected: str) -> None:
    parts = [
        {"kind": kind, "syscall": syscall, "resource": None, "func_id": func_id, "ns": 50},
        {"kind": "other", "syscall": None, "resource": None, "func_id": 2, "ns": 50},
    ]
    assert said(row(100, 100 - blocked, 0, 0, blocked), blocked=parts) == expected
    parts[1]["ns"] = 51
    if kind != "other":
        assert "other" not in said(row(100, 100 - blocked, 0, 0, blocked), blocked=parts)


def test_who_has_the_cores_instead() -> None:
    queued = row(100, 50, 50, 0, 0)
    assert (
        said(queued, runq=[{"func_id": 1, "ns": 5}, {"func_id": 0, "ns": 5}])
        == "`save` computes; half of its time it has no core: `report` has them."
    )
    assert said(queued, runq=[{"func_id": 0, "ns": 5}]) == "`save` computes; half of its time it has no core: `save` on other threads has them."
    assert said(queued, runq=[{"func_id": NOBODY, "ns": 5}]) == "`save` computes; half of its time it has no core: other programs have them."
    shared = [{"func_id": 1, "ns": 49}, {"func_id": 0, "ns": 30}, {"func_id": 2, "ns": 21}]
    assert said(queued, runq=shared) == "`save` computes; half of its time it has no core."


def test_who_waited_for_the_gil_of_whom_from_a_tenth_on() -> None:
    pair = {"held": "function", "waiting_qualname": "save", "holding_qualname": "report", "total_ns": 10 * SECOND}
    rest = {"held": "idle", "waiting_qualname": "save", "holding_qualname": None, "total_ns": 90 * SECOND}
    assert sentence.waited_for([rest, pair]) == "`save` waited 10.0s for the GIL held by `report`."
    assert sentence.waited_for([rest, pair | {"holding_qualname": "save"}]) == "`save` waited 10.0s for the GIL held by itself in other threads."
    assert sentence.waited_for([rest | {"total_ns": 90 * SECOND + 1}, pair]) == "" and sentence.waited_for([rest]) == ""
