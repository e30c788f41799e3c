"""Read protobuf messages with tensors, without a schema compiler: the wire format and the features.

Fields are read one by one, repeated numbers as arrays. Only the part that tensor messages need is
implemented; groups, unused since 2008, are not.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.core.tensor import Array, text_array

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

Scalar = Literal["float", "double", "int32", "int64", "uint64"]
"""Supported protobuf number types."""

_FIXED: Final[dict[Scalar, tuple[int, np.dtype[Any]]]] = {
    "float": (FIXED32, np.dtype("<f4")),
    "double": (FIXED64, np.dtype("<f8")),
}
_FIXED_BYTES: Final = {FIXED32: 4, FIXED64: 8}
_VARINT_BYTES_MAX: Final = 10
VALUES: Final = 1
KEYS: Final = 2
_SHAPE: Final = 3
_ENTRY_NAME: Final = 1
_ENTRY_VALUE: Final = 2
_DENSE_VALUES_MAX: Final = 1 << 22
"""Maximum number of values of a sparse tensor after expansion. The shape in a record is only a claim."""


class WireError(ValueError):
    """The bytes are not a protobuf message.

    The message names the byte, counted from the start of the record.
    """


class ProtoField(NamedTuple):
    """A field of a message: its number, its wire type, and the offsets of its value."""

    number: int
    wire_type: int
    start: int
    stop: int


def fields(data: bytes, start: int, stop: int) -> Iterator[ProtoField]:
    """Yield the fields of the message ``data[start:stop]`` in order.

    Raise WireError if it is malformed.
    """
    at = start
    while at < stop:
        key, at = _varint(data, at, stop)
        number, wire_type = key >> 3, key & 7
        if not number:
            raise WireError(f"field number 0 at byte {at}")
        size = _FIXED_BYTES.get(wire_type)
        begin = at
        if size is not None:
            at += size
        elif wire_type == VARINT:
            _, at = _varint(data, at, stop)
        elif wire_type == BYTES:
            size, begin = _varint(data, at, stop)
            at = begin + size
        else:
            raise WireError(f"unsupported wire type {wire_type} at byte {at}")
        if at > stop:
            raise WireError(f"field {number} at byte {begin} is longer than its message")
        yield ProtoField(number, wire_type, begin, at)


def _varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Return a varint and its end offset."""
    value = shift = 0
    for index in range(at, min(stop, at + _VARINT_BYTES_MAX)):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, index + 1
        shift += 7
    raise WireError(f"a varint at byte {at} does not end")


def is_fixed_width(kind: Scalar) -> bool:
    """Return True if every number of this type has the same number of bytes."""
    return kind in _FIXED


def fixed_dtype(kind: Scalar) -> np.dtype[Any]:
    """Return the dtype of fixed-width numbers in a message. Raise KeyError for a varint type."""
    return _FIXED[kind][1]


def numbers(data: bytes, kind: Scalar, occurrences: list[ProtoField]) -> NDArray[Any]:
    """Return the numbers of one repeated field, packed or one by one, from its `occurrences`.

    Raises WireError.
    """
    parts = [_numbers(data, kind, field) for field in occurrences]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, _dtype(kind))


def _numbers(data: bytes, kind: Scalar, field: ProtoField) -> NDArray[Any]:
    wire_type, dtype = _FIXED.get(kind, (VARINT, _dtype(kind)))
    if field.wire_type not in (wire_type, BYTES):
        raise WireError(
            f"field {field.number} at byte {field.start} has wire type {field.wire_type}, not that of {kind}"
        )
    if wire_type == VARINT:
        return varints(data[field.start : field.stop], field.start).astype(dtype)
    if (field.stop - field.start) % dtype.itemsize:
        raise WireError(f"field {field.number} at byte {field.start} does not hold a whole number of {kind}s")
    return np.frombuffer(data, dtype, (field.stop - field.start) // dtype.itemsize, field.start)


def _dtype(kind: Scalar) -> np.dtype[Any]:
    return _FIXED[kind][1] if kind in _FIXED else np.dtype(kind)


def varints(packed: bytes, at: int = 0) -> NDArray[np.uint64]:
    """Decode consecutive varints as unsigned integers. `at` is their offset for the WireError."""
    if not packed:
        return np.empty(0, np.uint64)
    values = np.frombuffer(packed, np.uint8)
    last = np.flatnonzero(values < 0x80)
    if not len(last) or last[-1] != len(values) - 1:
        raise WireError(f"a varint at or after byte {at} does not end")
    begins = np.zeros_like(last)
    begins[1:] = last[:-1] + 1
    lengths = last - begins + 1
    if int(lengths.max()) > _VARINT_BYTES_MAX:
        raise WireError(f"a varint at or after byte {at} is longer than {_VARINT_BYTES_MAX} bytes")
    shifts = (np.arange(len(values)) - np.repeat(begins, lengths)) * 7
    return np.add.reduceat((values & 0x7F).astype(np.uint64) << shifts.astype(np.uint64), begins)


ValueType = Scalar | Literal["bytes"]


@dataclass(frozen=True, slots=True)
class MessageKind:
    """A message type that maps names to values of several types.

    `path` leads to the map's field. `members` maps the field numbers of the value's oneof to their
    types. With `sparse`, field 2 of a value may hold the indices of its numbers and field 3 the
    shape.
    """

    name: str
    path: tuple[int, ...]
    members: Mapping[int, ValueType]
    sparse: bool = False


RECORD: Final = MessageKind(
    "aialgs.data.Record", (1,), {2: "float", 3: "double", 7: "int32", 9: "bytes"}, sparse=True
)
EXAMPLE: Final = MessageKind("tf.train.Example", (1, 1), {1: "bytes", 2: "float", 3: "int64"})


@dataclass(slots=True)
class Feature:
    """A value: its type, and its fields by number, in message order."""

    kind: ValueType | None = None
    fields: dict[int, list[ProtoField]] = field(default_factory=dict[int, list[ProtoField]])


def features(
    record: bytes,
    kind: MessageKind,
    names: Collection[bytes] | None,
    skipped: list[tuple[int, int]] | None = None,
) -> dict[bytes, Feature]:
    """Return the features of a message by name: those in `names`, or all for None.

    The byte ranges that were not examined are appended to `skipped`. The merge rules are
    protobuf's: the last entry of a name and the last member of a oneof win, and a repeated message
    is merged into the previous one. Raises WireError.
    """
    reader = _Reader(record, kind, names, [] if skipped is None else skipped)
    maps = [(0, len(record))]
    for number in kind.path[:-1]:
        maps = [(f.start, f.stop) for start, stop in maps for f in reader.messages(start, stop, (number,))]
    for start, stop in maps:
        for entry in reader.messages(start, stop, kind.path[-1:]):
            reader.add(entry)
    return reader.by_name


class _Reader:
    """A parser of one record. It collects the byte ranges that it skips."""

    def __init__(
        self,
        record: bytes,
        kind: MessageKind,
        names: Collection[bytes] | None,
        skipped: list[tuple[int, int]],
    ) -> None:
        self._record = record
        self._kind = kind
        self._names = names
        self._skipped = skipped
        self.by_name: dict[bytes, Feature] = {}

    def messages(self, start: int, stop: int, chosen: Sequence[int]) -> list[ProtoField]:
        """Return the fields with these numbers, which hold messages or text. Skip other fields."""
        matching: list[ProtoField] = []
        for part in fields(self._record, start, stop):
            if part.number not in chosen:
                self._skip(part)
            elif part.wire_type != BYTES:
                raise WireError(f"field {part.number} at byte {part.start} is not a message")
            else:
                matching.append(part)
        return matching

    def add(self, entry: ProtoField) -> None:
        """Add an entry of the map."""
        name, values = b"", list[ProtoField]()
        for part in self.messages(entry.start, entry.stop, (_ENTRY_NAME, _ENTRY_VALUE)):
            if part.number == _ENTRY_NAME:
                name = self._record[part.start : part.stop]
            else:
                values.append(part)
        if self._names is not None and name not in self._names:
            for part in values:
                self._skip(part)
            return
        feature = self.by_name[name] = Feature()
        for value in values:
            for member in self.messages(value.start, value.stop, tuple(self._kind.members)):
                self._add_member(feature, member)

    def _add_member(self, feature: Feature, member: ProtoField) -> None:
        kind = self._kind.members[member.number]
        if feature.kind != kind:
            feature.kind, feature.fields = kind, {}
        known_fields = (VALUES, KEYS, _SHAPE) if self._kind.sparse and kind != "bytes" else (VALUES,)
        for part in fields(self._record, member.start, member.stop):
            if part.number in known_fields:
                feature.fields.setdefault(part.number, []).append(part)
            else:
                self._skip(part)

    def _skip(self, part: ProtoField) -> None:
        # The bytes of a varint were examined, because they determine its end.
        if part.wire_type:
            self._skipped.append((part.start, part.stop))


def feature_values(record: bytes, feature: Feature, name: str) -> Array:
    """Return a feature's values, flat: numbers of its own type, or an object array of bytes.

    Raises ValueError for an inconsistent sparse tensor, and WireError if the values are malformed.
    """
    kind, by_number = feature.kind, feature.fields
    if kind is None or kind == "bytes":
        parts = by_number.get(VALUES, [])
        if any(part.wire_type != BYTES for part in parts):
            raise WireError(f'feature "{name}" has values that are not bytes')
        return text_array([record[part.start : part.stop] for part in parts])
    values = numbers(record, kind, by_number.get(VALUES, []))
    keys = numbers(record, "uint64", by_number.get(KEYS, []))
    if not len(keys):
        return values
    shape = numbers(record, "uint64", by_number.get(_SHAPE, [])).tolist()
    size = prod(shape)
    if len(keys) != len(values) or not shape or not int(keys.max()) < size <= _DENSE_VALUES_MAX:
        raise ValueError(
            f'feature "{name}" is an inconsistent sparse tensor: {len(values)} values, {len(keys)} keys, '
            f"shape {shape}"
        )
    dense = np.zeros(size, values.dtype)
    dense[keys.astype(np.int64)] = values
    return dense
