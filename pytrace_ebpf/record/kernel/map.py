"""A BPF map as others see it: keys and values by their dtypes."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pytrace_ebpf.record.kernel import system_calls

_PER_CPU = (5, 6, 10)  # kinds of maps that have a value for each core: hash, array, hash that drops the oldest


class Map:
    """`fd`: its descriptor; `kind`: of enum bpf_map_type; `key`, `value`: dtypes of its elements."""

    def __init__(self, fd: int, kind: int, key: np.dtype, value: np.dtype) -> None:
        self.fd, self.key, self.value = fd, key, value
        self._count = len(possible_cpus()) if kind in _PER_CPU else 1
        padding = -value.itemsize % 8
        self._stored = np.dtype({"names": ["value"], "formats": [value], "itemsize": value.itemsize + padding}) if kind in _PER_CPU else None

    def get(self, key: Any) -> Any:
        """The value, None where there is none: a scalar of dtype `value`; of a map per core an array, shape (possible cores,)."""
        return self._read(np.array(key, self.key).tobytes())

    def set(self, key: Any, value: Any) -> None:
        """Set the value, given as NumPy takes it for the dtype. Raises OSError where the map is full."""
        system_calls.update(self.fd, np.array(key, self.key).tobytes(), np.array(value, self.value).tobytes())

    def delete(self, key: Any) -> None:
        """Delete the element, where it is there."""
        system_calls.delete(self.fd, np.array(key, self.key).tobytes())

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Keys and values; what changes meanwhile may be missing or come twice."""
        key = None
        while (key := system_calls.next_key(self.fd, key, self.key.itemsize)) is not None:
            value = self._read(key)
            if value is not None:
                yield np.frombuffer(key, self.key)[0], value

    def _read(self, key: bytes) -> Any:
        size = self._stored.itemsize * self._count if self._stored is not None else self.value.itemsize
        raw = system_calls.lookup(self.fd, key, size)
        if raw is None:
            return None
        return np.frombuffer(raw, self._stored)["value"] if self._stored is not None else np.frombuffer(raw, self.value)[0]


@cache
def possible_cpus() -> tuple[int, ...]:
    """The numbers that cores of this host can have, online or not."""
    return listed_cpus(Path("/sys/devices/system/cpu/possible"))


def listed_cpus(file: Path) -> tuple[int, ...]:
    """The numbers in a file of the kernel's such as "0-3,6"."""
    cpus: list[int] = []
    for part in file.read_text().strip().split(","):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return tuple(cpus)
