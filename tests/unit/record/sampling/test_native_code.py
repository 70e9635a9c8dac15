"""What is made of the files that a sampled process has mapped, whatever they say of themselves."""

import os
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytrace_ebpf.record.cpython.functions import Functions
from pytrace_ebpf.record.native.unwinding import EVAL, Unwinding
from pytrace_ebpf.record.parsing.elf_file import Segment
from pytrace_ebpf.record.parsing.sandbox import UnansweredError
from pytrace_ebpf.record.process.pinned import Descriptor
from pytrace_ebpf.record.sampling import native
from pytrace_ebpf.record.sampling.native import FRAME_NATIVE, NativeCode

RULE = np.dtype([("pc", "<u4"), ("cfa", "<i2"), ("rbp", "u1"), ("kind", "u1")])
SPAN = np.dtype([("start", "<u8"), ("end", "<u8"), ("bias", "<u8"), ("file", "<u4"), ("pad", "<u4")])
SEGMENT = Segment(0x1000, 0x1000, 0x3000, True)
BEGINS = struct.pack("<4I", 0x1000, 0x1100, 0x1200, 0x1300)
ROWS = np.array([(0x1000, 1, 0, 1), (0x1100, 1, 0, 1), (0x1200, 1, 0, 1), (0x1300, 1, 0, 1), (0x1400, 0, 0, 0)], RULE).tobytes()


class Programs:
    """What the kernel half would hold."""

    def __init__(self) -> None:
        self.arrays: dict[tuple[str, int], np.ndarray] = {}
        self.strays: dict[int, int] = {}
        self.described: list[int] = []  # each time: how often by then

    def map(self, name: str) -> Any:
        if name == "strays":
            return SimpleNamespace(items=lambda: list(self.strays.items()), delete=lambda pid: self.strays.pop(pid))
        if name == "described":
            return SimpleNamespace(set=lambda _, count: self.described.append(count))
        return SimpleNamespace(value=SPAN if name.startswith("spans") else RULE, delete=lambda key: self.arrays.pop((name, key)))

    def set_array(self, name: str, key: int, rows: np.ndarray) -> None:
        self.arrays[name, key] = rows


class Parsers:
    """Answers as the process without rights would."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.unwinding: Any = Unwinding((SEGMENT,), ROWS, BEGINS, False, (0x1200,))
        self.names: Any = ["deflate", "", "", "PyObject_Call"]

    def start(self) -> None: ...

    def ask(self, task: str, given: dict[str, Any], *_: Any) -> Any:
        self.asked.append(task)
        answer = getattr(self, task)
        if isinstance(answer, Exception):
            raise answer
        return answer if task == "unwinding" else answer[: len(given["addresses"])]


@pytest.fixture
def parsers(monkeypatch: pytest.MonkeyPatch) -> Parsers:
    monkeypatch.setattr(native, "native_parsers", made := Parsers())
    return made


def target(folder: Path, *files: str) -> Any:
    """A process that has these mapped, each twice, at 0x70000, 0x80000, ..."""
    lines, opened = [], {}
    for at, name in enumerate(files):
        if not (folder / name).exists():
            (folder / name).touch()
        inode = (folder / name).stat().st_ino
        start = 0x70000 + 0x10000 * at
        lines += [
            f"{start:x}-{start + 0x1000:x} r--p 0 08:01 {inode} /lib/{name}",
            f"{start + 0x1000:x}-{start + 0x4000:x} r-xp 1000 08:01 {inode} /lib/{name}",
        ]
        opened[f"map_files/{start + 0x1000:x}-{start + 0x4000:x}"] = folder / name
    process = SimpleNamespace(
        key=(1, 2),
        read=lambda _: ("\n".join(lines) + "\n").encode(),
        file=lambda name: Descriptor(os.open(opened[name], os.O_RDONLY)),
    )
    return SimpleNamespace(process=process)


def frame(file: int, pc: int) -> int:
    return FRAME_NATIVE | file << 32 | pc


def test_a_process_is_described_once_its_files_are_read(tmp_path: Path, parsers: Parsers) -> None:
    programs = Programs()
    code = NativeCode(programs, Functions())  # type: ignore[arg-type]
    code.begin(7, target(tmp_path, "libz.so.1", "libc.so.6"))
    assert [programs.arrays["rules", number].tobytes() for number in (1, 2)] == [ROWS, ROWS]
    spans = programs.arrays["spans", 7]
    assert spans["start"].tolist() == [0x71000, 0x81000] and spans["end"].tolist() == [0x74000, 0x84000]
    assert spans["bias"].tolist() == [0x70000, 0x80000] and spans["file"].tolist() == [1, 2]
    code.begin(8, target(tmp_path, "libz.so.1"))
    assert parsers.asked == ["unwinding"] * 2 and programs.arrays["spans", 8]["file"].tolist() == [1]
    assert programs.described == [1, 2, 3]  # mapped, and read; the second program needs no reading
    code.forget(7)
    assert ("spans", 7) not in programs.arrays


def test_functions_are_known_by_where_they_begin(tmp_path: Path, parsers: Parsers) -> None:
    functions = Functions()
    code = NativeCode(Programs(), functions)  # type: ignore[arg-type]
    code.begin(7, target(tmp_path, "libz.so.1"))
    found = code.functions([frame(1, pc) for pc in (0x1000, 0x1010, 0x1100, 0x1210, 0x1300)])
    assert found[frame(1, 0x1000)] == found[frame(1, 0x1010)]
    deflate, nameless, evaluates, calls = (found[frame(1, pc)] for pc in (0x1000, 0x1100, 0x1210, 0x1300))
    assert not (deflate.evaluates or deflate.calls or deflate.nameless)
    assert nameless.nameless and evaluates.evaluates and calls.calls
    rows = functions.cut()["functions"][0]
    assert rows["qualname"].tolist() == ["deflate", "libz.so.1+0x1100", "libz.so.1+0x1200", "PyObject_Call"]
    assert set(rows["module"].tolist()) == {"libz.so.1"} and set(rows["function_layer"].tolist()) == {"native"}
    code.functions([frame(1, 0x1000)])
    assert parsers.asked.count("names") == 1


def test_by_its_name_where_it_has_one(tmp_path: Path, parsers: Parsers) -> None:
    parsers.names = [EVAL]
    code = NativeCode(Programs(), Functions())  # type: ignore[arg-type]
    code.begin(7, target(tmp_path, "python3"))
    assert code.functions([frame(1, 0x1100)])[frame(1, 0x1100)].evaluates


@pytest.mark.parametrize("answer", [ValueError("no ELF file"), UnansweredError("late"), Unwinding((SEGMENT,), b"", b"", True)])
def test_of_a_file_without_rules_nothing_is_known(tmp_path: Path, parsers: Parsers, answer: Any) -> None:
    programs, parsers.unwinding = Programs(), answer
    code = NativeCode(programs, Functions())  # type: ignore[arg-type]
    code.begin(7, target(tmp_path, "trap.so"))
    assert ("rules", 1) not in programs.arrays and programs.arrays["spans", 7]["file"].tolist() == [0]
    assert code.functions([frame(1, 0x1000), frame(9, 0x1000)]) == {}


def test_all_files_together_have_a_bound(tmp_path: Path, parsers: Parsers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_MOST_IN_ALL", 12)
    programs = Programs()
    code = NativeCode(programs, Functions())  # type: ignore[arg-type]
    code.begin(7, target(tmp_path, "a.so", "b.so", "c.so"))
    assert [("rules", number) in programs.arrays for number in (1, 2, 3)] == [True, True, False]


def test_a_process_that_runs_where_nothing_is_known_is_looked_at_again_ever_more_seldom(tmp_path: Path, parsers: Parsers) -> None:
    programs = Programs()
    code = NativeCode(programs, Functions())  # type: ignore[arg-type]
    looks, process = [0], target(tmp_path, "libz.so.1")
    read = process.process.read
    process.process.read = lambda name: looks.append(0) or read(name)
    code.begin(7, process)
    for _ in range(3):
        programs.strays = {50: 0x1234, 51: 0x99}  # nobody samples 51
        assert not code.look({50: (7, process)})
        assert not programs.strays
    assert len(looks) == 2


def test_descriptors_of_files_are_closed_with_it(tmp_path: Path, parsers: Parsers) -> None:
    code = NativeCode(Programs(), Functions())  # type: ignore[arg-type]
    code.begin(7, target(tmp_path, "libz.so.1"))
    number = next(file.file.fileno() for file in code._files.values() if isinstance(file.file, Descriptor))
    link = Path(f"/proc/self/fd/{number}")
    assert link.readlink().name == "libz.so.1"
    del code
    assert not link.exists()


def test_the_kernels_own_code_is_that_of_this_process(tmp_path: Path, parsers: Parsers) -> None:
    """Where it is as long; of another kind of program it is another."""
    own = next(line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[vdso]"))
    start, end = (int(word, 16) for word in own.split()[0].split("-"))
    for number, longer in ((7, 0), (8, 4096)):
        programs, process = Programs(), target(tmp_path, "libz.so.1")
        maps = process.process.read("maps") + f"7ffe0000-{0x7FFE0000 + end - start + longer:x} r-xp 00000000 00:00 0    [vdso]\n".encode()
        process.process.read = lambda _, maps=maps: maps
        parsers.unwinding = Unwinding((Segment(0, 0, end - start, True), SEGMENT), ROWS, BEGINS, False)
        NativeCode(programs, Functions()).begin(number, process)  # type: ignore[arg-type]
        spans = programs.arrays["spans", number]
        assert spans["start"].tolist() == [0x71000] + ([] if longer else [0x7FFE0000])
        if not longer:
            assert spans["bias"][1] == 0x7FFE0000 and spans["end"][1] - spans["start"][1] == end - start
