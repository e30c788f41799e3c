"""Read ORC one stripe at a time, as blocks of typed columns.

The metadata of an ORC file is at its end, as in Parquet. The caller supplies a function that reads any
range of the file.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from headrace.core.block import Block, Position
from headrace.formats.arrow import orc_module
from headrace.formats.contract import RECORD_BYTES_MAX, ReadAt
from headrace.formats.record_table import check_nested, cut_batches, empty_block
from headrace.formats.table_files import (
    RandomAccessFile,
    check_names,
    present_columns,
    table_errors,
)

_KIND: Final = "ORC"


class OrcReader:
    """A reader of one ORC file, as `headrace.formats.parquet_read.ParquetReader` is of Parquet.

    `columns` are the names of the columns to read, or None for all. One stripe is held in memory.

    Raises:
        CorruptError: The file is not an ORC file or cannot be read.
    """

    def __init__(
        self,
        read_at: ReadAt,
        size_bytes: int,
        *,
        columns: Sequence[str] | None = None,
        record_bytes_max: int = RECORD_BYTES_MAX,
    ) -> None:
        self._file = RandomAccessFile(read_at, size_bytes)
        self._record_bytes_max = record_bytes_max
        with table_errors(_KIND, self._file):
            self._source: Any = orc_module().ORCFile(self._file)
            self.column_names: tuple[str, ...] = tuple(self._source.schema.names)
            check_names(_KIND, self.column_names, self._file)
        self._columns = present_columns(self.column_names, columns)

    def head(self, first: Position) -> Block:
        """Return a block without rows, whose table has the columns of the file."""
        with table_errors(_KIND, self._file):
            return empty_block(self._source.schema, first)

    def blocks(self, first: Position) -> Iterator[Block]:
        """Yield blocks of all rows in order. `first` is the position of the first row.

        Raises CorruptError, after the rows before, if a stripe cannot be read.
        """
        stripes = map(self._stripe, range(self._source.nstripes))
        yield from cut_batches(stripes, first, record_bytes_max=self._record_bytes_max)

    def _stripe(self, stripe: int) -> Any:
        with table_errors(_KIND, self._file):
            batch = self._source.read_stripe(stripe, columns=self._columns)
            check_nested(batch)
            return batch if self._columns is None else batch.select(self._columns)
