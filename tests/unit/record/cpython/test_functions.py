"""The table of functions: one row for each, and no more than there is room for."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pytest

from pytrace_ebpf.record.cpython.frames import CodeInfo
from pytrace_ebpf.record.cpython.functions import UNKNOWN, Functions, ProbeIds, names_of_code
from pytrace_ebpf.record.cpython.lookups import Lookups
from pytrace_ebpf.record.cpython.qualnames import unknown
from pytrace_ebpf.record.process.readings import Readings


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


def test_the_code_objects_own_name_is_taken_and_else_the_sources() -> None:
    functions = Functions()
    functions.intern("a.py", "f", "Another.name", 1, 0, lambda *_: "C.f")
    functions.intern("a.py", "f", "", 1, 0, lambda *_: "C.f")
    functions.intern("a.py", "f", None, 1, 0, lambda *_: None)
    assert functions.cut()["functions"][0]["qualname"].tolist() == ["Another.name", "C.f", "f"]


def test_names_that_a_probe_could_not_read_whole_are_asked_for() -> None:
    functions, asked = Functions(), []

    def read(pid: int, codes: Sequence[int]) -> Mapping[int, CodeInfo]:
        asked.extend(codes)
        return {code: CodeInfo("a.py", "l" * 300, "C." + "l" * 300, code, 0) for code in codes if code != 4}

    row = np.dtype([*((name, "i4") for name in ("id", "layer", "line", "first_line", "flags")), ("pid_tgid", "u8"), ("code", "u8")])
    rows = np.zeros(4, np.dtype([*row.descr, ("file", "S512"), ("name", "S128"), ("qualname", "S256")]))
    rows["id"] = rows["code"] = rows["first_line"] = [1, 2, 3, 4]
    rows["file"] = b"a.py"
    rows["name"] = [b"l" * 127, b"l", b"f", b"f"]
    rows["qualname"] = [b"C." + b"l" * 200, b"", b"C.f", b""]
    ProbeIds(functions, lambda pid: Lookups(Readings(None, ""), 0, names_of_code(partial(read, pid), lambda: unknown))).introduce(rows)
    assert asked == [1, 2, 4]
    qualnames = functions.cut()["functions"][0]["qualname"].tolist()
    assert sorted(qualnames) == sorted(["C." + "l" * 300, "C." + "l" * 300, "C.f", "f"])
