"""Numbers of places become lines: by line tables of every format, whatever the program has in its memory, and with callers that are left out."""

import itertools

import numpy as np
import pytest

from pytrace_ebpf.record.cpython.functions import Functions, ProbeIds, names_of_code
from pytrace_ebpf.record.cpython.lines import NO_LINE, line_at
from pytrace_ebpf.record.cpython.lookups import Lookups
from pytrace_ebpf.record.cpython.qualnames import unknown
from pytrace_ebpf.record.process.readings import Readings
from pytrace_ebpf.record.usdt.call_sites import CallSites
from pytrace_ebpf.trace.schema import CallKind

SITE = np.dtype([("number", "u4"), ("caller", "u4"), ("position", "u4"), ("first_line", "i4"), ("size", "u8")])
EVENT = np.dtype([("site", SITE), ("table", "S488")])
VERSIONS = ((3, 9), (3, 10), (3, 11), (3, 15))
UNREAD = (1 << 64) - 1


def functions(*numbers: int) -> ProbeIds:
    """Functions by the numbers that the probes gave them, whose func_ids count from 0."""
    ids = ProbeIds(Functions(), lambda _: Lookups(Readings(None, ""), 0, names_of_code(lambda _: {}, lambda: unknown)))
    introduce(ids, *numbers)
    return ids


def introduce(ids: ProbeIds, *numbers: int) -> None:
    """Name more functions."""
    names = np.dtype(
        [(name, "u8") for name in ("pid_tgid", "code")]
        + [(name, "i4") for name in ("id", "line", "first_line", "flags", "layer")]
        + [(name, "S16") for name in ("file", "name", "qualname")]
    )
    rows = np.zeros(len(numbers), names)
    rows["id"], rows["line"], rows["file"], rows["name"] = numbers, numbers, b"/a.py", b"f"
    ids.introduce(rows)


def test_every_line_of_this_python_by_its_own_table() -> None:
    """The interpreter's own co_lines() is the oracle."""
    source = "def f(a):\n" + "".join(f"    a({n},\n\n      a({n}))\n" for n in range(40)) + "    for x in a:\n        a(x)\n"
    names: dict[str, object] = {}
    exec(compile(source, "<made>", "exec"), names)
    code = names["f"].__code__  # type: ignore[attr-defined]
    assert len(code.co_code) > 500
    for begins, ends, line in code.co_lines():
        for position in range(begins, ends, 2):
            assert line_at((3, 11), code.co_linetable, code.co_firstlineno, position) == (line or NO_LINE)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_table_that_no_compiler_wrote_gives_some_line_or_none(version: tuple[int, int]) -> None:
    random = np.random.default_rng(1)
    for length in itertools.chain(range(40), (488, 4072)):
        table = random.integers(0, 256, length, np.uint8).tobytes()
        for first_line in (-(1 << 31), 0, 1, (1 << 31) - 1):
            line = line_at(version, table, first_line, 1000)
            assert line == NO_LINE or 0 < line < 1 << 31


def test_numbers_become_lines_of_entries_alone() -> None:
    sites = CallSites((3, 9), functions(1, 2))
    rows = np.zeros(4, EVENT)
    rows["site"] = [(7, 1, 0, 10, 2), (8, 1, 4, 10, 2), (5000, 2, 0, 20, 0), (9, 2, 0, 30, UNREAD)]
    rows["table"][:2] = b"\x04\x05"  # from byte 4 on five lines further
    sites.introduce(rows)
    kinds = np.array(
        [CallKind.ENTRY, CallKind.RESUME, CallKind.ENTRY, CallKind.ENTRY, CallKind.RETURN, CallKind.ENTRY, CallKind.ENTRY, CallKind.OPEN], np.int8
    )
    lines = np.array([7, 8, 5000, 9, 7, 0, 1 << 30, -1], np.int32)
    assert sites.lines(kinds, lines).tolist() == [10, 15, 20, NO_LINE, 7, NO_LINE, NO_LINE, NO_LINE]


def test_a_caller_that_is_not_recorded_leaves_no_line() -> None:
    sites = CallSites((3, 9), functions(1, 2))
    rows = np.zeros(3, EVENT)
    rows["site"] = [(7, 1, 0, 10, 0), (8, 2, 0, 20, 0), (9, 0, 0, 30, 0)]
    sites.introduce(rows)
    wanted = np.array([True, False, True])  # the last for what has no function
    entries = np.full(3, CallKind.ENTRY, np.int8)
    assert sites.lines(entries, np.array([7, 8, 9], np.int32), wanted).tolist() == [10, NO_LINE, NO_LINE]


def test_a_caller_that_has_a_name_later_leaves_its_line() -> None:
    sites = CallSites((3, 9), ids := functions())
    rows = np.zeros(1, EVENT)
    rows["site"] = [(7, 1, 0, 10, 0)]
    sites.introduce(rows)
    kinds, lines, wanted = np.array([CallKind.ENTRY], np.int8), np.array([7], np.int32), np.array([True, True])
    assert sites.lines(kinds, lines, wanted).tolist() == [NO_LINE]
    introduce(ids, 1)
    assert sites.lines(kinds, lines, wanted).tolist() == [10]
