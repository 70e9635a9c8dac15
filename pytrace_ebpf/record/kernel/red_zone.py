"""Whether this kernel's uprobes write where a function keeps values: below the stack pointer, which a leaf function may (the red zone).

From 6.18 on, until that is fixed, a probe on a nop of five bytes becomes a call, and a call puts its return address there. Nothing but trying it
shows that, so it is tried, in this process and in code of its own.
"""

import ctypes
import mmap
import os

from pytrace_ebpf import processors
from pytrace_ebpf.record.kernel import registering
from pytrace_ebpf.record.kernel.system_calls import open_uprobe
from pytrace_ebpf.record.libc import libc

NOP5 = processors.here().nop5
_CODE = bytes.fromhex("48897c24f8") + NOP5 + bytes.fromhex("488b4424f8c3")  # mov %rdi,-8(%rsp); nop; mov -8(%rsp),%rax; ret
_AT, _TIMES, _VALUE = 5, 16, 0x0123456789ABCDEF  # the kernel makes it a call after the first time


def is_written() -> bool | None:
    """None where no probe can be placed here, by this user; False on a processor whose kernel makes no calls of probes."""
    if not NOP5:
        return False
    file = os.memfd_create("red-zone", os.MFD_CLOEXEC)
    try:
        os.write(file, _CODE.ljust(mmap.PAGESIZE, b"\xcc"))
        address = libc.mmap(0, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, file, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            return None
        try:
            return _comes_back_changed(address, f"/proc/self/fd/{file}")
        finally:
            libc.munmap(address, mmap.PAGESIZE)
    except OSError:
        return None
    finally:
        os.close(file)


def _comes_back_changed(address: int, path: str) -> bool:
    call = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)(address)
    with registering.placing(path, os.getpid(), [_AT]):
        probe = open_uprobe(None, path, _AT, os.getpid(), 0)
    try:
        return any(call(_VALUE) != _VALUE for _ in range(_TIMES))
    finally:
        registering.close(probe)
