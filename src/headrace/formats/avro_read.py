"""Read Avro object container files, block by block, as blocks of typed columns."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from itertools import chain, islice
from typing import Any, Final

import orjson
from typing_extensions import override

from headrace.core.block import Block, Position
from headrace.formats.avro import fastavro
from headrace.formats.avro_codecs import CODECS, plain_blocks
from headrace.formats.avro_columns import AvroColumns, physical_schema
from headrace.formats.contract import RECORD_BYTES_MAX, Buffer, Format
from headrace.formats.record_table import ROWS_MAX, cut_batches
from headrace.formats.table_files import TableStream, table_errors, unreadable

_KIND: Final = "Avro"
_MAGIC: Final = b"Obj\x01"
_SCHEMA_KEY: Final = "avro.schema"
_CODEC_KEY: Final = "avro.codec"
_HEADER: Final = {
    "type": "record",
    "name": "header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": len(_MAGIC)}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": 16}},
    ],
}
"""The schema of the start of a file, from the Avro specification."""


class AvroFormat(Format):
    """A format of Avro object container files, with all codecs of the Avro specification.

    Positions have the number of the row; lines and bytes stay those of the first position. `columns` are
    the names of the columns to keep, or None for all. `headrace.formats.avro_columns` has the types.

    A row of more than `record_bytes_max` in memory is a failure (kind FORMAT). One Avro block of the file
    is held in memory.
    """

    def __init__(
        self, *, columns: Sequence[str] | None = None, record_bytes_max: int = RECORD_BYTES_MAX
    ) -> None:
        self._columns = columns
        self._record_bytes_max = record_bytes_max

    @override
    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        file = TableStream(chunks)
        with _avro_errors(file):
            file, schema = _open(file)
            columns = AvroColumns(schema, self._columns)
            avro_blocks = iter(fastavro.block_reader(file))
        batches = _batches(avro_blocks, columns, file)
        yield from cut_batches(batches, first, record_bytes_max=self._record_bytes_max)


def _open(file: TableStream) -> tuple[TableStream, Any]:
    """Return a file for fastavro, with its schema replaced by the physical one, and its own schema.

    fastavro would make an object of each date and time. Arrow takes the numbers as they are.
    """
    begin = file.peek(len(_MAGIC))
    if begin != _MAGIC:
        raise unreadable(_KIND, "it does not begin as an Avro file" if begin else "it is empty", file)
    header = fastavro.schemaless_reader(file, _HEADER, None)
    meta: dict[str, bytes] = header["meta"]
    schema = orjson.loads(meta[_SCHEMA_KEY])
    meta[_SCHEMA_KEY] = orjson.dumps(physical_schema(schema))
    codec = meta.get(_CODEC_KEY, b"").decode()
    blocks: Iterator[bytes] | None = None
    if codec in CODECS:
        meta[_CODEC_KEY] = b"null"
        blocks = plain_blocks(file, codec)
    rewritten = BytesIO()
    fastavro.schemaless_writer(rewritten, _HEADER, header)
    if blocks is not None:
        return TableStream(chain((rewritten.getvalue(),), blocks)), schema
    file.unread(rewritten.getvalue())
    return file, schema


def _batches(avro_blocks: Iterator[Any], columns: AvroColumns, file: TableStream) -> Iterator[Any]:
    """Yield the rows of each Avro block as record batches, after all rows of the block are decoded."""
    while True:
        with _avro_errors(file):
            avro_block = next(avro_blocks, None)
            if avro_block is None:
                return
            rows: Iterator[Any] = iter(avro_block)
            batches: list[Any] = []
            while some := list(islice(rows, ROWS_MAX)):
                batches.append(columns.batch(some))
        yield from batches


def _avro_errors(file: TableStream) -> AbstractContextManager[None]:
    """Raise CorruptError for any error of decoding: fastavro has no errors of its own."""
    return table_errors(_KIND, file, expected=(Exception,))
