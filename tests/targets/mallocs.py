"""Takes known amounts of memory from the C library and gives some of it back: each kind in blocks of a size of its own."""

import ctypes
import sys
import threading

from ready import done, ready

COUNT = 100
libc = ctypes.CDLL(None)
SIZE = ctypes.c_size_t
for function, arguments in (
    (libc.malloc, [SIZE]),
    (libc.calloc, [SIZE, SIZE]),
    (libc.realloc, [ctypes.c_void_p, SIZE]),
    (libc.aligned_alloc, [SIZE, SIZE]),
):
    function.restype, function.argtypes = ctypes.c_void_p, arguments
libc.posix_memalign.argtypes = [ctypes.c_void_p, SIZE, SIZE]
libc.free.argtypes = [ctypes.c_void_p]
expected = {}  # size: [blocks, those that are freed]


def said(size, freed=0, count=COUNT):
    """That so many blocks are allocated, or freed."""
    row = expected.setdefault(size, [0, 0])
    row[1 if freed else 0] += count


def keep(size, count=COUNT):
    said(size, count=count)
    return [libc.malloc(size) for _ in range(count)]


def drop(size, count=COUNT):
    for block in keep(size, count):
        libc.free(block)
    said(size, freed=1, count=count)


def zeroed():
    for _ in range(COUNT):
        libc.free(libc.calloc(10, 7003))
    said(70030)
    said(70030, freed=1)


def resized():
    """Grown in their place and elsewhere, by what is a malloc, a free, or cannot be."""
    blocks = [libc.realloc(None, 70051) for _ in range(COUNT)]
    said(70051)
    blocks = [libc.realloc(block, 90053) for block in blocks]
    said(70051, freed=1)
    said(90053)
    assert [libc.realloc(block, sys.maxsize) for block in blocks] == [None] * COUNT
    assert [libc.realloc(block, 0) for block in blocks] == [None] * COUNT
    said(90053, freed=1)
    large = libc.realloc(libc.realloc(None, 5000011), 50000017)
    said(5000011, count=1)
    said(5000011, freed=1, count=1)
    said(50000017, count=1)
    libc.free(large)
    said(50000017, freed=1, count=1)


def aligned():
    """By 8 bytes is what any malloc does."""
    place = ctypes.c_void_p()
    for alignment, size in ((64, 70073), (8, 70079), (4096, 70099)):
        for _ in range(COUNT):
            assert libc.posix_memalign(ctypes.addressof(place), alignment, size) == 0
            libc.free(place)
        said(size)
        said(size, freed=1)
    for _ in range(COUNT):
        libc.aligned_alloc(16, 70112)
    said(70112)


def handed_over():
    """What a thread allocates and this one frees."""
    blocks = []
    thread = threading.Thread(target=lambda: blocks.extend(keep(70121)))
    thread.start()
    thread.join()
    for block in blocks:
        libc.free(block)
    said(70121, freed=1)


def many():
    """Of what is sampled: smaller and larger than what a sample stands for."""
    keep(2003, 40 * COUNT)
    drop(30011, 10 * COUNT)
    drop(600011, COUNT)


def everything():
    keep(70001)
    drop(70003)
    zeroed()
    resized()
    aligned()
    handed_over()
    many()


if __name__ == "__main__":
    ready()
    everything()
    done(expected=expected, count=COUNT)
