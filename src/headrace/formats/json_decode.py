"""JSON records as inputs of a model: the whole record, or fields of the record by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Literal, cast

import numpy as np
import orjson
from numpy.typing import DTypeLike
from typing_extensions import override

from headrace.core.block import Block, FailureKind
from headrace.core.errors import ConfigError
from headrace.core.tensor import Array, text_array
from headrace.formats.contract import DecodedBlock, Decoder, FailureReasons
from headrace.formats.csv import TextRows
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.encoding import UTF8, invalid_reason, is_utf8
from headrace.formats.matrix import FlatNumbers, NumberParser, number_dtype

_INTEGERS: Final = frozenset({int, bool})
_JSON_TYPES: Final = {"f": _INTEGERS | {float}, "i": _INTEGERS, "u": _INTEGERS, "b": frozenset({bool})}
"""The types of JSON values that a dtype accepts, by the kind of the dtype."""
_AXES_MAX: Final = 64
"""The maximum number of axes of a numpy array."""


@dataclass(frozen=True, slots=True)
class JsonField:
    """The part of a record that one input is made of.

    `path` is a name, or names with dots between them for nested objects; None is the whole record. A field
    whose own name is the path goes before nested ones.
    `dtype` is a boolean, integer or floating dtype, or "text". `shape` is the shape of one row, ()
    for a single value; None is the shape of the first decoded row.
    """

    path: str | None = None
    dtype: DTypeLike | Literal["text"] = np.float32
    shape: tuple[int, ...] | None = None


class JsonDecoder(Decoder):
    """A decoder of JSON values into tensors ``[n, *shape]``, one for each field.

    Numbers are JSON numbers. For integer dtypes they must be written as integers and be in range.
    true and false count as 1 and 0. Text is strings; text tensors are object arrays of str.

    Failures are a record that is not JSON (kind FORMAT), and a record that lacks a field or whose
    field has another type or shape (kind DECODE). A bad record fails alone, and a record that fails
    for one input is missing from all inputs.

    `select` receives each parsed record and returns the value in which the fields are looked up. A
    ValueError from `select` is the failure of that record (kind DECODE). `encoding` is that of the
    source, for messages.
    """

    def __init__(
        self,
        fields: Mapping[str, JsonField],
        *,
        select: Callable[[Any], Any] | None = None,
        encoding: str = UTF8,
        flat_numbers: FlatNumbers | None = None,
    ) -> None:
        if not fields:
            raise ConfigError("no inputs are mapped to fields: map at least one input to a field")
        self._fields = {name: _FieldReader(field) for name, field in fields.items()}
        self._parse_record: Callable[[bytes], Any] = (
            orjson.loads if select is None else lambda record: select(orjson.loads(record))
        )
        self._encoding = encoding
        self._matrix_parser: NumberParser | None = None
        if len(fields) == 1 and select is None:
            (single_field,) = self._fields.values()
            if (
                not single_field.keys
                and single_field.dtype is not None
                and single_field.dtype.kind != "b"
                and single_field.is_flat
            ):
                # Records that are number arrays are rows of a matrix, apart from their brackets.
                self._matrix_parser = NumberParser(
                    single_field.dtype, CsvDialect(b",", b""), flat_numbers=flat_numbers
                )

    @override
    def decode(self, block: Block) -> DecodedBlock:
        matrix = self._decode_matrix(block)
        if matrix is not None:
            return DecodedBlock(dict.fromkeys(self._fields, matrix))
        values: list[Any] = []
        rows: list[int] = []
        reasons: FailureReasons = {}
        for index, record in enumerate(block.texts()):
            try:
                values.append(self._parse_record(record))
                rows.append(index)
            except orjson.JSONDecodeError as error:
                reasons[index] = (FailureKind.FORMAT, self._syntax_reason(record, error))
            except ValueError as error:
                reasons[index] = (FailureKind.DECODE, str(error))
        tensors = self._decode_together(values)
        if tensors is None:
            tensors = self._decode_each(values, rows, reasons)
        return DecodedBlock.with_failures(tensors, block, reasons)

    def _syntax_reason(self, record: bytes, error: orjson.JSONDecodeError) -> str:
        if not is_utf8(self._encoding):
            try:
                record.decode()
            except UnicodeDecodeError:
                return f"not JSON: {invalid_reason(self._encoding)}"
        return f"not JSON: {error}"

    def _decode_matrix(self, block: Block) -> Array | None:
        """Decode a block of flat number arrays of equal length without a Python object per number.

        Return None for any other block.
        """
        if self._matrix_parser is None or not len(block):
            return None
        (field,) = self._fields.values()
        rows = _strip_brackets(block) if field.is_flat else None
        if rows is None:
            return None
        width = field.shape[0] if field.shape else rows.row(0).count(b",") + 1
        matrix = self._matrix_parser.parse_block(rows, width, negative_zero=False)
        if matrix is not None:
            field.shape = (width,)
        return matrix

    def _decode_together(self, values: list[Any]) -> dict[str, Array] | None:
        """Decode all records at once; return None if any record is invalid."""
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

    def _decode_each(self, values: list[Any], rows: list[int], reasons: FailureReasons) -> dict[str, Array]:
        """Return the tensors of the valid records; add the others to `reasons`."""
        parts: dict[str, list[Array]] = {name: [] for name in self._fields}
        for index, value in zip(rows, values, strict=True):
            row: dict[str, Array] = {}
            try:
                for name, field in self._fields.items():
                    row[name] = field.tensor([field.value(value)])
            except ValueError as error:
                reasons[index] = (FailureKind.DECODE, str(error))
                continue
            for name, tensor in row.items():
                parts[name].append(tensor)
                self._fields[name].shape = tensor.shape[1:]
        return {
            name: np.concatenate(parts[name]) if parts[name] else field.empty_tensor()
            for name, field in self._fields.items()
        }


class _FieldReader:
    """A reader of one field that takes its shape from the first row."""

    def __init__(self, field: JsonField) -> None:
        self.keys = tuple(field.path.split(".")) if field.path is not None else ()
        dtype: Any = field.dtype  # pyright: ignore[reportUnknownMemberType]
        self.dtype = None if dtype == "text" else number_dtype(dtype)
        self.shape = field.shape
        self._path = field.path or ""
        self._label = f'field "{field.path}"' if self.keys else "the record"

    @property
    def is_flat(self) -> bool:
        """Return True if a row may be a flat array."""
        return self.shape is None or len(self.shape) == 1

    def empty_tensor(self) -> Array:
        """Return the tensor of zero rows."""
        return np.empty((0, *(self.shape or ())), self.dtype or np.dtype(object))

    def value(self, record: Any) -> Any:
        """Return the field of one record. Raise ValueError if it is missing."""
        if len(self.keys) > 1 and self._path in (members := _members(record)):
            return members[self._path]
        for depth, key in enumerate(self.keys):
            try:
                record = record[key]
            except (KeyError, TypeError, IndexError):
                raise ValueError(self._missing_reason(record, depth)) from None
        return record

    def tensor(self, values: list[Any]) -> Array:
        """Return the values as rows. Raise ValueError, worded for one row, if any value is invalid."""
        if not values:
            return self.empty_tensor()
        array = self._text_tensor(values) if self.dtype is None else self._number_tensor(values, self.dtype)
        if self.shape is not None and array.shape[1:] != self.shape:
            raise ValueError(
                f"{self._label} has {_shape_text(array.shape[1:])}, {_shape_text(self.shape)} expected"
            )
        return array

    def _number_tensor(self, values: list[Any], dtype: np.dtype[Any]) -> Array:
        flat, shape, types = self._flatten_lists(values)
        if not types <= _JSON_TYPES[dtype.kind]:
            raise ValueError(f"{self._label} is not {_expected_text(dtype)}: {_excerpt(values[0])}")
        if dtype.kind in "fb":
            # Values go through float64 as on every other path: another rounding would differ in the
            # last bit.
            with np.errstate(over="ignore"):
                return np.array(flat, np.float64).astype(dtype).reshape(shape)
        bounds = np.iinfo(dtype)
        if flat and not (bounds.min <= min(flat) and max(flat) <= bounds.max):
            raise ValueError(f"{self._label} is not {_expected_text(dtype)}: {_excerpt(values[0])}")
        return np.array(flat, dtype).reshape(shape)

    def _text_tensor(self, values: list[Any]) -> Array:
        flat, shape, types = self._flatten_lists(values)
        if not types <= {str}:
            raise ValueError(f"{self._label} is not text: {_excerpt(values[0])}")
        return text_array(flat).reshape(shape)

    def _flatten_lists(self, values: list[Any]) -> tuple[list[Any], tuple[int, ...], set[type]]:
        """Return the leaves of nested lists, their shape, and the types of the leaves.

        Raise ValueError if the lists are uneven. numpy is not used here: it would accept "1.5" as a
        number, and one long string would give every value that much space.
        """
        shape = [len(values)]
        types = set(map(type, values))
        while list in types:
            lengths = set(map(len, values)) if len(types) == 1 else set[int]()
            if len(lengths) != 1:
                raise ValueError(f"{self._label} is not an array with nested arrays of one shape")
            if len(shape) == _AXES_MAX:
                raise ValueError(f"{self._label} is nested deeper than the limit of {_AXES_MAX} array axes")
            shape.append(lengths.pop())
            values = list(chain.from_iterable(values))
            types = set(map(type, values))
        return values, tuple(shape), types

    def _missing_reason(self, inner: Any, depth: int) -> str:
        container = f'field "{".".join(self.keys[:depth])}"' if depth else "the record"
        if not isinstance(inner, dict):
            return f'{container} is not an object with member "{self.keys[depth]}": {_excerpt(inner)}'
        members = _members(cast("Any", inner))
        names = ", ".join(f'"{name[:50]}"' for name in list(members)[:20])
        return f"{self._label} is missing: {container} has {names or 'nothing'}"


def _members(value: Any) -> Mapping[str, Any]:
    """Return the members of a JSON object; none of another value."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _strip_brackets(block: Block) -> TextRows | None:
    """Return the content of each record's brackets as rows.

    Return None if a record is not a flat array.
    """
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
    # Spaces keep every offset, and have no meaning around numbers.
    text = text.replace(b"[", b" ").replace(b"]", b" ")
    return TextRows(text, starts - origin, block.ends - origin)


def _expected_text(dtype: np.dtype[Any]) -> str:
    """Return a description of a JSON value of this dtype for messages."""
    names = {"f": "a number", "b": "true or false"}
    return names.get(dtype.kind, f"an integer that {dtype} holds")


def _shape_text(shape: tuple[int, ...]) -> str:
    return f"{' x '.join(map(str, shape))} values" if shape else "one value"


def _excerpt(value: Any) -> str:
    try:
        text = orjson.dumps(value).decode()
    except TypeError:  # The value is nested deeper than orjson writes, though not deeper than orjson reads.
        return "nested too deeply to show"
    return text if len(text) <= 80 else text[:80] + "…"
