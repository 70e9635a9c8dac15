"""What tracing costs per native call, measured on this machine: a function of our own, in this process, with and without probes."""

import ctypes
import mmap
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack

from pytrace_ebpf.record.kernel import registering
from pytrace_ebpf.record.kernel.library_probes import LibraryProbes
from pytrace_ebpf.record.kernel.uprobe_multi import Uprobe
from pytrace_ebpf.record.libc import libc

_CODE = bytes.fromhex("55 eb00 5d c3")  # push %rbp; jmp to the next; pop %rbp; ret: begins and ends as most operators do
ENTRY, END, STACK = 0, 1, 8  # where they are probed, and the stack that is still the function's there
TENSORS = 2  # it is given so many, and returns one
_CALLS, _ROUNDS = 500, 9
_IMPL = 256  # bytes that a tensor may be read from


def ns_per_call(of: LibraryProbes, probes: Sequence[tuple[str, Uprobe]]) -> float:
    """CPU time: the least of rounds with `probes`, programs and where they are put on the function, less that of those without. Raises OSError."""
    file = os.memfd_create("pytrace-ebpf")
    try:
        os.write(file, _CODE.ljust(mmap.PAGESIZE, b"\0"))
        address = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, file, 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        try:
            rounds = [(_round(address), _probed(of, address, f"/proc/self/fd/{file}", probes)) for _ in range(_ROUNDS)]
        finally:
            libc.munmap(address, mmap.PAGESIZE)
    finally:
        os.close(file)
    plain, probed = (min(times) for times in zip(*rounds, strict=True))
    return max(0.0, round(probed - plain, 1))


def _probed(of: LibraryProbes, address: int, path: str, probes: Sequence[tuple[str, Uprobe]]) -> float:
    with ExitStack() as attached:
        for program, uprobe in probes:
            for link in of.attach(program, path, [uprobe], os.getpid()):
                attached.callback(registering.close, link)
        return _round(address)


def _round(address: int) -> float:
    """Nanoseconds a call, that of ctypes included."""
    impl = ctypes.create_string_buffer(_IMPL)
    tensor = ctypes.c_void_p(ctypes.addressof(impl))
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)
    given = ctypes.addressof(tensor)
    start = time.thread_time_ns()
    for _ in range(_CALLS):
        call(given, given)
    return (time.thread_time_ns() - start) / _CALLS
