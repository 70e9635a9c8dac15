"""A BPF ring buffer of equal records, read as a NumPy array without a step per event.

Layout (kernel, Documentation/bpf/ringbuf.rst): one page with the consumer's
position, one with the producer's, then the data, mapped twice in a row so that a
run of records is contiguous also where it wraps. Each record begins with a u32
length, whose top bits say busy and discarded, and a u32 page offset.
"""

import mmap
from collections.abc import Callable
from typing import TypeVar

import numpy as np

Taken = TypeVar("Taken")


class Ring:
    """`fd`: descriptor of the ring; `size`: its data size in bytes; `event`: dtype of one record."""

    KIND = 27  # of enum bpf_map_type

    def __init__(self, fd: int, size: int, event: np.dtype) -> None:
        self.fd = fd  # readable where a program woke up who polls it
        padding = -event.itemsize % 8
        fields = [("length", "<u4"), ("page", "<u4"), ("event", event)]
        self._record = np.dtype([*fields, ("padding", f"V{padding}")] if padding else fields)
        self._size = size
        self._consumer = mmap.mmap(fd, mmap.PAGESIZE)
        self._producer = mmap.mmap(fd, mmap.PAGESIZE + 2 * size, prot=mmap.PROT_READ, offset=mmap.PAGESIZE)
        self._read = np.frombuffer(self._consumer, "<u8", 1)
        self._written = np.frombuffer(self._producer, "<u8", 1)

    def drain(self, take: Callable[[np.ndarray], Taken]) -> Taken:
        """What `take` makes of all finished records since the last call: dtype `event`, shape (n,), in order.

        The array is the ring's own memory, which is given back when `take` returns: it must copy what it keeps.
        """
        start = int(self._read[0])
        count = (int(self._written[0]) - start) // self._record.itemsize
        records = np.ndarray((count,), self._record, self._producer, mmap.PAGESIZE + (start & (self._size - 1)))
        flags = records["length"] >> 30  # busy: 2, discarded: 1
        if count and int(flags.max()):
            busy = flags >= 2
            count = int(busy.argmax()) if busy.any() else count
            taken = take(records["event"][:count][flags[:count] == 0])
        else:
            taken = take(records["event"])
        self._read[0] = start + count * self._record.itemsize
        return taken
