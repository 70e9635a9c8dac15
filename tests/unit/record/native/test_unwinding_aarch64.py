"""The rules by which a native function's caller is found on aarch64, against what readelf makes of the same file; on any machine that has a compiler for it."""

import bisect
import ctypes
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from pytrace_ebpf import processors
from pytrace_ebpf.processors import aarch64
from pytrace_ebpf.record.native import unwinding
from tests.unit.record.native.test_unwinding import ROW, told

SOURCE = Path(__file__).parents[4]
NONE, SP, FP, END, LINK = 0, 1, 2, 6, 7  # probes/unwind.h
COMPILER = "aarch64-linux-gnu-gcc"


@pytest.mark.skipif(not shutil.which(COMPILER) or not shutil.which("readelf"), reason="needs gcc-aarch64-linux-gnu and binutils")
def test_rules_are_those_that_readelf_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = [str(path) for path in sorted((SOURCE / "pytrace_ebpf" / "rebuild").glob("*.c"))]
    described, maker = tmp_path / "described.so", tmp_path / "maker.so"
    subprocess.run([COMPILER, "-std=gnu11", "-O2", "-fPIC", "-shared", "-mbranch-protection=standard", "-o", described, *code], check=True)
    subprocess.run(["gcc", "-std=gnu11", "-O1", "-fPIC", "-shared", "-DPROCESSOR_aarch64", "-o", maker, *code], check=True)
    monkeypatch.setattr(unwinding, "_LIBRARY", maker)
    monkeypatch.setattr(processors, "here", lambda: aarch64.PROCESSOR)
    with described.open("rb") as file:
        found = unwinding.read(unwinding.unwinder(), file, 0)
    rows = list(ROW.iter_unpack(found.rows))
    places, compared = [row[0] for row in rows], 0
    for pc, registers in told(described):
        _, cfa, saved, kind = rows[bisect.bisect_right(places, pc) - 1]
        based = re.fullmatch(r"(sp|x29)\+(\d+)", registers["CFA"])
        assert based, registers
        frame, back = (registers.get(name, "u") for name in ("x29", "ra"))
        beyond = [int(each[2:]) for each in (frame, back) if each != "u"]
        if beyond and int(based[2]) - beyond[0] > 254 * 8:
            assert kind == NONE
            continue
        assert cfa == int(based[2]) // 8 and kind == (LINK if frame == "u" != back else SP if based[1] == "sp" else FP), (hex(pc), registers)
        assert saved == ((int(based[2]) - beyond[0]) // 8 + 1 if beyond else 0), (hex(pc), registers)
        compared += 1
    assert compared > 1000


def test_where_code_of_aarch64_may_go_to() -> None:
    words = 0x14000002, 0x17FFFFFF, 0x54FFFFE0, 0xB4000061, 0x36FFFFC0, 0xD65F03C0  # b +8, b -4, b.eq -4, cbz +12, tbz -8, ret
    code = struct.pack("<6I", *words)
    assert list(aarch64.PROCESSOR.code.jumps(code, 0x1000)) == [0x1008, 0x1000, 0x1004, 0x1018, 0x1008]


def test_a_rule_of_a_functions_beginning_is_that_of_the_library() -> None:
    row = ROW.unpack(struct.pack("<II", 0, aarch64.PROCESSOR.code.at_call))
    assert row == (0, 0, 0, SP)
    assert ctypes.sizeof(ctypes.c_uint64) == ROW.size
