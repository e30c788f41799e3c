"""Batches to steps of sequences: which rows begin one and which end one, in the order of the source; and what a resumption replays.

The predictor is told of every begin and end by name, and never guesses: a state that it has lost is then an error, and not
a sequence that begins anew in its middle. Since the count is kept here, in source order, what is refused depends on the
source alone, and not on how far the model has come.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headrace.core.block import FailureKind
from headrace.core.errors import ConfigError, LimitError
from headrace.core.sequence import SequenceLimits
from headrace.core.tensor import ModelMetadata, Tensor, text_array
from headrace.pipeline.items import Cursor, Replay, Span, piece_rows
from headrace.pipeline.settings import FlowSettings, MappingOptions

SEQUENCE_INPUTS: Final = ("sequence_id", "sequence_start", "sequence_end")
"""The tensors that say, for every row, to which sequence it belongs."""


@dataclass(frozen=True, slots=True)
class Steps:
    """What a batch is for its sequences.

    `tensors` go with its rows. `endings` are ids of sequences that end before the batch, without a row of their own.
    `cuts` are the rows with which another request has to begin: a sequence ends before that row, and one of the same id
    begins with it, which is not to be asked for before the end is done. `replay` is what a resumption after the batch has to
    do again first.
    """

    tensors: tuple[Tensor, ...]
    endings: tuple[str, ...] = ()
    cuts: tuple[int, ...] = ()
    replay: Replay | None = None


@dataclass(frozen=True, slots=True)
class _Begin:
    """Where a batch begins, and how much came before."""

    cursor: Cursor
    records: int
    broken: int


class Sequencer:
    """Follows the sequences of one source, batch after batch. Passive; one thread.

    It knows what a predictor's sequences are for as long as every batch is asked, in order: one whose flow broke, or was
    drained, is of no use any more. What lives is bounded by `FlowSettings.sequences_live_max`.

    Raises ConfigError where the model and `MappingOptions.sequence` do not go together.
    """

    def __init__(self, metadata: ModelMetadata, mapping: MappingOptions, settings: FlowSettings) -> None:
        if not metadata.steps:
            raise ConfigError(
                f"--sequence {mapping.sequence}: model {metadata.name} has no step that keeps a state between records, as "
                "far as is known of it: leave --sequence out"
            )
        if taken := [spec.name for spec in metadata.inputs if spec.name in SEQUENCE_INPUTS]:
            raise ConfigError(
                f"model {metadata.name} has an input {', '.join(taken)}, which is what sequences are told by: give it "
                "another name"
            )
        model_max = metadata.sequences_live_max or SequenceLimits().live_max
        self._alone = mapping.sequence is None
        self._live_max = settings.sequences_live_max or model_max
        self._live: dict[str, _Begin] = {}
        """Those that live, the oldest first, and where the batch began in which each began."""
        self._place: tuple[tuple[int, int], str] | None = None
        """Of records that belong together by their place: the last one, and its id."""
        self._records = 0
        self._broken = 0

    @property
    def batch_rows_max(self) -> int | None:
        """How many rows of a batch can all be sequences by themselves; None where they are not."""
        return self._live_max if self._alone else None

    def steps(self, spans: Sequence[Span], begin: Cursor) -> Steps:
        """The next batch: its spans, and the cursor that it begins at. Raises LimitError when too many sequences live."""
        rows = sum(len(span.piece) for span in spans)
        if self._alone:
            return Steps((Tensor("sequence_id", np.full(rows, "", object)),))
        batch = _BatchSteps(rows)
        started = _Begin(begin, self._records, self._broken)
        for span in spans:
            assert span.sequences is not None
            if span.sequences.place is not None:
                self._enter(batch, (span.index, span.sequences.place), span)
            self._follow(batch, span, started)
        for span in spans:
            broken = sum(f.kind is FailureKind.OBJECT for f in span.failures)
            self._broken += broken
            self._records += len(span.piece) + len(span.failures) - broken
        return Steps(batch.tensors(), tuple(batch.endings), tuple(batch.cuts), self._replay())

    def finish(self) -> tuple[str, ...]:
        """The source has ended: the ids of sequences that end by that. Those of a column may go on in what comes later."""
        place, self._place = self._place, None
        return () if place is None or self._live.pop(place[1], None) is None else (place[1],)

    def _replay(self) -> Replay | None:
        oldest = next(iter(self._live.values()), None)
        if oldest is None:
            return None
        return Replay(oldest.cursor, self._records - oldest.records, self._broken - oldest.broken)

    def _enter(self, batch: "_BatchSteps", place: tuple[int, int], span: Span) -> None:
        """A sequence that is told by its place ends where another one begins."""
        assert span.sequences is not None
        if not len(span.sequences.ids) or (self._place is not None and self._place[0] == place):
            return
        if self._place is not None:
            self._end(batch, self._place[1])
        self._place = place, span.sequences.ids[0]

    def _follow(self, batch: "_BatchSteps", span: Span, started: _Begin) -> None:
        sequences, piece = span.sequences, span.piece
        assert sequences is not None
        good = set(piece_rows(piece).tolist()) if piece.rows is not None else None
        between = slice(piece.start, piece.stop)
        ids, ends = sequences.ids[between].tolist(), sequences.ends[between].tolist()
        for record, (id, ends_here) in enumerate(zip(ids, ends, strict=True), piece.start):
            if good is None or record in good:
                batch.row(id, starts=self._begun(id, started, span, record))
            # One that failed may have said that it is the last one.
            if ends_here:
                self._end(batch, id)

    def _begun(self, id: str, started: _Begin, span: Span, record: int) -> bool:
        """Whether a sequence begins with this record."""
        if id in self._live:
            return False
        if len(self._live) >= self._live_max:
            raise LimitError(
                f"{span.piece.block.position(record)}: sequence {id!r:.60} would be one more than the {self._live_max} that "
                "may be unfinished at once: say with --sequence-end which records are the last of theirs, or raise "
                "--sequences-live-max (their states are in memory); a run goes on with --resume"
            )
        self._live[id] = started
        return True

    def _end(self, batch: "_BatchSteps", id: str) -> None:
        if self._live.pop(id, None) is not None:
            batch.end(id)


class _BatchSteps:
    """The tensors of one batch, row by row."""

    def __init__(self, rows: int) -> None:
        self._ids: list[str] = []
        self._starts: NDArray[np.bool_] = np.zeros(rows, bool)
        self._ends: NDArray[np.bool_] = np.zeros(rows, bool)
        self._last: dict[str, int] = {}
        self._ended: set[str] = set()
        """Since the last cut."""
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
        """With its last row, where there is one in this batch."""
        row = self._last.pop(id, None)
        if row is None:
            self.endings.append(id)
        else:
            self._ends[row] = True
            self._ended.add(id)

    def tensors(self) -> tuple[Tensor, ...]:
        made: Mapping[str, Any] = {
            "sequence_id": text_array(self._ids),
            "sequence_start": self._starts,
            "sequence_end": self._ends,
        }
        return tuple(Tensor(name, made[name]) for name in SEQUENCE_INPUTS)
