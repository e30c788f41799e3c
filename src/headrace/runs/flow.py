"""The stream: source, prefetch, batching, prediction, ordered delivery.

::

    prefetch threads ─▶ feeder ──────────────────────────▶ window ─▶ the caller
                        (decompress, split, decode, batch,           (waits for the oldest
                         submit)                                     response, in order)

The predictor may complete batches in any order. The window is a queue in source order, and the
caller waits for its head. So delivery is ordered, and the limit of the window is the back-pressure.

A model with a state between records gets one batch at a time. So the records of a sequence are
stepped in source order whatever happens to a request, and the rows of a step depend on the source
alone.

One thread does all work from chunk to batch. Prefetching already hides the latency, and another
thread would only compete for the interpreter lock. Batches that close by delay need a separate
reader thread, because the feeder must not be blocked in a read when a delay ends.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from headrace.core.block import FailureKind
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import SequenceGoneError
from headrace.core.predictor import Predictor
from headrace.core.tensor import InferRequest, InferResponse
from headrace.formats.read_options import V2
from headrace.runs.feed import Batch, Feed, score_batch
from headrace.runs.first_batches import Answered, FirstBatches
from headrace.runs.items import (
    BlockSource,
    Channel,
    ChannelClosedError,
    Cursor,
    EndOfChannelError,
    ReadBlock,
    ScoredBatch,
)
from headrace.runs.mapping import Mapper
from headrace.runs.plan import ObjectShards
from headrace.runs.projection import TableColumns
from headrace.runs.records import PlannedObject
from headrace.runs.schema import Schema
from headrace.runs.sequences import Sequencer, end_request, join_responses, split_request
from headrace.runs.settings import FlowSettings, RunSettings
from headrace.runs.source import ShardSource
from headrace.runs.work import RunProgress
from headrace.storage.resolve import Stores

_log = logging.getLogger("headrace.runs")

_FAILURE_BYTES = 1024
"""The approximate memory of a failed record in addition to its bytes: an object and an output line."""


class Flow:
    """An iterator of scored batches in source order.

    The owner of the predictor starts and stops it. One thread iterates; any thread may call `drain`
    and `close`. The settings limit the memory whatever the size of the source. An error of the run
    is raised after all earlier batches. If the source of a `resumable` flow breaks or is drained,
    the flow holds back records that fill no batch, so that a resumption makes the same batches.

    With `stops_broken_model`, BrokenModelError is raised in place of the first batches if the model
    raised the same unexpected exception for each of their rows.

    A model with a `step` receives the sequence of each record from `sequencer`, which knows the
    state of the predictor's sequences; without one, the predictor is taken as new.

    Raises:
        ConfigError: The model does not support the sequences of the mapping.
    """

    def __init__(
        self,
        source: BlockSource,
        mapper: Mapper,
        predictor: Predictor,
        settings: FlowSettings,
        *,
        resumable: bool = False,
        progress: RunProgress | None = None,
        clock: Clock | None = None,
        start: Cursor | None = None,
        sequencer: Sequencer | None = None,
        is_replay: bool = False,
        stops_broken_model: bool = False,
    ) -> None:
        if mapper.read.format == V2:
            from headrace.runs.requests import RequestPredictor  # noqa: PLC0415 - for this format alone

            predictor = RequestPredictor(predictor, settings.batch_rows_max)
        if sequencer is None and (predictor.metadata.is_stateful or mapper.options.sequence is not None):
            sequencer = Sequencer(predictor.metadata, mapper.options, settings)
        self._sequencer = sequencer
        self._start_cursor = start
        self._is_replay = is_replay
        self._last: Future[InferResponse] | None = None
        self._settings = settings
        self._predictor = predictor
        self._clock = clock or SystemClock()
        self._progress = progress or RunProgress()
        # Several flows may read the objects of one run, one after another.
        self._read_before = (self._progress.bytes_read, self._progress.objects_read)
        self._source = source
        self.mapper = mapper
        self._window = Channel[tuple[Batch, Future[InferResponse] | None]](settings.window_bytes_max)
        """The submitted batches in source order, each ready when it has its response."""
        self._draining = threading.Event()
        self._threads = [threading.Thread(target=self._feed, name="headrace-feeder", daemon=True)]
        self._blocks: Channel[ReadBlock] | None = None
        if settings.batch_delay_ms is not None:
            self._blocks = blocks = Channel[ReadBlock](settings.blocks_bytes_max)
            reader = threading.Thread(
                target=self._read_ahead, args=(blocks,), name="headrace-reader", daemon=True
            )
            self._threads.append(reader)
        self._stops_broken_model = stops_broken_model
        self._first_batches: FirstBatches | None = None
        """The check of the first batches; None without one."""
        self._cancelled = False
        self._passed: deque[Answered] = deque()
        """Batches to deliver next, with their responses."""
        self._resumable = resumable
        self._broken: Exception | None = None
        self._started = False

    @property
    def reading(self) -> str:
        """The URI of the object that is being read, or an empty string."""
        return self._source.reading

    @property
    def drained(self) -> bool:
        """True if `drain` stopped the source early."""
        return self._draining.is_set()

    def __iter__(self) -> Iterator[ScoredBatch]:
        """Yield all batches. Close the flow at the end, also if the caller stops early."""
        try:
            while (batch := self.next_batch()) is not None:
                yield batch
        finally:
            self.close()

    def next_batch(self) -> ScoredBatch | None:
        """Return the next batch in source order once its response is ready, or None at the end."""
        self._start()
        answered = self._next_answered()
        if answered is None:
            return None
        batch, response = answered
        scored = score_batch(batch, response)
        if response is not None and response.failures:
            self._progress.add_tracebacks(response.failures)
        self._progress.batch_delivered(scored)
        if scored.broken and not self._is_replay:
            for failure in scored.failures:
                if failure.kind is FailureKind.OBJECT:
                    _log.info("object broken: %s", failure.why, extra={"at": str(failure.position)})
        return scored

    def _next_answered(self) -> Answered | None:
        """Return the next batch to deliver, with its response, or None at the end."""
        while not self._passed:
            first = self._first_batches
            try:
                submitted = self._window.receive()
            except EndOfChannelError:
                if self._cancelled:
                    return None
                if first is not None and not self.drained:
                    first.finish()
                self._release()
                return self._passed.popleft() if self._passed else None
            except Exception:
                # The error of the source is raised again after the earlier batches.
                self._release()
                if not self._passed:
                    raise
                continue
            assert submitted is not None, "it waits without a timeout"
            batch, future = submitted
            if first is None:
                return batch, None if future is None else future.result()
            self._passed.extend(first.add(batch, future))
        return self._passed.popleft()

    def _release(self) -> None:
        """Deliver the held batches, whatever they show."""
        if self._first_batches is not None:
            self._passed.extend(self._first_batches.release())

    def drain(self) -> None:
        """Stop reading. The flow delivers its pending batches and ends.

        A resumption reads the rest of the source.
        """
        self._draining.set()

    def cancel(self) -> None:
        """Begin to close: read and deliver nothing more. Return at once."""
        self._cancelled = True
        if self._blocks is not None:
            self._blocks.close()
        self._window.close()
        self._source.close()

    def close(self) -> None:
        """Stop, and wait for the threads. Pending batches are dropped. A second call does nothing.

        A thread that is blocked in `Predictor.submit` is waited for. To end at once, call `cancel`,
        then stop the predictor.
        """
        self.cancel()
        if self._started:
            for thread in self._threads:
                thread.join()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            if self._stops_broken_model:
                # A resumed run, and new objects of a watched source, follow rows that were predicted.
                works = self._is_replay or self._progress.rows_out > 0
                self._first_batches = FirstBatches(self._predictor, works=works)
            for thread in self._threads:
                thread.start()

    def _read(self) -> Iterator[ReadBlock]:
        """Yield the source's blocks until it ends or breaks or the flow drains."""
        try:
            for read in self._source.blocks():
                self._set_read()
                yield read
                if self._draining.is_set():
                    break
        except Exception as error:  # noqa: BLE001 - raised again after all earlier batches
            self._broken = error
        self._set_read()

    def _set_read(self) -> None:
        bytes_before, objects_before = self._read_before
        self._progress.set_read(
            bytes_before + self._source.bytes_read, objects_before + self._source.objects_read
        )

    def _read_ahead(self, blocks: Channel[ReadBlock]) -> None:
        """Run the reader thread, if batches close by delay."""
        try:
            for read in self._read():
                blocks.send(read, read.block.nbytes)
            blocks.finish()
        except ChannelClosedError:
            pass
        except BaseException as error:  # noqa: BLE001 - passed to the feeder
            blocks.fail(error)

    def _feed(self) -> None:
        """Run the feeder thread."""
        metadata = self._predictor.metadata
        feed = Feed(self.mapper, metadata, self._settings, self._sequencer, start=self._start_cursor)
        try:
            self._feed_blocks(feed)
            # The rest of a broken source fills no batch: a resumption reads it again.
            if self._broken is None or not self._resumable:
                self._flush(feed)
                # After a replay the sequences stay open: the source continues there.
                if self._sequencer is not None and not self._is_replay and not self.drained:
                    self._end_sequences(self._sequencer.finish())
            if self._broken is None:
                self._window.finish()
            else:
                self._window.fail(self._broken)
        except ChannelClosedError:
            pass
        except BaseException as error:  # noqa: BLE001 - passed to the iterating thread
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
                    self._submit_batch(late)
                if read is not None:
                    self._add(feed, read)
        except EndOfChannelError:
            return

    def _add(self, feed: Feed, read: ReadBlock) -> None:
        for batch in feed.add(read, self._clock.now()):
            self._submit_batch(batch)
        if read.ends_batch:
            self._flush(feed)

    def _flush(self, feed: Feed) -> None:
        rest = feed.flush(self._clock.now())
        if rest is not None:
            self._submit_batch(rest)

    def _submit_batch(self, batch: Batch) -> None:
        """Submit a batch and add it to the window. Both may block. Do nothing once draining."""
        if self._draining.is_set():
            return
        self._end_sequences(batch.endings)
        future = self._submit(batch.request, batch.cuts) if batch.request else None
        self._progress.closed_by[batch.reason] += 1
        # A batch without bytes has a weight, too, so that the number of batches in the window is
        # limited.
        failures = sum(len(s.failures) for s in batch.spans) * _FAILURE_BYTES
        weight = max(batch.nbytes + failures, self._settings.window_bytes_max // 256)
        self._window.send((batch, future), weight, future)

    def _submit(self, request: InferRequest, cuts: tuple[int, ...]) -> "Future[InferResponse]":
        if self._sequencer is not None:
            self._wait_for_last()
        if not cuts:
            self._last = future = self._predictor.submit(request)
            return future
        responses: list[InferResponse] = []
        for part in split_request(request, cuts):
            self._last = self._predictor.submit(part)
            responses.append(self._last.result())
        future = Future[InferResponse]()
        future.set_result(join_responses(request, cuts, responses))
        return future

    def _wait_for_last(self) -> None:
        """Wait for the previous request.

        Raise its error, because later steps would build other states.
        """
        if self._last is None:
            return
        error = self._last.exception()
        if error is not None:
            raise error

    def _end_sequences(self, ids: Sequence[str]) -> None:
        """End sequences that have no row of their own for it."""
        for id in ids:
            self._wait_for_last()
            error = self._predictor.submit(end_request(id)).exception()
            # The model may have ended the sequence itself.
            if error is not None and not isinstance(error, SequenceGoneError):
                raise error


def open_flow(
    objects: Sequence[PlannedObject],
    stores: Stores,
    predictor: Predictor,
    settings: RunSettings,
    *,
    start: Cursor | None = None,
    stop: Cursor | None = None,
    resumable: bool = False,
    appended: bool = False,
    schema: Schema | None = None,
    columns: TableColumns | None = None,
    progress: RunProgress | None = None,
    clock: Clock | None = None,
    sequencer: Sequencer | None = None,
) -> Flow:
    """Return a flow over whole objects, from the cursor `start` on.

    The predictor is already started. With `stop` the flow ends there and is a replay; afterwards
    `sequencer` has the state at `stop`. With `appended` the plan has the objects that arrived so
    far, and an empty archive is a failure instead of an error. `schema` is that
    of the records; without it, the first block of each format decides. `columns` are those of tables to
    read, all of them by default.
    """
    begin = start or Cursor()
    if schema is not None:
        settings = schema.apply_to(settings)
    source = ShardSource(
        stores,
        objects,
        ObjectShards(objects, begin),
        settings,
        columns=columns,
        first=begin.index,
        stop=stop,
        # An empty archive is an error only if it is the whole source.
        empty_raises=len(objects) == 1 and not appended and stop is None,
    )
    return Flow(
        source,
        Mapper(predictor.metadata, settings.mapping, settings.read, schema),
        predictor,
        settings.flow,
        resumable=resumable,
        progress=progress,
        clock=clock,
        start=start,
        sequencer=sequencer,
        is_replay=stop is not None,
        stops_broken_model=settings.failures.stops_broken_model,
    )
