"""Read Arrow IPC, batch by batch, as blocks of typed columns.

Both forms are read from chunks: a file is a stream of messages between a magic word and a footer.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from typing_extensions import override

from headrace.core.block import Block, Position
from headrace.formats.arrow import pyarrow
from headrace.formats.contract import RECORD_BYTES_MAX, Buffer, Format
from headrace.formats.record_table import cut_batches
from headrace.formats.table_files import (
    TableStream,
    check_names,
    check_values,
    present_columns,
    table_errors,
    unreadable,
)

_KIND: Final = "Arrow"
_MAGIC: Final = b"ARROW1"
_MAGIC_BYTES: Final = 8
"""The size of the magic word at the start of a file, with its padding."""
_FEATHER_V1: Final = b"FEA1"


class ArrowFormat(Format):
    """A format of Arrow IPC files (also named Feather) and streams, with any compression of buffers.

    Positions have the number of the row; lines and bytes stay those of the first position. `columns` are
    the names of the columns to keep, or None for all.

    A row of more than `record_bytes_max` in memory is a failure (kind FORMAT). One batch of the file is
    held in memory. A stream may end after any batch, a file only with its footer.
    """

    def __init__(
        self, *, columns: Sequence[str] | None = None, record_bytes_max: int = RECORD_BYTES_MAX
    ) -> None:
        self._columns = columns
        self._record_bytes_max = record_bytes_max

    @override
    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        file = TableStream(chunks)
        with table_errors(_KIND, file):
            is_file = _skip_magic(file)
            # One thread per reader: the reads of other objects are concurrent already.
            options = pyarrow.ipc.IpcReadOptions(use_threads=False)
            reader = pyarrow.ipc.open_stream(pyarrow.PythonFile(file, mode="r"), options=options)
            check_names(_KIND, reader.schema.names, file)
        columns = present_columns(reader.schema.names, self._columns)
        batches = _batches(reader, columns, file)
        yield from cut_batches(batches, first, record_bytes_max=self._record_bytes_max)
        if file.drain_last(len(_MAGIC)) != _MAGIC and is_file:
            raise unreadable(_KIND, "it has no footer", file)


def _skip_magic(file: TableStream) -> bool:
    """Skip the magic word of a file. Return False for a stream."""
    begin = file.peek(_MAGIC_BYTES)
    if not begin:
        raise unreadable(_KIND, "it is empty", file)
    if begin.startswith(_FEATHER_V1):
        why = "it is Feather version 1: write it again with pyarrow.feather.write_feather"
        raise unreadable(_KIND, why, file)
    if not begin.startswith(_MAGIC):
        return False
    file.read(_MAGIC_BYTES)
    return True


def _batches(reader: Any, columns: Sequence[str] | None, file: TableStream) -> Iterator[Any]:
    while True:
        with table_errors(_KIND, file):
            batch = next(reader, None)
            if batch is None:
                return
            check_values(batch)
        yield batch if columns is None else batch.select(columns)
