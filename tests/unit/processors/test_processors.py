"""What is known of each processor: whole, true, and the same in Python and in C. None of it needs that processor."""

import ctypes
import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import system_calls

from pytrace_ebpf import processors
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.processors import aarch64, x86_64
from pytrace_ebpf.processors.processor import Processor
from pytrace_ebpf.record import doctor
from pytrace_ebpf.record.agent.inject import aarch64 as arm
from pytrace_ebpf.record.agent.inject.registers import Interrupted
from pytrace_ebpf.record.parsing.elf import Argument, parse_arguments
from pytrace_ebpf.record.parsing.frame_register import frame_register

SOURCE = Path(__file__).parents[3]
HEADERS = SOURCE / "probes" / "processors"
# What each lacks and the other has: the C library makes it of another call.
ALONE = {
    "x86_64": {"poll", "select", "pause", "vfork", "epoll_wait", "unlink", "rmdir"},
    "aarch64": {"unlinkat"},
}
ARM = aarch64.PROCESSOR

each = pytest.mark.parametrize("processor", list(processors.PROCESSORS.values()), ids=list(processors.PROCESSORS))


@each
def test_numbers_of_system_calls_are_the_kernels(processor: Processor) -> None:
    known, name = system_calls.syscalls(), {"aarch64": "arm64"}.get(processor.machine, processor.machine)
    assert processor.calls == {call: known.get(call, name) for call in processor.calls}


def test_processors_have_the_same_calls_but_for_those_that_one_does_not_have() -> None:
    names = {machine: set(processor.calls) - ALONE[machine] for machine, processor in processors.PROCESSORS.items()}
    assert names["x86_64"] == names["aarch64"]
    assert ARM.call("pause") not in ARM.calls.values()


@each
def test_the_header_says_the_same(processor: Processor) -> None:
    text = (HEADERS / f"{processor.machine}.h").read_text()
    for name, number in re.findall(r"#define SYSCALL_(\w+) \(?(-?\d+)", text):
        assert int(number) == processor.call(name.lower())
    places = tuple(int(re.search(rf"#define PTHREAD_TID{suffix} (\w+)", text)[1], 16) for suffix in ("", "_MUSL"))  # type: ignore[index]
    assert places == processor.thread_id
    assert int(re.search(r"#define GIL_SIZE (\d+)", text)[1]) == 208 + processor.gil_wider  # type: ignore[index]
    readable = set(map(int, re.findall(r"ONE\((\d+)\)", text)))
    assert readable == {place + 1 for place in processor.usdt.places.values()} - {33}  # but the program counter of aarch64


@each
def test_every_register_has_a_place_and_itself_as_a_name(processor: Processor) -> None:
    usdt = processor.usdt
    assert set(usdt.wide.values()) <= set(usdt.places)
    assert len(set(usdt.places.values())) == len(usdt.places)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8@x1", Argument(8, False, "x1", None)),
        ("-4@w0", Argument(4, True, "x0", None)),
        ("8@x29", Argument(8, False, "x29", None)),
        ("-4@[sp, 12]", Argument(4, True, "sp", 12)),
        ("8@[x19]", Argument(8, False, "x19", 0)),
        ("-4@[x20, -160]", Argument(4, True, "x20", -160)),
        ("8@[x29, #40]", Argument(8, False, "x29", 40)),
        ("-4@5", Argument(4, True, None, None)),
        ("8@[x0, x1]", Argument(8, False, None, None)),
        ("8@[x0, x1, lsl 3]", Argument(8, False, None, None)),
        ("8@xzr", Argument(8, False, None, None)),
    ],
)
def test_operands_of_aarch64(text: str, expected: Argument) -> None:
    assert parse_arguments(text, ARM.usdt) == (expected,)


def test_operands_of_aarch64_stand_side_by_side() -> None:
    found = parse_arguments("8@x21 8@x20 -4@w0 -4@[sp, 12] 8@[x0, x1]", ARM.usdt)
    assert [(argument.register, argument.displacement) for argument in found] == [
        ("x21", None),
        ("x20", None),
        ("x0", None),
        ("sp", 12),
        (None, None),
    ]


def test_operands_of_x86_64_stand_side_by_side() -> None:
    found = parse_arguments("8@%rbp -4@%eax -4@112(%rsp)", x86_64.PROCESSOR.usdt)
    assert [(argument.register, argument.displacement) for argument in found] == [("rbp", None), ("rax", None), ("rsp", 112)]


def test_a_futex_of_any_machine_is_the_engines() -> None:
    calls = np.array([98, 202, -1, -2, 63], np.int32)
    assert processors.engines_numbers(calls, "x86_64") is calls
    assert processors.engines_numbers(calls, "") is calls
    assert processors.engines_numbers(calls, "aarch64").tolist() == [202, -3, -1, -2, 63]


def test_the_code_that_returns_from_a_signal_is_found() -> None:
    vdso = bytes.fromhex("1f2003d5681180d2010000d4")  # nop; mov x8, #139; svc #0
    found = ARM.sigreturn.search(vdso)
    assert found and found.start() == 4


# A thread that waits on aarch64, as the registers of a stop have it, and what of it comes back.
SVC, STACK = b"\x01\0\0\xd4", 0xFFFF_F000_1000
FPSIMD = struct.pack("<512sII8x", bytes(range(256)) * 2, 7, 9)


def registers(**values: int) -> arm.Registers:
    return arm.Registers().but(pc=0x1000, sp=STACK, pstate=0x60001000, **values)


def test_registers_are_as_the_kernel_has_them() -> None:
    assert ctypes.sizeof(arm.Registers) == 34 * 8
    assert (arm.Registers.sp.offset, arm.Registers.pc.offset, arm.Registers.pstate.offset) == (31 * 8, 32 * 8, 33 * 8)


def test_a_frame_holds_what_the_thread_goes_on_with() -> None:
    now = registers(x0=3, x8=ARM.calls["read"], x7=77, x29=0x5000)
    made = arm.forge(now, (FPSIMD, b""), 0xF0F0, 0x4000, 0x9000, (b"text\0", 2), Interrupted(SVC))
    assert made.address % 16 == 0
    assert made.address + len(made.content) <= STACK
    given = made.registers
    assert (given.pc, given.sp, given.x30, given.x1, given.x29) == (0x9000, made.address, 0x4000, 2, 0)
    assert given.pstate == 0x60000000 | 0x1000 & ~0xC00
    assert made.content[given.x0 - made.address :][:5] == b"text\0"
    assert struct.unpack_from("<Q", made.content, 128 + 40) == (0xF0F0,)  # uc_sigmask
    assert made.content[128 + 176 + 8 :][: 34 * 8] == bytes(now)  # uc_mcontext, behind fault_address
    assert struct.unpack_from("<IIII", made.content, 128 + 464) == (0x46508001, 528, 7, 9)
    assert made.content[128 + 464 + 16 :][:512] == FPSIMD[:512]
    assert len(made.content) >= 128 + 464 + 4096


@pytest.mark.parametrize("length", [16, 64, 256])
def test_whole_vectors_are_behind_the_records(length: int) -> None:
    values = bytes(number % 251 for number in range(length * 32 + length // 8 * 17))
    vectors = struct.pack("<IIHHHH", 16 + len(values), 0, length, 256, 1, 0) + values
    made = arm.forge(registers(), (FPSIMD, vectors), 0, 0x4000, 0x9000, (), Interrupted())
    at = 128 + 464 + 528
    magic, size, where, more = struct.unpack_from("<IIQI", made.content, at)
    assert (magic, size, where) == (0x45585401, 32, made.address + at + 48)
    assert more % 16 == 0
    assert made.content[at + 32 : at + 48] == bytes(16)
    assert struct.unpack_from("<IIH", made.content, at + 48) == (0x53564501, -(-(16 + len(values)) // 16) * 16, length)
    assert made.content[at + 64 :][: len(values)] == values


def test_a_call_is_made_again_with_what_it_was_given() -> None:
    waiting = registers(x0=5, x8=ARM.calls["read"])
    assert bytes(arm.returned(waiting, Interrupted(SVC, 5))) == bytes(waiting)


@pytest.mark.parametrize(
    "given",
    [
        {"x8": ARM.calls["nanosleep"]},
        {"x8": ARM.calls["clock_nanosleep"], "x1": 0},
        {"x8": ARM.calls["futex"], "x1": 0x80, "x3": 0x7000},
        {"x8": ARM.calls["restart_syscall"]},
    ],
)
def test_a_call_that_counts_from_its_beginning_is_interrupted(given: dict[str, int]) -> None:
    waiting = registers(x0=0, **given)
    back = arm.returned(waiting, Interrupted(SVC))
    assert (back.pc, back.signed("x0")) == (0x1004, -4)
    elsewhere = arm.returned(waiting, Interrupted(b"\x1f\x20\x03\xd5"))  # x8 has the number of the last one yet
    assert bytes(elsewhere) == bytes(waiting)


@pytest.mark.parametrize(
    "given",
    [{"x8": ARM.calls["clock_nanosleep"], "x1": 1}, {"x8": ARM.calls["futex"], "x1": 0x189, "x3": 0x7000}, {"x8": ARM.calls["futex"], "x1": 0x80}],
)
def test_a_call_with_an_end_in_time_or_none_is_made_again(given: dict[str, int]) -> None:
    waiting = registers(x0=1, **given)
    assert bytes(arm.returned(waiting, Interrupted(SVC))) == bytes(waiting)


def test_an_endless_wait_goes_on_though_it_said_eintr() -> None:
    said = registers(x0=-4, x3=-1, x8=ARM.calls["epoll_pwait"])
    back = arm.returned(said, Interrupted(b"", 9))
    assert (back.pc, back.x0) == (0xFFC, 9)
    assert bytes(arm.returned(said, Interrupted())) == bytes(said)  # what it was given is not known
    timed = said.but(x3=1000)
    assert bytes(arm.returned(timed, Interrupted(b"", 9))) == bytes(timed)


def test_a_thread_stands_where_it_was_seen() -> None:
    number = ARM.calls["read"]
    again, said = registers(x0=5, x8=number), registers(x0=-4, x8=number)
    assert again.stands_in(number, 0x1004, STACK)
    assert said.stands_in(number, 0x1000, STACK)
    assert not again.stands_in(number, 0x1000, STACK)
    assert not again.stands_in(number, 0x1004, STACK + 16)


@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-gcc") is None, reason="needs a compiler for aarch64 (gcc-aarch64-linux-gnu)")
def test_the_libraries_compile_for_aarch64_without_a_warning(tmp_path: Path) -> None:
    for name in ("probes", "scripts", "pytrace_ebpf/rebuild"):
        shutil.copytree(SOURCE / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    tools = {"CC": "aarch64-linux-gnu-gcc", "OBJDUMP": "aarch64-linux-gnu-objdump", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([tmp_path / "scripts/build-libraries.sh"], env=tools, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for library in ("probes/agent/agent.so", "probes/remote_sampler/remote_sampler.so", "pytrace_ebpf/rebuild/rebuild.so"):
        assert struct.unpack_from("<H", (tmp_path / library).read_bytes(), 18) == (ARM.elf,)


def test_the_frame_at_a_probe_of_aarch64_is_found_in_the_code_before() -> None:
    before = "fa1300f9 bfc03af9 f40300aa a03e40f9 f3cc0094 f50300aa e00313aa ecfe0594 a12f00b0"  # ... mov x21, x0; mov x0, x19; bl; adrp x1
    code = bytes.fromhex(before)
    assert frame_register(code, (3, 11, 2), ARM) == "x19"
    inlined = bytes.fromhex("811e40f9 ecfe0594 a12f00b0")  # ldr x1, [x20, #0x38]; bl; adrp
    assert frame_register(inlined, (3, 11, 2), ARM) == "x20"
    lost = bytes.fromhex("e00309aa ecfe0594")  # mov x0, x9: the function may have changed it
    assert frame_register(lost, (3, 11, 2), ARM) is None


def test_addresses_that_code_of_aarch64_refers_to() -> None:
    # adrp x1; nop; add x1, x1, #0x458; mov; adrp x0, backwards; add x0, x0, #0x52
    code = bytes.fromhex("a12f00b0 1f2003d5 21601191 e00313aa 60b6ffd0 00480191")
    assert list(ARM.code.addresses(code, 0x469D14)) == [0xA5E458, 0x469000 - 0x1000 * 2354 + 0x52]


def test_what_a_processor_lacks_is_refused_in_one_sentence_and_said_by_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    processors.require("--layers")
    monkeypatch.setattr(processors, "here", lambda: ARM)
    for what in ARM.lacks:
        with pytest.raises(HostError, match=f"^on aarch64 there is no {what} yet: [^.\n]+$"):
            processors.require(what)
    said = [finding.sentence for finding in doctor._libraries()]
    assert said == [f"there is no {what} yet: {why}" for what, why in ARM.lacks.items()]
