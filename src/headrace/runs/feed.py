"""The conversion of blocks to batches: decode, batch by size or delay, and build requests.

It reads `ReadBlock`s and returns `Batch`es with their requests; `score_batch` joins a batch with its
response. It has no threads and no clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.batching.dynamic import ClosedBatch, CloseReason, DynamicBatcher
from headrace.core.block import Block, Failure, FailureKind
from headrace.core.errors import CountMismatchError, HeadraceError, ModelContractError, ModelInputError
from headrace.core.tensor import Array, InferRequest, InferResponse, ModelMetadata, Tensor
from headrace.formats.contract import BlockSelection, DecodedBlock
from headrace.runs.items import (
    BlockEntries,
    Cursor,
    ReadBlock,
    Replay,
    ScoredBatch,
    ScoredSpan,
    Span,
    selected_rows,
)
from headrace.runs.mapping import Mapper
from headrace.runs.sequences import Sequencer
from headrace.runs.settings import FlowSettings


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive entries with the request for their predictions.

    `request` is None if no entry was decoded. `endings` are the sequences that end before the
    batch. `cuts` are the rows at which a new request must start. `replay` is the part of the source
    that a resumption after this batch replays first.
    """

    number: int
    spans: tuple[Span, ...]
    entries: int
    nbytes: int
    reason: CloseReason
    end: Cursor
    request: InferRequest | None
    endings: tuple[str, ...] = ()
    cuts: tuple[int, ...] = ()
    replay: Replay | None = None


class Feed:
    """A converter of blocks to batches, from the cursor `start` on.

    It is passive: the caller passes the time `now`. One thread uses it. With a `sequencer`,
    requests name the sequence of each row; its errors are raised here.
    """

    def __init__(
        self,
        mapper: Mapper,
        metadata: ModelMetadata,
        settings: FlowSettings,
        sequencer: Sequencer | None = None,
        *,
        start: Cursor | None = None,
    ) -> None:
        delay_ms = settings.batch_delay_ms
        rows_max = metadata.max_batch_rows
        if sequencer is not None:
            rows_max = min(rows_max, sequencer.batch_rows_max or rows_max)
        self._mapper = mapper
        self._batcher: DynamicBatcher[BlockEntries] = DynamicBatcher(
            rows_max=settings.batch_rows_max or rows_max,
            bytes_max=settings.batch_bytes_max,
            delay_s=None if delay_ms is None else delay_ms / 1000,
        )
        self._model = metadata.name
        self._sequencer = sequencer
        self._begin = start or Cursor()
        self._number = 0
        self._error: HeadraceError | None = None

    def add(self, read: ReadBlock, now: float) -> list[Batch]:
        """Return the batches that a block closes.

        If batches precede an invalid one, the next call raises its error.
        """
        self._check()
        block = read.block
        decoded, sequences = self._mapper.decode_steps(block)
        entries = BlockEntries(read, decoded, sequences)
        closed = self._batcher.add(entries, block.records, _entry_bytes(block, decoded), now)
        batches: list[Batch] = []
        for each in closed:
            try:
                batches.append(self._batch(each))
            except HeadraceError as error:
                self._error = error
                break
        if not batches:
            self._check()
        return batches

    def due(self) -> float | None:
        """Return the time at which `poll` closes a batch by delay, or None."""
        return self._batcher.due_s()

    def poll(self, now: float) -> Batch | None:
        """Return the batch whose delay has passed, or None."""
        self._check()
        closed = self._batcher.poll(now)
        return self._batch(closed) if closed else None

    def flush(self, now: float) -> Batch | None:
        """Return the remaining entries as a batch at the end of the source, or None."""
        self._check()
        closed = self._batcher.flush(now)
        return self._batch(closed) if closed else None

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _batch(self, closed: ClosedBatch[BlockEntries]) -> Batch:
        spans = tuple(s.item.span(s.start, s.stop) for s in closed.slices)
        last = closed.slices[-1]
        number, begin, end = self._number, self._begin, last.item.cursor_after(last.stop)
        self._number += 1
        self._begin = end
        steps = None if self._sequencer is None else self._sequencer.steps(spans, begin)
        return Batch(
            number=number,
            spans=spans,
            entries=closed.rows,
            nbytes=closed.nbytes,
            reason=closed.reason,
            end=end,
            request=_request(self._model, number, spans, () if steps is None else steps.tensors),
            endings=() if steps is None else steps.endings,
            cuts=() if steps is None else steps.cuts,
            replay=None if steps is None else steps.replay,
        )


def _request(
    model: str, number: int, spans: tuple[Span, ...], more: tuple[Tensor, ...]
) -> InferRequest | None:
    with_records = [s.tensors for s in spans if len(s.selection)]
    if not with_records:
        return None
    inputs = (Tensor(name, _joined(model, name, with_records)) for name in with_records[0])
    return InferRequest(inputs=(*inputs, *more), id=f"batch-{number}")


def _joined(model: str, name: str, tensors: list[Mapping[str, Array]]) -> Array:
    if len(tensors) == 1:
        return tensors[0][name]
    arrays = [t[name] for t in tensors]
    shapes = dict.fromkeys(a.shape[1:] for a in arrays)
    if len(shapes) > 1:
        one, other = [list(shape) for shape in shapes][:2]
        raise ModelInputError(
            model,
            f"records of one batch have different shapes, {one} and {other}, for input {name!r}: "
            "resize images with --image-size, or predict one record at a time with --batch-rows-max 1",
        )
    return np.concatenate(arrays)


def _entry_bytes(block: Block, decoded: DecodedBlock) -> int | NDArray[np.int64]:
    """Return the bytes of each entry.

    Text counts its length, media their decoded size, and failures the bytes that they keep.
    """
    if block.columns:
        # Files beside a JSON record are encoded.
        arrays = decoded.tensors if block.data else block.columns
        sizes = sum(array.nbytes for array in arrays.values()) // max(len(block), 1)
        return sizes if not block.failures else np.full(block.records, sizes, np.int64)
    sizes = block.ends - block.starts
    if not block.failures:
        return sizes
    return np.concatenate([sizes, np.array([len(f.raw) for f in block.failures], np.int64)])


def score_batch(batch: Batch, response: InferResponse | None) -> ScoredBatch:
    """Join a batch with its response, and check that entries equal rows plus failures."""
    spans = tuple(ScoredSpan(s.selection, s.failures, s.index) for s in batch.spans)
    outputs = {} if response is None else {t.name: t.data for t in response.outputs}
    if response is not None and response.failures:
        spans = _without_failed_rows(batch.spans, response)
    scored = ScoredBatch(spans, outputs, batch.entries, batch.end, batch.replay)
    rows, failed = scored.rows, len(scored.failures)
    for name, data in outputs.items():
        if len(data) != rows:
            why = f"output {name!r} of batch {batch.number} has {len(data)} rows for {rows} records"
            raise ModelContractError(response.model_name if response else "?", why)
    if rows + failed != batch.entries:
        raise CountMismatchError(f"batch {batch.number}", records_in=batch.entries, out=rows, failed=failed)
    return scored


def _without_failed_rows(spans: tuple[Span, ...], response: InferResponse) -> tuple[ScoredSpan, ...]:
    """Return the spans with refused rows moved from the selections to the failures."""
    found: list[ScoredSpan] = []
    base = 0
    for span in spans:
        rows = selected_rows(span.selection)
        refused = {f.row - base: f for f in response.failures if base <= f.row < base + len(rows)}
        base += len(rows)
        if not refused:
            found.append(ScoredSpan(span.selection, span.failures, span.index))
            continue
        block = span.selection.block
        failures: list[Failure] = [
            block.failure(int(rows[i]), FailureKind.MODEL, f.why, f.attempts) for i, f in refused.items()
        ]
        failures.extend(span.failures)
        failures.sort(key=lambda f: f.position.record)
        kept = rows[[i for i in range(len(rows)) if i not in refused]]
        selection = BlockSelection(block, span.selection.start, span.selection.stop, kept)
        found.append(ScoredSpan(selection, tuple(failures), span.index))
    return tuple(found)
