"""The process that parses what a target wrote, which record/parsing/sandbox.py starts.

It imports MODULE, gives up every right that it has, and then answers requests over the socket by the functions in
MODULE.TASKS. An attacker who takes it over by a flaw in a parser has a process that can read the descriptors of
one request, compute, and write to that socket: no file, no network, no other process, no user's rights.
Any failure to give something up ends it.
"""

import array  # noqa: F401 - receiving descriptors imports it
import codecs
import ctypes
import importlib
import json
import os
import resource
import signal
import socket
import struct
import unicodedata  # noqa: F401 - the parser of Python needs it for names, and nothing can be imported later
from contextlib import suppress

# Nobody's: of a range that no system gives out (https://systemd.io/UIDS-GIDS). `nobody` is somebody: programs run as
# it, which could send this process signals.
_NOBODY, _FALLBACK = 2_100_000_000, 65534  # the latter in a namespace of users that has no such number
_CLONE_NEW = {"mnt": 0x00020000, "uts": 0x04000000, "ipc": 0x08000000, "net": 0x40000000}
_MS = 0x1 | 0x2 | 0x4 | 0x8  # of mount: read only, no set-user-id programs, no devices, no programs
_MS_PRIVATE = 0x40000 | 0x4000  # and recursively
_PR = {"pdeathsig": 1, "dumpable": 4, "seccomp": 22, "bounding": 24, "no_new_privs": 38}
_CAPABILITY_VERSION_3, _LAST_CAPABILITY = 0x20080522, 63
_LIMITS = {  # bytes, seconds, descriptors
    resource.RLIMIT_AS: 2 << 30,
    resource.RLIMIT_CPU: 600,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: 16,
    resource.RLIMIT_NPROC: 0,
    resource.RLIMIT_MEMLOCK: 0,
}
_SYSTEM_CALLS = (
    "read", "write", "close", "fstat", "lseek", "mmap", "mprotect", "munmap", "brk", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "pread64",
    "mremap", "madvise", "sendto", "recvfrom", "recvmsg", "exit", "futex", "clock_gettime", "exit_group",
    "newfstatat", "getrandom",  # the former is what fstat() is
)  # fmt: skip
# Codecs are modules too: those of CPython's texts, and those that sources are written in.
_CODECS = ("utf-16-le", "utf-32-le", "utf-8-sig", "latin-1", "iso8859-15", "cp1252", "koi8-r", "gbk", "big5", "shift_jis", "euc_jp", "euc_kr")
_MOST_DESCRIPTORS, _MOST_REQUEST = 4, 64 << 20
_HEAD = struct.Struct("<I")
_libc = ctypes.CDLL(None, use_errno=True)


def drop_rights() -> None:
    """Raises OSError where something is left."""
    from pytrace_ebpf import processors  # while there are files; where PATH is, is known by now

    os.setsid()
    for number in range(1, signal.NSIG):
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    if os.geteuid() == 0:
        _leave_the_host()
        for capability in range(_LAST_CAPABILITY + 1):
            _libc.prctl(_PR["bounding"], capability, 0, 0, 0)  # EINVAL beyond the last one that the kernel knows
        os.setgroups([])
        try:
            os.setresgid(*[_NOBODY] * 3)
            os.setresuid(*[_NOBODY] * 3)
        except OSError:
            os.setresgid(*[_FALLBACK] * 3)
            os.setresuid(*[_FALLBACK] * 3)
    _check(_libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()))
    for limit, most in _LIMITS.items():
        resource.setrlimit(limit, (most, most))
    for option, value in (("dumpable", 0), ("no_new_privs", 1)):
        _check(_libc.prctl(_PR[option], value, 0, 0, 0))
    end_with_the_tracer()
    here = processors.here()
    _allow([here.call(name) for name in _SYSTEM_CALLS], here.audit)


def end_with_the_tracer() -> None:
    """Be killed when the tracer ends, also while stopped. To be asked for again after each change of rights, which resets it."""
    _check(_libc.prctl(_PR["pdeathsig"], signal.SIGKILL, 0, 0, 0))


def _leave_the_host() -> None:
    """Namespaces of its own and an empty root directory, as far as root may make them here; a container's may not."""
    for flag in _CLONE_NEW.values():
        _libc.unshare(flag)
    if _libc.mount(None, b"/", None, _MS_PRIVATE, None) == 0 and _libc.mount(b"none", b"/proc", b"tmpfs", _MS, b"size=4k") == 0:
        os.chroot("/proc")
    os.chdir("/")


def _allow(numbers: "list[int]", architecture: int) -> None:
    """All other system calls fail with EPERM from now on; such of another architecture end the process."""
    steps = [(0x20, 0, 0, 4), (0x15, 1, 0, architecture), (0x06, 0, 0, 0x80000000), (0x20, 0, 0, 0)]  # architecture; number
    steps += [(0x15, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    steps += [(0x06, 0, 0, 0x00050000 | 1), (0x06, 0, 0, 0x7FFF0000)]  # SECCOMP_RET_ERRNO EPERM, SECCOMP_RET_ALLOW
    program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
    filters = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(steps), ctypes.addressof(program)))
    _check(_libc.prctl(_PR["seccomp"], 2, filters, 0, 0))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def serve(connection: socket.socket, tasks: dict) -> None:  # type: ignore[type-arg] # functions by name
    """Answer one request after the other until the socket is closed."""
    while request := _receive(connection):
        name, given, descriptors = request
        try:
            answer = {"value": tasks[name](given, descriptors)}
        except ValueError as error:
            answer = {"refused": str(error)[:500].encode("ascii", "backslashreplace").decode()}
        except MemoryError:
            answer = {"refused": "reading it takes more memory than such a thing can need"}
        except Exception as error:
            answer = {"refused": f"reading it failed ({type(error).__name__})"}
        for descriptor in descriptors:
            os.close(descriptor)
        try:
            content = json.dumps(answer).encode()
        except (ValueError, TypeError, MemoryError):
            content = b'{"refused": "what it holds cannot be expressed"}'
        del answer
        connection.sendall(_HEAD.pack(len(content)) + content)


def _receive(connection: socket.socket) -> "tuple[str, object, list[int]] | None":
    head, descriptors, _, _ = socket.recv_fds(connection, _HEAD.size, _MOST_DESCRIPTORS)
    if len(head) < _HEAD.size:
        return None
    size = min(_HEAD.unpack(head)[0], _MOST_REQUEST)
    content = bytearray()
    while len(content) < size:
        more = connection.recv_into(view := bytearray(min(size - len(content), 1 << 20)))
        if not more:
            return None
        content += view[:more]
    name, given = json.loads(bytes(content))
    return name, given, descriptors


def main(connection: str, module: str) -> None:
    """Answer what is asked over this descriptor, a socket, by the functions of that module."""
    end_with_the_tracer()
    served = importlib.import_module(module).TASKS
    for codec in _CODECS:
        codecs.lookup(codec)
    with socket.socket(fileno=int(connection)) as asking:
        drop_rights()
        asking.sendall(b"\0")  # the time for an answer begins
        serve(asking, served)
