"""Many uprobes of one file in one step, each with a cookie of its own: BPF links of kind uprobe_multi (Linux 6.6).

bcc has no call for it, so the program that bcc compiled is loaded, and linked, by bpf(2) itself. include/uapi/linux/bpf.h.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

from pytrace_ebpf.errors import HostError

_BPF = 321  # the system call, x86-64
_PROG_LOAD, _LINK_CREATE = 5, 28
_KPROBE = 2  # program type, of uprobes too
_UPROBE_MULTI = 48  # attach type
_RETURN = 1
_ATTRIBUTES = 128  # bytes; what is beyond those given is zero
_LOG = 1 << 16
_UNSUPPORTED = 524  # the kernel's own ENOTSUPP
_REFUSED = (errno.EINVAL, errno.ENOEXEC, errno.EIO, errno.EOPNOTSUPP, _UNSUPPORTED)  # what it says of an instruction

_libc = ctypes.CDLL(None, use_errno=True)


class Place(NamedTuple):
    """Where in a file to probe, what the program is told of it, and the file offset of the semaphore to raise (0 = none)."""

    offset: int
    cookie: int = 0
    semaphore: int = 0


def load(name: str, instructions: bytes) -> int:
    """Load a program for attach(); returns its descriptor. Raises HostError with the last line of the verifier."""
    code = ctypes.create_string_buffer(instructions, len(instructions))
    licence, log = ctypes.create_string_buffer(b"GPL"), ctypes.create_string_buffer(_LOG)
    for log_level in (0, 1):  # with a log only where there is something to say
        try:
            return _bpf(
                _PROG_LOAD,
                struct.pack(
                    "<IIQQIIQII16sII",
                    *(_KPROBE, len(instructions) // 8, ctypes.addressof(code), ctypes.addressof(licence)),
                    *(log_level, _LOG * log_level, ctypes.addressof(log) * log_level),
                    *(0, 0, name.encode()[:15], 0, _UPROBE_MULTI),
                ),
            )
        except OSError as error:
            refused = error
    said = log.value.decode(errors="replace").strip().splitlines()
    raise HostError(
        f"the kernel refuses {name} ({said[-1] if said else refused.strerror}); tracing native layers needs Linux 6.6 or later"
    ) from refused


def attach(program: int, path: str, places: Sequence[Place], pid: int, at_return: bool = False) -> int:
    """Attach to places in one process; returns a descriptor, whose closing detaches. Raises OSError."""
    count = len(places)
    where, told, raised = ((ctypes.c_uint64 * count)(*column) for column in zip(*places, strict=True))
    name = ctypes.create_string_buffer(path.encode())
    return _bpf(
        _LINK_CREATE,
        struct.pack(
            "<IIIIQQQQIII",
            *(program, 0, _UPROBE_MULTI, 0),
            *(ctypes.addressof(name), ctypes.addressof(where), ctypes.addressof(raised), ctypes.addressof(told)),
            *(count, _RETURN if at_return else 0, pid),
        ),
    )


def require(program: int) -> None:
    """Raise HostError where the kernel has no uprobe_multi, or one that sees only the first thread of a process."""
    # It looks at the process first, where it knows that one may be wrong, and then at the file, which is none.
    for pid, expected in ((0, errno.EBADF), (0xFFFFFFFF, errno.EINVAL)):
        try:
            os.close(attach(program, "/", [Place(1)], pid))
        except OSError as error:
            if error.errno == expected:
                continue
        raise HostError(
            "native layers need uprobes that Linux 6.10 and later have, and 6.6 with its later updates;"
            " boot such a kernel, or leave --layers out"
        )


def attach_all(
    program: int, path: str, places: Sequence[Place], pid: int, at_return: bool = False
) -> tuple[list[int], set[int]]:
    """Attach to places: (descriptors, cookies of those places whose instruction the kernel refuses).

    One refusal fails the whole link, so that the places are halved until it stands alone. Raises OSError for other reasons.
    """
    links: list[int] = []
    refused: set[int] = set()
    parts = [list(places)]
    try:
        while parts:
            part = parts.pop()
            try:
                links.append(attach(program, path, part, pid, at_return))
            except OSError as error:
                if error.errno not in _REFUSED:
                    raise
                if len(part) == 1:
                    refused.add(part[0].cookie)
                else:
                    parts += [part[: len(part) // 2], part[len(part) // 2 :]]
    except OSError:
        for link in links:
            os.close(link)
        raise
    return links, refused


def _bpf(command: int, attributes: bytes) -> int:
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTES)
    result = int(_libc.syscall(_BPF, command, buffer, _ATTRIBUTES))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
