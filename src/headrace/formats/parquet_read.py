"""Read Parquet one row group at a time.

Rows become blocks of JSON objects with their columns as arrays.

The metadata of a Parquet file is at its end, so the file cannot be read from a stream of chunks.
The caller supplies a function that reads any range of the file.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from headrace.core.block import RAW_BYTES_KEPT_MAX, Block, Failure, FailureKind, Position
from headrace.core.errors import ConfigError, CorruptError, MissingExtraError
from headrace.core.tensor import Array, text_array
from headrace.formats.column_decode import nullable_array
from headrace.formats.contract import BLOCK_BYTES_MAX, RECORD_BYTES_MAX, ReadAt
from headrace.formats.encode import json_text

ROWS_MAX: Final = 8192
"""Maximum number of rows in one block."""
_BUFFERED_ABOVE_BYTES: Final = 64 << 20
_BUFFER_BYTES: Final = 4 << 20
"""Read size for columns when a row group of the file exceeds `_BUFFERED_ABOVE_BYTES`.

Columns of smaller row groups are read in one call.
"""


_NULL: Final = b"null"


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A part of a Parquet file that can be read independently.

    `compressed_bytes` is its approximate size in the file. `plain_bytes` is the size of its columns
    before compression.
    """

    rows: int
    compressed_bytes: int
    plain_bytes: int


class ParquetReader:
    """A reader of one Parquet file.

    Rows are JSON objects, one per line, so every consumer of JSON Lines accepts them.
    `Block.columns` holds the flat columns as arrays; `rows_text` describes both
    representations. `Block.column_names` lists all columns in order. The lines and bytes of
    positions refer to the rows as JSON text.

    Blocks do not depend on how the row groups are divided over calls, except for positions, which
    follow `first`. A row whose text exceeds `record_bytes_max` is a failure (kind FORMAT).

    The constructor reads the end of the file. `read_at` must return all requested bytes, fewer only
    at the end of the file. It is called in the thread that reads, and its exceptions propagate.

    Raises:
        MissingExtraError: The extra `arrow` is not installed.
        CorruptError: The file is not a Parquet file or cannot be read.
    """

    def __init__(
        self,
        read_at: ReadAt,
        size_bytes: int,
        *,
        rows_max: int = ROWS_MAX,
        block_bytes_max: int = BLOCK_BYTES_MAX,
        record_bytes_max: int = RECORD_BYTES_MAX,
    ) -> None:
        if min(rows_max, block_bytes_max, record_bytes_max) < 1:
            raise ConfigError(
                "rows_max, block_bytes_max and record_bytes_max must be at least 1, "
                f"not {rows_max}, {block_bytes_max} and {record_bytes_max}"
            )
        self._pa, self._parquet = _load_pyarrow()
        self._rows_max = rows_max
        self._block_bytes_max = block_bytes_max
        self._record_bytes_max = record_bytes_max
        self._file = _RandomAccessFile(read_at, size_bytes)
        self._source: Any = self._translate_errors(self._open)
        metadata = self._source.metadata
        self.column_names: tuple[str, ...] = tuple(
            self._translate_errors(lambda: self._source.schema_arrow.names)
        )
        """Names of the columns in file order."""
        duplicates = {name for name in self.column_names if self.column_names.count(name) > 1}
        if duplicates:
            raise self._corrupt(f"several columns have the name {duplicates.pop()!r}")
        self.row_groups: tuple[RowGroup, ...] = self._translate_errors(lambda: self._row_groups(metadata))
        """Row groups in file order."""
        if max((group.compressed_bytes for group in self.row_groups), default=0) > _BUFFERED_ABOVE_BYTES:
            self._source = self._translate_errors(
                lambda: self._open(metadata=metadata, buffer_size=_BUFFER_BYTES)
            )

    def _open(self, **options: Any) -> Any:
        return self._parquet.ParquetFile(
            self._file, pre_buffer=False, page_checksum_verification=True, **options
        )

    def _row_groups(self, metadata: Any) -> tuple[RowGroup, ...]:
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        if any(g.num_rows < 0 or g.total_byte_size < 0 for g in groups):
            raise self._corrupt("a row group has a negative row count or size")
        # Each group's share of the file. Its columns have the exact sizes, but Arrow aborts the
        # process when it reads the sizes of damaged columns.
        total_bytes = max(sum(g.total_byte_size for g in groups), 1)
        return tuple(
            RowGroup(g.num_rows, g.total_byte_size * self._file.size() // total_bytes, g.total_byte_size)
            for g in groups
        )

    def blocks(self, first_group: int, stop_group: int, first: Position) -> Iterator[Block]:
        """Yield blocks of the rows of these row groups in order.

        `first` is the position of the first row.

        Raises CorruptError, after the rows before, if a row group cannot be read.
        """
        position = first
        for group in range(first_group, stop_group):
            rows = 0
            for batch in self._batches(group):
                rows += batch.num_rows
                for block in self._cut_batch(batch, position) if batch.num_rows else ():
                    yield block
                    position = _position_after(block)
            if rows != self.row_groups[group].rows:
                raise self._corrupt(
                    f"row group {group} holds {rows} rows instead of {self.row_groups[group].rows}"
                )

    def _batches(self, group: int) -> Iterator[Any]:
        row_bytes = self.row_groups[group].plain_bytes // max(self.row_groups[group].rows, 1)
        rows = min(self._rows_max, max(self._block_bytes_max // max(row_bytes, 1), 1))
        batches = self._translate_errors(
            lambda: self._source.iter_batches(batch_size=rows, row_groups=[group], use_threads=False)
        )
        while (batch := self._translate_errors(lambda: next(batches, None))) is not None:
            yield batch
        # Arrow's pool would keep the memory of a large row group.
        self._pa.default_memory_pool().release_unused()

    def _cut_batch(self, batch: Any, first: Position) -> Iterator[Block]:
        """Yield the rows of a batch as blocks."""
        columns = list(zip(self.column_names, batch.columns, strict=True))
        if not columns:
            raise self._corrupt("it has no columns")
        texts, arrays = self._translate_errors(lambda: rows_text(columns))
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        ends = np.cumsum(lengths + 1)
        start, position = 0, first
        while start < len(texts):
            before = int(ends[start - 1]) if start else 0
            stop = max(int(np.searchsorted(ends, before + self._block_bytes_max, "right")), start + 1)
            oversized = np.flatnonzero(lengths[start:stop] > self._record_bytes_max)
            stop = start + int(oversized[0]) if len(oversized) else stop
            block = self._block(position, texts[start:stop], {n: a[start:stop] for n, a in arrays.items()})
            start = stop
            if len(oversized):
                failed_at = _position_after(block) if len(block) else position
                why = f"longer than record_bytes_max={self._record_bytes_max}, as JSON text"
                raw = texts[start][: min(self._record_bytes_max, RAW_BYTES_KEPT_MAX)]
                block = replace(block, failures=(Failure(failed_at, FailureKind.FORMAT, why, raw),))
                start += 1
            yield block
            position = _position_after(block)

    def _block(self, first: Position, texts: list[bytes], columns: dict[str, Array]) -> Block:
        if not texts:
            return Block(first)
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1]
        data = b"\n".join(texts) + b"\n"
        return Block(first, data, starts, ends - 1, columns, column_names=self.column_names, line_end=b"\n")

    def _translate_errors(self, call: Callable[[], Any]) -> Any:
        """Return the result of `call`. Raise CorruptError if Arrow cannot read the file.

        An exception of `read_at` propagates unchanged.
        """
        try:
            return call()
        except (MissingExtraError, CorruptError):
            raise
        except Exception as error:
            if self._file.error is not None:
                raise self._file.error from None
            expected = (self._pa.ArrowException, OSError, ValueError, OverflowError)
            if not isinstance(error, expected):
                raise
            raise self._corrupt(str(error).strip()) from error

    def _corrupt(self, why: str) -> CorruptError:
        return CorruptError(f"the Parquet file cannot be read: {why}", byte=self._file.tell())


def _position_after(block: Block) -> Position:
    """Return the position of the row after a block."""
    position = block.first
    line, byte = position.line + block.records, position.byte + len(block.data)
    # The length of a row that was too long is no longer known. The next row is located by its line.
    byte += sum(len(failure.raw) + 1 for failure in block.failures)
    return replace(position, record=position.record + block.records, line=line, byte=byte)


class _RandomAccessFile:
    """A file object for Arrow. It keeps the first error of `read_at`, which Arrow may reword."""

    closed = False

    def __init__(self, read_at: ReadAt, size_bytes: int) -> None:
        self._read_at = read_at
        self._size_bytes = size_bytes
        self._position = 0
        self.error: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        remaining = max(self._size_bytes - self._position, 0)
        requested = remaining if size < 0 else min(size, remaining)
        if not requested:
            return b""
        try:
            data = self._read_at(self._position, requested)
        except Exception as error:
            self.error = self.error or error
            raise
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size_bytes)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._size_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        """Do nothing: the file is not written."""

    def close(self) -> None:
        """Do nothing: the owner of `read_at` closes the file."""


def _load_pyarrow() -> tuple[Any, Any]:
    try:
        from headrace.formats import arrow  # noqa: PLC0415 - an optional dependency
    except MissingExtraError as error:
        raise MissingExtraError("arrow", "reading Parquet") from error
    return arrow.parquet_modules()


def rows_text(columns: Sequence[tuple[str, Any]]) -> tuple[list[bytes], dict[str, Array]]:
    """Return each row as a JSON object, and the flat columns as arrays ``[rows]``.

    `columns` are Arrow arrays of equal length.

    JSON: numbers have the fewest digits that read back the same value. NaN and infinities are null.
    Decimals have all their digits. Dates and times have ISO 8601 format (with a zone, in UTC: Z).
    Durations are integers in their own unit. Lists are arrays, structs are objects, and maps are
    arrays of pairs. Bytes are strings if they are UTF-8, else ``{"base64": "..."}``.

    Arrays: numbers and booleans have their dtype (decimals float64). Text, dates and times are
    objects of str; bytes are objects of bytes. Columns with nulls are arrays of objects with None
    (`column_decode.nullable_array`).

    Raises MissingExtraError for nested times of nanoseconds, which need pandas.
    """
    pa, _ = _load_pyarrow()
    texts: list[Sequence[bytes]] = []
    arrays: dict[str, Array] = {}
    for name, column in columns:
        column_texts, array = _column_values(pa, name, column)
        texts.append(column_texts)
        if array is not None:
            arrays[name] = array
    keys = (json_text(name).replace(b"%", b"%%") + b":%b" for name, _ in columns)
    template = b"{" + b",".join(keys) + b"}"
    return [template % row for row in zip(*texts, strict=True)], arrays


def _column_values(pa: Any, name: str, column: Any) -> tuple[Sequence[bytes], Array | None]:
    """Return a column's values as JSON, and its array if the column is flat."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _column_values(pa, name, column.storage)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _number_values(pa, column)
    if pa.types.is_decimal(kind):
        exact = column.cast(pa.string()).to_pylist()
        texts = [_NULL if text is None else text.encode() for text in exact]
        return texts, _number_values(pa, column.cast(pa.float64()))[1]
    if pa.types.is_duration(kind):
        return _number_values(pa, column.cast(pa.int64()))
    if pa.types.is_nested(kind):
        return [json_text(value) for value in _nested_values(name, column)], None
    if pa.types.is_null(kind):
        return [_NULL] * len(column), None
    values = _time_texts(pa, column) if pa.types.is_temporal(kind) else _text_values(pa, column)
    return [json_text(value) for value in values], text_array(values)


def _number_values(pa: Any, column: Any) -> tuple[Sequence[bytes], Array]:
    if not column.null_count:
        array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return _number_texts(array), array
    nulls: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    filled: NDArray[Any] = column.fill_null(False if pa.types.is_boolean(column.type) else 0).to_numpy(
        zero_copy_only=False
    )
    texts, values = _number_texts(filled), filled.tolist()
    for index in np.flatnonzero(nulls).tolist():
        texts[index], values[index] = _NULL, None
    return texts, nullable_array(values, filled.dtype)


def _number_texts(array: NDArray[Any]) -> list[bytes]:
    text = orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)
    return text[1:-1].split(b",")


def _time_texts(pa: Any, column: Any) -> list[Any]:
    kind = column.type
    if not pa.types.is_timestamp(kind):
        return column.cast(pa.string()).to_pylist()
    zone = "" if kind.tz is None else "Z"
    # Removing the zone yields the time in UTC.
    texts = column.cast(pa.timestamp(kind.unit)).cast(pa.string()).to_pylist()
    return [None if text is None else text.replace(" ", "T") + zone for text in texts]


def _text_values(pa: Any, column: Any) -> list[Any]:
    """Return the values as str or bytes.

    In a text column the values that are not UTF-8 become bytes.
    """
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        values = column.cast(pa.large_binary()).to_pylist()
        return [_text_or_bytes(value) for value in values]


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
