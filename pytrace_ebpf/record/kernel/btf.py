"""Where the running kernel has the fields of its structs, from the type information it brings (BTF).

Layout: Documentation/bpf/btf.rst. Types have no index and several sizes; rather than walk all 100,000 of them, a struct is
found by the place of its name.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pytrace_ebpf.errors import HostError

_VMLINUX = Path("/sys/kernel/btf/vmlinux")
_STRUCT = 4
_NOWHERE = 0xFFFFFFFF
_BITFIELDS = 1 << 31  # of a struct's info: then an offset has the field's size in its upper byte


class KernelTypes:
    """The types of the running kernel. Raises HostError where they cannot be read."""

    def __init__(self, file: Path = _VMLINUX) -> None:
        try:
            raw = file.read_bytes()
            header, types, length, strings = (int.from_bytes(raw[at : at + 4], "little") for at in (4, 8, 12, 16))
            self._words = np.frombuffer(raw, "<u4", length // 4, header + types)
        except (OSError, ValueError) as error:
            raise HostError(f"the kernel's type information ({file}) cannot be read ({error}); see pytrace-ebpf doctor") from None
        self._raw, self._strings = raw, header + strings

    def offset(self, struct: str, *fields: str) -> int | None:
        """Offset in bytes of the first of these fields that the struct has; None where it has none."""
        for members, has_bitfields in self._structs(struct):
            for field in fields:
                found = members[members[:, 0] == self._name(field)]
                if len(found):
                    return int(found[0, 2]) % (1 << 24 if has_bitfields else 1 << 32) // 8
        return None

    def require(self, struct: str, *fields: str) -> int:
        """The same; raises HostError where it has none."""
        offset = self.offset(struct, *fields)
        if offset is None:
            raise HostError(f"this kernel's struct {struct} has no {' or '.join(fields)}, by its type information; its scheduling cannot be read")
        return offset

    def has_tracepoint(self, name: str) -> bool:
        """Whether raw programs can be attached to a tracepoint of that name."""
        return self._name(f"btf_trace_{name}") != _NOWHERE

    def _structs(self, name: str) -> Iterator[tuple[np.ndarray, bool]]:
        """Members, shape (n, 3): name, type, offset in bits, and whether these have the size of bitfields in them."""
        for at in np.flatnonzero(self._words[:-2] == self._name(name)).tolist():
            info = int(self._words[at + 1])
            if info >> 24 & 0x1F == _STRUCT:
                members = self._words[at + 3 : at + 3 + 3 * (info & 0xFFFF)]
                yield members[: len(members) // 3 * 3].reshape(-1, 3), bool(info & _BITFIELDS)

    def _name(self, name: str) -> int:
        """Its place among the strings; one that no name has where it is not there."""
        before = self._raw.find(b"\0" + name.encode() + b"\0", self._strings)
        return before + 1 - self._strings if before >= 0 else _NOWHERE
