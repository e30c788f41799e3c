"""The stream itself: source → prefetch → batcher → predict → delivery.

::

    prefetch threads ─▶ feeder ──────────────────────────▶ window ─▶ the caller
                        (decompress, cut, decode, batch,             (waits for the head's
                         submit)                                      answer, in order)

Batches may come back from the predictor in any order; the window is a queue in source order whose head is
waited for, so delivery is in order by construction and the window's bound is the back-pressure.

A model that keeps a state between records is asked one batch at a time, and the next when that is answered. So records of
one sequence are stepped in source order whatever happens to a request, and who shares a step depends on the source alone.

One thread does all from chunk to batch: reading ahead is what hides latency, and one thread more between there would
only take the interpreter's lock from the others. Only where batches close by delay does a reader of its own feed
the feeder, which must not sleep in a read when a delay is over.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from headrace.core.block import Failure, FailureKind
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import CountMismatchError, ModelContractError, SequenceGoneError
from headrace.core.predictor import Predictor
from headrace.core.tensor import InferRequest, InferResponse
from headrace.formats.contract import Piece
from headrace.pipeline.channel import Channel, ChannelClosedError, EndOfChannelError
from headrace.pipeline.feed import Batch, Feed
from headrace.pipeline.items import (
    BlockSource,
    Cursor,
    ReadBlock,
    ScoredBatch,
    ScoredSpan,
    Span,
    piece_rows,
)
from headrace.pipeline.mapping import Mapper
from headrace.pipeline.progress import Progress
from headrace.pipeline.reader import Reader
from headrace.pipeline.sequences import Sequencer
from headrace.pipeline.settings import FlowSettings, StreamSettings
from headrace.pipeline.step_requests import ending, joined, parted
from headrace.pipeline.window import Window
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores

_FAILURE_BYTES = 1024
"""What a failed record takes beside its bytes, about: it is an object, and its line will be as long."""


class Flow:
    """An iterator of scored batches, in source order.

    The predictor is started and stopped by whoever owns it. Iterate in one thread; `drain` and `close` may be
    called from any. Memory is bounded by the settings whatever the source's size. Raises, from iteration and
    after everything before it was delivered, what broke the run. A `resumable` flow whose source breaks or is
    drained keeps back the records that make no whole batch, so that a resumption makes the same batches.

    A model with a `step` is told which sequences the records belong to: by `sequencer`, which knows how things stand with
    the predictor, or else as if nothing had been asked before. Raises ConfigError where model and mapping do not go together.
    """

    def __init__(
        self,
        source: BlockSource,
        mapper: Mapper,
        predictor: Predictor,
        settings: FlowSettings,
        *,
        resumable: bool = False,
        progress: Progress | None = None,
        clock: Clock | None = None,
        start: Cursor | None = None,
        sequencer: Sequencer | None = None,
        is_replay: bool = False,
    ) -> None:
        if sequencer is None and (predictor.metadata.steps or mapper.by_sequence):
            sequencer = Sequencer(predictor.metadata, mapper.options, settings)
        self._sequencer = sequencer
        self._start_cursor = start
        self._is_replay = is_replay
        self._last: Future[InferResponse] | None = None
        self._settings = settings
        self._predictor = predictor
        self._clock = clock or SystemClock()
        self._progress = progress or Progress()
        self._reader = source
        self.mapper = mapper
        self._window = Window(settings.window_bytes_max)
        self._draining = threading.Event()
        self._threads = [threading.Thread(target=self._feed, name="headrace-feeder", daemon=True)]
        self._blocks: Channel[ReadBlock] | None = None
        if settings.batch_delay_ms is not None:
            self._blocks = blocks = Channel[ReadBlock](settings.blocks_bytes_max)
            reader = threading.Thread(
                target=self._read_ahead, args=(blocks,), name="headrace-reader", daemon=True
            )
            self._threads.append(reader)
        self._resumable = resumable
        self._broken: Exception | None = None
        self._started = False

    @property
    def drained(self) -> bool:
        """Whether `drain` cut the source short."""
        return self._draining.is_set()

    def __iter__(self) -> Iterator[ScoredBatch]:
        """All batches; closes at the end, also when the caller stops early."""
        self._start()
        try:
            while (batch := self.next_batch()) is not None:
                yield batch
        finally:
            self.close()

    def next_batch(self) -> ScoredBatch | None:
        """The next batch in source order, when its answer is there; None at the end."""
        self._start()
        try:
            batch, response = self._window.receive()
        except EndOfChannelError:
            return None
        scored = _scored(batch, response)
        self._progress.delivered(scored)
        return scored

    def drain(self) -> None:
        """Read no more: what is under way is delivered, then the flow ends. Its rest is for a resumption."""
        self._draining.set()

    def cancel(self) -> None:
        """Begin to close: nothing more is read or delivered. Returns at once."""
        if self._blocks is not None:
            self._blocks.close()
        self._window.close()
        self._reader.close()

    def close(self) -> None:
        """Stop, and wait for the threads; what is under way is dropped. Closing twice does nothing.

        A thread that waits for room in the predictor is waited for: stop that first, after `cancel`, to end at once.
        """
        self.cancel()
        if self._started:
            for thread in self._threads:
                thread.join()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()

    def _read(self) -> Iterator[ReadBlock]:
        """The source's blocks, until it ends or breaks or the flow drains."""
        try:
            for read in self._reader.blocks():
                self._progress.read(self._reader.bytes_read, self._reader.objects_read)
                yield read
                if self._draining.is_set():
                    break
        except Exception as error:  # noqa: BLE001 - raised again once what came before is delivered
            self._broken = error
        self._progress.read(self._reader.bytes_read, self._reader.objects_read)

    def _read_ahead(self, blocks: Channel[ReadBlock]) -> None:
        """The reader's thread, where there is one."""
        try:
            for read in self._read():
                blocks.send(read, max(len(read.block.data), _columns_bytes(read)))
            blocks.finish()
        except ChannelClosedError:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the feeder
            blocks.fail(error)

    def _feed(self) -> None:
        """The feeder's thread."""
        metadata = self._predictor.metadata
        feed = Feed(self.mapper, metadata, self._settings, self._sequencer, start=self._start_cursor)
        try:
            self._feed_blocks(feed)
            # What is left of a source that broke is no whole batch: a resumption reads it again.
            if self._broken is None or not self._resumable:
                self._flush(feed)
                self._finish_sequences()
            if self._broken is None:
                self._window.finish()
            else:
                self._window.fail(self._broken)
        except ChannelClosedError:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the thread that iterates
            self._window.fail(error)

    def _feed_blocks(self, feed: Feed) -> None:
        if self._blocks is None:
            for read in self._read():
                self._add(feed, read)
            return
        try:
            while True:
                due = feed.due()
                read = self._blocks.receive(None if due is None else max(0.0, due - self._clock.now()))
                late = feed.poll(self._clock.now())
                if late is not None:
                    self._ask(late)
                if read is not None:
                    self._add(feed, read)
        except EndOfChannelError:
            return

    def _add(self, feed: Feed, read: ReadBlock) -> None:
        for batch in feed.add(read, self._clock.now()):
            self._ask(batch)
        if read.ends_batch:
            self._flush(feed)

    def _flush(self, feed: Feed) -> None:
        rest = feed.flush(self._clock.now())
        if rest is not None:
            self._ask(rest)

    def _ask(self, batch: Batch) -> None:
        """Submit, and take a place in the window; both may block. Once draining, nothing more is asked."""
        if self._draining.is_set():
            return
        self._end_sequences(batch.endings)
        answer = self._submit(batch.request, batch.cuts) if batch.request else None
        self._progress.asked(batch.reason)
        # Even a batch of no bytes takes room, so that the window is bounded in batches too.
        failures = sum(len(s.failures) for s in batch.spans) * _FAILURE_BYTES
        weight = max(batch.nbytes + failures, self._settings.window_bytes_max // 256)
        self._window.send(batch, answer, weight)

    def _submit(self, request: InferRequest, cuts: tuple[int, ...]) -> "Future[InferResponse]":
        if self._sequencer is not None:
            self._wait_for_last()
        if not cuts:
            self._last = answer = self._predictor.submit(request)
            return answer
        answers: list[InferResponse] = []
        for part in parted(request, cuts):
            self._last = self._predictor.submit(part)
            answers.append(self._last.result())
        answer = Future[InferResponse]()
        answer.set_result(joined(request, cuts, answers))
        return answer

    def _wait_for_last(self) -> None:
        """Until the request before is answered. Raises what that failed with: what comes after it would make other states."""
        if self._last is None:
            return
        error = self._last.exception()
        if error is not None:
            raise error

    def _end_sequences(self, ids: Sequence[str]) -> None:
        """Tell of sequences that end without a row of their own."""
        for id in ids:
            self._wait_for_last()
            error = self._predictor.submit(ending(id)).exception()
            # The model may have ended it by itself.
            if error is not None and not isinstance(error, SequenceGoneError):
                raise error

    def _finish_sequences(self) -> None:
        """Where a replay stops the source goes on."""
        if self._sequencer is not None and not self._is_replay and not self._draining.is_set():
            self._end_sequences(self._sequencer.finish())


def open_flow(
    plan: Sequence[ObjectInfo],
    stores: Stores,
    predictor: Predictor,
    settings: StreamSettings,
    *,
    start: Cursor | None = None,
    stop: Cursor | None = None,
    resumable: bool = False,
    appended: bool = False,
    learned: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
    sequencer: Sequencer | None = None,
) -> Flow:
    """A flow over whole objects, from `start` on; the predictor is started.

    With `stop` it ends there, and is a replay: `sequencer` knows afterwards how things stand at `stop`.

    With `appended` the plan is what has come so far: an empty archive in it is a failure, never an error. `learned`
    is what an earlier flow's `Mapper` knew.
    """
    return Flow(
        Reader(stores, plan, settings.read, settings.flow, start or Cursor(), stop=stop, appended=appended),
        Mapper(predictor.metadata, settings.mapping, settings.read, learned),
        predictor,
        settings.flow,
        resumable=resumable,
        progress=progress,
        clock=clock,
        start=start,
        sequencer=sequencer,
        is_replay=stop is not None,
    )


def _columns_bytes(read: ReadBlock) -> int:
    return sum(c.nbytes for c in read.block.columns.values())


def _scored(batch: Batch, response: InferResponse | None) -> ScoredBatch:
    """Join a batch with its answer, and hold the law: entries in = rows out + failures."""
    spans = tuple(ScoredSpan(s.piece, s.failures, s.index) for s in batch.spans)
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
    """Take the rows that the model refused out of their pieces, and put them among the failures."""
    found: list[ScoredSpan] = []
    base = 0
    for span in spans:
        rows = piece_rows(span.piece)
        refused = {f.row - base: f for f in response.failures if base <= f.row < base + len(rows)}
        base += len(rows)
        if not refused:
            found.append(ScoredSpan(span.piece, span.failures, span.index))
            continue
        block = span.piece.block
        failures: list[Failure] = [
            block.failure(int(rows[i]), FailureKind.MODEL, f.why, f.attempts) for i, f in refused.items()
        ]
        failures.extend(span.failures)
        failures.sort(key=lambda f: f.position.record)
        kept = rows[[i for i in range(len(rows)) if i not in refused]]
        piece = Piece(block, span.piece.start, span.piece.stop, kept)
        found.append(ScoredSpan(piece, tuple(failures), span.index))
    return tuple(found)
