"""Convert records that are protobuf messages of named features to model inputs.

The records of a file nearly always have their numbers at the same offsets. The decoder remembers
the layout of one record: the bytes that locate its numbers (keys, lengths, names). A record with
the same bytes at these offsets has the same layout, and a whole block of such records is decoded
with one copy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from headrace.core.block import Block, FailureKind
from headrace.core.tensor import Array
from headrace.formats.contract import DecodedBlock, Decoder, FailureReasons
from headrace.formats.proto_messages import (
    BYTES,
    KEYS,
    VALUES,
    Feature,
    MessageKind,
    WireError,
    feature_values,
    features,
    fixed_dtype,
    is_fixed_width,
)


@dataclass(frozen=True, slots=True)
class ProtoInput:
    """The source of one input: the concatenated values of these features, as rows of `shape`.

    `dtype` None is bytes.
    """

    features: tuple[str, ...]
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]


class ProtoDecoder(Decoder):
    """A decoder of features to tensors ``[n, *shape]``, one per input.

    Bytes become object arrays of bytes.

    Numbers are cast; integers only from whole numbers in range. A record becomes a failure (kind
    DECODE), and is in no input, if it is not a valid message or lacks a feature. The same holds for
    a feature of another type or another number of values. Features that no input uses are not
    checked.
    """

    def __init__(self, kind: MessageKind, inputs: Mapping[str, ProtoInput]) -> None:
        self._kind = kind
        self._inputs = dict(inputs)
        self._feature_names = {name.encode() for spec in inputs.values() for name in spec.features}
        self._layout: _Layout | None = None

    @override
    def decode(self, block: Block) -> DecodedBlock:
        columns = {
            name: np.empty((len(block), *spec.shape), object if spec.dtype is None else spec.dtype)
            for name, spec in self._inputs.items()
        }
        reasons: FailureReasons = {}
        for index in self._decode_uniform_rows(block, columns):
            try:
                row = self._decode_record(block.record(index))
            except WireError as error:
                why = f"invalid {self._kind.name} message: {error}"
                reasons[index] = (FailureKind.DECODE, why)
                continue
            except ValueError as error:
                reasons[index] = (FailureKind.DECODE, str(error))
                continue
            for name, value in row.items():
                columns[name][index] = value
        return DecodedBlock.with_failures(columns, block, reasons, all_rows=True)

    def _decode_uniform_rows(self, block: Block, columns: dict[str, Array]) -> list[int]:
        """Decode the records that have the remembered layout.

        Return the indices of the other records.
        """
        if not len(block):
            return []
        first = block.record(0)
        if self._layout is None or not self._layout.matches(first):
            self._layout = self._layout_of(first)
        if self._layout is None:
            return list(range(len(block)))
        matching, records = self._layout.rows(block)
        for name, spec in self._inputs.items():
            parts = [
                np.ascontiguousarray(records[:, start:stop]).view(dtype)
                for start, stop, dtype in self._layout.spans[name]
            ]
            joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
            with np.errstate(over="ignore"):
                columns[name][matching] = joined.reshape(len(matching), *spec.shape)
        return np.setdiff1d(np.arange(len(block)), matching, assume_unique=True).tolist()

    def _layout_of(self, record: bytes) -> "_Layout | None":
        """Return the layout of this record's numbers.

        Return None unless all are floating-point, packed, dense and of the expected count.
        """
        skipped: list[tuple[int, int]] = []
        spans: dict[str, list[tuple[int, int, np.dtype[Any]]]] = {}
        try:
            by_name = features(record, self._kind, self._feature_names, skipped)
            for name, spec in self._inputs.items():
                if spec.dtype is None or spec.dtype.kind != "f":
                    return None
                spans[name] = [_span(by_name[feature.encode()]) for feature in spec.features]
                values = sum((stop - start) // dtype.itemsize for start, stop, dtype in spans[name])
                if values != prod(spec.shape):
                    return None
        except (ValueError, KeyError):
            return None
        skipped += [(start, stop) for of_input in spans.values() for start, stop, _ in of_input]
        return _Layout.from_record(record, skipped, spans)

    def _decode_record(self, record: bytes) -> dict[str, Any]:
        """Return the inputs of one record. Raise ValueError if one is invalid."""
        by_name = features(record, self._kind, self._feature_names)
        return {name: _input_row(record, by_name, spec) for name, spec in self._inputs.items()}


@dataclass(frozen=True, slots=True)
class _Layout:
    """The offsets of the numbers in records of one length, and the bytes that identify the layout."""

    size: int
    fixed_at: NDArray[np.int64]
    expected: NDArray[np.uint8]
    spans: Mapping[str, Sequence[tuple[int, int, np.dtype[Any]]]]

    @staticmethod
    def from_record(
        record: bytes,
        skipped: Sequence[tuple[int, int]],
        spans: Mapping[str, Sequence[tuple[int, int, np.dtype[Any]]]],
    ) -> "_Layout":
        read = np.ones(len(record), bool)
        for start, stop in skipped:
            read[start:stop] = False
        fixed_at = np.flatnonzero(read)
        return _Layout(len(record), fixed_at, np.frombuffer(record, np.uint8)[fixed_at], spans)

    def matches(self, record: bytes) -> bool:
        """Return True if a record has this layout."""
        if len(record) != self.size:
            return False
        return bool((np.frombuffer(record, np.uint8)[self.fixed_at] == self.expected).all())

    def rows(self, block: Block) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return the indices of the block's records with this layout, and their bytes [n, size]."""
        matching = np.flatnonzero(block.ends - block.starts == self.size)
        if not len(matching):
            return matching, np.empty((0, self.size), np.uint8)
        starts = block.starts[matching]
        windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(block.data, np.uint8), self.size)
        records: NDArray[np.uint8] = windows[starts]
        fitting = (records[:, self.fixed_at] == self.expected).all(axis=1)
        return (matching, records) if fitting.all() else (matching[fitting], records[fitting])


def _span(feature: Feature) -> tuple[int, int, np.dtype[Any]]:
    """Return the offsets and dtype of a feature's numbers.

    Raise ValueError unless they are floating-point, packed and dense.
    """
    if feature.kind is None or feature.kind == "bytes" or not is_fixed_width(feature.kind):
        raise ValueError("not floating")
    dtype = fixed_dtype(feature.kind)
    (values,) = feature.fields.get(VALUES, [])
    size = values.stop - values.start
    if values.wire_type != BYTES or size % dtype.itemsize or KEYS in feature.fields:
        raise ValueError("not packed and dense")
    return values.start, values.stop, dtype


def _input_row(record: bytes, by_name: Mapping[bytes, Feature], spec: ProtoInput) -> Any:
    """Return the row of one input. Raise ValueError if it is invalid."""
    parts: list[Array] = []
    for name in spec.features:
        feature = by_name.get(name.encode())
        if feature is None or feature.kind is None:
            raise ValueError(f'feature "{name}" is missing')
        values = feature_values(record, feature, name)
        parts.append(_cast(values, spec.dtype, name))
    row = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if len(row) != prod(spec.shape):
        names = ", ".join(f'"{name}"' for name in spec.features)
        actual = f"{len(row)} value{'' if len(row) == 1 else 's'}"
        raise ValueError(f"feature {names} has {actual}, {prod(spec.shape)} expected")
    return row.reshape(spec.shape) if spec.shape else row[0]


def _cast(values: Array, dtype: np.dtype[Any] | None, name: str) -> Array:
    if (dtype is None) != (values.dtype.kind == "O"):
        actual, expected = ("bytes", "numbers") if dtype is not None else ("numbers", "bytes")
        raise ValueError(f'feature "{name}" holds {actual}, but {expected} are expected')
    if dtype is None or values.dtype == dtype:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(dtype)
        if dtype.kind != "f" and not (
            _in_range(values, dtype) and (cast.astype(values.dtype) == values).all()
        ):
            raise ValueError(f'feature "{name}" holds numbers that are not {dtype}')
    return cast


def _in_range(values: Array, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "b":
        return True
    bounds = np.iinfo(dtype)
    return bool(((values >= bounds.min) & (values < bounds.max + 1)).all())
