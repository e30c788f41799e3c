"""The mapping of records to sequences: the sequence of each record of a block, and its end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from headrace.core.block import Block, Failure, FailureKind
from headrace.core.errors import ConfigError, DataError
from headrace.core.sequence import SEQUENCE_ID_CHARS_MAX, parse_sequence_id
from headrace.core.tensor import Array, text_array
from headrace.formats.contract import DecodedBlock
from headrace.formats.csv import CsvDialect
from headrace.formats.csv_decode import CellType, ColumnFinder, CsvColumnsDecoder
from headrace.runs.settings import BY_MEMBER, MappingOptions

_ID: Final = "id"
_END: Final = "end"
_TRUE: Final = frozenset({"true", "1"})
_FALSE: Final = frozenset({"false", "0", ""})
_TAIL_CHARS: Final = 180


@dataclass(frozen=True, slots=True)
class RecordSequences:
    """The sequence of each record of a block.

    `ids` are str ``[records]``; the id is empty for a record without one, which is also in
    `failures`. `ends` are bool ``[records]``: True for the last record of its sequence. `place` is
    not None if all records form one sequence because they come from one object or member. Another
    place is another sequence, even with the same id.
    """

    ids: Array
    ends: NDArray[np.bool_]
    failures: tuple[Failure, ...] = ()
    place: int | None = None


SequenceReader = Callable[[Block], RecordSequences]


def sequences_by_place(block: Block, mapping: MappingOptions) -> RecordSequences:
    """Return one sequence for all records of an object or member."""
    first = block.first
    by_member = mapping.sequence == BY_MEMBER and first.member is not None
    id = place_id(f"{first.object}!{first.member}" if by_member else first.object)
    ids = np.full(len(block), id, object)
    return RecordSequences(ids, np.zeros(len(block), bool), place=first.member_byte if by_member else 0)


def place_id(name: str) -> str:
    """Return the id of a place: its name, or the end of a long name after a digest of the whole."""
    if len(name) <= SEQUENCE_ID_CHARS_MAX:
        return name
    import hashlib  # noqa: PLC0415 - such long names are rare

    return f"{hashlib.sha256(name.encode()).hexdigest()}…{name[-_TAIL_CHARS:]}"


def sequence_reader(
    mapping: MappingOptions,
    block: Block,
    kind: str,
    delimiter: str,
    *,
    width: int | None,
    names: tuple[str, ...] | None,
) -> SequenceReader:
    """Return the reader of the sequences of one record format. `block` has the first records.

    For CSV, `width` is the number of cells of a record and `names` are the columns of a header.

    Raises:
        ConfigError: The column does not exist, or the format has no columns.
    """
    if kind == "csv":
        decoder = CsvColumnsDecoder(_csv_columns(mapping), width=width, delimiter=delimiter)
        if names:
            decoder.bind(names)
        return _csv_reader(mapping, decoder)
    if kind in ("json", "jsonl"):
        return _json_reader(mapping)
    raise ConfigError(
        f"--sequence {mapping.sequence} names a column of CSV or JSON records, but "
        f"{block.first.object} is read as {kind}: choose @object or @member if each object or member "
        "is a sequence"
    )


def other_columns(
    mapping: MappingOptions, width: int, names: tuple[str, ...] | None, delimiter: str
) -> tuple[str, ...] | tuple[int, ...]:
    """Return the CSV columns that do not define sequences: by name if a header has unique names.

    Another file may have the columns in another order.

    Raises:
        ConfigError: A column that defines sequences does not exist.
    """
    sequence_columns = [c for c in (mapping.sequence, mapping.sequence_end) if c is not None]
    excluded = (
        ColumnFinder(sequence_columns, width, CsvDialect.from_strings(delimiter, '"')).bind(names).indices
    )
    remaining = tuple(index for index in range(width) if index not in excluded)
    if names is not None and len(set(names)) == width:
        return tuple(names[index] for index in remaining)
    return remaining


def _csv_columns(mapping: MappingOptions) -> dict[str, tuple[str | int, CellType]]:
    assert mapping.sequence is not None
    columns: dict[str, tuple[str | int, CellType]] = {_ID: (mapping.sequence, "text")}
    if mapping.sequence_end is not None:
        columns[_END] = (mapping.sequence_end, "text")
    return columns


def _csv_reader(mapping: MappingOptions, decoder: CsvColumnsDecoder) -> SequenceReader:
    with_end = mapping.sequence_end is not None

    def read(block: Block) -> RecordSequences:
        decoded = decoder.decode(block)
        collector = _SequenceCollector(block, decoded.failures)
        rows = range(len(block)) if decoded.rows is None else decoded.rows.tolist()
        ends = decoded.tensors[_END].tolist() if with_end else [""] * len(decoded.tensors[_ID])
        for row, id, end in zip(rows, decoded.tensors[_ID].tolist(), ends, strict=True):
            collector.add(row, id, end)
        return collector.sequences()

    return read


def _json_reader(mapping: MappingOptions) -> SequenceReader:
    """Return a reader of JSON fields by name, with dots between nested names.

    An id is text or an integer. A missing or null end means False, so only last records need it.
    """
    id_keys = str(mapping.sequence).split(".")
    end_keys = None if mapping.sequence_end is None else str(mapping.sequence_end).split(".")

    def read(block: Block) -> RecordSequences:
        collector = _SequenceCollector(block, ())
        for row in range(len(block)):
            try:
                record: Any = orjson.loads(block.record(row))
            except orjson.JSONDecodeError as error:
                collector.fail(row, FailureKind.FORMAT, f"not JSON: {error}")
                continue
            collector.add(
                row, _field(record, id_keys), None if end_keys is None else _field(record, end_keys)
            )
        return collector.sequences()

    return read


class _SequenceCollector:
    """The ids, ends and failures of a block's records, collected one by one."""

    def __init__(self, block: Block, failures: tuple[Failure, ...]) -> None:
        self._block = block
        self._ids: list[str] = [""] * len(block)
        self._ends = np.zeros(len(block), bool)
        self._failures = {f.position.record - block.first.record: f for f in failures}

    def add(self, row: int, id: object, end: object) -> None:
        try:
            ends = _is_end(end)
            found = _id_of(id)
        except DataError as error:
            self.fail(row, FailureKind.DECODE, str(error))
            return
        self._ids[row] = found
        self._ends[row] = ends

    def fail(self, row: int, kind: FailureKind, why: str) -> None:
        self._failures[row] = self._block.failure(row, kind, why)

    def sequences(self) -> RecordSequences:
        failures = tuple(self._failures[row] for row in sorted(self._failures))
        return RecordSequences(text_array(self._ids), self._ends, failures)


def _id_of(value: object) -> str:
    if value is None:
        raise DataError("the record has no sequence id, which --sequence requires")
    # The protocols take 0 for "no sequence", but in a column it is an ordinary id.
    id = "0" if type(value) is int and value == 0 else parse_sequence_id(value)
    if not id:
        raise DataError("the sequence id is empty")
    return id


def _is_end(value: object) -> bool:
    text = str(value).strip().lower() if isinstance(value, str | int) else ""
    if value is not None and (not isinstance(value, str | int) or text not in _TRUE | _FALSE):
        raise DataError(f"invalid end of a sequence {value!r:.40}: must be true, false, 1 or 0")
    return text in _TRUE


def _field(record: Any, keys: list[str]) -> Any:
    for key in keys:
        if not isinstance(record, dict):
            return None
        record = cast("dict[str, Any]", record).get(key)
    return record


def drop_failed_records(block: Block, decoded: DecodedBlock, failures: tuple[Failure, ...]) -> DecodedBlock:
    """Return the decoded block without the records whose sequence is unknown."""
    first = block.first.record
    known = {f.position.record for f in decoded.failures}
    new = [f for f in failures if f.position.record not in known]
    if not new:
        return decoded
    rows = np.arange(len(block)) if decoded.rows is None else decoded.rows
    kept = ~np.isin(rows, [f.position.record - first for f in new])
    merged = sorted((*decoded.failures, *new), key=lambda f: f.position.record)
    return DecodedBlock(
        {name: data[kept] for name, data in decoded.tensors.items()}, rows[kept], tuple(merged)
    )
