"""aarch64, as Debian's arm64: little-endian, 64 bits."""

import re
import struct
from collections.abc import Iterator

from pytrace_ebpf.processors.processor import Code, Processor, Usdt

_REGISTERS = tuple(f"x{number}" for number in range(31))

# include/uapi/asm-generic/unistd.h. There is no poll, select, pause, epoll_wait, vfork, unlink or rmdir: the C library makes others of these.
_CALLS = {
    "epoll_pwait": 22, "fcntl": 25, "ioctl": 29, "flock": 32, "unlinkat": 35, "ftruncate": 46, "fallocate": 47, "openat": 56,
    "close": 57, "getdents64": 61, "lseek": 62, "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67, "pwrite64": 68,
    "preadv": 69, "pwritev": 70, "sendfile": 71, "pselect6": 72, "ppoll": 73, "vmsplice": 75, "splice": 76, "tee": 77, "newfstatat": 79,
    "fstat": 80, "fsync": 82, "fdatasync": 83, "sync_file_range": 84, "capget": 90, "capset": 91, "exit": 93, "exit_group": 94,
    "waitid": 95, "futex": 98, "set_robust_list": 99, "nanosleep": 101, "clock_gettime": 113, "clock_nanosleep": 115,
    "sched_yield": 124, "restart_syscall": 128, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "setfsuid": 151,
    "setfsgid": 152, "setgroups": 159, "prctl": 167, "getpid": 172, "gettid": 178, "accept": 202, "connect": 203, "sendto": 206,
    "recvfrom": 207, "sendmsg": 211, "recvmsg": 212, "readahead": 213, "brk": 214, "munmap": 215, "mremap": 216, "clone": 220,
    "mmap": 222, "mprotect": 226, "madvise": 233, "perf_event_open": 241, "accept4": 242, "recvmmsg": 243, "wait4": 260, "syncfs": 267,
    "sendmmsg": 269, "getrandom": 278, "bpf": 280, "copy_file_range": 285, "preadv2": 286, "pwritev2": 287, "statx": 291, "rseq": 293,
    "io_uring_enter": 426, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "clone3": 435, "openat2": 437, "epoll_pwait2": 441,
}  # fmt: skip


def _addresses(code: bytes, vaddr: int) -> Iterator[int]:
    """Of `adrp`, which gives a page, and the `add` that makes an address of it, wherever in the code that stands."""
    pages: dict[int, int] = {}  # by register
    for at, (word,) in enumerate(struct.iter_unpack("<I", code[: len(code) // 4 * 4])):
        if word & 0x9F000000 == 0x90000000:
            distance = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
            pages[word & 31] = (vaddr + 4 * at & ~0xFFF) + ((distance ^ 1 << 20) - (1 << 20) << 12)
        elif word & 0xFFC00000 == 0x91000000 and (word >> 5 & 31) in pages:
            yield pages[word >> 5 & 31] + (word >> 10 & 0xFFF)


def _jumps(code: bytes, vaddr: int) -> Iterator[int]:
    """By b, b.cond, cbz, cbnz, tbz and tbnz."""
    for at, (word,) in enumerate(struct.iter_unpack("<I", code[: len(code) // 4 * 4])):
        if word >> 26 == 0b000101:
            bits, distance = 26, word & 0x3FFFFFF
        elif word >> 24 == 0x54 or word >> 25 & 0x3F == 0b011010:
            bits, distance = 19, word >> 5 & 0x7FFFF
        elif word >> 25 & 0x3F == 0b011011:
            bits, distance = 14, word >> 5 & 0x3FFF
        else:
            continue
        yield vaddr + 4 * (at + (distance ^ 1 << bits - 1) - (1 << bits - 1))


PROCESSOR = Processor(
    machine="aarch64",
    name="aarch64",
    elf=183,
    debian="arm64",
    audit=0xC00000B7,
    calls=_CALLS,
    thread_id=(0xD0, 0x20),
    thread_pointer="uw",
    counter="arch_sys_counter",
    usdt=Usdt(
        operand=re.compile(
            r"(?P<sign>-?)(?P<size>\d{1,2})@(?:(?P<register>[a-z]\w*)|\[(?P<base>[a-z]\w*)(?:, ?#?(?P<displacement>-?\d{1,9}))?\])", re.ASCII
        ),
        split=re.compile(r"\s+(?=-?\d{1,2}@)"),  # there is a blank within `[sp, 12]`, too
        places={name: place for place, name in enumerate((*_REGISTERS, "sp", "pc"))},  # struct user_pt_regs, arch/arm64/include/uapi/asm/ptrace.h
        wide={**{name: name for name in (*_REGISTERS, "sp")}, **{f"w{number}": f"x{number}" for number in range(31)}, "fp": "x29", "lr": "x30"},
    ),
    code=Code(
        capstone=("CS_ARCH_ARM64", "CS_MODE_ARM"),
        longest=4,
        every=4,
        addresses=_addresses,
        jumps=_jumps,
        at_call=1 << 24,  # the CFA is sp, the return address in x30
        call="bl",
        kept=frozenset(f"x{number}" for number in range(19, 29)),
        move=frozenset(("mov", "ldr")),
        frame={
            **dict.fromkeys(((3, 8), (3, 9)), re.compile(r"w1, \[(x\d+), #0x68\]")),
            (3, 10): re.compile(r"w1, \[(x\d+), #0x60\]"),
            **dict.fromkeys(((3, minor) for minor in range(11, 16)), re.compile(r"x0, (x\d+)|x1, \[(x\d+), #0x38\]")),
        },
    ),
    sigreturn=re.compile(rb"\x68\x11\x80\xd2\x01\x00\x00\xd4"),  # mov x8, #139; svc #0
    sigreturn_in_vdso=True,
    gil_wider=2 * 8,
    loader="ld-linux-aarch64.so.1",
    lacks={
        "--layers": "where native functions return, and what they are given, is known of x86-64 alone",
        "--native-memory": "where native functions return, and what they are given, is known of x86-64 alone",
    },
)
