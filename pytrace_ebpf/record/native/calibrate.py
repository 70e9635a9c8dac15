"""What tracing costs per native call, measured on this machine: a function of our own, in this process, with and without probes."""

import ctypes
import mmap
import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress

_CODE = bytes.fromhex("55 eb00 5d c3")  # push %rbp; jmp to the next; pop %rbp; ret: begins and ends as most operators do
ENTRY, END, STACK = 0, 1, 8  # where they are probed, and the stack that is still the function's there
TENSORS = 2  # it is given so many, and returns one
_CALLS, _ROUNDS = 500, 9
_IMPL = 256  # bytes that a tensor may be read from

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def ns_per_call(attach: Callable[[str], list[int]]) -> float:
    """Median of rounds with probes less that of those without.

    `attach(path)` probes the file at `path` in this process and returns descriptors, whose closing detaches. Raises OSError.
    """
    file = os.memfd_create("pytrace-ebpf")
    try:
        os.write(file, _CODE.ljust(mmap.PAGESIZE, b"\0"))
        address = _libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, file, 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        try:
            rounds = [(_round(address), _probed(address, lambda: attach(f"/proc/self/fd/{file}"))) for _ in range(_ROUNDS)]
        finally:
            _libc.munmap(address, mmap.PAGESIZE)
    finally:
        os.close(file)
    plain, probed = (statistics.median(times) for times in zip(*rounds, strict=True))
    return max(0.0, round(probed - plain, 1))


def _probed(address: int, attach: Callable[[], list[int]]) -> float:
    links = attach()
    try:
        return _round(address)
    finally:
        for link in links:
            with suppress(OSError):
                os.close(link)


def _round(address: int) -> float:
    """Nanoseconds a call, that of ctypes included."""
    impl = ctypes.create_string_buffer(_IMPL)
    tensor = ctypes.c_void_p(ctypes.addressof(impl))
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)
    given = ctypes.addressof(tensor)
    start = time.perf_counter_ns()
    for _ in range(_CALLS):
        call(given, given)
    return (time.perf_counter_ns() - start) / _CALLS
