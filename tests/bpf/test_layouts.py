"""The USDT programs load and report correctly for every Python that can have probes, also where no such build is installed."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytrace_ebpf.record.cpython.layout import Layout, layout_for
from pytrace_ebpf.record.kernel.uprobes import Point
from pytrace_ebpf.record.parsing.elf import PT_REGS, Binary, Probe, Segment, parse_arguments, read_binary
from pytrace_ebpf.record.usdt.probes import Plan, UsdtProbes, plan
from pytrace_ebpf.trace.schema import CallKind

WITH_PROBES = ((3, 8), (3, 9), (3, 10), (3, 11), (3, 15))
ARGUMENTS = {"function__entry": "8@%rdi 8@%rsi -4@%edx", "gc__start": "-4@%edi", "import__find__load__start": "8@%rdi"}
PROBES = (
    "function__entry", "function__return", "line", "gc__start", "gc__done", "import__find__load__start", "import__find__load__done",
)  # fmt: skip
SOURCE = """
int hit(const char *file, const char *name, int line, void *frame) { return line; }
int never(void) { return 0; }
"""
FRAME = 256  # where the frame is in its memory: something is in front of it, too
OWNED_BY_GENERATOR = 1


def planned(layout: Layout) -> Plan:
    """For an interpreter with all of the probes, the frame in a register of this test's choice."""
    probes = {name: (Probe(name, 0, 0, 0, 0, parse_arguments(ARGUMENTS.get(name, ARGUMENTS["function__entry"]))),) for name in PROBES}
    binary = Binary(False, (Segment(0, 0, 1 << 20, True),), probes, {"Py_FatalError": 0x1000}, None, (*layout.version, 1), b"")
    made = plan(binary, layout)
    frame = (PT_REGS["rcx"] + 1, 0, False, 0, 0)
    return replace(made, entry=(*made.entry[:3], frame), leaving=(*made.leaving[:3], frame))


@contextmanager
def loaded(layout: Layout, points: tuple[Point, ...], path: Path) -> Iterator[UsdtProbes]:
    probes = UsdtProbes(replace(planned(layout), points=points), 64)
    try:
        probes.attach(os.getpid(), str(path))
        probes.record(True)
        yield probes
    finally:
        probes.close()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hit") / "hit.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", path, "-"], input=SOURCE.encode(), check=True)
    return path


def known(version: tuple[int, int]) -> Layout:
    layout = layout_for(version)
    assert layout is not None
    return layout


def leaving(layout: Layout, yielding: bool) -> tuple[ctypes.Array[ctypes.c_char], ctypes.Array[ctypes.c_char]]:
    """A generator's frame as its probe finds it, and its code, which the frame points to."""
    code, frame = ctypes.create_string_buffer(512), ctypes.create_string_buffer(512)
    view = np.frombuffer(frame, np.uint8)

    def put(offset: int, value: int, size: int = 8) -> None:
        view[FRAME + offset : FRAME + offset + size] = list((value % (1 << 8 * size)).to_bytes(size, "little"))

    put(layout.frame_code, ctypes.addressof(code))
    if layout.frame_owner is not None:
        put(layout.frame_owner, OWNED_BY_GENERATOR, 1)
    if layout.frame_stacktop is not None:
        put(layout.frame_stacktop, ctypes.addressof(code) * yielding)
    elif layout.generator_state is not None:
        put(layout.generator_state, -1 if yielding else 1, 1)
    else:
        assert layout.yield_opcode is not None
        put(layout.frame_position, ctypes.addressof(code) + 402)
        code[400] = layout.yield_opcode if yielding else 0
    return frame, code


@pytest.mark.parametrize("version", WITH_PROBES)
def test_every_program_loads_and_distinguishes_yields_from_returns(version: tuple[int, int], library: Path) -> None:
    layout = known(version)
    with library.open("rb") as file:
        binary = read_binary(file)
    places = {name: binary.file_offset(binary.symbols[name]) for name in ("hit", "never")}
    points = tuple(Point(point.program, places["hit" if point.program == "function_return" else "never"], 0) for point in planned(layout).points)
    programs = {point.program for point in points}
    assert programs >= {"function_entry", "function_return", "gc_start", "gc_done", "import_start", "import_done"}
    with loaded(layout, points, library) as probes:
        assert len(probes.attached[os.getpid()]) == len(points)
        for yielding in (True, False, True):
            frame, code = leaving(layout, yielding)
            ctypes.CDLL(str(library)).hit(b"/a/file.py", b"name", 7, ctypes.c_void_p(ctypes.addressof(frame) + FRAME))
            del code
        events = probes.drain_calls(np.copy)
    assert list(events["kind"]) == [CallKind.YIELD, CallKind.RETURN, CallKind.YIELD]
    assert set(events["line"]) == {7}
