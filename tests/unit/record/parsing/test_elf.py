"""ELF parsing: operands, machine code in front of a probe, and whole interpreters against readelf."""

import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pytrace_ebpf.record.parsing.disassembly import last_instructions
from pytrace_ebpf.record.parsing.elf import (
    Argument,
    Binary,
    Segment,
    parse_arguments,
    read_binary,
)
from pytrace_ebpf.record.parsing.frame_register import frame_register
from tests.conftest import ROOTS

SYSTEM = sorted(Path("/usr/bin").glob("python3.??")) + sorted(Path("/usr/lib").glob("*/libpython3.*.so.1.0"))
EXPECTED = {(3, 9): "rbx", (3, 11): "rbx", (3, 15): "r13"}  # the frame's register in Debian's builds
IN_ROOTS = sorted(ROOTS.glob("*/usr/bin/python3.[0-9]*[0-9]"))


@pytest.mark.parametrize(
    ("text", "argument"),
    [
        ("8@%rbp", Argument(8, False, "rbp", None)),
        ("-4@%eax", Argument(4, True, "rax", None)),
        ("-4@%r14d", Argument(4, True, "r14", None)),
        ("-4@112(%rsp)", Argument(4, True, "rsp", 112)),
        ("-4@-228(%rbp)", Argument(4, True, "rbp", -228)),
        ("8@(%rax)", Argument(8, False, "rax", 0)),
        ("1@%sil", Argument(1, False, "rsi", None)),
        ("-4@$5", Argument(4, True, None, None)),
        ("8@(%rax,%rbx,8)", Argument(8, False, None, None)),
        ("8@symbol(%rip)", Argument(8, False, None, None)),
    ],
)
def test_operand(text: str, argument: Argument) -> None:
    assert parse_arguments(text) == (argument,)


def test_several_operands() -> None:
    assert [a.register for a in parse_arguments("8@%rbx 8@%r12 -4@%eax")] == ["rbx", "r12", "rax"]


# Instructions as the compiler placed them in front of the probes of real builds.
GET_LINE = "4889df 4989c4 e8{call}"  # mov %rbx,%rdi; mov %rax,%r12; call
GET_LINE_315 = "b8a4a18800 4885db 4c89ef 480f44d8 4d85e4 4c0f44e0 e8{call}"  # ... mov %r13,%rdi ...
ADDR2LINE_39 = "8b7368 4c89ff 4989c6 e8{call}"  # mov 0x68(%rbx),%esi; ...
ADDR2LINE_R12 = "418b742468 4c89ff e8{call}"  # mov 0x68(%r12),%esi
INLINED_311 = "488b7b20 488b7338 4989c4 488d87b8000000 29c6 e8{call} 488d158e3c4f00"  # mov 0x38(%rbx),%rsi; ... lea
# All 64 bytes before function__entry and function__return of Debian's builds: bullseye, bookworm, sid.
BEFORE_PROBES = [
    (
        (3, 9, 2),
        "ffe8888b0c00e9d87c0e004c89ffe87b8b0c00e95d740e004c8b7c2438498b7f68e898900f00498b7f704989c5e88c900f008b73684c89ff4989c6e85e8b1000",
        "rbx",
    ),
    (
        (3, 9, 2),
        "db890c00e92b7b0e004c89ff4d89f7e8cb890c00e953510e004c8b7320498b7e68e8e98e0f00498b7e704989c4e8dd8e0f008b73684c89f74989c5e8af891000",
        "rbx",
    ),
    (
        (3, 11, 2),
        "f8ff58c350e8b5fd0d005a4889c7e99c581800415455534c8b67204889fb498b7c2470e8b7e40200498b7c24784889c5e8aae402004889df4989c4e8df881400",
        "rbx",
    ),
    (
        (3, 11, 2),
        "02004889df4989c4e8df881400905b5d415cc3415455534c8b67204889fb498b7c2470e884e40200498b7c24784889c5e877e402004889df4989c4e8ac881400",
        "rbx",
    ),
    (
        (3, 15, 2),
        "498b7c24704989c6e8a3f00900498b7c24784889c3e896f009004c89f74989c4e8cb8a0c00b8a4a188004885db4c89ef480f44d84d85e44c0f44e0e800e42500",
        "r13",
    ),
    (
        (3, 15, 2),
        "498b7c24704989c6e83bf00900498b7c24784889c3e82ef009004c89f74989c4e8638a0c00b8a4a188004885db4c89ef480f44d84d85e44c0f44e0e898e32500",
        "r13",
    ),
]
CALLER_SAVED = "4889c7 e8{call}"  # mov %rax,%rdi


FILLER = "90" * 32


@pytest.mark.parametrize(
    ("version", "code", "register"),
    [
        ((3, 11, 2), GET_LINE, "rbx"),
        ((3, 15, 2), GET_LINE_315, "r13"),
        ((3, 9, 2), ADDR2LINE_39, "rbx"),
        ((3, 9, 2), ADDR2LINE_R12, "r12"),
        ((3, 10, 13), ADDR2LINE_39, None),  # f_lasti is elsewhere on 3.10
        ((3, 10, 13), ADDR2LINE_39.replace("8b7368", "8b7360"), "rbx"),
        ((3, 11, 2), INLINED_311, "rbx"),
        ((3, 11, 2), CALLER_SAVED, None),
        ((3, 11, 2), "4889df", None),  # no call
        ((3, 11, 2), "4889df ff15{call}", "rbx"),  # -fno-plt: call *slot(%rip)
        ((3, 11, 2), "4889df e8{call} 06", None),  # no instruction just before the probe
        ((3, 7, 1), GET_LINE, None),
        *BEFORE_PROBES,
    ],
)
def test_frame_register(version: tuple[int, ...], code: str, register: str | None) -> None:
    filler = "" if len(code) == 128 else FILLER
    assert frame_register(bytes.fromhex((filler + code.format(call="00010000")).replace(" ", "")), version) == register


def test_wrong_beginnings_do_not_become_instructions() -> None:
    code = bytes.fromhex("418b742468 4c89ff e800010000".replace(" ", ""))
    assert [text for *_, text in last_instructions(b"\x90" * 20 + code)][-3:] == ["esi, dword ptr [r12 + 0x68]", "rdi, r15", "0x121"]
    assert last_instructions(b"") == last_instructions(b"\x06" * 40) == []


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF" + bytes(60), b"x" * 1000])
def test_no_elf_file_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match="it is "):
        read_binary(io.BytesIO(content))


def test_file_offset_refuses_what_the_file_does_not_hold() -> None:
    binary = Binary(True, (Segment(0x2000, 0x1000, 0x100, False),), {}, {}, None, None, b"")
    assert binary.file_offset(0x2010) == 0x1010
    for vaddr in (0x1FFF, 0x2100):
        with pytest.raises(ValueError, match="is not in the file"):
            binary.file_offset(vaddr)


@pytest.mark.skipif(not shutil.which("readelf"), reason="readelf (binutils) is not installed")
@pytest.mark.parametrize("path", [*SYSTEM, *IN_ROOTS], ids=str)
def test_an_interpreter_against_readelf(path: Path) -> None:
    with path.open("rb") as file:
        binary = read_binary(file)
    notes = subprocess.run(["readelf", "-n", path], capture_output=True, text=True, check=True).stdout
    expected = re.findall(r"Name: (\w+)\n\s+Location: (\w+), Base: \w+, Semaphore: (\w+)", notes)
    probes = [probe for locations in binary.probes.values() for probe in locations]
    assert sorted((p.name, p.location_vaddr, p.semaphore_vaddr) for p in probes) == sorted(
        (name, int(location, 16), int(semaphore, 16)) for name, location, semaphore in expected
    )
    content = path.read_bytes()
    for probe in probes:
        assert content[probe.offset] == 0x90  # nop
        assert content[probe.semaphore_offset : probe.semaphore_offset + 2] == b"\0\0"
    match = re.search(r"python3\.(\d+)", path.name)
    assert match
    assert binary.version is not None
    assert binary.version[:2] == (3, int(match[1]))
    for name in ("function__entry", "function__return"):
        for probe in binary.probes.get(name, ()):
            assert [a.register is None for a in probe.arguments] == [False] * 3
            assert probe.frame == EXPECTED[binary.version[:2]]
