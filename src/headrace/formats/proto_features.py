"""Named features in protobuf messages, found without a schema compiler.

Two kinds of messages are read: SageMaker's `aialgs.data.Record`, which comes in RecordIO, and `tf.train.Example`, which
comes in TFRecord.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, Literal

import numpy as np

from headrace.core.tensor import Array, text_array
from headrace.formats.proto_wire import BYTES, Field, Scalar, WireError, fields, numbers

Kind = Scalar | Literal["bytes"]

VALUES: Final = 1
KEYS: Final = 2
_SHAPE: Final = 3
_ENTRY_NAME: Final = 1
_ENTRY_VALUE: Final = 2
_DENSE_VALUES_MAX: Final = 1 << 22
"""Of a sparse tensor written out: its shape is a claim that costs nothing to make."""


@dataclass(frozen=True, slots=True)
class MessageKind:
    """A message that is a map from names to values, each of one of several types.

    `path` leads to the map's field, `members` says the type of each member of the value's oneof by its field number;
    with `sparse` field 2 of a value may say at which places its numbers stand, and field 3 in which shape.
    """

    name: str
    path: tuple[int, ...]
    members: Mapping[int, Kind]
    sparse: bool = False


RECORD: Final = MessageKind(
    "aialgs.data.Record", (1,), {2: "float", 3: "double", 7: "int32", 9: "bytes"}, sparse=True
)
EXAMPLE: Final = MessageKind("tf.train.Example", (1, 1), {1: "bytes", 2: "float", 3: "int64"})


@dataclass(slots=True)
class Feature:
    """A value: its type, and the fields of it as they came, by number."""

    kind: Kind | None = None
    fields: dict[int, list[Field]] = field(default_factory=dict[int, list[Field]])


def features(
    record: bytes,
    kind: MessageKind,
    wanted: Collection[bytes] | None,
    passed: list[tuple[int, int]] | None = None,
) -> dict[bytes, Feature]:
    """The wanted features (None: all) of a message by name. To `passed` go the places whose bytes were not read.

    As protobuf has it: of entries of one name the last counts, of a oneof's members too, and one that comes again
    adds to what there is. Raises WireError.
    """
    reader = _Reader(record, kind, wanted, [] if passed is None else passed)
    maps = [(0, len(record))]
    for number in kind.path[:-1]:
        maps = [(f.start, f.stop) for start, stop in maps for f in reader.messages(start, stop, (number,))]
    for start, stop in maps:
        for entry in reader.messages(start, stop, kind.path[-1:]):
            reader.add(entry)
    return reader.found


class _Reader:
    """Goes through one record, and notes what it passes over."""

    def __init__(
        self,
        record: bytes,
        kind: MessageKind,
        wanted: Collection[bytes] | None,
        passed: list[tuple[int, int]],
    ) -> None:
        self._record = record
        self._kind = kind
        self._wanted = wanted
        self._passed = passed
        self.found: dict[bytes, Feature] = {}

    def messages(self, start: int, stop: int, chosen: Sequence[int]) -> list[Field]:
        """The fields of these numbers, which hold messages or text; others are passed over."""
        found: list[Field] = []
        for part in fields(self._record, start, stop):
            if part.number not in chosen:
                self._pass(part)
            elif part.wire != BYTES:
                raise WireError(f"field {part.number} at byte {part.start} is no message")
            else:
                found.append(part)
        return found

    def add(self, entry: Field) -> None:
        """Take an entry of the map."""
        name, values = b"", list[Field]()
        for part in self.messages(entry.start, entry.stop, (_ENTRY_NAME, _ENTRY_VALUE)):
            if part.number == _ENTRY_NAME:
                name = self._record[part.start : part.stop]
            else:
                values.append(part)
        if self._wanted is not None and name not in self._wanted:
            for part in values:
                self._pass(part)
            return
        feature = self.found[name] = Feature()
        for value in values:
            for member in self.messages(value.start, value.stop, tuple(self._kind.members)):
                self._add_member(feature, member)

    def _add_member(self, feature: Feature, member: Field) -> None:
        kind = self._kind.members[member.number]
        if feature.kind != kind:
            feature.kind, feature.fields = kind, {}
        known = (VALUES, KEYS, _SHAPE) if self._kind.sparse and kind != "bytes" else (VALUES,)
        for part in fields(self._record, member.start, member.stop):
            if part.number in known:
                feature.fields.setdefault(part.number, []).append(part)
            else:
                self._pass(part)

    def _pass(self, part: Field) -> None:
        # A varint's bytes were read: they tell where it ends.
        if part.wire:
            self._passed.append((part.start, part.stop))


def feature_values(record: bytes, feature: Feature, name: str) -> Array:
    """A feature's values, flat: numbers of its own type, or an object array of bytes.

    Raises ValueError for a sparse tensor that does not fit together, and WireError where there are no values.
    """
    kind, found = feature.kind, feature.fields
    if kind is None or kind == "bytes":
        parts = found.get(VALUES, [])
        if any(part.wire != BYTES for part in parts):
            raise WireError(f'feature "{name}" has values that are not bytes')
        return text_array([record[part.start : part.stop] for part in parts])
    values = numbers(record, kind, found.get(VALUES, []))
    keys = numbers(record, "uint64", found.get(KEYS, []))
    if not len(keys):
        return values
    shape = numbers(record, "uint64", found.get(_SHAPE, [])).tolist()
    size = prod(shape)
    if len(keys) != len(values) or not shape or not int(keys.max()) < size <= _DENSE_VALUES_MAX:
        raise ValueError(
            f'feature "{name}" is sparse, with {len(values)} values at {len(keys)} places in a shape of {shape}, '
            "which does not fit together"
        )
    dense = np.zeros(size, values.dtype)
    dense[keys.astype(np.int64)] = values
    return dense
