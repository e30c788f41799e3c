"""Incremental encoders of predictions to Parquet and Arrow. They hold at most one row group."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.core.tensor import Array, TensorSpec, dtype_of
from headrace.formats.contract import BlockSelection, Encoder
from headrace.formats.encode import (
    INPUT,
    check_outputs,
    is_text,
    raw_records,
    row_shape,
    row_width,
    text_bytes,
)

INPUT_BYTES: Final = "input_bytes"
"""Name of the column that holds the joined records that are not UTF-8."""

ROW_GROUP_ROWS: Final = 65_536
ROW_GROUP_BYTES_MAX: Final = 64 << 20


class RecordColumns(Protocol):
    """The columns of records as Arrow arrays, for the columns before the outputs."""

    schema: Any
    """The Arrow schema of the columns."""

    def batch(self, selection: BlockSelection) -> Any:
        """Return the selected records as an Arrow record batch with this schema.

        Raises DataError if a record does not have the columns.
        """
        ...


class ParquetEncoder(Encoder):
    r"""An encoder of one Parquet file per part, Snappy-compressed, with one column per output.

    Only text columns are dictionary-encoded. Scalars have the output's type; arrays are fixed-size
    lists of it, nested according to their shape. Without `fixed_lists` the file does not record the
    sizes: readers see lists of any size, as tables of Delta Lake and Iceberg have them. Text is `string`.
    In bytes that are not UTF-8 each offending byte becomes ``\xNN``. None is null. Other objects become
    JSON text. The columns of `records` stand before the outputs.

    A row group ends after `row_group_rows` rows, or with the row that fills `row_group_bytes_max`
    bytes before compression. The bytes of the file therefore depend on its rows and not on the
    batches.

    Raises:
        MissingExtraError: The extra `arrow` is not installed.
        ConfigError: Parquet cannot store a column.
        DataError: Raised by `encode` if a record does not have the columns; no row is encoded.
        ModelContractError: Raised by `encode` if outputs change their names, types or shapes within
            a part.
    """

    def __init__(
        self,
        columns: Sequence[TensorSpec],
        *,
        records: RecordColumns | None = None,
        row_group_rows: int = ROW_GROUP_ROWS,
        row_group_bytes_max: int = ROW_GROUP_BYTES_MAX,
        fixed_lists: bool = True,
    ) -> None:
        if row_group_rows < 1 or row_group_bytes_max < 1:
            raise ConfigError(
                "row_group_rows and row_group_bytes_max must be at least 1, "
                f"not {row_group_rows} and {row_group_bytes_max}"
            )
        self._pa, self._parquet = _load_pyarrow()
        self._columns = tuple(columns)
        self._records = records
        self._row_group_rows = row_group_rows
        self._row_group_bytes_max = row_group_bytes_max
        self._fixed_lists = fixed_lists
        self._schema = self._make_schema()
        self._buffer = _OutputBuffer()
        self._writer: Any = None
        self._held: list[Any] = []
        self._held_rows: int = 0
        self._held_bytes: int = 0

    @override
    def begin(self) -> bytes:
        self._writer = self._open_writer()
        return self._buffer.take()

    def _open_writer(self) -> Any:
        types = self._pa.types
        text = [
            field.name
            for field in self._schema
            if types.is_string(field.type)
            or types.is_large_string(field.type)
            or types.is_dictionary(field.type)
        ]
        try:
            return self._parquet.ParquetWriter(
                self._buffer,
                self._schema,
                compression="snappy",
                use_dictionary=text,
                store_schema=self._fixed_lists,
            )
        except self._pa.ArrowNotImplementedError as error:
            raise ConfigError(
                f"Parquet cannot store the columns of the records ({error}): choose --output-format arrow"
            ) from error

    @override
    def encode(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> bytes:
        """Return the bytes of the row groups that these records fill; often none."""
        return b"".join([self.hold(batch, sizes) for batch, sizes in self.batches(selections, outputs)])

    def batches(
        self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]
    ) -> list[tuple[Any, NDArray[np.int64]]]:
        """Return the rows as batches for `hold`, with the size of each row in bytes. Errors: see `encode`."""
        rows, arrays = check_outputs(self._columns, selections, outputs, datatypes=True)
        if not rows:
            return []
        if self._records is None:
            sizes = np.zeros(rows, np.int64)
            columns = [self._output_column(data, sizes) for data in arrays]
            return [(self._pa.record_batch(columns, schema=self._schema), sizes)]
        batches = [self._records.batch(selection) for selection in selections]
        sizes = np.concatenate([_record_sizes(selection) for selection in selections])
        columns = [self._output_column(data, sizes) for data in arrays]
        found: list[tuple[Any, NDArray[np.int64]]] = []
        at = 0
        for batch in batches:
            # Each batch stays as it is: the copy of a row group is the only one of the columns.
            some = [column.slice(at, batch.num_rows) for column in columns]
            joined = self._pa.record_batch([*batch.columns, *some], schema=self._schema)
            found.append((joined, sizes[at : at + batch.num_rows]))
            at += batch.num_rows
        return found

    @property
    def held_bytes(self) -> int:
        """The size of the rows that wait for their row group, before compression."""
        return self._held_bytes

    def end_row_group(self) -> bytes:
        """Write the held rows as a row group. Return its bytes, or none without rows."""
        if self._held:
            self._write_row_group()
        return self._buffer.take()

    @override
    def finish(self) -> bytes:
        if self._held:
            self._write_row_group()
        self._writer.close()
        return self._buffer.take()

    def _make_schema(self) -> Any:
        of_records = [] if self._records is None else list(self._records.schema)
        outputs = [(column.name, self._type(column)) for column in self._columns]
        # The metadata of a source's schema describes its rows and its index, which the output does not have.
        return self._pa.schema([*of_records, *outputs])

    def _type(self, column: TensorSpec) -> Any:
        if not row_width(column):
            raise ConfigError(f"output {column.name!r} has rows without values, which Parquet cannot store")
        pa = self._pa
        text = column.datatype == "BYTES"
        kind = pa.string() if text else pa.from_numpy_dtype(dtype_of(column.datatype))
        for size in reversed(row_shape(column)):
            kind = pa.list_(kind, size)
        return kind

    def _output_column(self, data: Array, sizes: NDArray[np.int64]) -> Any:
        pa = self._pa
        flat = data.reshape(-1)
        if is_text(data):
            texts = [_to_text(value) for value in flat.tolist()]
            lengths = np.array([0 if text is None else len(text) for text in texts])
            sizes += lengths.reshape(len(data), -1).sum(axis=1)
            arrow_columns = pa.array(texts, pa.string())
        else:
            sizes += data.itemsize * (data.size // len(data))
            arrow_columns = pa.array(flat)
        for size in reversed(data.shape[1:]):
            arrow_columns = pa.FixedSizeListArray.from_arrays(arrow_columns, size)
        return arrow_columns

    def hold(self, batch: Any, sizes: NDArray[np.int64]) -> bytes:
        """Hold rows until a row group is full. Further rows begin the next row group.

        Return the bytes of the full row groups.
        """
        cumulative = np.cumsum(sizes)
        at = 0
        while at < len(cumulative):
            stop, nbytes = filling_rows(
                cumulative,
                at,
                self._row_group_rows - self._held_rows,
                self._row_group_bytes_max - self._held_bytes,
            )
            self._held.append(batch.slice(at, stop - at))
            self._held_rows += stop - at
            self._held_bytes += nbytes
            at = stop
            if self._held_rows >= self._row_group_rows or self._held_bytes >= self._row_group_bytes_max:
                self._write_row_group()
        return self._buffer.take()

    def _write_row_group(self) -> None:
        self._writer.write_table(self._row_group(), self._held_rows)
        self._held, self._held_rows, self._held_bytes = [], 0, 0

    def _row_group(self) -> Any:
        """Return the held rows in one chunk.

        With several chunks the page boundaries would follow the batches.
        """
        return self._pa.Table.from_batches(self._held, self._schema).combine_chunks()


def filling_rows(cumulative: NDArray[np.int64], at: int, rows_left: int, bytes_left: int) -> tuple[int, int]:
    """Return the end and the size of the next rows: `rows_left`, or with the row that fills `bytes_left`.

    `cumulative` are the sums of the sizes of all rows, and `at` is the next one.
    """
    before = int(cumulative[at - 1]) if at else 0
    filling = int(np.searchsorted(cumulative, before + bytes_left)) + 1
    stop = min(at + rows_left, filling, len(cumulative))
    return stop, int(cumulative[stop - 1]) - before


def _load_pyarrow() -> tuple[Any, Any]:
    try:
        from headrace.formats import arrow  # noqa: PLC0415 - an optional dependency
    except MissingExtraError as error:
        raise MissingExtraError("arrow", "writing Parquet") from error
    return arrow.parquet_modules()


class WholeRecords(RecordColumns):
    """The records as one column of text, `input`, for records without columns.

    With `has_bytes`, a record that is not UTF-8 is null, and a second column, `input_bytes` (binary), holds
    the record. The column is null for all other records.
    """

    def __init__(self, *, has_bytes: bool) -> None:
        self._pa, _ = _load_pyarrow()
        fields = [(INPUT, self._pa.string())]
        if has_bytes:
            fields.append((INPUT_BYTES, self._pa.binary()))
        self.schema = self._pa.schema(fields)

    @override
    def batch(self, selection: BlockSelection) -> Any:
        pa, records = self._pa, raw_records(selection)
        try:
            arrays = [pa.array(records, pa.binary()).cast(pa.string()), pa.nulls(len(records), pa.binary())]
        except pa.ArrowInvalid:
            texts = [_text_or_none(record) for record in records]
            others = [record if text is None else None for record, text in zip(records, texts, strict=True)]
            arrays = [pa.array(texts, pa.string()), pa.array(others, pa.binary())]
        return pa.record_batch(arrays[: len(self.schema)], schema=self.schema)


def _record_sizes(selection: BlockSelection) -> NDArray[np.int64]:
    """Return the sizes of the records in bytes; 0 for media, whose bytes are not written."""
    block, rows = selection.block, selection.indices()
    if block.columns and not block.data:
        return np.zeros(len(rows), np.int64)
    return block.ends[rows] - block.starts[rows]


def _text_or_none(record: bytes) -> str | None:
    try:
        return record.decode()
    except UnicodeDecodeError:
        return None


def _to_text(value: Any) -> str | None:
    return None if value is None else text_bytes(value).decode(errors="backslashreplace")


class ArrowEncoder(ParquetEncoder):
    """An encoder of one Arrow IPC file per part, with the same columns as `ParquetEncoder`.

    The format is Feather version 2 without compression. A record batch holds the rows of one row
    group of `ParquetEncoder`, and the bytes of the file likewise depend only on its rows.
    """

    @override
    def _open_writer(self) -> Any:
        return self._pa.ipc.new_file(self._buffer, self._schema)

    @override
    def _row_group(self) -> Any:
        """Return a copy, because a slice is written with the validity and offsets of its batch."""
        table = super()._row_group()
        return table.take(self._pa.array(np.arange(table.num_rows)))


class _OutputBuffer:
    """A write-only file object that releases the written bytes and counts them."""

    closed = False

    def __init__(self) -> None:
        self._written: list[bytes] = []
        self._size = 0

    def write(self, data: Any) -> int:
        self._written.append(bytes(data))
        self._size += len(data)
        return len(data)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Do nothing: writes are not delayed."""

    def close(self) -> None:
        """Do nothing: the written bytes stay available to `take`."""

    def take(self) -> bytes:
        """Return the bytes written since the last call."""
        written, self._written = self._written, []
        return b"".join(written)
