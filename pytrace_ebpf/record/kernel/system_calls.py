"""bpf(2), perf_event_open(2) and fsopen(2), as far as probes need them: maps, programs, raw tracepoints and uprobes by descriptor.

include/uapi/linux/bpf.h and perf_event.h. Descriptors are closed with os.close, and by the kernel when this process ends.
"""

import ctypes
import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path

from pytrace_ebpf import processors
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.libc import libc

KPROBE, TRACEPOINT, PERF_EVENT, RAW_TRACEPOINT = 2, 5, 7, 17  # program types; the first is that of uprobes, too
_OF_EVENT, UPROBE_MULTI, UPROBE_SESSION = 41, 48, 57  # attach types

_BPF, _PERF_EVENT_OPEN, _FSOPEN, _FSCONFIG, _FSMOUNT = map(processors.here().call, ("bpf", "perf_event_open", "fsopen", "fsconfig", "fsmount"))
_CREATE = 6  # FSCONFIG_CMD_CREATE
_MAP_CREATE, _LOOKUP, _UPDATE, _DELETE, _NEXT_KEY, _PROG_LOAD = range(6)
_INFO, _RAW_TRACEPOINT_OPEN, _FREEZE, _LINK_CREATE = 15, 17, 22, 28
_ATTRIBUTES = 128  # bytes; what is beyond those given is zero
_LOG = 1 << 22
_NAME = 15  # bytes of a name that the kernel keeps
_PROGRAM_INFO, _RECURSION_MISSES, _VERIFIED = 224, 208, 216  # struct bpf_prog_info: as much of it as is needed, and where these counts are
_KPROBE, _UPROBE = (Path(f"/sys/bus/event_source/devices/{name}/type") for name in ("kprobe", "uprobe"))
_EVENT_ATTRIBUTES = 112  # bytes of struct perf_event_attr
_CLOEXEC = 8
_SOFTWARE, _TRACEPOINT = 1, 2  # types of events
_CPU_CLOCK, _FAULTS_MINOR, _FAULTS_MAJOR = 0, 5, 6  # software events
_ENABLE, _SET_BPF = 0x2400, 0x40042408  # ioctls of a perf event


def bpf(command: int, attributes: bytes) -> int:
    """The system call. Raises OSError."""
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTES)
    return _checked(libc.syscall(_BPF, command, buffer, _ATTRIBUTES))


def create_map(name: str, kind: int, key: int, value: int, entries: int, flags: int, inner: int = 0) -> int:
    """A map with keys and values of so many bytes; returns its descriptor. `inner`: of maps like this one. Raises OSError."""
    return bpf(_MAP_CREATE, struct.pack("<IIIIIII16s", kind, key, value, entries, flags, inner, 0, name.encode()[:_NAME]))


def freeze(map_fd: int) -> None:
    """Let nobody write to a map by system calls any more. Raises OSError."""
    bpf(_FREEZE, struct.pack("<I", map_fd))


def lookup(map_fd: int, key: bytes, size: int) -> bytes | None:
    """The value of `size` bytes, None where there is none. Raises OSError."""
    return _read(_LOOKUP, map_fd, key, size)


def update(map_fd: int, key: bytes, value: bytes) -> None:
    """Set a value. Raises OSError."""
    buffer = ctypes.create_string_buffer(value, len(value))
    _element(_UPDATE, map_fd, key, ctypes.addressof(buffer))


def delete(map_fd: int, key: bytes) -> None:
    """Delete an element, where it is there. Raises OSError."""
    with suppress(FileNotFoundError):
        _element(_DELETE, map_fd, key, 0)


def next_key(map_fd: int, key: bytes | None, size: int) -> bytes | None:
    """The key behind `key`, the first one for None; None at the end. Raises OSError."""
    return _read(_NEXT_KEY, map_fd, key, size)


def load_program(name: str, kind: int, instructions: bytes, attach_type: int = 0) -> int:
    """Load a program; returns its descriptor. Raises HostError with the last line of the verifier."""
    code = ctypes.create_string_buffer(instructions, len(instructions))
    licence = ctypes.create_string_buffer(b"GPL")
    head = kind, len(instructions) // 8, ctypes.addressof(code), ctypes.addressof(licence)
    tail = 0, 0, name.encode()[:_NAME], 0, attach_type
    try:
        return bpf(_PROG_LOAD, struct.pack("<IIQQIIQII16sII", *head, 0, 0, 0, *tail))
    except OSError as error:
        refused = error
    log = ctypes.create_string_buffer(_LOG)  # only where there is something to say
    try:
        return bpf(_PROG_LOAD, struct.pack("<IIQQIIQII16sII", *head, 1, _LOG, ctypes.addressof(log), *tail))
    except OSError:
        said = [line for line in log.value.decode(errors="replace").splitlines() if line and not line.startswith("processed ")]
    raise HostError(f"the kernel refuses {name} ({said[-1] if said else refused.strerror})") from refused


def open_raw_tracepoint(name: str, program: int) -> int:
    """Attach a program to a tracepoint; returns the descriptor whose closing detaches, without a wait. Raises OSError."""
    buffer = ctypes.create_string_buffer(name.encode())
    return bpf(_RAW_TRACEPOINT_OPEN, struct.pack("<QI", ctypes.addressof(buffer), program))


def link_uprobes(
    program: int, path: str, offsets: list[int], cookies: list[int], semaphores: list[int], flags: int, pid: int, attach_type: int = UPROBE_MULTI
) -> int:
    """A link of kind uprobe_multi (Linux 6.6); returns the descriptor whose closing detaches. `attach_type`: the program's. Raises OSError."""
    count = len(offsets)
    at, cookie, semaphore = ((ctypes.c_uint64 * count)(*column) for column in (offsets, cookies, semaphores))
    name = ctypes.create_string_buffer(path.encode())
    addresses = ctypes.addressof(name), ctypes.addressof(at), ctypes.addressof(semaphore), ctypes.addressof(cookie)
    return bpf(_LINK_CREATE, struct.pack("<IIIIQQQQIII", program, 0, attach_type, 0, *addresses, count, flags, pid))


def open_uprobe(program: int | None, path: str, offset: int, pid: int, semaphore: int) -> int:
    """Attach a program (None: nothing) to `offset` of a file in one process, by a perf event; returns the descriptor whose closing detaches.

    The kernel raises the 16-bit counter at file offset `semaphore` (0 = none)
    in that process, and lowers it when the descriptor is closed, however that happens. Raises OSError.
    """
    name = ctypes.create_string_buffer(path.encode())
    event = struct.pack(
        "<IIQQQQQIIQQ", int(_UPROBE.read_text()), _EVENT_ATTRIBUTES, semaphore << 32, *(0, 0, 0, 0, 0, 0), ctypes.addressof(name), offset
    )
    return _open_event(event, pid, -1, program)


def link_uprobe(program: int, path: str, offset: int, pid: int, cookie: int, at_return: bool) -> int:
    """The same by a BPF link, with a cookie (Linux 5.15); `at_return`: run it at the return of the function that begins there. Raises OSError."""
    name = ctypes.create_string_buffer(path.encode())
    event = struct.pack("<IIQQQQQIIQQ", int(_UPROBE.read_text()), _EVENT_ATTRIBUTES, at_return, *(0, 0, 0, 0, 0, 0), ctypes.addressof(name), offset)
    descriptor = _open_event(event, pid, -1, None)
    try:
        return bpf(_LINK_CREATE, struct.pack("<IIIIQ", program, descriptor, _OF_EVENT, 0, cookie))
    finally:
        os.close(descriptor)  # the link has it


def open_kprobe(program: int, function: str) -> int:
    """Run a program whenever a core enters a function of the kernel; returns the descriptor whose closing detaches. Raises OSError."""
    name = ctypes.create_string_buffer(function.encode())
    event = struct.pack("<IIQQQQQIIQQ", int(_KPROBE.read_text()), _EVENT_ATTRIBUTES, *(0, 0, 0, 0, 0, 0, 0), ctypes.addressof(name), 0)
    return _open_event(event, -1, 0, program)


def open_cpu_clock(program: int, cpu: int, period_ns: int) -> int:
    """Run a program on a core at equal intervals, whatever runs there; returns the descriptor whose closing ends that. Raises OSError."""
    return _open_event(struct.pack("<IIQQ", _SOFTWARE, _EVENT_ATTRIBUTES, _CPU_CLOCK, period_ns), -1, cpu, program)


def open_faults(program: int, cpu: int, major: bool) -> int:
    """Run a program on a core at each page fault of this kind; returns the descriptor whose closing ends that. Raises OSError."""
    return _open_event(struct.pack("<IIQQ", _SOFTWARE, _EVENT_ATTRIBUTES, _FAULTS_MAJOR if major else _FAULTS_MINOR, 1), -1, cpu, program)


def open_tracepoint(program: int, number: int) -> int:
    """Run a program of kind TRACEPOINT, on any core, where the kernel passes a place; `number`: its id in tracefs. Closing the descriptor ends that. Raises OSError."""
    return _open_event(struct.pack("<IIQQ", _TRACEPOINT, _EVENT_ATTRIBUTES, number, 1), -1, 0, program)


def _open_event(event: bytes, pid: int, cpu: int, program: int | None) -> int:
    """perf_event_open(2), with a program that runs when it happens."""
    attributes = ctypes.create_string_buffer(event, _EVENT_ATTRIBUTES)
    descriptor = _checked(libc.syscall(_PERF_EVENT_OPEN, attributes, pid, cpu, -1, ctypes.c_ulong(_CLOEXEC)))
    try:
        if program is not None:
            fcntl.ioctl(descriptor, _SET_BPF, program)
        fcntl.ioctl(descriptor, _ENABLE, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_file_system(kind: str) -> int:
    """The root of a file system that is mounted nowhere (Linux 5.2); returns its descriptor, to open files by. Raises OSError."""
    context = _checked(libc.syscall(_FSOPEN, kind.encode(), 1))
    try:
        _checked(libc.syscall(_FSCONFIG, context, _CREATE, None, None, 0))
        return _checked(libc.syscall(_FSMOUNT, context, 1, 0))
    finally:
        os.close(context)


def missed_runs(program: int) -> int:
    """How often the kernel did not run a program because it was running on that core already (counted from Linux 5.12 on)."""
    return int(struct.unpack_from("<Q", _program_info(program), _RECURSION_MISSES)[0])


def verified(program: int) -> int:
    """How many instructions of a program the kernel has followed, of the million at which it gives up; 0 where it does not say (before Linux 5.16)."""
    return int(struct.unpack_from("<I", _program_info(program), _VERIFIED)[0])


def _program_info(program: int) -> ctypes.Array[ctypes.c_char]:
    info = ctypes.create_string_buffer(_PROGRAM_INFO)
    bpf(_INFO, struct.pack("<IIQ", program, _PROGRAM_INFO, ctypes.addressof(info)))
    return info


def _read(command: int, map_fd: int, key: bytes | None, size: int) -> bytes | None:
    """What the kernel writes in answer; None where there is no such element."""
    answer = ctypes.create_string_buffer(size)
    try:
        _element(command, map_fd, key, ctypes.addressof(answer))
    except FileNotFoundError:
        return None
    return answer.raw


def _element(command: int, map_fd: int, key: bytes | None, other: int) -> None:
    buffer = ctypes.create_string_buffer(key, len(key)) if key is not None else None
    bpf(command, struct.pack("<IxxxxQQQ", map_fd, ctypes.addressof(buffer) if buffer is not None else 0, other, 0))


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)
