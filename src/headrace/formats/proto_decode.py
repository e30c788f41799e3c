"""Records that are protobuf messages of named features, to a model's inputs.

What makes this quick: the records of a file nearly always have their numbers in the same places. Of one record the way
through is remembered: which bytes were read to find them (keys, lengths, names). A record that has the very same bytes
there has its numbers in the very same places, and a whole block of such is one copy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.block import Block, Failure, FailureKind
from headrace.core.tensor import Array
from headrace.formats.contract import Decoded
from headrace.formats.proto_features import KEYS, VALUES, Feature, MessageKind, feature_values, features
from headrace.formats.proto_wire import BYTES, WireError, fixed_dtype, is_fixed


@dataclass(frozen=True, slots=True)
class ProtoInput:
    """What one input is made of: the values of these features, one behind the other, as rows of `shape`.

    `dtype` None is bytes.
    """

    features: tuple[str, ...]
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]


class ProtoDecoder:
    """Features to tensors ``[n, *shape]``, one for each input; of bytes, object arrays of bytes.

    Numbers are cast, integers only from numbers that are whole and in range. A record that is no such message, lacks
    a feature, or whose feature has another type or another number of values than it should is a failure (kind
    DECODE), and is in no input. What is in features that no input takes is not looked at.
    """

    def __init__(self, kind: MessageKind, inputs: Mapping[str, ProtoInput]) -> None:
        self._kind = kind
        self._inputs = dict(inputs)
        self._wanted = {name.encode() for made_of in inputs.values() for name in made_of.features}
        self._layout: _Layout | None = None

    def decode(self, block: Block) -> Decoded:
        """Every feature of every record."""
        columns = {name: self._empty(made_of, len(block)) for name, made_of in self._inputs.items()}
        failures: dict[int, Failure] = {}
        for index in self._others(block, columns):
            try:
                row = self._row(block.record(index))
            except WireError as error:
                why = f"no {self._kind.name} message: {error}"
                failures[index] = block.failure(index, FailureKind.DECODE, why)
                continue
            except ValueError as error:
                failures[index] = block.failure(index, FailureKind.DECODE, str(error))
                continue
            for name, value in row.items():
                columns[name][index] = value
        if not failures:
            return Decoded(columns)
        rows = np.setdiff1d(np.arange(len(block)), list(failures), assume_unique=True)
        kept = {name: column[rows] for name, column in columns.items()}
        return Decoded(kept, rows, tuple(failures[index] for index in sorted(failures)))

    def _empty(self, made_of: ProtoInput, rows: int) -> Array:
        return np.empty((rows, *made_of.shape), object if made_of.dtype is None else made_of.dtype)

    def _others(self, block: Block, columns: dict[str, Array]) -> list[int]:
        """Fill in the records that are laid out as one before; the indices of those that are not."""
        if not len(block):
            return []
        first = block.record(0)
        if self._layout is None or not self._layout.fits(first):
            self._layout = self._layout_of(first)
        if self._layout is None:
            return list(range(len(block)))
        same, records = self._layout.rows(block)
        for name, made_of in self._inputs.items():
            parts = [
                np.ascontiguousarray(records[:, start:stop]).view(dtype)
                for start, stop, dtype in self._layout.spans[name]
            ]
            joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
            with np.errstate(over="ignore"):
                columns[name][same] = joined.reshape(len(same), *made_of.shape)
        return np.setdiff1d(np.arange(len(block)), same, assume_unique=True).tolist()

    def _layout_of(self, record: bytes) -> "_Layout | None":
        """Where this record's numbers are; None unless all are floating, packed, dense and as many as they should be."""
        free: list[tuple[int, int]] = []
        spans: dict[str, list[tuple[int, int, np.dtype[Any]]]] = {}
        try:
            found = features(record, self._kind, self._wanted, free)
            for name, made_of in self._inputs.items():
                if made_of.dtype is None or made_of.dtype.kind != "f":
                    return None
                spans[name] = [_span(found[feature.encode()]) for feature in made_of.features]
                values = sum((stop - start) // dtype.itemsize for start, stop, dtype in spans[name])
                if values != prod(made_of.shape):
                    return None
        except (ValueError, KeyError):
            return None
        free += [(start, stop) for of_input in spans.values() for start, stop, _ in of_input]
        return _Layout.of(record, free, spans)

    def _row(self, record: bytes) -> dict[str, Any]:
        """One record's inputs; ValueError when any is not as it should be."""
        found = features(record, self._kind, self._wanted)
        return {name: _value(record, found, made_of) for name, made_of in self._inputs.items()}


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the numbers are in records of one length, and which bytes say so."""

    size: int
    fixed: NDArray[np.int64]
    told: NDArray[np.uint8]
    spans: Mapping[str, Sequence[tuple[int, int, np.dtype[Any]]]]

    @staticmethod
    def of(
        record: bytes,
        free: Sequence[tuple[int, int]],
        spans: Mapping[str, Sequence[tuple[int, int, np.dtype[Any]]]],
    ) -> "_Layout":
        read = np.ones(len(record), bool)
        for start, stop in free:
            read[start:stop] = False
        fixed = np.flatnonzero(read)
        return _Layout(len(record), fixed, np.frombuffer(record, np.uint8)[fixed], spans)

    def fits(self, record: bytes) -> bool:
        """Whether a record is laid out like this."""
        if len(record) != self.size:
            return False
        return bool((np.frombuffer(record, np.uint8)[self.fixed] == self.told).all())

    def rows(self, block: Block) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """The indices of the block's records that are laid out like this, and their bytes, [n, size]."""
        same = np.flatnonzero(block.ends - block.starts == self.size)
        if not len(same):
            return same, np.empty((0, self.size), np.uint8)
        starts = block.starts[same]
        windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(block.data, np.uint8), self.size)
        records: NDArray[np.uint8] = windows[starts]
        fitting = (records[:, self.fixed] == self.told).all(axis=1)
        return (same, records) if fitting.all() else (same[fitting], records[fitting])


def _span(feature: Feature) -> tuple[int, int, np.dtype[Any]]:
    """Where a feature's numbers stand; ValueError unless they are floating, packed and dense."""
    if feature.kind is None or feature.kind == "bytes" or not is_fixed(feature.kind):
        raise ValueError("not floating")
    dtype = fixed_dtype(feature.kind)
    (values,) = feature.fields.get(VALUES, [])
    size = values.stop - values.start
    if values.wire != BYTES or size % dtype.itemsize or KEYS in feature.fields:
        raise ValueError("not packed and dense")
    return values.start, values.stop, dtype


def _value(record: bytes, found: Mapping[bytes, Feature], made_of: ProtoInput) -> Any:
    """One input's row; ValueError when it is not as it should be."""
    parts: list[Array] = []
    for name in made_of.features:
        feature = found.get(name.encode())
        if feature is None or feature.kind is None:
            raise ValueError(f'feature "{name}" is missing')
        values = feature_values(record, feature, name)
        parts.append(_cast(values, made_of.dtype, name))
    row = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if len(row) != prod(made_of.shape):
        names = ", ".join(f'"{name}"' for name in made_of.features)
        have = f"{len(row)} value{'' if len(row) == 1 else 's'}"
        raise ValueError(f"feature {names} has {have}, {prod(made_of.shape)} expected")
    return row.reshape(made_of.shape) if made_of.shape else row[0]


def _cast(values: Array, dtype: np.dtype[Any] | None, name: str) -> Array:
    if (dtype is None) != (values.dtype.kind == "O"):
        have, want = ("bytes", "numbers") if dtype is not None else ("numbers", "bytes")
        raise ValueError(f'feature "{name}" holds {have}, but {want} are wanted')
    if dtype is None or values.dtype == dtype:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        made = values.astype(dtype)
        if dtype.kind != "f" and not (
            _in_range(values, dtype) and (made.astype(values.dtype) == values).all()
        ):
            raise ValueError(f'feature "{name}" holds numbers that are not {dtype}')
    return made


def _in_range(values: Array, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "b":
        return True
    bounds = np.iinfo(dtype)
    return bool(((values >= bounds.min) & (values < bounds.max + 1)).all())
