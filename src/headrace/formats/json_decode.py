"""JSON records to a model's inputs: the whole record, or fields of it by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Literal

import numpy as np
import orjson
from numpy.typing import DTypeLike

from headrace.core.block import Block, Failure, FailureKind
from headrace.core.errors import ConfigError
from headrace.core.tensor import Array, text_array
from headrace.formats.contract import Decoded
from headrace.formats.csv_cells import Dialect, Rows
from headrace.formats.matrix import FlatNumbers, NumberParser, number_dtype

_INTEGERS: Final = frozenset({int, bool})
_TYPES: Final = {"f": _INTEGERS | {float}, "i": _INTEGERS, "u": _INTEGERS, "b": frozenset({bool})}
"""The types of JSON values that a dtype is made of, by its kind."""
_AXES_MAX: Final = 64
"""The most that numpy's arrays have."""


@dataclass(frozen=True, slots=True)
class JsonField:
    """What of a record one input is made of.

    `path` is a name, or names with dots between them for objects in objects; None is the whole record. `dtype` is
    a boolean, integer or floating dtype, or "text". `shape` is that of one row, () for a single value; None: that
    of the first row ever decoded.
    """

    path: str | None = None
    dtype: DTypeLike | Literal["text"] = np.float32
    shape: tuple[int, ...] | None = None


class JsonDecoder:
    """JSON values to tensors ``[n, *shape]``, one for each field.

    Numbers are JSON numbers (for integer dtypes: written as integers and in range), true and false count as 1 and
    0; text is strings. Failures: a record that is not JSON (kind FORMAT), and one that lacks a field, or whose
    field has another type or shape than it should (kind DECODE). A bad record costs itself alone, and a record that
    fails for one input is in none. Text tensors are object arrays of str.

    `select` is given each parsed record, and gives what of it the fields are looked up in; a ValueError, worded for
    one record, is that record's failure (kind DECODE).
    """

    def __init__(
        self,
        fields: Mapping[str, JsonField],
        *,
        select: Callable[[Any], Any] | None = None,
        flat_numbers: FlatNumbers | None = None,
    ) -> None:
        if not fields:
            raise ConfigError("no fields for any input: name one for each")
        self._fields = {name: _FieldReader(field) for name, field in fields.items()}
        self._read: Callable[[bytes], Any] = (
            orjson.loads if select is None else lambda record: select(orjson.loads(record))
        )
        self._quick: NumberParser | None = None
        if len(fields) == 1 and select is None:
            (only,) = self._fields.values()
            if not only.keys and only.dtype is not None and only.dtype.kind != "b" and only.one_axis:
                # Records that are arrays of numbers are rows of a matrix, with brackets around them.
                self._quick = NumberParser(only.dtype, Dialect(b",", b""), flat_numbers=flat_numbers)

    def decode(self, block: Block) -> Decoded:
        """Every field of every record."""
        quick = self._matrix(block)
        if quick is not None:
            return Decoded(dict.fromkeys(self._fields, quick))
        records = Rows(block.data, block.starts, block.ends).texts(np.arange(len(block)))
        values: list[Any] = []
        rows: list[int] = []
        failures: dict[int, Failure] = {}
        for index, record in enumerate(records):
            try:
                values.append(self._read(record))
                rows.append(index)
            except orjson.JSONDecodeError as error:
                failures[index] = block.failure(index, FailureKind.FORMAT, f"not JSON: {error}")
            except ValueError as error:
                failures[index] = block.failure(index, FailureKind.DECODE, str(error))
        tensors = self._together(values)
        if tensors is None:
            tensors, rows = self._one_by_one(block, values, rows, failures)
        if not failures:
            return Decoded(tensors)
        ordered = tuple(failures[index] for index in sorted(failures))
        return Decoded(tensors, np.array(rows, np.int64), ordered)

    def _matrix(self, block: Block) -> Array | None:
        """A block of flat arrays of numbers, all of one length, without an object for each number."""
        if self._quick is None or not len(block):
            return None
        (field,) = self._fields.values()
        rows = _without_brackets(block) if field.one_axis else None
        if rows is None:
            return None
        width = field.shape[0] if field.shape else rows.row(0).count(b",") + 1
        matrix = self._quick.block(rows, width, negative_zero=False)
        if matrix is not None:
            field.shape = (width,)
        return matrix

    def _together(self, values: list[Any]) -> dict[str, Array] | None:
        """All records at once; None when any is not as it should be."""
        tensors: dict[str, Array] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for name, field in self._fields.items():
            try:
                tensor = field.tensor([field.value(value) for value in values])
            except ValueError:
                return None
            tensors[name] = tensor
            shapes[name] = tensor.shape[1:]
        if values:
            for name, shape in shapes.items():
                self._fields[name].shape = shape
        return tensors

    def _one_by_one(
        self, block: Block, values: list[Any], rows: list[int], failures: dict[int, Failure]
    ) -> tuple[dict[str, Array], list[int]]:
        """The records that decode, put together, and their indices; the others are put among the failures."""
        parts: dict[str, list[Array]] = {name: [] for name in self._fields}
        good: list[int] = []
        for index, value in zip(rows, values, strict=True):
            row: dict[str, Array] = {}
            try:
                for name, field in self._fields.items():
                    row[name] = field.tensor([field.value(value)])
            except ValueError as error:
                failures[index] = block.failure(index, FailureKind.DECODE, str(error))
                continue
            good.append(index)
            for name, tensor in row.items():
                parts[name].append(tensor)
                self._fields[name].shape = tensor.shape[1:]
        tensors = {
            name: np.concatenate(parts[name]) if good else field.nothing()
            for name, field in self._fields.items()
        }
        return tensors, good


class _FieldReader:
    """Reads one field; learns its shape from the first row."""

    def __init__(self, field: JsonField) -> None:
        self.keys = tuple(field.path.split(".")) if field.path is not None else ()
        self.dtype = None if field.dtype == "text" else number_dtype(field.dtype)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]  # DTypeLike
        self.shape = field.shape
        self._label = f'field "{field.path}"' if self.keys else "the record"

    @property
    def one_axis(self) -> bool:
        """Whether a row may be a flat array."""
        return self.shape is None or len(self.shape) == 1

    def nothing(self) -> Array:
        """The tensor of no rows."""
        return np.empty((0, *(self.shape or ())), self.dtype or np.dtype(object))

    def value(self, record: Any) -> Any:
        """The field in one record; ValueError when it is not there."""
        for depth, key in enumerate(self.keys):
            try:
                record = record[key]
            except (KeyError, TypeError, IndexError):
                raise ValueError(self._missing(record, depth)) from None
        return record

    def tensor(self, values: list[Any]) -> Array:
        """Rows of these values; ValueError, worded for one row, when any does not fit."""
        if not values:
            return self.nothing()
        array = self._text(values) if self.dtype is None else self._numbers(values, self.dtype)
        if self.shape is not None and array.shape[1:] != self.shape:
            raise ValueError(f"{self._label} has {_words(array.shape[1:])}, {_words(self.shape)} expected")
        return array

    def _numbers(self, values: list[Any], dtype: np.dtype[Any]) -> Array:
        flat, shape, types = self._leaves(values)
        if not types <= _TYPES[dtype.kind]:
            raise ValueError(f"{self._label} is not {_wanted(dtype)}, but {_excerpt(values[0])}")
        if dtype.kind in "fb":
            # By way of float64, as every other way has it: rounding once more would differ in the last bit.
            with np.errstate(over="ignore"):
                return np.array(flat, np.float64).astype(dtype).reshape(shape)
        bounds = np.iinfo(dtype)
        if flat and not (bounds.min <= min(flat) and max(flat) <= bounds.max):
            raise ValueError(f"{self._label} is not {_wanted(dtype)}, but {_excerpt(values[0])}")
        return np.array(flat, dtype).reshape(shape)

    def _text(self, values: list[Any]) -> Array:
        flat, shape, types = self._leaves(values)
        if not types <= {str}:
            raise ValueError(f"{self._label} is not text, but {_excerpt(values[0])}")
        return text_array(flat).reshape(shape)

    def _leaves(self, values: list[Any]) -> tuple[list[Any], tuple[int, ...], set[type]]:
        """What nested lists hold, their shape, and the types of what they hold; ValueError when they are uneven.

        Not by numpy: it takes "1.5" for a number, and one long string makes room as long for every value.
        """
        shape = [len(values)]
        types = set(map(type, values))
        while list in types:
            lengths = set(map(len, values)) if len(types) == 1 else set[int]()
            if len(lengths) != 1:
                raise ValueError(f"{self._label} is not an array of the same shape everywhere")
            if len(shape) == _AXES_MAX:
                raise ValueError(f"{self._label} is nested deeper than the {_AXES_MAX} axes of an array")
            shape.append(lengths.pop())
            values = list(chain.from_iterable(values))
            types = set(map(type, values))
        return values, tuple(shape), types

    def _missing(self, inner: Any, depth: int) -> str:
        where = f'field "{".".join(self.keys[:depth])}"' if depth else "the record"
        if not isinstance(inner, dict):
            return f'{where} is not an object with "{self.keys[depth]}" in it, but {_excerpt(inner)}'
        names = ", ".join(f'"{name[:50]}"' for name in list(inner)[:20])  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # parsed JSON
        return f"{self._label} is missing: {where} has {names or 'nothing'}"


def _without_brackets(block: Block) -> Rows | None:
    """Rows of what is inside each record's brackets; None when any record is not a flat array."""
    if not block.data:
        return None
    values = np.frombuffer(block.data, np.uint8)
    starts, stops = block.starts, block.ends - 1
    if not ((values[starts] == 0x5B) & (values[stops] == 0x5D) & (stops > starts)).all():
        return None
    origin, stop = int(starts[0]), int(block.ends[-1])
    text = block.data[origin:stop]
    if text.count(b"[") != len(block) or text.count(b"]") != len(block):
        return None
    # Spaces in their place keep every offset; around a number they mean nothing.
    text = text.replace(b"[", b" ").replace(b"]", b" ")
    return Rows(text, starts - origin, block.ends - origin)


def _wanted(dtype: np.dtype[Any]) -> str:
    """What a JSON value of this dtype is, in words."""
    names = {"f": "a number", "b": "true or false"}
    return names.get(dtype.kind, f"an integer that {dtype} holds")


def _words(shape: tuple[int, ...]) -> str:
    return f"{' x '.join(map(str, shape))} values" if shape else "one value"


def _excerpt(value: Any) -> str:
    try:
        text = orjson.dumps(value).decode()
    except TypeError:  # nested deeper than it writes, though not than it reads
        return "nested too deeply to show"
    return text if len(text) <= 80 else text[:80] + "…"
