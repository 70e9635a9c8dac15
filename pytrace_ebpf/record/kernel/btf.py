"""Where the running kernel has the fields of its structs, from the type information it brings (BTF).

Layout: Documentation/bpf/btf.rst. Types have no index and several sizes; rather than walk all 100,000 of them, a struct is
found by the place of its name. They are walked only for a field that is in a nameless member. What was found is kept for
as long as this kernel runs (program_cache.py).
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.kernel import program_cache

_VMLINUX, _NOTES = Path("/sys/kernel/btf/vmlinux"), Path("/sys/kernel/notes")  # the latter has the build's id
_STRUCT, _UNION = 4, 5
_NESTED = 3  # a nameless member may have nameless ones
_NOWHERE = 0xFFFFFFFF
# Of a description by its kind: words, and words for each of the members that its info counts. Kinds that no kernel has yet take three.
_WORDS = 3 + np.array([0, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0] + 12 * [0])
_WORDS_EACH = np.array([0, 0, 0, 0, 3, 3, 2, 0, 0, 0, 0, 0, 0, 2, 0, 3, 0, 0, 0, 3] + 12 * [0])
_BITFIELDS = 1 << 31  # of a struct's info: then an offset has the field's size in its upper byte


class KernelTypes:
    """The types of the running kernel. Raises HostError where they cannot be read."""

    def __init__(self, file: Path = _VMLINUX) -> None:
        self._file, self._key = file, _key() if file == _VMLINUX else None
        self._found = _kept(self._key)
        self._kept = len(self._found)
        if not self._found:
            self._content  # noqa: B018 - raises

    def offset(self, struct: str, *fields: str) -> int | None:
        """Offset in bytes of the first of these fields that the struct has, itself or in a nameless member; None where it has none."""
        question = " ".join((struct, *fields))
        if question not in self._found:
            self._found[question] = self._look(struct, fields)
        return self._found[question]

    def keep(self) -> None:
        """Keep what was found for the next time."""
        if self._key and len(self._found) > self._kept:
            program_cache.keep(self._key, json.dumps(self._found).encode())
            self._kept = len(self._found)

    def _look(self, struct: str, fields: tuple[str, ...]) -> int | None:
        for at in self._structs(struct):
            for field in fields:
                found = self._in_struct(at, self._name(field), _NESTED)
                if found is not None:
                    return found // 8
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

    def _structs(self, name: str) -> Iterator[int]:
        """Where the structs of that name are described."""
        for at in np.flatnonzero(self._words[:-2] == self._name(name)).tolist():
            if self._kind(at) == _STRUCT:
                yield at

    def _in_struct(self, at: int, name: int, deep: int) -> int | None:
        """Offset in bits of the member called `name` of the struct or union that is described at `at`."""
        info = int(self._words[at + 1])
        members = self._words[at + 3 : at + 3 + 3 * (info & 0xFFFF)]
        members = members[: len(members) // 3 * 3].reshape(-1, 3)
        offsets = members[:, 2] & ((1 << 24) - 1) if info & _BITFIELDS else members[:, 2]
        found = np.flatnonzero(members[:, 0] == name)
        if len(found):
            return int(offsets[found[0]])
        for member in np.flatnonzero(members[:, 0] == 0).tolist() if deep else ():
            of = int(members[member, 1])
            if 0 < of < len(self._types) and self._kind(self._types[of]) in (_STRUCT, _UNION):
                inside = self._in_struct(self._types[of], name, deep - 1)
                if inside is not None:
                    return int(offsets[member]) + inside
        return None

    def _kind(self, at: int) -> int:
        return int(self._words[at + 1]) >> 24 & 0x1F

    @cached_property
    def _types(self) -> list[int]:
        """Where each type is described, by its number."""
        info = self._words[1:]
        sizes = _WORDS_EACH[info >> 24 & 0x1F] * (info & 0xFFFF) + _WORDS[info >> 24 & 0x1F]
        following = (np.arange(len(sizes)) + sizes).tolist()
        found, at = [0], 0
        while at < len(following):
            found.append(at)
            at = following[at]
        return found

    def _name(self, name: str) -> int:
        """Its place among the strings; one that no name has where it is not there."""
        raw, _, strings = self._content
        before = raw.find(b"\0" + name.encode() + b"\0", strings)
        return before + 1 - strings if before >= 0 else _NOWHERE

    @property
    def _words(self) -> np.ndarray:
        return self._content[1]

    @cached_property
    def _content(self) -> tuple[bytes, np.ndarray, int]:
        """The file, the words of its types, and where its strings begin."""
        try:
            raw = self._file.read_bytes()
            header, types, length, strings = (int.from_bytes(raw[at : at + 4], "little") for at in (4, 8, 12, 16))
            return raw, np.frombuffer(raw, "<u4", length // 4, header + types), header + strings
        except (OSError, ValueError) as error:
            raise HostError(f"the kernel's type information ({self._file}) cannot be read ({error}); see pytrace-ebpf doctor") from None


def _key() -> str | None:
    """Under which the offsets of the running kernel are kept: no other build has it. None where it does not say which it is."""
    with suppress(OSError):
        return f"types-{hashlib.sha256(_NOTES.read_bytes()).hexdigest()}"
    return None


def _kept(key: str | None) -> dict[str, int | None]:
    with suppress(ValueError, TypeError, AttributeError):
        found = json.loads((key and program_cache.load(key)) or b"{}")
        return {str(question): None if offset is None else int(offset) for question, offset in found.items()}
    return {}
