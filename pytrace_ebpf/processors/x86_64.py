"""x86-64."""

import re
import struct
from collections.abc import Iterator

from pytrace_ebpf.processors.processor import Code, Processor, Usdt

_ENCODING = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *(f"r{number}" for number in range(8, 16)))

_CALLS = {  # arch/x86/entry/syscalls/syscall_64.tbl
    "read": 0, "write": 1, "close": 3, "fstat": 5, "poll": 7, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12,
    "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "ioctl": 16, "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20,
    "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28, "pause": 34, "nanosleep": 35, "getpid": 39, "sendfile": 40,
    "connect": 42, "accept": 43, "sendto": 44, "recvfrom": 45, "sendmsg": 46, "recvmsg": 47, "clone": 56, "vfork": 58, "exit": 60,
    "wait4": 61, "fcntl": 72, "flock": 73, "fsync": 74, "fdatasync": 75, "ftruncate": 77, "rmdir": 84, "unlink": 87,
    "setgroups": 116, "setfsuid": 122, "setfsgid": 123, "capget": 125, "capset": 126, "prctl": 157, "gettid": 186, "readahead": 187,
    "futex": 202, "getdents64": 217, "restart_syscall": 219, "clock_gettime": 228, "clock_nanosleep": 230, "exit_group": 231,
    "epoll_wait": 232, "waitid": 247, "openat": 257, "newfstatat": 262, "pselect6": 270, "ppoll": 271, "set_robust_list": 273,
    "splice": 275, "tee": 276, "sync_file_range": 277, "vmsplice": 278, "epoll_pwait": 281, "fallocate": 285, "accept4": 288,
    "preadv": 295, "pwritev": 296, "perf_event_open": 298, "recvmmsg": 299, "syncfs": 306, "sendmmsg": 307, "getrandom": 318,
    "bpf": 321, "copy_file_range": 326, "preadv2": 327, "pwritev2": 328, "statx": 332, "rseq": 334, "io_uring_enter": 426,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "clone3": 435, "openat2": 437, "epoll_pwait2": 441,
}  # fmt: skip


def _addresses(code: bytes, vaddr: int) -> Iterator[int]:
    """Whatever can be an operand is one: four bytes, relative to what follows them, or absolute."""
    for at in range(len(code) - 3):
        yield vaddr + at + 4 + struct.unpack_from("<i", code, at)[0]
        yield struct.unpack_from("<I", code, at)[0]


_JUMP = re.compile(rb"(?=(?:\xe9|\x0f[\x80-\x8f])(.{4}))", re.DOTALL)  # at any byte: what is none leads to no such place


def _jumps(code: bytes, vaddr: int) -> Iterator[int]:
    for jump in _JUMP.finditer(code):
        yield vaddr + jump.end(1) + int(struct.unpack("<i", jump[1])[0])


PROCESSOR = Processor(
    machine="x86_64",
    name="x86-64",
    elf=62,
    debian="amd64",
    audit=0xC000003E,
    calls=_CALLS,
    thread_id=(0x2D0, 0x30),
    thread_pointer="fsbase",
    counter="tsc",
    usdt=Usdt(
        operand=re.compile(r"(?P<sign>-?)(?P<size>\d{1,2})@(?:%(?P<register>\w+)|(?P<displacement>(?:-?\d{1,9})?)\(%(?P<base>\w+)\))", re.ASCII),
        split=re.compile(r"\s+"),
        places={  # arch/x86/include/uapi/asm/ptrace.h
            **{f"r{number}": 15 - number for number in range(12, 16)},
            **{"rbp": 4, "rbx": 5},
            **{f"r{number}": 17 - number for number in range(8, 12)},
            **{"rax": 10, "rcx": 11, "rdx": 12, "rsi": 13, "rdi": 14, "rip": 16, "rsp": 19},
        },
        wide={
            **{narrow: wide for wide in _ENCODING[:8] for narrow in (wide, "e" + wide[1:], wide[1:])},
            **{f"{letter}l": f"r{letter}x" for letter in "abcd"},
            **{f"{name}l": f"r{name}" for name in ("si", "di", "bp", "sp")},
            **{f"r{number}{suffix}": f"r{number}" for number in range(8, 16) for suffix in ("", "d", "w", "b")},
            "rip": "rip",
        },
    ),
    code=Code(
        capstone=("CS_ARCH_X86", "CS_MODE_64"),
        longest=15,
        every=1,
        addresses=_addresses,
        jumps=_jumps,
        at_call=1 | 1 << 24,  # the CFA is rsp + 8
        call="call",
        kept=frozenset(("rbx", "rbp", "r12", "r13", "r14", "r15")),
        move=frozenset(("mov",)),
        frame={
            **dict.fromkeys(((3, 8), (3, 9)), re.compile(r"esi, dword ptr \[(\w+) \+ 0x68\]")),
            (3, 10): re.compile(r"esi, dword ptr \[(\w+) \+ 0x60\]"),
            **dict.fromkeys(((3, minor) for minor in range(11, 16)), re.compile(r"rdi, (\w+)|rsi, qword ptr \[(\w+) \+ 0x38\]")),
        },
    ),
    sigreturn=re.compile(rb"(?:\x48\xc7\xc0|\xb8)\x0f\x00\x00\x00\x0f\x05"),  # mov $15,%rax (or %eax); syscall
    sigreturn_in_vdso=False,
    gil_wider=0,
    loader="ld-linux-x86-64.so.2",
    nop5=bytes.fromhex("0f1f440000"),
)
