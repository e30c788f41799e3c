"""Records to sequences: which one each record of a block belongs to, and whether it is its last."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from headrace.core.block import Block, Failure, FailureKind
from headrace.core.errors import ConfigError, DataError
from headrace.core.sequence import SEQUENCE_ID_CHARS_MAX, sequence_id_of
from headrace.core.tensor import Array, text_array
from headrace.formats.contract import Decoded
from headrace.formats.csv_cells import Dialect
from headrace.formats.csv_columns import ColumnFinder
from headrace.formats.csv_decode import CellType, CsvColumnsDecoder
from headrace.pipeline.settings import BY_MEMBER, MappingOptions

_ID: Final = "id"
_END: Final = "end"
_TRUE: Final = frozenset({"true", "1"})
_FALSE: Final = frozenset({"false", "0", ""})
_TAIL_CHARS: Final = 180


@dataclass(frozen=True, slots=True)
class RecordSequences:
    """What each record of a block says of its sequence.

    `ids` are str ``[records]``; empty where a record does not tell, which is then among `failures`. `ends` are bool
    ``[records]``: it is the last of its sequence. `place` is not None where all of them are one sequence since they are of
    one object or member: another place is another sequence, also one of the same id.
    """

    ids: Array
    ends: NDArray[np.bool_]
    failures: tuple[Failure, ...] = ()
    place: int | None = None


SequenceReader = Callable[[Block], RecordSequences]


def by_place(block: Block, mapping: MappingOptions) -> RecordSequences:
    """One sequence for all records of an object, or of a member."""
    first = block.first
    by_member = mapping.sequence == BY_MEMBER and first.member is not None
    id = place_id(f"{first.object}!{first.member}" if by_member else first.object)
    ids = np.full(len(block), id, object)
    return RecordSequences(ids, np.zeros(len(block), bool), place=first.member_byte if by_member else 0)


def place_id(name: str) -> str:
    """A place as an id: itself, or of a long name its end behind a digest of the whole."""
    if len(name) <= SEQUENCE_ID_CHARS_MAX:
        return name
    import hashlib  # noqa: PLC0415 - names are hardly ever so long

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
    """What reads the sequences of records of one kind, of which `block` has the first.

    Of CSV records, `width` is how many cells each has, and `names` what a header calls them. Raises ConfigError when the
    column is not there, or cannot be.
    """
    if kind == "csv":
        decoder = CsvColumnsDecoder(_csv_columns(mapping), width=width, delimiter=delimiter)
        if names:
            decoder.bind(names)
        return _csv_reader(mapping, decoder)
    if kind in ("json", "jsonl"):
        return _json_reader(mapping)
    raise ConfigError(
        f"--sequence {mapping.sequence} names a column of CSV or JSON records, but {block.first.object} is read as {kind}: "
        "choose @object or @member, where each of these is a sequence"
    )


def columns_beside(
    mapping: MappingOptions, width: int, names: tuple[str, ...] | None, delimiter: str
) -> tuple[str, ...] | tuple[int, ...]:
    """The columns of a CSV record that do not tell of sequences: by name where a header has names.

    Another file may have them in another order. Raises ConfigError when those that tell are not there.
    """
    told = [c for c in (mapping.sequence, mapping.sequence_end) if c is not None]
    gone = ColumnFinder(told, width, Dialect.of(delimiter, '"')).bind(names).indices
    left = tuple(index for index in range(width) if index not in gone)
    if names is not None and len(set(names)) == width:
        return tuple(names[index] for index in left)
    return left


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
        made = _Made(block, decoded.failures)
        rows = range(len(block)) if decoded.rows is None else decoded.rows.tolist()
        ends = decoded.tensors[_END].tolist() if with_end else [""] * len(decoded.tensors[_ID])
        for row, id, end in zip(rows, decoded.tensors[_ID].tolist(), ends, strict=True):
            made.add(row, id, end)
        return made.sequences()

    return read


def _json_reader(mapping: MappingOptions) -> SequenceReader:
    """Fields by name, with dots between those of objects in objects.

    An id is text or a whole number. An end that is missing, or null, is none: it may stand in last records alone.
    """
    id_keys = str(mapping.sequence).split(".")
    end_keys = None if mapping.sequence_end is None else str(mapping.sequence_end).split(".")

    def read(block: Block) -> RecordSequences:
        made = _Made(block, ())
        for row in range(len(block)):
            try:
                record: Any = orjson.loads(block.record(row))
            except orjson.JSONDecodeError as error:
                made.fail(row, FailureKind.FORMAT, f"not JSON: {error}")
                continue
            made.add(row, _field(record, id_keys), None if end_keys is None else _field(record, end_keys))
        return made.sequences()

    return read


class _Made:
    """Gathers what records say."""

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
        raise DataError("there is no sequence id in it, which --sequence asks for")
    # Of a column, 0 is as good as any other number.
    id = "0" if type(value) is int and value == 0 else sequence_id_of(value)
    if not id:
        raise DataError("its sequence id is empty")
    return id


def _is_end(value: object) -> bool:
    text = str(value).strip().lower() if isinstance(value, str | int) else ""
    if value is not None and (not isinstance(value, str | int) or text not in _TRUE | _FALSE):
        raise DataError(f"{value!r:.40} does not say whether a sequence ends: write true or false, 1 or 0")
    return text in _TRUE


def _field(record: Any, keys: list[str]) -> Any:
    for key in keys:
        if not isinstance(record, dict):
            return None
        record = record.get(key)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # parsed JSON
    return record  # pyright: ignore[reportUnknownVariableType]  # parsed JSON


def without_failed(block: Block, decoded: Decoded, failures: tuple[Failure, ...]) -> Decoded:
    """What was decoded, without the records whose sequence is not known."""
    first = block.first.record
    known = {f.position.record for f in decoded.failures}
    new = [f for f in failures if f.position.record not in known]
    if not new:
        return decoded
    rows = np.arange(len(block)) if decoded.rows is None else decoded.rows
    kept = ~np.isin(rows, [f.position.record - first for f in new])
    merged = sorted((*decoded.failures, *new), key=lambda f: f.position.record)
    return Decoded({name: data[kept] for name, data in decoded.tensors.items()}, rows[kept], tuple(merged))
