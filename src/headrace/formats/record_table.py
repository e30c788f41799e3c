"""Tables of records: Arrow batches as the records of blocks, with their rows as JSON and as arrays.

Blocks of tables pass Arrow's columns from the reader to the encoder. A row becomes text only for people:
in the files of failed records, and in outputs of text that are joined with their inputs.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray
from typing_extensions import override

from headrace.core.block import RAW_BYTES_KEPT_MAX, Block, Failure, FailureKind, Position, RecordTable
from headrace.core.errors import CorruptError, MissingExtraError
from headrace.core.tensor import Array, text_array
from headrace.formats.arrow import compute_functions, pyarrow
from headrace.formats.column_decode import nullable_array
from headrace.formats.contract import BLOCK_BYTES_MAX
from headrace.formats.encode import json_text

ROWS_MAX: Final = 8192
"""Maximum number of rows in one block."""
_NULL: Final = b"null"


class ArrowTable(RecordTable):
    """A `RecordTable` of one Arrow record batch, whose values `batch` holds.

    `rows_text` describes the rows as JSON, and `flat_array` the arrays of columns.
    """

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self._arrays: dict[str, Array | None] = {}

    @property
    @override
    def names(self) -> tuple[str, ...]:
        return tuple(self.batch.schema.names)

    @property
    @override
    def nbytes(self) -> int:
        return _row_bytes(self.batch)

    @override
    def array(self, name: str) -> Array | None:
        if name not in self._arrays:
            column = self._column(name)
            self._arrays[name] = None if column is None else flat_array(column)
        return self._arrays[name]

    def _column(self, name: str) -> Any:
        """Return the column with this name, or the field of structs at this dotted path, or None."""
        if name in self.names:
            return self.batch.column(name)
        head, *fields = name.split(".")
        column = self.batch.column(head) if fields and head in self.names else None
        for field in fields:
            if column is None or not pyarrow.types.is_struct(column.type):
                return None
            place = column.type.get_field_index(field)
            # Flattening makes a field null where its struct is null.
            column = column.flatten()[place] if place >= 0 else None
        return column

    @override
    def texts(self, rows: NDArray[np.int64] | None = None) -> list[bytes]:
        return rows_text(self.batch if rows is None else self.batch.take(rows))

    @override
    def select(self, names: Sequence[str]) -> "ArrowTable":
        return ArrowTable(self.batch.select(list(names)))

    @override
    def take(self, rows: NDArray[np.int64]) -> "ArrowTable":
        return ArrowTable(self.batch.take(rows))

    @override
    def slice(self, start: int, stop: int) -> "ArrowTable":
        return ArrowTable(self.batch.slice(start, max(stop - start, 0)))


def cut_batches(batches: Iterable[Any], first: Position, *, record_bytes_max: int) -> Iterator[Block]:
    """Yield the rows of consecutive record batches of any size as blocks of bounded size.

    `first` is the position of the first row of all. Oversized rows are failures, as in `table_blocks`.
    """
    for batch in batches:
        yield from _cut_batch(batch, first, record_bytes_max=record_bytes_max)
        first = replace(first, record=first.record + batch.num_rows)


def _cut_batch(batch: Any, first: Position, *, record_bytes_max: int) -> Iterator[Block]:
    row_bytes = _row_bytes(batch) // max(batch.num_rows, 1)
    rows = min(ROWS_MAX, max(BLOCK_BYTES_MAX // max(row_bytes, 1), 1))
    for start in range(0, batch.num_rows, rows):
        at = replace(first, record=first.record + start)
        yield from table_blocks(batch.slice(start, rows), at, record_bytes_max=record_bytes_max)


def empty_block(schema: Any, first: Position) -> Block:
    """Return a block without rows, whose table has the columns of an Arrow schema."""
    return next(table_blocks(pyarrow.RecordBatch.from_pylist([], schema=schema), first, record_bytes_max=1))


def table_blocks(batch: Any, first: Position, *, record_bytes_max: int) -> Iterator[Block]:
    """Yield the rows of a record batch as blocks; `first` is the position of the first row.

    A row of more than `record_bytes_max` in memory becomes a failure (kind FORMAT), at the end of a block.
    """
    table = ArrowTable(batch)
    row_bytes = max(table.nbytes // max(batch.num_rows, 1), 1)
    start = 0
    for row in _oversized_rows(batch, record_bytes_max):
        at = replace(first, record=first.record + row)
        why = f"longer than record_bytes_max={record_bytes_max} in memory"
        raw = table.texts(np.array([row]))[0][: min(record_bytes_max, RAW_BYTES_KEPT_MAX)]
        block = _block(table.slice(start, row), replace(first, record=first.record + start), row_bytes)
        yield replace(block, failures=(Failure(at, FailureKind.FORMAT, why, raw),))
        start = row + 1
    if start < batch.num_rows or not batch.num_rows:
        rest = table.slice(start, batch.num_rows)
        yield _block(rest, replace(first, record=first.record + start), row_bytes)


def conform(
    block: Block,
    table_schema: str,
    values: Mapping[str, str | None],
    wanted: Sequence[str] | None = None,
) -> Block:
    """Return a block of a data file with the columns of its table (see `TableFile`), or the `wanted` ones.

    Raises CorruptError for values that do not fit the types of the table.
    """
    batch: Any = block.table.batch if isinstance(block.table, ArrowTable) else None
    if batch is None:
        return block
    schema = _schema(table_schema)
    if wanted is not None:
        schema = pyarrow.schema([field for field in schema if field.name in wanted] or schema)
    columns = [_conformed_column(batch, field, values) for field in schema]
    table = ArrowTable(pyarrow.record_batch(columns, schema=schema))
    return replace(block, table=table, column_names=table.names)


def schema_text(schema: Any) -> str:
    """Return the text of an Arrow schema that `conform` takes."""
    return b64encode(schema.serialize().to_pybytes()).decode()


@lru_cache(maxsize=16)
def _schema(text: str) -> Any:
    return pyarrow.ipc.read_schema(pyarrow.py_buffer(b64decode(text)))


def _conformed_column(batch: Any, field: Any, values: Mapping[str, str | None]) -> Any:
    if field.name in values and field.name not in batch.schema.names:
        return pyarrow.repeat(
            pyarrow.scalar(values[field.name], pyarrow.string()).cast(field.type), len(batch)
        )
    if field.name not in batch.schema.names:
        return pyarrow.nulls(len(batch), field.type)
    column = batch.column(field.name)
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pyarrow.ArrowException as error:
        raise CorruptError(
            f"column {field.name!r} is not {field.type} as in its table: {error}", byte=0
        ) from error


def _oversized_rows(batch: Any, record_bytes_max: int) -> Sequence[int]:
    if _row_bytes(batch) <= record_bytes_max:
        return ()
    return [row for row in range(batch.num_rows) if _row_bytes(batch.slice(row, 1)) > record_bytes_max]


def _row_bytes(batch: Any) -> int:
    """Return the size of the rows in memory, without dictionaries, which all rows share."""
    is_dictionary = pyarrow.types.is_dictionary
    return sum((c.indices if is_dictionary(c.type) else c).nbytes for c in batch.columns)


def _block(table: ArrowTable, first: Position, row_bytes: int) -> Block:
    # All blocks of a batch have the same sizes, so that a resumption batches their rows alike.
    starts = np.arange(table.batch.num_rows, dtype=np.int64) * row_bytes
    return Block(first, b"", starts, starts + row_bytes, column_names=table.names, table=table)


def check_nested(batch: Any) -> None:
    """Raise an exception of Arrow if nested columns are damaged, which Arrow does not check in a file."""
    nested = [i for i, field in enumerate(batch.schema) if pyarrow.types.is_nested(field.type)]
    if nested:
        batch.select(nested).validate(full=True)


def rows_text(batch: Any) -> list[bytes]:
    """Return each row of a record batch as a JSON object.

    Numbers have the fewest digits that read back the same value. NaN and infinities are null. Decimals have
    all their digits. Dates and times have ISO 8601 format (with a zone, in UTC: Z). Durations are
    integers in their own unit. Lists are arrays, structs are objects, and maps are arrays of pairs.
    Bytes are strings if they are UTF-8, else ``{"base64": "..."}``.

    Raises MissingExtraError for nested times of nanoseconds, which need pandas.
    """
    names: list[str] = batch.schema.names
    texts = [_json_values(name, column) for name, column in zip(names, batch.columns, strict=True)]
    keys = (json_text(name).replace(b"%", b"%%") + b":%b" for name in names)
    template = b"{" + b",".join(keys) + b"}"
    return [template % row for row in zip(*texts, strict=True)]


def flat_array(column: Any) -> Array | None:
    """Return a flat column as an array ``[rows]``, or None for a column of lists, structs or nulls.

    Numbers and booleans have their dtype (decimals float64, durations int64). Text, dates and times
    are objects of str; bytes are objects of bytes. Columns with nulls are arrays of objects with None
    (`column_decode.nullable_array`).
    """
    column, types = _storage(column), pyarrow.types
    if types.is_nested(column.type) or types.is_null(column.type):
        return None
    numbers = _as_numbers(column)
    if numbers is None:
        return text_array(_text_values(column))
    if not numbers.null_count:
        return numbers.to_numpy(zero_copy_only=False)
    filled, nulls = _filled(numbers)
    values = filled.tolist()
    for index in nulls:
        values[index] = None
    return nullable_array(values, filled.dtype)


def _storage(column: Any) -> Any:
    """Return the values of a dictionary-encoded or run-end encoded column, or of an extension type."""
    while True:
        if pyarrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        elif pyarrow.types.is_run_end_encoded(column.type):
            column = compute_functions().run_end_decode(column)
        elif isinstance(column.type, pyarrow.BaseExtensionType):
            column = column.storage
        else:
            return column


def _as_numbers(column: Any) -> Any:
    """Return a column of numbers, booleans, decimals or durations as numbers, or None for others."""
    kind, types = column.type, pyarrow.types
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return column
    if types.is_decimal(kind):
        return column.cast(pyarrow.float64())
    return column.cast(pyarrow.int64()) if types.is_duration(kind) else None


def _filled(numbers: Any) -> tuple[NDArray[Any], list[int]]:
    """Return numbers with zeros in the place of nulls, and the indices of the nulls."""
    nulls: NDArray[np.bool_] = numbers.is_null().to_numpy(zero_copy_only=False)
    zero = False if pyarrow.types.is_boolean(numbers.type) else 0
    return numbers.fill_null(zero).to_numpy(zero_copy_only=False), np.flatnonzero(nulls).tolist()


def _json_values(name: str, column: Any) -> Sequence[bytes]:
    """Return the values of a column as JSON."""
    column, types = _storage(column), pyarrow.types
    if types.is_null(column.type):
        return [_NULL] * len(column)
    if types.is_decimal(column.type):
        exact = column.cast(pyarrow.string()).to_pylist()
        return [_NULL if text is None else text.encode() for text in exact]
    if types.is_nested(column.type):
        return [json_text(value) for value in _nested_values(name, column)]
    numbers = _as_numbers(column)
    if numbers is None:
        return [json_text(value) for value in _text_values(column)]
    filled, nulls = _filled(numbers)
    texts = orjson.dumps(np.ascontiguousarray(filled), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
    for index in nulls:
        texts[index] = _NULL
    return texts


def _text_values(column: Any) -> list[Any]:
    """Return the values of text, bytes, dates and times as str or bytes.

    In a text column the values that are not UTF-8 become bytes.
    """
    kind = column.type
    if pyarrow.types.is_timestamp(kind):
        zone = "" if kind.tz is None else "Z"
        # Removing the zone yields the time in UTC.
        texts = column.cast(pyarrow.timestamp(kind.unit)).cast(pyarrow.string()).to_pylist()
        return [None if text is None else text.replace(" ", "T") + zone for text in texts]
    if pyarrow.types.is_temporal(kind):
        return column.cast(pyarrow.string()).to_pylist()
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [_text_or_bytes(value) for value in column.cast(pyarrow.large_binary()).to_pylist()]


def _text_or_bytes(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value


def _nested_values(name: str, column: Any) -> list[Any]:
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        needed_for = f"column {name!r}, whose lists or structs hold times of nanoseconds,"
        raise MissingExtraError("pandas", needed_for) from error
