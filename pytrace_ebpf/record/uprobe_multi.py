"""Many uprobes of one file in one step, each with a cookie of its own: BPF links of kind uprobe_multi (Linux 6.6).

bcc has no call for it, so the program that bcc compiled is loaded, and linked, by bpf(2) itself. include/uapi/linux/bpf.h.
"""

import ctypes
import os
import struct
from collections.abc import Sequence

from pytrace_ebpf.errors import HostError

_BPF = 321  # the system call, x86-64
_PROG_LOAD, _LINK_CREATE = 5, 28
_KPROBE = 2  # program type, of uprobes too
_UPROBE_MULTI = 48  # attach type
_RETURN = 1
_ATTRIBUTES = 128  # bytes; what is beyond those given is zero
_LOG = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)


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


def attach(program: int, path: str, offsets: Sequence[int], cookies: Sequence[int], pid: int, at_return: bool = False) -> int:
    """Attach to file offsets in one process; returns a descriptor, whose closing detaches. Raises OSError."""
    count = len(offsets)
    where, told = (ctypes.c_uint64 * count)(*offsets), (ctypes.c_uint64 * count)(*cookies)
    name = ctypes.create_string_buffer(path.encode())
    return _bpf(
        _LINK_CREATE,
        struct.pack(
            "<IIIIQQQQIII",
            *(program, 0, _UPROBE_MULTI, 0),
            *(ctypes.addressof(name), ctypes.addressof(where), 0, ctypes.addressof(told)),
            *(count, _RETURN if at_return else 0, pid),
        ),
    )


def _bpf(command: int, attributes: bytes) -> int:
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTES)
    result = int(_libc.syscall(_BPF, command, buffer, _ATTRIBUTES))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
