"""Tables in memory as files of every format, and their blocks."""

import io
import json
import zlib
from collections.abc import Iterator
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import zstandard
from pyarrow import orc

from formats.parquet_files import write_parquet
from headrace.core.block import Block
from headrace.formats.read_options import ReadOptions
from headrace.runs.table_source import object_blocks
from headrace.storage.resolve import Stores

_AVRO_TYPES: dict[Any, Any] = {
    pa.int64(): "long",
    pa.int32(): "int",
    pa.float64(): "double",
    pa.float32(): "float",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
}


def write_arrow(
    columns: Any, *, group_rows: int = 1000, is_stream: bool = False, compression: str | None = None
) -> bytes:
    """Return an IPC file or stream, with delta dictionaries in a stream."""
    table, file = as_table(columns), io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=is_stream)
    write = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with write(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=group_rows)
    return file.getvalue()


def write_orc(columns: Any, *, group_rows: int = 1000) -> bytes:
    """Return an ORC file with stripes of `group_rows` rows; ORC has no dictionaries."""
    table, file = as_table(columns), io.BytesIO()
    decoded = [c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    table = pa.table(decoded, table.column_names)
    with orc.ORCWriter(file, stripe_size=1, batch_size=group_rows) as writer:
        for start in range(0, max(table.num_rows, 1), group_rows):
            # pyarrow writes wrong nulls of structs from a slice, but not from a copy.
            rows = range(start, min(start + group_rows, table.num_rows))
            writer.write(table.take(pa.array(rows, pa.int64())))
    return file.getvalue()


def write_avro(columns: Any, *, group_rows: int = 1000, codec: str = "deflate") -> bytes:
    """Return an Avro file with blocks of `group_rows` rows; every column may have nulls."""
    table, file = as_table(columns), io.BytesIO()
    fields = [
        {"name": field.name, "type": ["null", avro_type(field.type, field.name)]} for field in table.schema
    ]
    schema = {"type": "record", "name": "row", "fields": fields}
    rows = table.to_pylist(maps_as_pydicts="strict")
    fastavro.writer(file, schema, rows[:group_rows], codec=codec, sync_interval=1 << 30)
    for start in range(group_rows, len(rows), group_rows):
        file.seek(0)
        fastavro.writer(
            io_append(file), schema, rows[start : start + group_rows], codec=codec, sync_interval=1 << 30
        )
    return file.getvalue()


def recode_avro(data: bytes, codec: str) -> bytes:
    """Return an Avro file of the codec "null" with its blocks compressed."""
    blocks = list(fastavro.block_reader(io.BytesIO(data)))
    sync = data[-16:]
    out = [
        data[: blocks[0].offset].replace(
            b"avro.codec\x08null", b"avro.codec%c%s" % (2 * len(codec), codec.encode())
        )
    ]
    for block in blocks:
        plain = block.bytes_.getvalue()
        if codec == "snappy":
            packed = pa.compress(plain, "snappy", asbytes=True) + zlib.crc32(plain).to_bytes(4, "big")
        else:
            packed = zstandard.compress(plain)
        sizes = io.BytesIO()
        for number in (block.num_records, len(packed)):
            fastavro.schemaless_writer(sizes, "long", number)
        out += [sizes.getvalue(), packed, sync]
    return b"".join(out)


def io_append(file: io.BytesIO) -> io.BytesIO:
    """Return the file at its end, for `fastavro.writer` to append to."""
    file.seek(0, io.SEEK_END)
    return file


def avro_type(kind: Any, name: str) -> Any:
    """Return the Avro type of an Arrow type. `name` names structs, which Avro requires to differ."""
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", avro_type(kind.value_type, name)]}
    if pa.types.is_map(kind):
        return {"type": "map", "values": ["null", avro_type(kind.item_type, name)]}
    if pa.types.is_struct(kind):
        fields = [{"name": f.name, "type": ["null", avro_type(f.type, f"{name}_{f.name}")]} for f in kind]
        return {"type": "record", "name": f"{name}_struct", "fields": fields}
    if pa.types.is_dictionary(kind):
        return avro_type(kind.value_type, name)
    if pa.types.is_decimal(kind):
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    return _AVRO_TYPES[kind]


def write_json_array(columns: Any, *, group_rows: int = 0) -> bytes:
    """Return the rows as a JSON array with white space."""
    table = as_table(columns)
    return json.dumps(table.to_pylist(), indent=1).encode()


def as_table(columns: Any) -> pa.Table:
    return columns if isinstance(columns, pa.Table) else pa.table(columns)


WRITERS = {
    "a.parquet": write_parquet,
    "a.arrow": write_arrow,
    "a.arrows": lambda columns, **options: write_arrow(columns, is_stream=True, **options),
    "a.feather": lambda columns, **options: write_arrow(columns, compression="lz4", **options),
    "a.orc": write_orc,
    "a.avro": write_avro,
}
"""The writers of tables by the name of an object."""


def json_rows(texts: list[bytes]) -> list[Any]:
    return [orjson.loads(text) for text in texts]


BASE = "memory://in/"


def read_table(name: str, data: bytes, *, columns: Any = None, **options: Any) -> Iterator[Block]:
    """Yield the blocks of an object in a store."""
    stores = Stores()
    store = stores.for_uri(BASE)
    store.put(BASE + name, data)
    chunks = (data[at : at + 997] for at in range(0, len(data), 997))
    return object_blocks(store.head(BASE + name), stores, ReadOptions(**options), chunks, columns=columns)
