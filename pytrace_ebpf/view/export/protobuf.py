"""Protobuf wire format: single fields as bytes, and many messages of one shape at once as a byte matrix.

https://protobuf.dev/programming-guides/encoding. A varint may be padded with 0x80 continuation bytes,
so messages that differ only in numbers have one size and can be filled in column by column.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Slot:
    """A varint field whose value differs per message: field number, bytes per value (7 bits each), values >= 0."""

    field: int
    width: int
    values: npt.NDArray[np.int64]

    @property
    def tag(self) -> bytes:
        return varint(self.field << 3)

    @property
    def size(self) -> int:
        return len(self.tag) + self.width


@dataclass(frozen=True)
class Fixed:
    """A fixed64 field whose value differs per message."""

    field: int
    values: npt.NDArray[np.int64]

    @property
    def tag(self) -> bytes:
        return varint(self.field << 3 | 1)

    @property
    def size(self) -> int:
        return len(self.tag) + 8


@dataclass(frozen=True)
class Packed:
    """A repeated varint field, packed, with as many values in each message: field number, bytes per value, values (messages, count) >= 0."""

    field: int
    width: int
    values: npt.NDArray[np.int64]

    @property
    def tag(self) -> bytes:
        return varint(self.field << 3 | 2) + varint(self.values.shape[1] * self.width)

    @property
    def size(self) -> int:
        return len(self.tag) + self.values.shape[1] * self.width


Piece = bytes | Slot | Fixed | Packed


def varint(number: int) -> bytes:
    """A number >= 0, as short as it goes."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def number(field: int, value: int) -> bytes:
    """A varint field (negative values as int32/int64 fields have them)."""
    return varint(field << 3) + varint(value % (1 << 64))


def data(field: int, payload: bytes | str) -> bytes:
    """A string, bytes or sub-message field."""
    payload = payload.encode("utf-8", "replace") if isinstance(payload, str) else payload
    return varint(field << 3 | 2) + varint(len(payload)) + payload


def nested(field: int, pieces: list[Piece]) -> list[Piece]:
    """`pieces` as the sub-message `field`."""
    return [varint(field << 3 | 2) + varint(sum(_size(p) for p in pieces)), *pieces]


def messages(pieces: list[Piece], rows: int) -> npt.NDArray[np.uint8]:
    """`rows` messages as a (rows, size) matrix; every Slot and Fixed holds one value per row."""
    out = np.empty((rows, sum(_size(p) for p in pieces)), np.uint8)
    at = 0
    for piece in pieces:
        constant = piece if isinstance(piece, bytes) else piece.tag
        out[:, at : at + len(constant)] = np.frombuffer(constant, np.uint8)
        at += len(constant)
        if isinstance(piece, Fixed):
            out[:, at : at + 8] = piece.values.astype("<u8").view(np.uint8).reshape(rows, 8)
            at += 8
        elif isinstance(piece, Slot | Packed):
            count = 1 if isinstance(piece, Slot) else piece.values.shape[1]
            for i in range(piece.width):
                more = 0x80 if i < piece.width - 1 else 0
                out[:, at + i : at + count * piece.width : piece.width] = (piece.values.reshape(rows, count) >> (7 * i)) & 0x7F | more
            at += count * piece.width
    return out


def width(largest: int) -> int:
    """Bytes of the varint of a number >= 0."""
    return max(1, -(-int(largest).bit_length() // 7))


def _size(piece: Piece) -> int:
    return len(piece) if isinstance(piece, bytes) else piece.size
