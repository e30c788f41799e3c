"""The sequences of records, for models with a state: the sequence of each record, and the steps of batches.

Every request names the starts and the ends explicitly. So a state that the predictor lost is an
error, never a sequence that silently restarts in its middle. The sequences are counted here in
source order, so refusals depend on the source alone, not on the progress of the model. This module
also knows what a resumption has to replay.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from headrace.core.block import Block, Failure, FailureKind
from headrace.core.errors import ConfigError, DataError, LimitError, ModelContractError
from headrace.core.sequence import SEQUENCE_ID_CHARS_MAX, SequenceLimits, parse_sequence_id
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata, RowFailure, Tensor, text_array
from headrace.formats.contract import DecodedBlock
from headrace.formats.csv_decode import CellType, CsvColumnsDecoder
from headrace.formats.csv_dialect import CsvDialect
from headrace.runs.infer import JSON_KINDS
from headrace.runs.items import Cursor, RecordSequences, Replay, Span, selected_rows
from headrace.runs.settings import BY_MEMBER, FlowSettings, MappingOptions

SEQUENCE_INPUTS: Final = ("sequence_id", "sequence_start", "sequence_end")
"""The tensors that name the sequence, the start and the end of every row."""
_ID: Final = "id"
_END: Final = "end"
_TRUE: Final = frozenset({"true", "1"})
_FALSE: Final = frozenset({"false", "0", ""})
_TAIL_CHARS: Final = 180
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
    dialect: CsvDialect | None,
    *,
    width: int | None,
    names: tuple[str, ...] | None,
) -> SequenceReader:
    """Return the reader of the sequences of one record format. `block` has the first records.

    For CSV, `dialect` is that of the records, `width` is the number of cells of a record, and `names`
    are the columns of a header. For tables, `names` are the columns.

    Raises:
        ConfigError: The column does not exist, or the format has no columns.
    """
    if dialect is not None:
        decoder = CsvColumnsDecoder(_csv_columns(mapping), width=width, dialect=dialect)
        if names:
            decoder.bind(names)
        return _csv_reader(mapping, decoder)
    if block.table is not None:
        return _table_reader(sequence_columns(mapping, names or ()))
    if kind in JSON_KINDS:
        return _json_reader(mapping)
    raise ConfigError(
        f"--sequence {mapping.sequence} names a column of CSV, JSON or table records, but "
        f"{block.first.object} is read as {kind}: choose @object or @member if each object or member "
        "is a sequence"
    )


def sequence_columns(mapping: MappingOptions, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a table with the sequence ids and, if there is one, with the ends.

    The result is () for a run without sequences, and for sequences by object or member.

    Raises ConfigError if a column does not exist.
    """
    if mapping.sequence is None or mapping.by_place:
        return ()
    columns = [column for column in (mapping.sequence, mapping.sequence_end) if column is not None]
    found = [names[c] if isinstance(c, int) and c < len(names) else str(c) for c in columns]
    missing = [name for name in found if name not in names]
    if missing:
        raise ConfigError(f"--sequence: there is no column {missing[0]}: the columns are {', '.join(names)}")
    return tuple(found)


def _table_reader(columns: Sequence[str]) -> SequenceReader:
    def read(block: Block) -> RecordSequences:
        collector = _SequenceCollector(block, ())
        values = [_table_values(block, column) for column in columns]
        ends = values[1] if len(values) > 1 else [None] * len(block)
        for row, (id, end) in enumerate(zip(values[0], ends, strict=True)):
            collector.add(row, id, end)
        return collector.sequences()

    return read


def _table_values(block: Block, column: str) -> list[Any]:
    """Return the values of a flat column; None if the table of this object lacks the column."""
    values = None if block.table is None else block.table.array(column)
    return [None] * len(block) if values is None else values.tolist()


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


@dataclass(frozen=True, slots=True)
class BatchSteps:
    """The sequence data of a batch.

    `tensors` accompany its rows. `endings` are the ids of sequences that end before the batch
    without a row of their own. `cuts` are the rows at which a new request must start: a sequence
    ends before that row, and a new one with the same id starts at it, which must wait for the end.
    `replay` is the part of the source that a resumption after the batch replays first.
    """

    tensors: tuple[Tensor, ...]
    endings: tuple[str, ...] = ()
    cuts: tuple[int, ...] = ()
    replay: Replay | None = None


@dataclass(frozen=True, slots=True)
class _BatchBegin:
    """The start of a batch, and the counts before it."""

    cursor: Cursor
    records: int
    broken: int


class Sequencer:
    """The live sequences of one source, followed batch by batch. It is passive; one thread uses it.

    It mirrors the sequences of a predictor only while every batch is submitted, in order. It is
    useless after its flow broke or was drained. `FlowSettings.sequences_live_max` limits the live
    sequences.

    Raises:
        ConfigError: The model does not support the sequences of the mapping.
    """

    def __init__(self, metadata: ModelMetadata, mapping: MappingOptions, settings: FlowSettings) -> None:
        if not metadata.is_stateful:
            raise ConfigError(
                f"--sequence {mapping.sequence}: model {metadata.name} declares no step with a state "
                "between records: remove --sequence"
            )
        if taken := [spec.name for spec in metadata.inputs if spec.name in SEQUENCE_INPUTS]:
            raise ConfigError(
                f"model {metadata.name} has an input {', '.join(taken)}, a name that is reserved for "
                "sequences: rename it"
            )
        model_max = metadata.sequences_live_max or SequenceLimits().live_max
        self._single_row = mapping.sequence is None
        self._live_max = settings.sequences_live_max or model_max
        self._live: dict[str, _BatchBegin] = {}
        """The live sequences, oldest first, with the start of the batch in which each began."""
        self._place: tuple[tuple[int, int], str] | None = None
        """The last object or member, and the id of its sequence."""
        self._records = 0
        self._broken = 0

    @property
    def batch_rows_max(self) -> int | None:
        """The maximum rows of a batch if every row is a sequence by itself, else None."""
        return self._live_max if self._single_row else None

    def steps(self, spans: Sequence[Span], begin: Cursor) -> BatchSteps:
        """Return the sequence data of the next batch. `begin` is the cursor at its start.

        Raises:
            LimitError: Too many sequences are live.
        """
        rows = sum(len(span.selection) for span in spans)
        if self._single_row:
            return BatchSteps((Tensor("sequence_id", np.full(rows, "", object)),))
        batch = _BatchSteps(rows)
        started = _BatchBegin(begin, self._records, self._broken)
        for span in spans:
            assert span.sequences is not None
            if span.sequences.place is not None:
                self._enter_place(batch, (span.index, span.sequences.place), span)
            self._add_span(batch, span, started)
        for span in spans:
            broken = sum(f.kind is FailureKind.OBJECT for f in span.failures)
            self._broken += broken
            self._records += len(span.selection) + len(span.failures) - broken
        return BatchSteps(batch.tensors(), tuple(batch.endings), tuple(batch.cuts), self._replay())

    def finish(self) -> tuple[str, ...]:
        """Return the ids of the sequences that end with the source.

        Sequences of a column may continue in later objects.
        """
        place, self._place = self._place, None
        return () if place is None or self._live.pop(place[1], None) is None else (place[1],)

    def _replay(self) -> Replay | None:
        oldest = next(iter(self._live.values()), None)
        if oldest is None:
            return None
        return Replay(oldest.cursor, self._records - oldest.records, self._broken - oldest.broken)

    def _enter_place(self, batch: "_BatchSteps", place: tuple[int, int], span: Span) -> None:
        """End the sequence of the previous object or member when a new one starts."""
        assert span.sequences is not None
        if not len(span.sequences.ids) or (self._place is not None and self._place[0] == place):
            return
        if self._place is not None:
            self._end(batch, self._place[1])
        self._place = place, span.sequences.ids[0]

    def _add_span(self, batch: "_BatchSteps", span: Span, started: _BatchBegin) -> None:
        sequences, selection = span.sequences, span.selection
        assert sequences is not None
        decoded = set(selected_rows(selection).tolist()) if selection.rows is not None else None
        between = slice(selection.start, selection.stop)
        ids, ends = sequences.ids[between].tolist(), sequences.ends[between].tolist()
        for record, (id, ends_here) in enumerate(zip(ids, ends, strict=True), selection.start):
            if decoded is None or record in decoded:
                batch.row(id, starts=self._starts(id, started, span, record))
            # A failed record may be the last one of its sequence.
            if ends_here:
                self._end(batch, id)

    def _starts(self, id: str, started: _BatchBegin, span: Span, record: int) -> bool:
        """Return True if a sequence starts with this record."""
        if id in self._live:
            return False
        if len(self._live) >= self._live_max:
            raise LimitError(
                f"{span.selection.block.position(record)}: sequence {id!r:.60} exceeds the limit of "
                f"{self._live_max} unfinished sequences: name the last record of each with "
                "--sequence-end, or raise --sequences-live-max (states are kept in memory), then "
                "--resume"
            )
        self._live[id] = started
        return True

    def _end(self, batch: "_BatchSteps", id: str) -> None:
        if self._live.pop(id, None) is not None:
            batch.end(id)


class _BatchSteps:
    """The tensors of one batch, built row by row."""

    def __init__(self, rows: int) -> None:
        self._ids: list[str] = []
        self._starts: NDArray[np.bool_] = np.zeros(rows, bool)
        self._ends: NDArray[np.bool_] = np.zeros(rows, bool)
        self._last: dict[str, int] = {}
        self._ended: set[str] = set()
        """The sequences that ended since the last cut."""
        self.endings: list[str] = []
        self.cuts: list[int] = []

    def row(self, id: str, *, starts: bool) -> None:
        self._last[id] = row = len(self._ids)
        if starts and id in self._ended:
            self.cuts.append(row)
            self._ended.clear()
        self._starts[row] = starts
        self._ids.append(id)

    def end(self, id: str) -> None:
        """End a sequence at its last row in this batch, if it has one."""
        row = self._last.pop(id, None)
        if row is None:
            self.endings.append(id)
        else:
            self._ends[row] = True
            self._ended.add(id)

    def tensors(self) -> tuple[Tensor, ...]:
        arrays: Mapping[str, Any] = {
            "sequence_id": text_array(self._ids),
            "sequence_start": self._starts,
            "sequence_end": self._ends,
        }
        return tuple(Tensor(name, arrays[name]) for name in SEQUENCE_INPUTS)


def end_request(id: str) -> InferRequest:
    """Return the request that ends a sequence without a step."""
    return InferRequest((), id=f"end-{id}", parameters={"sequence_id": id, "sequence_end": True})


def split_request(request: InferRequest, cuts: Sequence[int]) -> list[InferRequest]:
    """Return the request as several, split before these ascending rows."""
    return [
        replace(
            request,
            inputs=tuple(Tensor(t.name, t.data[start:stop], t.parameters) for t in request.inputs),
            id=f"{request.id}.{number}",
        )
        for number, (start, stop) in enumerate(pairwise((0, *cuts, request.rows)))
    ]


def join_responses(
    request: InferRequest, cuts: Sequence[int], responses: Sequence[InferResponse]
) -> InferResponse:
    """Return the responses to a split request as one.

    Raises:
        ModelContractError: The responses have different outputs.
    """
    failures: list[RowFailure] = []
    for start, response in zip((0, *cuts), responses, strict=True):
        failures += [replace(failure, row=failure.row + start) for failure in response.failures]
    with_outputs = [response for response in responses if response.outputs]
    names = [tuple(tensor.name for tensor in response.outputs) for response in with_outputs]
    if len(set(names)) > 1:
        raise ModelContractError(
            responses[0].model_name,
            f"its responses to one batch have different outputs: {_listed(names[0])}, then "
            f"{_listed(*set(names) - {names[0]})}",
        )
    outputs = [
        Tensor(name, np.concatenate([response[name] for response in with_outputs]))
        for name in (names[0] if names else ())
    ]
    return replace(responses[0], outputs=tuple(outputs), id=request.id, failures=tuple(failures))


def _listed(*names: tuple[str, ...]) -> str:
    return "; ".join(", ".join(some) or "nothing" for some in names)
