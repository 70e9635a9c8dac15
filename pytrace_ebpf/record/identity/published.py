"""What a process publishes of itself for readers outside: OpenTelemetry's process context, a mapping named OTEL_CTX with attributes in protobuf.

https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4719-process-ctx.md. The process writes all of it, also while it is
read: a process without rights reads it (sandbox.py), of bounded size, and only what two looks at its time of publication agree on counts.
"""

import re
import struct
from collections.abc import Iterator
from typing import Any

from pytrace_ebpf.record.cpython.frames import BudgetedMemory, SpentError
from pytrace_ebpf.record.identity.environment import LONGEST, columns
from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.process import asking
from pytrace_ebpf.record.process.memory import Memory, MemoryFault
from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.trace.identity import OF_NAME

_MOST_MAPS, _MOST_MAPPINGS = 16 << 20, 4
_NAMED = re.compile(rb"^([0-9a-f]+)-[0-9a-f]+ r\S+ \S+ \S+ \d+\s+(?:/memfd:OTEL_CTX(?: \(deleted\))?|\[anon(?:_shmem)?:OTEL_CTX\])$", re.MULTILINE)
_HEAD = struct.Struct("<8sIIQQ")  # signature, version, size, time of publication (0: being written), address of the payload
_SIGNATURE, _VERSION = b"OTEL_CTX", 2
_MOST_PAYLOAD, _MOST_FIELDS, _TRIES = 1 << 16, 4096, 3
_BUDGET_S, _PATIENCE_S = 0.2, 5.0
_RESOURCE, _ATTRIBUTE, _KEY, _VALUE, _STRING, _INTEGER = 1, 1, 1, 2, 1, 3  # numbers of fields
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def published(process: Pinned) -> dict[str, str]:
    """The columns of trace.identity that a process publishes; {} where it publishes nothing. Raises OSError where it has ended."""
    addresses = [int(found[1], 16) for found in _NAMED.finditer(process.read("maps", _MOST_MAPS))][:_MOST_MAPPINGS]
    if not addresses:
        return {}
    try:
        attributes = asking.ask(
            sandbox.parsers, "published", {"pid": process.pid, "addresses": addresses}, process, dict[str, str], _PATIENCE_S, "context"
        )
    except ValueError:
        return {}
    return columns(attributes)


def walk_published(given: dict[str, Any], files: list[int]) -> dict[str, str]:
    """What published() asks for: the attributes by name that have a column."""
    memory = BudgetedMemory(given, files, _BUDGET_S)
    for address in given["addresses"]:
        try:
            if payload := _payload(memory, address):
                return attributes(payload)
        except (MemoryFault, SpentError, ValueError):
            continue
    return {}


def _payload(memory: Memory, address: int) -> bytes:
    """That of a mapping; nothing where it is none, or is written again and again."""
    for _ in range(_TRIES):
        head = memory.read(address, _HEAD.size)
        signature, version, size, since, at = _HEAD.unpack(head)
        if signature != _SIGNATURE or version != _VERSION or size > _MOST_PAYLOAD:
            break
        payload = memory.read(at, size) if since else b""
        if since and memory.read(address, _HEAD.size) == head:
            return payload
    return b""


def attributes(payload: bytes) -> dict[str, str]:
    """Those of a ProcessContext's resource that have a column. Raises ValueError for what is no protobuf."""
    found: dict[str, str] = {}
    fields = 0
    for number, resource in _fields(payload):
        for kind, pair in _fields(resource) if number == _RESOURCE and isinstance(resource, bytes) else ():
            fields += 1
            if fields > _MOST_FIELDS:
                raise ValueError("a process context has too many attributes")
            if kind == _ATTRIBUTE and isinstance(pair, bytes):
                parts = dict(_fields(pair))
                key, value = parts.get(_KEY), parts.get(_VALUE)
                if isinstance(key, bytes) and isinstance(value, bytes) and (name := key.decode("utf-8", "replace")) in OF_NAME:
                    found.setdefault(name, _text(value))
    return found


def _text(value: bytes) -> str:
    """An AnyValue that is a string or a number; "" of any other."""
    parts = dict(_fields(value))
    if isinstance(text := parts.get(_STRING), bytes):
        return text[: 4 * LONGEST].decode("utf-8", "replace")[:LONGEST]
    return str(number) if isinstance(number := parts.get(_INTEGER), int) else ""


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The number and value of each field. https://protobuf.dev/programming-guides/encoding"""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("a process context is no protobuf")
        if size > len(message) - at:
            raise ValueError("a process context ends within a field")
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        value |= (message[at] & 0x7F) << shift
        at += 1
        if not message[at - 1] & 0x80:
            return value, at
    raise ValueError("a process context ends within a number")
