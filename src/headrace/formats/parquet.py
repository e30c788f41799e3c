"""Predictions as Parquet or Arrow, written while they come: at most one row group is held."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.core.tensor import Array, TensorSpec, dtype_of
from headrace.formats.contract import Piece
from headrace.formats.encode import (
    INPUT,
    Join,
    check_join,
    checked_outputs,
    is_text,
    row_shape,
    row_width,
    text_bytes,
)
from headrace.formats.weave import raw_records

INPUT_BYTES: Final = "input_bytes"
"""The column of those joined records that are not UTF-8."""

ROW_GROUP_ROWS: Final = 65_536
ROW_GROUP_BYTES_MAX: Final = 64 << 20


class ParquetEncoder:
    r"""One Parquet file a part, Snappy-compressed; a column for each output, none of them dictionaries of numbers.

    Scalars have the output's own type, arrays are fixed-size lists of it, nested as their shape is. Text is
    `string`; of bytes that are not UTF-8 each offending byte becomes ``\xNN``; None is null; other objects are
    their JSON text. With ``join="input"`` a first column `input` (string) holds the record, or null where that is
    not UTF-8: then `input_bytes` (binary, null otherwise) has it, so nothing is lost.

    A row group ends after `row_group_rows` rows, or with the row that fills `row_group_bytes_max` bytes before
    compression: so the file's bytes depend on its rows, not on the batches they came in.

    Raises MissingExtraError without the extra `arrow`, and ConfigError when an output has the name of a joined
    column; `encode` raises ModelContractError when outputs change their names, types or shapes within a part.
    """

    suffix: ClassVar[str] = ".parquet"

    def __init__(
        self,
        columns: Sequence[TensorSpec],
        *,
        join: Join = "none",
        row_group_rows: int = ROW_GROUP_ROWS,
        row_group_bytes_max: int = ROW_GROUP_BYTES_MAX,
    ) -> None:
        check_join(join)
        if row_group_rows < 1 or row_group_bytes_max < 1:
            raise ConfigError(
                "row_group_rows and row_group_bytes_max must be at least 1, "
                f"not {row_group_rows} and {row_group_bytes_max}"
            )
        self._pa, self._parquet = _arrow_modules()
        self._columns = tuple(columns)
        self._joined = join == "input"
        self._row_group_rows = row_group_rows
        self._row_group_bytes_max = row_group_bytes_max
        self._schema = self._make_schema()
        self._drain = _Drain()
        self._writer: Any = None
        self._held: list[Any] = []
        self._held_rows = 0
        self._held_bytes = 0

    def begin(self) -> bytes:
        """The magic number."""
        self._writer = self._open_writer()
        return self._drain.take()

    def _open_writer(self) -> Any:
        text = [column.name for column in self._columns if column.datatype == "BYTES"]
        return self._parquet.ParquetWriter(
            self._drain, self._schema, compression="snappy", use_dictionary=text
        )

    def encode(self, pieces: Sequence[Piece], outputs: Mapping[str, Array]) -> bytes:
        """The row groups that these records fill; often none."""
        rows, arrays = checked_outputs(self._columns, pieces, outputs, datatypes=True)
        if not rows:
            return b""
        sizes = np.zeros(rows, np.int64)
        found: list[Any] = []
        if self._joined:
            found.extend(self._input_columns(pieces, sizes))
        found.extend(self._output_column(data, sizes) for data in arrays)
        batch = self._pa.record_batch(found, schema=self._schema)
        self._hold(batch, sizes)
        return self._drain.take()

    def finish(self) -> bytes:
        """The last row group and the footer."""
        if self._held:
            self._write_row_group()
        self._writer.close()
        return self._drain.take()

    def _make_schema(self) -> Any:
        pa = self._pa
        fields: list[tuple[str, Any]] = []
        if self._joined:
            taken = {INPUT, INPUT_BYTES} & {column.name for column in self._columns}
            if taken:
                raise ConfigError(
                    f"output {taken.pop()!r} has the name of a joined column: rename it in the model, "
                    "leave the input out, or write CSV"
                )
            fields = [(INPUT, pa.string()), (INPUT_BYTES, pa.binary())]
        fields.extend((column.name, self._type(column)) for column in self._columns)
        return pa.schema(fields)

    def _type(self, column: TensorSpec) -> Any:
        if not row_width(column):
            raise ConfigError(f"output {column.name!r} has rows of no values, which Parquet cannot hold")
        pa = self._pa
        text = column.datatype == "BYTES"
        kind = pa.string() if text else pa.from_numpy_dtype(dtype_of(column.datatype))
        for size in reversed(row_shape(column)):
            kind = pa.list_(kind, size)
        return kind

    def _input_columns(self, pieces: Sequence[Piece], sizes: NDArray[np.int64]) -> tuple[Any, Any]:
        """The records, as text where they are; and the others."""
        pa = self._pa
        records = [record for piece in pieces for record in raw_records(piece)]
        sizes += np.fromiter(map(len, records), np.int64, len(records))
        try:
            return pa.array(records, pa.binary()).cast(pa.string()), pa.nulls(len(records), pa.binary())
        except pa.ArrowInvalid:
            texts = [_text_or_none(record) for record in records]
            others = [record if text is None else None for record, text in zip(records, texts, strict=True)]
            return pa.array(texts, pa.string()), pa.array(others, pa.binary())

    def _output_column(self, data: Array, sizes: NDArray[np.int64]) -> Any:
        pa = self._pa
        flat = data.reshape(-1)
        if is_text(data):
            texts = [_text_of(value) for value in flat.tolist()]
            lengths = np.array([0 if text is None else len(text) for text in texts])
            sizes += lengths.reshape(len(data), -1).sum(axis=1)
            found = pa.array(texts, pa.string())
        else:
            sizes += data.itemsize * (data.size // len(data))
            found = pa.array(flat)
        for size in reversed(data.shape[1:]):
            found = pa.FixedSizeListArray.from_arrays(found, size)
        return found

    def _hold(self, batch: Any, sizes: NDArray[np.int64]) -> None:
        """Keep rows until a row group is full; what is left begins the next."""
        reached = np.cumsum(sizes)
        at = 0
        while at < len(reached):
            before = int(reached[at - 1]) if at else 0
            filling = before + self._row_group_bytes_max - self._held_bytes
            stop = min(
                at + self._row_group_rows - self._held_rows,
                int(np.searchsorted(reached, filling)) + 1,
                len(reached),
            )
            self._held.append(batch.slice(at, stop - at))
            self._held_rows += stop - at
            self._held_bytes += int(reached[stop - 1]) - before
            at = stop
            if self._held_rows >= self._row_group_rows or self._held_bytes >= self._row_group_bytes_max:
                self._write_row_group()

    def _write_row_group(self) -> None:
        self._writer.write_table(self._row_group(), self._held_rows)
        self._held, self._held_rows, self._held_bytes = [], 0, 0

    def _row_group(self) -> Any:
        """What is held in one chunk: page boundaries would else follow the batches."""
        return self._pa.Table.from_batches(self._held, self._schema).combine_chunks()


def _arrow_modules() -> tuple[Any, Any]:
    try:
        from headrace.formats import arrow  # noqa: PLC0415  optional: only its door imports it
    except MissingExtraError as error:
        raise MissingExtraError("arrow", "writing Parquet") from error
    return arrow.parquet_modules()


def _text_or_none(record: bytes) -> str | None:
    try:
        return record.decode()
    except UnicodeDecodeError:
        return None


def _text_of(value: Any) -> str | None:
    return None if value is None else text_bytes(value).decode(errors="backslashreplace")


class ArrowEncoder(ParquetEncoder):
    """One Arrow IPC file a part (Feather version 2, not compressed), with the columns that `ParquetEncoder` has.

    A record batch holds what is a row group there, and the file's bytes depend on its rows in the same way.
    """

    suffix: ClassVar[str] = ".arrow"

    def _open_writer(self) -> Any:
        return self._pa.ipc.new_file(self._drain, self._schema)

    def _row_group(self) -> Any:
        """Copied: a slice of a batch would be written with what validity and offsets its batch had."""
        table = super()._row_group()
        return table.take(self._pa.array(np.arange(table.num_rows)))


class _Drain:
    """A file that gives up what was written to it, and knows how much that was."""

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
        """Nothing waits."""

    def close(self) -> None:
        """What was written stays, to be taken."""

    def take(self) -> bytes:
        """All that was written since the last time."""
        written, self._written = self._written, []
        return b"".join(written)
