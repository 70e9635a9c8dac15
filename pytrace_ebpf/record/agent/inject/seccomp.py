"""Whether a process may make the calls that the agent makes: its seccomp filters, read and run here on each of them.

A filter can end the program for a call. The agent makes none that Python does not make itself; a filter may still be
stricter than that, say after a program has opened its files.
"""

import errno
import os
import struct
from dataclasses import dataclass

from pytrace_ebpf import processors
from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.agent.inject.blocked import threads
from pytrace_ebpf.record.agent.inject.ptrace import NotStopped, Stopped
from pytrace_ebpf.record.process.pinned import Pinned

_PROCESSOR = processors.here()
_STRICT, _FILTER = "1", "2"  # of /proc/PID/status
_ACTION, _VALUE = 0xFFFF0000, 0xFFFF
_ERRNO, _LOG, _ALLOW = 0x00050000, 0x7FFC0000, 0x7FFF0000
_INSTRUCTION = struct.Struct("<HBBI")
_DATA = struct.Struct("<iIQ6Q")  # struct seccomp_data
_MASK = 0xFFFFFFFF
_MOST_THREADS = 256  # of one program, that are looked at

_FD, _ADDRESS, _HERE = 9, 0x7F5A_1000_2000, (1 << 64) - 100  # any; AT_FDCWD
_ANY = frozenset(range(1, 4096))


@dataclass(frozen=True)
class Call:
    """A system call as the agent makes it."""

    name: str
    arguments: tuple[int, ...] = ()
    borne: frozenset[int] = frozenset()  # errors with which the agent goes on

    def data(self) -> bytes:
        """What a filter is given of it."""
        return _DATA.pack(_PROCESSOR.call(self.name), _PROCESSOR.audit, _ADDRESS, *(self.arguments + (0,) * 6)[:6])


_CLOEXEC, _CREATE = 0o2000000, 0o2000302  # O_RDONLY; O_RDWR | O_CREAT | O_EXCL
_PRIVATE, _SHARED, _ANONYMOUS, _STACK = 0x802, 0x4001, 0x22, 0x20022  # flags of mmap
_READ, _WRITE, _EXECUTE = 1, 2, 4
_THREAD = 0x3D0F00  # flags of pthread_create
# Of loading the library, of the agent's thread while it joins, of a thread of the program that writes events, and of leaving.
CALLS = (
    Call("openat", (_HERE, _ADDRESS, _CLOEXEC)),
    Call("read", (_FD, _ADDRESS, 832)),
    Call("close", (_FD,)),
    Call("mmap", (0, 1 << 16, _READ, _PRIVATE, _FD, 0)),
    Call("mmap", (_ADDRESS, 1 << 15, _READ | _EXECUTE, _PRIVATE | 0x10, _FD, 4096)),
    Call("mmap", (0, 1 << 20, _READ | _WRITE, _ANONYMOUS, _MASK, 0)),
    Call("mprotect", (_ADDRESS, 4096, _READ)),
    Call("munmap", (_ADDRESS, 1 << 16)),
    Call("rt_sigreturn"),
    Call("mmap", (_ADDRESS, 1 << 13, _READ | _WRITE, _ANONYMOUS | 0x10, _MASK, 0)),
    Call("ioctl", (_FD, 0x5401, _ADDRESS), _ANY),
    Call("rt_sigaction", (33, _ADDRESS, 0, 8)),
    Call("rt_sigprocmask", (2, _ADDRESS, _ADDRESS, 8)),
    Call("mmap", (0, 1 << 23, 0, _STACK, _MASK, 0)),
    Call("mprotect", (_ADDRESS, 1 << 23, _READ | _WRITE)),
    Call("set_robust_list", (_ADDRESS, 24), _ANY),
    Call("rseq", (_ADDRESS, 32, 0, 0x53053053), _ANY),
    Call("prctl", (15, _ADDRESS), _ANY),
    Call("futex", (_ADDRESS, 0x80, 0, _ADDRESS)),
    Call("futex", (_ADDRESS, 1, 0x7FFFFFFF), _ANY),
    Call("openat", (_HERE, _ADDRESS, _CREATE, 0o600)),
    Call("lseek", (_FD, 1 << 28, 0)),
    Call("write", (_FD, _ADDRESS, 1)),
    Call("mmap", (0, 1 << 28, _READ | _WRITE, _SHARED, _FD, 0)),
    Call("madvise", (_ADDRESS, 4096, 23), frozenset({errno.EINVAL})),
    Call("madvise", (_ADDRESS, 1 << 28, 16), _ANY),
    Call("madvise", (_ADDRESS, 1 << 22, 4), _ANY),
    Call("gettid", (), _ANY),
    Call("getpid", (), _ANY),
    Call("fcntl", (_FD, 36, _ADDRESS)),
    Call("openat", (_HERE, _ADDRESS, os.O_CLOEXEC | os.O_DIRECTORY), _ANY),
    Call("clock_gettime", (3, _ADDRESS), _ANY),
    Call("clock_nanosleep", (0, 0, _ADDRESS, 0), _ANY),
    Call("sched_yield", (), _ANY),
    *(
        (Call("unlink", (_ADDRESS,), _ANY), Call("rmdir", (_ADDRESS,), _ANY))
        if "unlink" in _PROCESSOR.calls
        else (Call("unlinkat", (_HERE, _ADDRESS), _ANY), Call("unlinkat", (_HERE, _ADDRESS, 0x200), _ANY))
    ),
    Call("exit"),
)
# Where the C library is 2.34 or later, and before.
_NEW = (
    Call("newfstatat", (_FD, _ADDRESS, _ADDRESS, 0x1000)),
    Call("clone3", (_ADDRESS, 88), frozenset({errno.ENOSYS})),
)
_OLD = (Call("fstat", (_FD, _ADDRESS)), Call("clone", (_THREAD, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS)))


def look(process: Pinned, new_library: bool) -> str:
    """A warning about the filters of a process, "" where it has none.

    new_library  its C library is 2.34 or later

    Raises TargetError where they do not let the agent do its work, or would end the program for it.
    """
    filtered = _filtered(process)
    if not filtered:
        return ""
    programs: set[bytes] = set()
    unread = len(filtered) > _MOST_THREADS
    for tid in filtered[:_MOST_THREADS]:
        try:
            with Stopped(process, tid) as thread:
                programs |= set(thread.seccomp_filters())
        except NotStopped:
            continue
        except HostError:
            unread = True
            break
    for call in (*CALLS, *(_NEW if new_library else _OLD)):
        if refused := _refused(call, programs):
            raise TargetError(
                f"process {process.pid} runs under a seccomp filter that {refused} the call {call.name}, which the agent makes; "
                "use --source usdt where its Python has probes"
            )
    said = "which cannot be read here: one that ends it for a call of the agent's does so" if unread else "which lets the agent's calls through"
    return f"process {process.pid} runs under a seccomp filter, {said}"


def _filtered(process: Pinned) -> list[int]:
    """Threads with a filter. Raises TargetError where one may do next to nothing."""
    found = []
    for tid in threads(process):
        try:
            lines = process.read(f"task/{tid}/status").decode(errors="replace").splitlines()
        except OSError:
            continue
        mode = next((line.split()[1] for line in lines if line.startswith("Seccomp:")), "0")
        if mode == _STRICT:
            raise TargetError(f"process {process.pid} runs under seccomp's strict mode, in which it may load nothing")
        if mode == _FILTER:
            found.append(tid)
    return found


def _refused(call: Call, programs: set[bytes]) -> str:
    """What the strictest of the filters does to a call, in a word; "" where the agent can go on."""
    for program in programs:
        result = run(program, call.data())
        action = result & _ACTION
        if action == _ERRNO and result & _VALUE not in call.borne:
            return "forbids"
        if action not in (_ERRNO, _LOG, _ALLOW):
            return "ends the program for"
    return ""


def run(program: bytes, data: bytes) -> int:
    """The result of a filter, a program of classic BPF, for one call. It jumps forward only, so it ends.

    Source: Linux, kernel/seccomp.c (seccomp_check_filter) and Documentation/networking/filter.rst.
    """
    code = list(_INSTRUCTION.iter_unpack(program))
    a = x = at = 0
    scratch = [0] * 16
    while at < len(code):
        operation, if_true, if_false, k = code[at]
        at += 1
        kind, source = operation & 7, x if operation & 8 else k
        if kind == 0:
            a = _load(operation, k, data, scratch)
        elif kind == 1:
            x = _load(operation, k, data, scratch)
        elif kind in (2, 3):
            scratch[k & 15] = x if kind == 3 else a
        elif kind == 4:
            a = _calculate(operation & 0xF0, a, source)
        elif kind == 5:
            if operation & 0xF0 == 0:
                at += k
            else:
                at += if_true if _compare(operation & 0xF0, a, source) else if_false
        elif kind == 6:
            return a if operation & 0x18 == 0x10 else k
        elif operation & 0xF8 == 0x80:
            a = x
        else:
            x = a
    return 0


def _load(operation: int, k: int, data: bytes, scratch: list[int]) -> int:
    mode = operation & 0xE0
    if mode == 0x20:
        return int(struct.unpack_from("<I", data, min(k, len(data) - 4))[0])
    return {0x00: k, 0x60: scratch[k & 15], 0x80: len(data)}.get(mode, 0)


def _calculate(operation: int, a: int, by: int) -> int:
    if operation == 0x30:
        return a // by if by else 0
    results = {
        0x00: a + by, 0x10: a - by, 0x20: a * by, 0x40: a | by, 0x50: a & by,
        0x60: a << (by & 31), 0x70: a >> (by & 31), 0x80: -a, 0xA0: a ^ by,
    }  # fmt: skip
    return results.get(operation, 0) & _MASK


def _compare(operation: int, a: int, with_: int) -> bool:
    return {0x10: a == with_, 0x20: a > with_, 0x30: a >= with_, 0x40: bool(a & with_)}.get(operation, False)
