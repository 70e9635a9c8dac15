"""What this kernel's eBPF can do, each found by a try: what a version is said to have, a vendor's older kernel may have as well."""

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.kernel import system_calls
from pytrace_ebpf.record.kernel.system_calls import KPROBE, PERF_EVENT, RAW_TRACEPOINT

_TASK, _REGISTERS, _COOKIE = 158, 175, 174  # helpers: get_current_task_btf, task_pt_regs, get_attach_cookie
_ARRAY, _RING, _PAGE = 2, 27, os.sysconf("SC_PAGE_SIZE")
_SECOND_NS = 10**9


@dataclass(frozen=True)
class Ability:
    """Something that recording uses, and what there is not without it."""

    subject: str
    has: str
    lacks: str
    needed: bool  # for recording anything
    attempt: Callable[[], int]  # returns a descriptor; raises OSError or HostError where the kernel refuses


def calling(*helpers: int) -> bytes:
    """Instructions of a program that calls each with the result of the one before."""
    code = b""
    for helper in helpers:
        code += struct.pack("<BBhi", 0x85, 0, 0, helper) + struct.pack("<BBhi", 0xBF, 0x01, 0, 0)  # call; r1 = r0
    return code + struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)  # r0 = 0; exit


def _sampled() -> int:
    program = system_calls.load_program("tried", PERF_EVENT, calling(_TASK, _REGISTERS))
    try:
        return system_calls.open_cpu_clock(program, min(os.sched_getaffinity(0)), _SECOND_NS)
    finally:
        os.close(program)  # the event has it


ABILITIES = (
    Ability(
        "eBPF",
        "eBPF can be used here",
        "nobody may use eBPF here, which a container's seccomp filter or a security module can forbid",
        True,
        lambda: system_calls.create_map("tried", _ARRAY, 4, 4, 1, 0),
    ),
    Ability(
        "rings",
        "eBPF programs hand over what they see in rings",
        "the kernel has no BPF ring buffers, in which programs hand over what they see (Linux 5.8 has)",
        True,
        lambda: system_calls.create_map("tried", _RING, 0, 0, _PAGE, 0),
    ),
    Ability(
        "registers",
        "eBPF programs see the system call that a thread waits in",
        "eBPF programs of this kernel cannot see the system call that a thread waits in (bpf_task_pt_regs(), which Linux 5.15 has)",
        True,
        lambda: system_calls.load_program("tried", RAW_TRACEPOINT, calling(_TASK, _REGISTERS)),
    ),
    Ability(
        "cookies",
        "a probe tells its program which one it is",
        "probes of this kernel do not tell their program which one they are (bpf_get_attach_cookie(), which Linux 5.15 has), so there is no --layers and no --native-memory",
        False,
        lambda: system_calls.load_program("tried", KPROBE, calling(_COOKIE)),
    ),
    Ability(
        "clocks",
        "cores sample what runs on them",
        "the kernel runs no eBPF program by the clock of a core, so there is no --sample, no daemon and no top",
        False,
        _sampled,
    ),
)


def why_not(ability: Ability) -> str:
    """Why it cannot be had here, empty where it can."""
    try:
        os.close(ability.attempt())
    except (OSError, HostError) as error:
        return str(error)
    return ""


def may_try() -> bool:
    """Whether this user may load programs at all."""
    try:
        os.close(system_calls.load_program("tried", KPROBE, calling()))
    except HostError:
        return False
    return True
