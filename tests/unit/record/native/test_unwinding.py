"""The rules by which a native function's caller is found, against what readelf makes of the same files; and whatever bytes they are made of."""

import bisect
import ctypes
import random
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytrace_ebpf.rebuild import library
from pytrace_ebpf.record.native import unwinding
from pytrace_ebpf.record.parsing.elf_file import ElfFile

NONE, RSP, RBP, DEREF, PLT_11, PLT_10, END = range(7)  # probes/unwind.h
ROW = struct.Struct("<IhBB")
FILES = {"own": library.FILE, "python": Path(sys.executable).resolve(), "libc": Path("/lib/x86_64-linux-gnu/libc.so.6")}
Rule = tuple[int, int, int, int]  # pc, cfa, rbp, kind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ELF files are Linux's")


def rules(path: Path) -> tuple[list[Rule], unwinding.Unwinding]:
    with path.open("rb") as file:
        found = unwinding.read(unwinding.unwinder(), file, 0)
    return list(ROW.iter_unpack(found.rows)), found


def told(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(address, how each register is found) of each row that readelf prints of a function."""
    columns: list[str] = []
    end = 0
    for line in subprocess.run(["readelf", "-wF", path], capture_output=True, text=True, check=False).stdout.splitlines():
        words = line.split()
        if " FDE " in line or " CIE " in line:
            found = re.search(r"pc=[0-9a-f]+\.\.([0-9a-f]+)", line)
            end = int(found[1], 16) if found else 0
        elif words[:1] == ["LOC"]:
            columns = words[1:]
        elif len(words) == len(columns) + 1 and re.fullmatch("[0-9a-f]{16}", words[0]) and int(words[0], 16) < end:
            yield int(words[0], 16), dict(zip(columns, words[1:], strict=True))


@pytest.mark.skipif(not shutil.which("readelf"), reason="binutils are not installed")
@pytest.mark.parametrize("name", FILES)
def test_rules_are_those_that_readelf_tells(name: str) -> None:
    if not FILES[name].exists():
        pytest.skip("there is no such file on this system")
    rows, _ = rules(FILES[name])
    places = [row[0] for row in rows]
    compared = 0
    for pc, registers in told(FILES[name]):
        _, cfa, rbp, kind = rows[bisect.bisect_right(places, pc) - 1]
        found = re.fullmatch(r"(rsp|rbp)\+(\d+)", registers["CFA"])
        if registers["ra"] != "c-8" or not found or registers.get("rbp", "u")[0] not in "uc":
            assert kind in (NONE, DEREF, PLT_11, PLT_10, END) or registers["ra"] != "c-8", (hex(pc), registers)
            continue
        saved = registers.get("rbp", "u")
        expected = (int(found[2]) // 8, 0 if saved == "u" else int(saved[2:]) // 8, RSP if found[1] == "rsp" else RBP)
        assert (cfa, rbp, kind) == expected, (hex(pc), registers)
        compared += 1
    assert compared > 100


def test_rows_are_sorted_and_functions_are_among_them() -> None:
    rows, found = rules(FILES["own"])
    places = [row[0] for row in rows]
    assert places == sorted(set(places))
    begins = [begin for (begin,) in struct.iter_unpack("<I", found.functions)]
    assert begins == sorted(set(begins)) and set(begins) <= set(places)
    assert found.segments and all(segment.executable for segment in found.segments) and not found.more


def test_rows_come_in_as_many_answers_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = rules(FILES["own"])
    monkeypatch.setattr(unwinding, "MOST_ROWS", 1000)
    rows, skip, more = list[Rule](), 0, True
    while more:
        with FILES["own"].open("rb") as file:
            part = unwinding.read(unwinding.unwinder(), file, skip)
        rows += ROW.iter_unpack(part.rows)
        assert bool(part.functions) == (skip == 0)
        skip, more = len(rows), part.more
    assert rows == whole


def test_all_parts_of_the_function_that_runs_python_code_are_found() -> None:
    """Also where it has no symbol for what the compiler put elsewhere; a library has none."""
    rows, found = rules(FILES["python"])
    with FILES["python"].open("rb") as file:
        place = {symbol.name: symbol.address for symbol in ElfFile(file).symbols()}.get(unwinding.EVAL)
    assert found.evaluating[:1] == (() if place is None else (place,))  # it may be in a libpython
    begins = {begin for (begin,) in struct.iter_unpack("<I", found.functions)}
    at_call = {pc for pc, cfa, _, kind in rows if (cfa, kind) == (1, RSP)}
    assert set(found.evaluating) <= begins and not set(found.evaluating[1:]) & at_call
    assert rules(FILES["own"])[1].evaluating == ()


def test_names_are_those_of_the_symbols() -> None:
    with FILES["own"].open("rb") as file:
        place = {symbol.name: symbol.address for symbol in ElfFile(file).symbols()}["rebuild_unwind"]
        assert unwinding.names(file, [place, place + 1]) == ["rebuild_unwind", ""]


@pytest.mark.parametrize(
    ("symbol", "shown"),
    [
        (b"list_sort_impl.isra.0", "list_sort_impl"),
        (b"_PyEval_EvalFrameDefault.cold", "_PyEval_EvalFrameDefault"),
        (b"free.part.3.lto_priv.1", "free"),
        (b"_ZN2at4_ops3add4callE", "at::_ops::add::call"),
        (b"_Z!!!", "_Z!!!"),
        (b"\xff\x1b", "\xff\x1b"),
    ],
)
def test_a_name_is_as_in_the_source(symbol: bytes, shown: str) -> None:
    assert unwinding._shown(symbol) == shown


@pytest.mark.parametrize("seed", range(60))
def test_whatever_the_section_holds_is_read_within_its_bounds(seed: int) -> None:
    rng = random.Random(seed)
    with FILES["own"].open("rb") as file:
        elf = ElfFile(file)
        section = elf.section(".eh_frame")
        content = bytearray(elf.read_section(section)[: rng.choice([16, 200, 5000])])
    for _ in range(rng.choice([1, 10, 300])):
        content[rng.randrange(len(content))] = rng.choice([0, 0xFF, 0x80, rng.randrange(256)])
    bytes_, size = bytes(content), ctypes.c_size_t()
    rows, begins = (ctypes.create_string_buffer(8 * len(content)) for _ in range(2))
    unwind = unwinding.unwinder()
    count = unwind(bytes_, len(bytes_), 0x1000, rows, len(content), begins, len(content), ctypes.byref(size))
    assert count <= len(content) and size.value <= len(content) // 8
    found = list(ROW.iter_unpack(rows.raw[: count * ROW.size]))
    assert all(kind <= END for *_, kind in found)
    assert [row[0] for row in found] == sorted(row[0] for row in found)
