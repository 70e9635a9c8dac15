"""The table of functions: one row for each, and no more than there is room for."""

import pytest

from pytrace_ebpf.record.cpython.functions import UNKNOWN, Functions


def test_a_function_has_one_number() -> None:
    functions = Functions()
    first = functions.intern("a.py", "f", "C.f", 1, 0, lambda *_: None)
    assert functions.intern("a.py", "f", "C.f", 1, 0, lambda *_: None) == first
    assert functions.intern("a.py", "f", "D.f", 1, 0, lambda *_: None) != first
    assert len(functions.cut()["functions"][0]["func_id"]) == 2


def test_functions_beyond_the_bound_are_unknown_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytrace_ebpf.record.cpython.functions._MOST", 3)
    functions = Functions()
    numbers = [functions.intern("a.py", "f", "f", line, 0, lambda *_: None) for line in range(5)]
    assert numbers == [0, 1, 2, UNKNOWN, UNKNOWN]
    assert functions.intern("a.py", "f", "f", 2, 0, lambda *_: None) == 2
    assert (len(functions), functions.turned_away) == (3, 2)
