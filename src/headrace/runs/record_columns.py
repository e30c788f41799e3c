"""The typed columns of records for outputs that are tables: rows of tables, CSV cells and JSON fields."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import orjson
from typing_extensions import override

from headrace.core.block import Block, Position, RecordTable
from headrace.core.errors import ConfigError, DataError
from headrace.core.tensor import Array
from headrace.formats.arrow import compute_functions, pyarrow
from headrace.formats.contract import BlockSelection
from headrace.formats.csv import TextRows, cell_grid, column_texts
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.encode import json_text, raw_records
from headrace.formats.matrix import parse_number
from headrace.formats.parquet import RecordColumns
from headrace.formats.record_table import ArrowTable, flat_array
from headrace.runs.schema import Column, ColumnType, columns_names

_NUMBER_TYPES: Final[dict[ColumnType, Any]] = {
    "boolean": pyarrow.bool_(),
    "integer": pyarrow.int64(),
    "number": pyarrow.float64(),
}
_EXPECTED: Final[dict[ColumnType, str]] = {
    "boolean": "a boolean",
    "integer": "an integer that int64 holds",
    "number": "a number",
}
_INTEGER: Final = r"^[+-]?(0|[1-9][0-9]*)$"
"""Integers that keep their digits: `007` is text."""
_EXCERPT_CHARS: Final = 80
_REMEDY: Final = "correct the record, or set the type of the column to text in a schema file (--schema)"


class TableColumns(RecordColumns):
    """The columns of rows of tables, with the types of the first table.

    Columns of later tables are found by their names. A column of another type of the same kind, such as
    int32 and int64, is cast without loss.

    `batch` raises ConfigError for a table with other columns or another kind of column, and DataError for a
    value that the type cannot hold.
    """

    def __init__(
        self, table: RecordTable, *, has_dictionaries: bool, kept: Sequence[str] | None = None
    ) -> None:
        schema: Any = cast("ArrowTable", table if kept is None else table.select(kept)).batch.schema
        if not has_dictionaries:
            schema = pyarrow.schema([field.with_type(_plain_type(field.type)) for field in schema])
        self.schema = schema
        self._has_all = kept is None

    @override
    def batch(self, selection: BlockSelection) -> Any:
        table = selection.block.table
        if table is None:
            raise ConfigError(_other_columns(selection.block.first, "no columns of a table"))
        rows: Any = cast("ArrowTable", table).batch
        if selection.rows is None:
            rows = rows.slice(selection.start, len(selection))
        else:
            rows = rows.take(pyarrow.array(selection.rows))
        if rows.schema.equals(self.schema):
            return rows
        first = selection.block.first
        missing = set(self.schema.names).difference(rows.schema.names)
        if missing or (self._has_all and len(rows.schema.names) > len(self.schema.names)):
            raise ConfigError(_other_columns(first, ", ".join(rows.schema.names)))
        columns = [_cast(rows.column(field.name), field, first) for field in self.schema]
        return pyarrow.record_batch(columns, schema=self.schema)


def _other_columns(first: Position, found: str) -> str:
    return (
        f"the records from {first} on have {found}, those before have other columns, and cannot share one "
        "table: run one layout at a time, or use headrace transform, which writes a table for each object"
    )


def _cast(column: Any, field: Any, first: Position) -> Any:
    if column.type.equals(field.type):
        return column
    if not pyarrow.types.is_null(column.type) and _kind(column.type) != _kind(field.type):
        raise ConfigError(
            f"column {field.name!r} of the records from {first} on has the type {column.type}, that of the "
            f"records before has the type {field.type}: run one layout at a time, or use headrace transform, "
            "which writes a table for each object"
        )
    try:
        return column.cast(field.type)
    except pyarrow.ArrowNotImplementedError:
        raise ConfigError(
            f"column {field.name!r} of the records from {first} on has the type {column.type}, which cannot "
            f"become {field.type}, the type of the records before: run one layout at a time"
        ) from None
    except pyarrow.ArrowInvalid as error:
        why = f"column {field.name!r}: not exact as {field.type}, the type of its column: {error}"
        raise DataError(why) from None


def _kind(kind: Any) -> str:
    """Return the kind of a type: casts within a kind keep the meaning of values."""
    types = pyarrow.types
    if types.is_dictionary(kind):
        return _kind(kind.value_type)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamp with zone"
    return "list" if _is_list(kind) else "struct" if types.is_struct(kind) else str(kind)


def _is_list(kind: Any) -> bool:
    types = pyarrow.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _plain_type(kind: Any) -> Any:
    """Return the type without dictionaries: a file of Arrow can have only one for a column."""
    types = pyarrow.types
    if types.is_dictionary(kind):
        return kind.value_type
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_plain_type(kind.value_type)), kind.list_size)
    if _is_list(kind):
        make = pyarrow.large_list if types.is_large_list(kind) else pyarrow.list_
        return make(kind.value_field.with_type(_plain_type(kind.value_type)))
    return kind


def column_type(column: Column) -> Any:
    """Return the Arrow type of a column of text records.

    Lists have any length. Nested objects, and lists whose sampled values are empty, are JSON text.
    """
    if column.type in ("object", "null") or 0 in column.shape:
        return pyarrow.string()
    kind = _NUMBER_TYPES.get(column.type, pyarrow.string())
    for _ in column.shape:
        kind = pyarrow.list_(kind)
    return kind


def columns_schema(columns: Sequence[Column]) -> Any:
    """Return the Arrow schema of columns of text records; columns without names have their numbers."""
    return pyarrow.schema(list(zip(columns_names(columns), map(column_type, columns), strict=True)))


class CsvColumns(RecordColumns):
    """The cells of CSV records as typed columns.

    Empty cells and null words are null. Text is unchanged. A record that names its columns differently
    from another object has its cells found by their names.

    `batch` raises ConfigError for an object without one of the columns, and DataError for a cell that is
    not of its column's type, or a record with another number of cells.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        dialect_of: Callable[[Block], CsvDialect],
        kept: Sequence[str] | None = None,
    ) -> None:
        schema = columns_schema(columns)
        self._all_names: list[str] = schema.names
        self.schema = schema if kept is None else pyarrow.schema([schema.field(name) for name in kept])
        self._columns = [columns[self._all_names.index(name)] for name in self.schema.names]
        self._dialect_of = dialect_of

    @override
    def batch(self, selection: BlockSelection) -> Any:
        block, rows = selection.block, selection.indices()
        dialect, places, width = self._dialect_of(block), self._places(block), len(self._all_names)
        grid = cell_grid(TextRows(block.data, block.starts[rows], block.ends[rows]), dialect, width)
        if grid.ragged:
            raise DataError(f"has {next(iter(grid.ragged.values()))} columns, {width} expected")
        arrays: list[Any] = []
        for column, field, place in zip(self._columns, self.schema, places, strict=True):
            cells = column_texts(grid, place)
            if not dialect.is_split_by_delimiters(grid.data):
                cells = [dialect.cells(cell)[0] for cell in cells]
            try:
                arrays.append(_cells_array(cells, column.type, dialect))
            except ValueError as error:
                raise DataError(f"column {field.name!r}: {error}: {_REMEDY}") from None
        return pyarrow.record_batch(arrays, schema=self.schema)

    def _places(self, block: Block) -> Sequence[int]:
        """Return the place of each column in the records of a block."""
        names = list(block.column_names or self._all_names)
        if sorted(names) != sorted(self._all_names):
            raise ConfigError(_other_columns(block.first, ", ".join(names)))
        return [names.index(name) for name in self.schema.names]


def _cells_array(cells: Sequence[bytes], kind: ColumnType, dialect: CsvDialect) -> Any:
    """Return cells as an array of a type. Raise ValueError for a cell of another type."""
    compute = compute_functions()
    try:
        texts = pyarrow.array(cells, pyarrow.binary()).cast(pyarrow.string())
    except pyarrow.ArrowInvalid:
        raise ValueError("not UTF-8") from None
    trimmed = compute.utf8_trim_whitespace(texts)
    is_null = compute.is_in(trimmed, pyarrow.array(["", *dialect.null_words], pyarrow.string()))
    if kind not in _NUMBER_TYPES:
        return compute.if_else(is_null, pyarrow.scalar(None, pyarrow.string()), texts)
    values = compute.if_else(is_null, pyarrow.scalar(None, pyarrow.string()), trimmed)
    if kind == "boolean":
        return _booleans(compute, values)
    return _integers(compute, values) if kind == "integer" else _numbers(compute, values, dialect)


def _booleans(compute: Any, texts: Any) -> Any:
    lower = compute.utf8_lower(texts)
    is_true = compute.is_in(lower, pyarrow.array(["true", "1"]))
    _check_all(compute, texts, compute.is_in(lower, pyarrow.array(["true", "false", "1", "0"])), "a boolean")
    return compute.if_else(texts.is_null(), pyarrow.scalar(None, pyarrow.bool_()), is_true)


def _integers(compute: Any, texts: Any) -> Any:
    expected = "an integer without leading zeros"
    _check_all(compute, texts, compute.match_substring_regex(texts, _INTEGER), expected)
    try:
        return compute.utf8_ltrim(texts, "+").cast(pyarrow.int64())
    except pyarrow.ArrowInvalid:
        raise ValueError("an integer is too large for int64") from None


def _check_all(compute: Any, texts: Any, is_valid: Any, expected: str) -> None:
    """Raise ValueError for the first text that is not null and not valid."""
    valid = compute.if_else(texts.is_null(), pyarrow.scalar(value=True), is_valid)
    invalid = np.flatnonzero(~valid.to_numpy(zero_copy_only=False))
    if len(invalid):
        raise ValueError(f'"{texts[int(invalid[0])].as_py()[:_EXCERPT_CHARS]}" is not {expected}')


def _numbers(compute: Any, texts: Any, dialect: CsvDialect) -> Any:
    if dialect.decimal == "." and not compute.any(compute.match_substring(texts, "(")).as_py():
        try:
            return texts.cast(pyarrow.float64())
        except pyarrow.ArrowInvalid:
            # The parser below accepts all numbers that models accept, and names the others.
            pass
    found = cast("list[str | None]", texts.to_pylist())
    numbers = [None if text is None else _number(text, dialect) for text in found]
    return pyarrow.array(numbers, pyarrow.float64())


def _number(text: str, dialect: CsvDialect) -> float:
    try:
        return parse_number(text, dialect.decimal)
    except ValueError:
        raise ValueError(f'"{text[:_EXCERPT_CHARS]}" is not a number') from None


class JsonColumns(RecordColumns):
    """The fields of JSON objects as typed columns. A text column holds any value, other values as JSON.

    `batch` raises ConfigError for records that are not JSON; and DataError for a value that is not of its
    column's type, for a field without a column, and for a record that is not an object.
    """

    def __init__(
        self, columns: Sequence[Column], is_json: Callable[[Block], bool], kept: Sequence[str] | None = None
    ) -> None:
        self._columns = [column for column in columns if kept is None or column.name in kept]
        self.schema = columns_schema(self._columns)
        self._is_json = is_json
        self._names = frozenset(self.schema.names) if kept is None else None
        """The names of the columns; None if other fields are left out."""

    @override
    def batch(self, selection: BlockSelection) -> Any:
        if not self._is_json(selection.block):
            raise ConfigError(_other_columns(selection.block.first, "no fields of JSON"))
        records = [self._fields(record) for record in raw_records(selection)]
        arrays: list[Any] = []
        for column, field in zip(self._columns, self.schema, strict=True):
            is_text = field.type.equals(pyarrow.string())
            kind, depth = ("text", 0) if is_text else (column.type, len(column.shape))
            try:
                values = [_typed(record.get(field.name), kind, depth) for record in records]
            except ValueError as error:
                raise DataError(f'field "{field.name}": {error}: {_REMEDY}') from None
            arrays.append(pyarrow.array(values, field.type))
        return pyarrow.record_batch(arrays, schema=self.schema)

    def _fields(self, record: bytes) -> dict[str, Any]:
        value: Any = orjson.loads(record)
        if not isinstance(value, dict):
            raise DataError(f"not a JSON object, as most records are: {_REMEDY}")
        fields = cast("dict[str, Any]", value)
        names = fields if self._names is None else self._names
        unknown = next((name for name in fields if name not in names), None)
        if unknown is not None:
            raise DataError(
                f'field "{unknown}" has no column: add the field to a schema file (--schema), or choose '
                "columns with --keep"
            )
        return fields


class ChosenColumns(RecordColumns):
    """Some columns of others under new names: `names` are the new names by the old ones, in order."""

    def __init__(self, columns: RecordColumns, names: Mapping[str, str]) -> None:
        fields = [columns.schema.field(old).with_name(new) for old, new in names.items()]
        self.schema = pyarrow.schema(fields)
        self._columns = columns
        self._old_names = list(names)

    @override
    def batch(self, selection: BlockSelection) -> Any:
        chosen = self._columns.batch(selection).select(self._old_names)
        return pyarrow.record_batch(chosen.columns, schema=self.schema)


def record_arrays(columns: RecordColumns, selections: Sequence[BlockSelection]) -> dict[str, Array]:
    """Return the columns of the selected records as arrays, for outputs of text.

    Nulls are None, in arrays of objects. Nested values are Python's lists and dictionaries.
    """
    batches = [columns.batch(selection) for selection in selections]
    table: Any = pyarrow.Table.from_batches(batches, columns.schema).combine_chunks()
    return {name: _values(table.column(name)) for name in table.column_names}


def _values(column: Any) -> Array:
    values = flat_array(column.combine_chunks())
    if values is not None:
        return values
    nested = np.empty(len(column), object)
    nested[:] = column.to_pylist()
    return nested


def _typed(value: Any, kind: ColumnType, depth: int) -> Any:
    """Return a JSON value as a value of a column, null as None. Raise ValueError if the types differ."""
    if value is None:
        return None
    if depth:
        if not isinstance(value, list):
            raise ValueError(f"{_excerpt(value)} is not a list")
        return [_typed(item, kind, depth - 1) for item in cast("list[Any]", value)]
    if kind == "text":
        return value if isinstance(value, str) else json_text(value).decode()
    if kind == "boolean" and isinstance(value, bool):
        return value
    if kind != "boolean" and isinstance(value, int) and not isinstance(value, bool):
        if kind == "number":
            return float(value)
        if -(1 << 63) <= value < 1 << 63:
            return value
    if kind == "number" and isinstance(value, float):
        return value
    raise ValueError(f"{_excerpt(value)} is not {_EXPECTED.get(kind, kind)}")


def _excerpt(value: Any) -> str:
    return json_text(value).decode()[:_EXCERPT_CHARS]
