"""Values in Thrift's compact protocol, as Parquet's metadata has them (thrift-compact-protocol.md of apache/thrift)."""

from collections.abc import Mapping, Sequence

_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12


Value = tuple[int, bytes]  # its type and its bytes; a plain one, since a page's head has a dozen


def i32(number: int) -> Value:
    """A whole number of 32 bits."""
    return _I32, _varint(number << 1 ^ number >> 31)


def i64(number: int) -> Value:
    """A whole number of 64 bits."""
    return _I64, _varint(number << 1 ^ number >> 63)


def binary(content: bytes) -> Value:
    """A text, or bytes."""
    return _BINARY, _varint(len(content)) + content


def listed(values: Sequence[Value]) -> Value:
    """A list of values of one type; an empty one is of structs."""
    count, kind = len(values), values[0][0] if values else _STRUCT
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + _varint(count)
    return _LIST, head + b"".join([content for _, content in values])


def struct(fields: Mapping[int, Value]) -> Value:
    """A struct of fields by their ids, each less than 16 more than the one before it."""
    out, before = [], 0
    for number, (kind, content) in sorted(fields.items()):
        out += [bytes((number - before << 4 | kind,)), content]
        before = number
    return _STRUCT, b"".join(out) + b"\0"


def _varint(number: int) -> bytes:
    if number < 128:
        return bytes((number,))
    out = []
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])
