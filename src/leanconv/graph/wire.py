"""Protobuf's wire format, one message at a time and without copying.

A message is decoded one level deep: what it contains stays a view of the file until it
is read. Nothing is allocated for what the bytes claim, only for the bytes that are there,
and every field counts against a limit. That is what makes an untrusted file harmless, and a
weight of a gigabyte free to read.

The format: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from leanconv.errors import ModelError


class Kind(Enum):
    """A field's kind: the wire types it may have, and whether it is repeated."""

    INT = ("int", (0,), False)  # varint, as a signed 64-bit number
    FLOAT = ("float", (5,), False)  # four bytes
    TEXT = ("text", (2,), False)  # UTF-8
    BYTES = ("bytes", (2,), False)  # a view; also messages
    INTS = ("ints", (0, 2), True)  # varints, packed or not: list of numbers and views
    FLOATS = ("floats", (5, 1, 2), True)  # fixed-width numbers: list of views
    TEXTS = ("texts", (2,), True)
    MANY = ("many", (2,), True)  # bytes or messages: list of views

    def __init__(self, _: str, wires: tuple[int, ...], repeated: bool) -> None:
        self.wires = wires
        self.repeated = repeated


Schema = Mapping[int, tuple[str, Kind]]
Message = dict[str, Any]
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Reader:
    """Decodes the messages of one file and counts their fields.

    Args:
        fields: the most that it may have.
        spread_bytes: the most bytes that its sparse tensors may come to where they are dense.

    Attributes:
        spread_bytes: those that sparse tensors have come to so far.
    """

    def __init__(self, fields: int, spread_bytes: int = 0) -> None:
        self._limit = fields
        self._left = fields
        self._most_spread, self.spread_bytes = spread_bytes, 0

    def spread(self, dense_bytes: int, what: str) -> None:
        """Account for a sparse tensor that is about to be made dense.

        Raises:
            ModelError: with all others it takes too many bytes.
        """
        self.spread_bytes += dense_bytes
        if self.spread_bytes > self._most_spread:
            raise ModelError(
                f"{what} brings the sparse tensors of the file to {self.spread_bytes} bytes where "
                f"they are dense; expected at most {self._most_spread}; raise the limit "
                "`filled_bytes` if you trust the file"
            )

    def message(
        self, data: memoryview, schema: Schema, what: str, most: Mapping[str, int] | None = None
    ) -> Message:
        """Decode one level of a message.

        Args:
            data: the message's bytes.
            schema: the fields wanted, by number; others are skipped.
            what: the message's name, for errors.
            most: how often repeated fields may occur, by name.

        Returns:
            The fields that are there, by name. Repeated ones are lists, and always there.

        Raises:
            ModelError: the bytes are not such a message, or the file has too many fields.
        """
        result: Message = {name: [] for name, kind in schema.values() if kind.repeated}
        place, end = 0, len(data)
        while place < end:
            self._left -= 1
            if self._left < 0:
                raise ModelError(
                    f"the file has over {self._limit} fields; expected at most that many; "
                    "raise the limit `fields` if you trust it"
                )
            tag, place = varint(data, place, what)
            value, place = _payload(data, place, tag & 7, what)
            entry = schema.get(tag >> 3)
            if entry is None:
                continue
            name, kind = entry
            if tag & 7 not in kind.wires:
                raise ModelError(
                    f"{what}.{name} has the wire type {tag & 7}; expected "
                    f"{' or '.join(map(str, kind.wires))}; the file is damaged"
                )
            _store(result, name, kind, value, what)
            if most and name in most and len(result[name]) > most[name]:
                raise ModelError(
                    f"{what} has over {most[name]} entries {name!r}; expected at most that many; "
                    "raise the limit if you trust the file"
                )
        return result


def fields(data: memoryview, what: str) -> Iterator[tuple[int, memoryview, Any]]:
    """The fields of a message as they are: number, all bytes of the field, and its payload."""
    place = 0
    while place < len(data):
        begin = place
        tag, place = varint(data, place, what)
        value, place = _payload(data, place, tag & 7, what)
        yield tag >> 3, data[begin:place], value


def written(number: int, payload: bytes | memoryview | int) -> bytes:
    """A field of a message: bytes, text or a message; or a number that is not negative."""
    if isinstance(payload, int):
        return _varint_bytes(number << 3 | _VARINT) + _varint_bytes(payload)
    return _varint_bytes(number << 3 | _BYTES) + _varint_bytes(len(payload)) + payload


def _varint_bytes(number: int) -> bytes:
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def _store(result: Message, name: str, kind: Kind, value: Any, what: str) -> None:
    if kind is Kind.TEXT or kind is Kind.TEXTS:
        value = text(value, f"{what}.{name}")
    elif kind is Kind.FLOAT:
        value = struct.unpack("<f", value)[0]
    if kind.repeated:
        result[name].append(value)
    elif kind is Kind.BYTES and name in result:
        raise ModelError(f"{what}.{name} occurs twice; expected it once; the file is damaged")
    else:
        result[name] = value


def varint(data: memoryview, place: int, what: str) -> tuple[int, int]:
    """Read a variable-length number as a signed 64-bit one, and the place behind it."""
    end = min(len(data), place + 10)
    if place < end and data[place] < 0x80:
        return data[place], place + 1
    value = shift = 0
    while place < end:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= (1 << 64) - 1
            return (value - (1 << 64) if value >> 63 else value), place
        shift += 7
    raise ModelError(f"{what} ends within a number, or has one of over 10 bytes; expected numbers")


def _payload(data: memoryview, place: int, wire: int, what: str) -> tuple[Any, int]:
    if wire == _VARINT:
        return varint(data, place, what)
    if wire == _BYTES:
        count, place = varint(data, place, what)
    elif wire in (_FIXED32, _FIXED64):
        count = 4 if wire == _FIXED32 else 8
    else:
        raise ModelError(f"{what} has a field of wire type {wire}; expected 0, 1, 2 or 5")
    if not 0 <= count <= len(data) - place:
        raise ModelError(
            f"{what} has a field of {count} bytes; expected at most the {len(data) - place} that "
            "are left; the file is truncated or damaged"
        )
    return data[place : place + count], place + count


def text(data: memoryview, what: str) -> str:
    """Decode UTF-8.

    Raises:
        ModelError: the bytes are not UTF-8.
    """
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{what} is not UTF-8 at byte {error.start}; expected text") from None


def integers(parts: Sequence[int | memoryview], what: str) -> npt.NDArray[np.int64]:
    """The numbers of a field of kind `INTS`, int64 of shape (n,)."""
    if all(isinstance(part, int) for part in parts):
        return np.array(parts, dtype=np.int64)
    arrays = [
        np.array([part], dtype=np.int64) if isinstance(part, int) else _packed(part, what)
        for part in parts
    ]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _packed(data: memoryview, what: str) -> npt.NDArray[np.int64]:
    """Decode many varints at once: gather the k-th byte of all that have one, for each k."""
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1]) if ends.size else ends
    lengths = ends - starts + 1
    if (raw.size and (not ends.size or ends[-1] != raw.size - 1)) or np.any(lengths > 10):
        raise ModelError(f"{what} ends within a number, or one has over 10 bytes; expected numbers")
    values = np.zeros(starts.size, np.uint64)
    for k in range(int(lengths.max(initial=0))):
        has = np.flatnonzero(lengths > k)
        values[has] |= (raw[starts[has] + k] & 0x7F).astype(np.uint64) << np.uint64(7 * k)
    return values.view(np.int64)


def fixed(parts: Sequence[memoryview], dtype: str, what: str) -> npt.NDArray[Any]:
    """The numbers of a field of kind `FLOATS`; a view of the file where they are contiguous."""
    width = np.dtype(dtype).itemsize
    if any(len(part) % width for part in parts):
        raise ModelError(f"{what} has a length that is no multiple of {width} bytes; expected one")
    if len(parts) == 1:
        return np.frombuffer(parts[0], dtype)
    return np.frombuffer(b"".join(parts), dtype)
