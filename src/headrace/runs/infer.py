"""Infer the schema of records from a sample, by majority.

Input: blocks of the first records of several objects. Output: a `RecordSchema`. Pure.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final, cast

import numpy as np
import orjson

from headrace.core.block import Block, RecordTable
from headrace.core.errors import ConfigError, DataError, UnsupportedError
from headrace.core.tensor import Array
from headrace.formats.column_decode import values_dtype
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.json_path import JsonPath
from headrace.formats.matrix import parse_number
from headrace.formats.proto_messages import EXAMPLE, RECORD, MessageKind, feature_values, features
from headrace.formats.read_options import V2, WEBDATASET
from headrace.runs.schema import NUMERIC, Column, ColumnType, RecordSchema

JSON_KINDS: Final = frozenset({"json", "jsonarray", "jsonl", WEBDATASET})
"""The formats whose records are JSON text."""
FRAMED_KINDS: Final[Mapping[str, MessageKind]] = {"recordio": RECORD, "tfrecord": EXAMPLE}
"""The formats of framed records, with the message type of their records."""
_CELLS_MAX: Final = 100_000
"""The number of CSV cells whose types are examined."""
_DTYPE_TYPES: Final[Mapping[str, ColumnType]] = {
    "b": "boolean",
    "i": "integer",
    "u": "integer",
    "f": "number",
}
_JSON_TYPES: Final[Mapping[type, ColumnType]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "text",
    type(None): "null",
}
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_LOSES_DIGITS: Final = re.compile(rb"\s*[+-]?(?:0[0-9]+|[0-9]{19,})\s*")
"""Digits that an integer would not keep: leading zeros, or more than int64 always holds."""
_BOOLEANS: Final = frozenset({"true", "false"})


def infer_csv(
    blocks: Sequence[Block],
    dialects: Sequence[CsvDialect],
    *,
    finds_header: bool,
    wanted: Sequence[str] = (),
) -> RecordSchema:
    """Return the schema of CSV records. `dialects` are those of the blocks.

    With `finds_header`, the first records of most objects are a header if they are unlike the records
    below them, or if they have one of the names in `wanted`.
    """
    dialect = dialects[0]
    objects = [
        [used.cells(record) for block, used in same for record in block.texts()]
        for _, same in groupby(
            zip(blocks, dialects, strict=True), key=lambda one: (one[0].first.object, one[0].first.member)
        )
    ]
    widths = Counter(len(row) for rows in objects for row in rows)
    headers = Counter(block.column_names for block in blocks if block.column_names)
    names = headers.most_common(1)[0][0] if headers else None
    width = len(names) if names else widths.most_common(1)[0][0]
    if finds_header and names is None:
        names = _find_header(objects, width, dialect, wanted)
    header = sorted(name.encode() for name in names or ())
    records = [row for rows in objects for row in rows if sorted(row) != header]
    rows = [row for row in records if len(row) == width][: max(1, _CELLS_MAX // width)]
    columns = [
        _exact_column(_csv_column(names[index] if names else None, cells, dialect), cells)
        for index in range(width)
        for cells in ([row[index] for row in rows],)
    ]
    widths = Counter(map(len, records))
    delimiter = dialect.delimiter.decode()
    return RecordSchema("csv", tuple(columns), delimiter, dict(widths.most_common()), len(records))


def _find_header(
    objects: Sequence[Sequence[Sequence[bytes]]], width: int, dialect: CsvDialect, wanted: Sequence[str]
) -> tuple[str, ...] | None:
    """Return the header that most objects have, or None."""
    below = [row for rows in objects for row in rows[1:] if len(row) == width][: max(1, _CELLS_MAX // width)]
    numeric = {
        index
        for index in range(width)
        if _csv_column(None, [row[index] for row in below], dialect).type in NUMERIC
    }
    found = Counter(
        names
        for rows in objects
        if rows and (names := _header_names(rows[0], width, numeric, dialect, wanted))
    )
    if not found or 2 * found.total() <= sum(map(bool, objects)):
        return None
    return found.most_common(1)[0][0]


def _header_names(
    cells: Sequence[bytes], width: int, numeric: set[int], dialect: CsvDialect, wanted: Sequence[str]
) -> tuple[str, ...] | None:
    """Return the cells as names if they look like a header: distinct words above numbers."""
    try:
        names = tuple(cell.decode() for cell in cells)
    except UnicodeDecodeError:
        return None
    distinct = len(names) == width and len(set(names)) == width and all(name.strip() for name in names)
    if not distinct or any(_is_number(name, dialect) for name in names):
        return None
    return names if numeric or any(name in names for name in wanted) else None


def _csv_column(name: str | None, cells: Sequence[bytes], dialect: CsvDialect) -> Column:
    counts = Counter[ColumnType](_cell_type(cell, dialect) for cell in cells)
    nulls = counts.pop("null", 0)
    if not counts:
        return Column(name, "null", nulls=nulls)
    return Column(name, _majority_type(counts), nulls=nulls)


def _exact_column(column: Column, cells: Sequence[bytes]) -> Column:
    """Return the column as text if an integer of int64 would lose digits of a cell, as of 00501."""
    if column.type == "integer" and any(map(_LOSES_DIGITS.fullmatch, cells)):
        return replace(column, type="text")
    return column


def _cell_type(cell: bytes, dialect: CsvDialect) -> ColumnType:
    text = cell.decode("utf-8", "replace").strip()
    if not text or text in dialect.null_words:
        return "null"
    if _INTEGER.fullmatch(text):
        return "integer"
    if _is_number(text, dialect):
        return "number"
    return "boolean" if text.lower() in _BOOLEANS else "text"


def _is_number(text: str, dialect: CsvDialect) -> bool:
    """Return True if the parser of CSV numbers accepts a text."""
    try:
        parse_number(text, dialect.decimal)
    except ValueError:
        return False
    return True


def _majority_type(counts: Counter[ColumnType]) -> ColumnType:
    """Return the most frequent type; integers among numbers are numbers."""
    together = counts.copy()
    if together["number"]:
        together["number"] += together.pop("integer", 0)
    return together.most_common(1)[0][0]


def infer_json(kind: str, blocks: Sequence[Block], path: JsonPath) -> RecordSchema:
    """Return the schema of the part of JSON records that the input filter selects.

    Records that are not JSON are skipped.

    Raises ConfigError if the filter selects nothing from any record.
    """
    values: list[Any] = []
    missing: ValueError | None = None
    for record in (record for block in blocks for record in block.texts()):
        try:
            value = orjson.loads(record)
        except orjson.JSONDecodeError:
            continue
        try:
            values.append(value if path.is_root else path.value(value))
        except ValueError as error:
            missing = missing or error
    if missing is not None and not values:
        raise ConfigError(
            f"the input filter selects nothing from the records from {blocks[0].first} on: {missing}"
        )
    objects = [cast("dict[str, Any]", value) for value in values if isinstance(value, dict)]
    if 2 * len(objects) <= len(values):
        return RecordSchema(kind, (json_column(None, [v for v in values if not isinstance(v, dict)]),))
    names = dict.fromkeys(name for fields in objects for name in fields)
    return RecordSchema(kind, tuple(json_column(n, [fields.get(n) for fields in objects]) for n in names))


def infer_webdataset(blocks: Sequence[Block], path: JsonPath) -> RecordSchema:
    """Return the schema of WebDataset records: the columns that `infer_json` finds, and their files."""
    records = infer_json(WEBDATASET, blocks, path)
    counts = Counter(name for block in blocks for name in block.columns)
    total = sum(map(len, blocks))
    files = [Column(name, "bytes", nulls=total - count) for name, count in counts.items()]
    return replace(records, columns=(*records.columns, *files))


def json_column(name: str | None, values: Iterable[Any]) -> Column:
    """Return the column of JSON values: the most frequent shape, and the most frequent type of that shape."""
    counts = Counter(map(_json_type, values))
    nulls = counts.pop(("null", ()), 0)
    if not counts:
        return Column(name, "null", nulls=nulls)
    shapes = Counter[tuple[int, ...]]()
    for (_, shape), count in counts.items():
        shapes[shape] += count
    shape = shapes.most_common(1)[0][0]
    types = Counter[ColumnType]({type: n for (type, found), n in counts.items() if found == shape})
    return Column(name, _majority_type(types), shape, nulls)


def _json_type(value: Any) -> tuple[ColumnType, tuple[int, ...]]:
    """Return the type of a value's first leaves, and the lengths of the nested first lists."""
    shape: list[int] = []
    leaves: list[Any] = [value]
    while isinstance(leaves[0], list):
        leaves = cast("list[Any]", leaves[0])
        shape.append(len(leaves))
        if not leaves:
            return "number", tuple(shape)
    types: set[type] = set(map(type, leaves))
    if types == {int, float}:
        return "number", tuple(shape)
    found: ColumnType = _JSON_TYPES.get(types.pop(), "object") if len(types) == 1 else "object"
    return ("number" if shape and found == "null" else found), tuple(shape)


def infer_messages(kind: str, blocks: Sequence[Block]) -> RecordSchema:
    """Return the schema of framed messages: their features, with the numbers of values as shapes."""
    message = FRAMED_KINDS[kind]

    def read(record: bytes) -> _Parts:
        for key, feature in features(record, message, None).items():
            values = feature_values(record, feature, key.decode())
            yield key.decode(), values.dtype, (len(values),)

    return _infer_parts(kind, blocks, read)


def infer_requests(blocks: Sequence[Block]) -> RecordSchema:
    """Return the schema of V2 requests: their inputs, each with its most frequent type and shape."""
    from headrace.protocols.oip_json import decode_request  # noqa: PLC0415 - for this format alone

    def read(record: bytes) -> _Parts:
        for tensor in decode_request(record).request.inputs:
            yield tensor.name, tensor.data.dtype, tensor.data.shape

    return _infer_parts(V2, blocks, read)


_Parts = Iterator[tuple[str, np.dtype[Any], tuple[int, ...]]]
"""The named parts of a record, with their types and shapes."""


def _infer_parts(kind: str, blocks: Sequence[Block], read: Callable[[bytes], _Parts]) -> RecordSchema:
    """Return the schema of records with named arrays, which `read` yields. Records that raise are skipped."""
    found: dict[str, Counter[tuple[ColumnType, tuple[int, ...]]]] = {}
    valid = 0
    problem = "they are empty"
    for record in (record for block in blocks for record in block.texts()):
        try:
            parts = list(read(record))
        except (ValueError, DataError, UnsupportedError) as error:
            problem = str(error) if problem == "they are empty" else problem
            continue
        valid += 1
        for name, dtype, shape in parts:
            type: ColumnType = _DTYPE_TYPES.get(dtype.kind, "text")
            found.setdefault(name, Counter())[type, shape] += 1
    columns = [
        Column(name, type, shape, valid - counts.total())
        for name, counts in found.items()
        for (type, shape), _ in counts.most_common(1)
    ]
    return RecordSchema(kind, tuple(columns), problem="" if columns else problem)


def infer_table(kind: str, blocks: Sequence[Block]) -> RecordSchema:
    """Return the schema of rows of tables: the columns of most files."""
    tables = [block.table for block in blocks if block.table is not None]
    layouts = Counter(table.names for table in tables)
    names = layouts.most_common(1)[0][0]
    alike = [table for table in tables if table.names == names]
    return RecordSchema(kind, tuple(_table_column(name, alike) for name in names))


def _table_column(name: str, tables: Sequence[RecordTable]) -> Column:
    arrays = [data for table in tables if (data := table.array(name)) is not None]
    if len(arrays) < len(tables):
        rows = [orjson.loads(row) for table in tables for row in table.select([name]).texts()]
        return json_column(name, [row[name] for row in rows])
    kinds = Counter[ColumnType](_DTYPE_TYPES.get(values_dtype(data).kind, "text") for data in arrays)
    return Column(name, _majority_type(kinds), nulls=sum(map(_nulls, arrays)))


def _nulls(data: Array) -> int:
    return int((data == None).sum()) if data.dtype.kind == "O" else 0  # noqa: E711 - element by element
