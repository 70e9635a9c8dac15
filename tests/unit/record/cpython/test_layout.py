"""The table of offsets, and the process's own table before it."""

import struct
from dataclasses import fields, replace

import pytest

from pytrace_ebpf.record.cpython import layout
from pytrace_ebpf.record.process.target import inspect
from tests.conftest import free_threaded_pythons
from tests.unit.live_pythons import interpreters, minor_of, running

STILL = "import time; print('ready', flush=True); time.sleep(100)"
PYTHONS = interpreters()
FREE_THREADED = {str(python): python.words for python in free_threaded_pythons()}


@pytest.mark.parametrize("minor", range(8, 16))
def test_every_version_has_a_layout(minor: int) -> None:
    found = layout.layout_for((3, minor, 1))
    assert found is not None
    assert found.version == (3, minor)
    assert (found.frame_owner is None) == (found.thread_native_id is None) == (minor < 11)
    assert (found.runtime_gil is None) == (minor >= 12)


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 6, 15), (3, 7, 0), (3, 16, 0), (4, 0, 0)])
def test_an_unknown_version_has_none(version: tuple[int, ...]) -> None:
    assert layout.layout_for(version) is None


def test_debug_offsets_win_over_the_table() -> None:
    raw = bytearray(b"xdebugpy".ljust(1024, b"\0"))
    struct.pack_into("<Q", raw, 248, 7777)  # thread_state.native_thread_id on 3.15
    struct.pack_into("<Q", raw, 40, 5000)  # runtime_state.interpreters_head
    struct.pack_into("<Q", raw, 736, 64)  # unicode_object.asciiobject_size
    found = layout.layout_for((3, 15, 2), bytes(raw))
    assert found is not None
    assert (found.thread_native_id, found.runtime_main_interpreter) == (7777, 5008)
    assert (found.string_data, found.string_data_wide) == (64, 80)
    assert layout.layout_for((3, 15, 2), b"other" + bytes(raw)) == layout.layout_for((3, 15))
    assert layout.layout_for((3, 12, 1), bytes(raw)) == layout.layout_for((3, 12))


def test_the_debuggers_interface_is_in_the_table() -> None:
    assert [layout.debugger_support((3, minor, 0)) is not None for minor in range(8, 17)] == [False] * 6 + [True] * 2 + [False]
    assert layout.debugger_support(None) is None


def test_free_threading_is_read_from_the_debug_offsets() -> None:
    raw = b"xdebugpy" + struct.pack("<QQ", 0x030D00F0, 1)
    assert layout.is_free_threaded(raw.ljust(1024, b"\0"))
    assert not layout.is_free_threaded(raw[:16].ljust(1024, b"\0"))
    assert not layout.is_free_threaded(b"")


@pytest.mark.parametrize("name", [*(name for name in PYTHONS if minor_of(name) >= 13), *FREE_THREADED])
def test_the_table_agrees_with_a_real_build(name: str) -> None:
    with running((PYTHONS | FREE_THREADED)[name], STILL) as pid:
        target = inspect(pid)
    assert target.layout is not None
    assert target.binary.debug_offsets
    table = layout.table_layout(target.layout.version, target.free_threaded)
    assert table is not None
    assert target.free_threaded == (name in FREE_THREADED)
    differing = [f.name for f in fields(table) if getattr(table, f.name) != getattr(target.layout, f.name)]
    assert differing == []
    assert replace(table) == target.layout
