"""Score a plan: the contract of the two ways, and the way in the order of the source, into numbered parts.

The other way is by tasks: `headrace.runs.tasks`.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Protocol

from typing_extensions import override

from headrace.core.errors import CountMismatchError, HeadraceError, ResumeRefusedError
from headrace.core.predictor import Predictor, PredictorStatistics
from headrace.core.tensor import ModelMetadata
from headrace.formats.contract import Encoder
from headrace.formats.read_options import V2
from headrace.runs.encoders import Encoders
from headrace.runs.flow import Flow, open_flow
from headrace.runs.items import Cursor, Replay
from headrace.runs.ledger import PartsState, RetryLedger
from headrace.runs.parts import PartsSink
from headrace.runs.plan import Plan
from headrace.runs.projection import TableColumns, needed_columns
from headrace.runs.records import Counts
from headrace.runs.schema import Schema
from headrace.runs.sequences import Sequencer
from headrace.runs.settings import RunSettings
from headrace.runs.source import read_head
from headrace.runs.totals import RunTotals, part_totals, replace_retried
from headrace.runs.work import RunProgress, RunWork, WorkFigures

_log = logging.getLogger("headrace.runs")
Mode = Literal["sequence", "tasks"]


class Scoring(Protocol):
    """The scoring of one run's plan. One thread uses it, except where noted."""

    @property
    def figures(self) -> WorkFigures:
        """The figures of the work."""
        ...

    mode: Mode
    """The way to score. A resumption must use the same."""

    def check(self) -> None:
        """Raise ConfigError, before any write, if the model or the settings do not fit."""
        ...

    def resume(self, plan: Plan, *, finished: bool) -> None:
        """Continue the work of an earlier process: read its progress from the ledger."""
        ...

    def execute(self, plan: Plan, *, appended: bool) -> bool:
        """Score the plan's remaining objects. Return False if stopped before the end.

        Delivered work is in the ledger afterwards, also after an error. With `appended`, objects
        arrive while the run goes on.
        """
        ...

    def totals(self, plan: Plan, *, complete: bool) -> RunTotals:
        """Return the totals, counted from the ledger and checked.

        Raises CountMismatchError and LedgerError if they are wrong.
        """
        ...

    @property
    def has_committed(self) -> bool:
        """False if nothing of a failed run is worth keeping."""
        return True

    def drain(self) -> None:
        """Stop reading, and deliver and persist the batches in progress. Any thread may call it."""
        ...


class Reader(Protocol):
    """A flow, or what runs one. Any thread may use it."""

    @property
    def reading(self) -> str:
        """The URI of the object that is being read, or an empty string."""
        ...

    def drain(self) -> None:
        """Stop reading, and deliver the batches in progress."""
        ...


class PredictorWork(WorkFigures):
    """The figures and the drain of work with a predictor of this process, one reader at a time.

    The caller starts and stops the predictor.
    """

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._reader: Reader | None = None
        self._draining = False

    @property
    def figures(self) -> WorkFigures:
        """The figures of the work."""
        return self

    @property
    @override
    def metadata(self) -> ModelMetadata:
        return self._predictor.metadata

    @override
    def statistics(self) -> PredictorStatistics:
        return self._predictor.statistics()

    @override
    def reading(self) -> Sequence[str]:
        return [self._reader.reading] if self._reader is not None else []

    def drain(self) -> None:
        """Drain the reader, and every later one. Any thread may call it."""
        self._draining = True
        if self._reader is not None:
            self._reader.drain()

    def _read_with(self, reader: Reader) -> None:
        """Make this the reader in progress."""
        self._reader = reader
        if self._draining:
            reader.drain()


class PartScoring(PredictorWork, Scoring):
    """The scoring of a stream without workers. The predictor is started when `execute` is called."""

    mode: Mode = "sequence"

    def __init__(self, work: RunWork, predictor: Predictor) -> None:
        super().__init__(predictor)
        self._work = work
        self._state: PartsState | None = None
        self._done_objects = 0
        self._counted = (0, RunTotals())
        """The number of parts whose records were counted, and their totals."""
        self._committed: Counts | None = None
        """The counts of all batches that were written, unless the run broke."""
        self._drops_open_part = False
        self._sequencer: Sequencer | None = None
        """The state of the predictor's sequences, if all submitted batches were delivered."""
        self._resumed = False

    @override
    def check(self) -> None:
        metadata, mapping = self._predictor.metadata, self._work.settings.mapping
        if metadata.is_stateful or mapping.sequence is not None:
            Sequencer(metadata, mapping, self._work.settings.flow)

    @override
    def resume(self, plan: Plan, *, finished: bool) -> None:
        self._resumed = True
        self._state = self._work.ledger.parts_state()
        self._work.progress.counts = self._state.total
        if finished:
            self._done_objects = len(plan.objects)

    @property
    def _cursor(self) -> Cursor:
        """The position after all committed work and all finished objects."""
        last = self._state.last.cursor if self._state and self._state.last else Cursor()
        return last if last.index >= self._done_objects else Cursor(self._done_objects)

    @override
    def execute(self, plan: Plan, *, appended: bool) -> bool:
        work, progress, cursor = self._work, self._work.progress, self._cursor
        progress.begin(objects_before=cursor.index, bytes_before=plan.bytes_before(cursor.index))
        work = work.with_schema(work.ledger.schema())
        sequencer = self._restored_sequencer(plan, work.schema)
        self._sequencer, self._committed = None, None
        flow = open_flow(
            plan.objects,
            work.stores,
            self._predictor,
            work.settings,
            start=cursor,
            sequencer=sequencer,
            resumable=True,
            appended=appended,
            schema=work.schema,
            columns=self._columns(work.schema),
            progress=progress,
            clock=work.clock,
        )
        self._read_with(flow)
        encoders = Encoders(work.settings, flow.mapper)
        sink = PartsSink(
            work.ledger,
            encoders.make,
            work.settings,
            state=self._state,
            clock=work.clock,
            make_empty=lambda: self._empty_encoder(encoders, plan),
        )
        try:
            self._deliver(flow, sink, work.schema)
            if flow.drained:
                sink.checkpoint()
            sink.finish(end=not flow.drained)
        except BaseException:
            self._keep_delivered(sink)
            raise
        progress.parts = sink.parts
        self._committed, self._drops_open_part = sink.committed, sink.drops_open_part
        if not flow.drained:
            self._sequencer = sequencer
        return not flow.drained

    def _columns(self, schema: Schema) -> TableColumns:
        settings = self._work.settings
        return needed_columns(self.metadata, settings.mapping, settings.output, schema)

    def _empty_encoder(self, encoders: Encoders, plan: Plan) -> Encoder | None:
        """Return the encoder of a first part without predictions."""
        work, first = self._work, plan.objects[0].info
        return encoders.make_empty(self.metadata, lambda: read_head(first, work.stores, work.settings.read))

    def _deliver(self, flow: Flow, sink: PartsSink, schema: Schema) -> None:
        """Write every batch of the flow."""
        work = self._work
        for batch in flow:
            if flow.mapper.schema is not schema:
                schema = flow.mapper.schema
                work.ledger.write_schema(schema)
            if work.observation is not None:
                work.observation.add_batch(batch, work.clock.now())
            sink.write(batch)
            work.progress.parts = sink.parts
            work.on_batch(batch)

    def _restored_sequencer(self, plan: Plan, schema: Schema) -> Sequencer | None:
        """Return the state of the predictor's sequences at the last commit.

        Replay records first if the state is unknown.
        """
        settings = self._work.settings
        if settings.mapping.sequence is None:
            self._require_states(settings)
            return None
        if self._sequencer is not None:
            return self._sequencer
        sequencer = Sequencer(self._predictor.metadata, settings.mapping, settings.flow)
        last = self._state.last if self._state else None
        # A sequence of an object or member ends with it, so nothing is unfinished at the start of
        # another.
        unfinished = not settings.mapping.by_place or self._cursor.position is not None
        if last is not None and last.replay is not None and unfinished:
            self._replay(plan, last.replay, last.cursor, schema, sequencer)
        return sequencer

    def _require_states(self, settings: RunSettings) -> None:
        """Raise ResumeRefusedError if an earlier process had the states of sequences that requests name."""
        is_begun = self._resumed and self._state is not None and self._state.last is not None
        if is_begun and settings.read.format == V2 and self.metadata.is_stateful:
            raise ResumeRefusedError(
                f"{self._work.ledger.destination}: v2 requests name their sequences themselves, whose states "
                "cannot be rebuilt: start anew with --overwrite"
            )

    def _replay(self, plan: Plan, replay: Replay, stop: Cursor, schema: Schema, sequencer: Sequencer) -> None:
        """Feed the model the earlier records of its live sequences, in the same batches.

        The predictions were delivered before.

        Raises:
            ResumeRefusedError: The source has changed.
        """
        work, progress = self._work, self._work.progress
        output = work.ledger.destination
        _log.info(
            "replaying records for the states of sequences",
            extra={"output": output, "records": replay.records},
        )
        replayed = RunProgress()
        flow = open_flow(
            plan.objects,
            work.stores,
            self._predictor,
            work.settings,
            start=replay.begin,
            stop=stop,
            resumable=False,
            appended=True,
            schema=schema,
            columns=self._columns(schema),
            progress=replayed,
            clock=work.clock,
            sequencer=sequencer,
        )
        self._read_with(flow)
        before = progress.records_replayed
        progress.records_to_replay += replay.records
        for _ in flow:
            progress.records_replayed = before + replayed.records
        found = (replayed.records, replayed.objects_broken)
        if not flow.drained and found != (replay.records, replay.broken):
            raise ResumeRefusedError(
                f"{output}: the states of its sequences cannot be rebuilt: the source had "
                f"{replay.records} records and {replay.broken} broken objects or members, and now has "
                f"{replayed.records} and {replayed.objects_broken}: restore the source, or start anew with "
                "--overwrite"
            )

    def _keep_delivered(self, sink: PartsSink) -> None:
        """Keep the delivered work of a broken run."""
        try:
            sink.checkpoint()
        except HeadraceError:
            # The destination itself may have failed: keep its contents, and report the first error.
            _log.warning("the output since the last commit could not be saved", exc_info=True)
        finally:
            sink.abort()
        try:
            self._state = self._work.ledger.parts_state()
            self._work.progress.counts = self._state.total
        except HeadraceError:
            _log.warning("the ledger cannot be read", exc_info=True)

    @property
    @override
    def has_committed(self) -> bool:
        return self._state is None or self._state.last is not None

    @override
    def totals(self, plan: Plan, *, complete: bool) -> RunTotals:
        ledger, progress = self._work.ledger, self._work.progress
        self._state = state = ledger.parts_state()
        total = state.total
        # Only new parts are read: after ten thousand appends, all of them would take too long.
        parts, before = self._counted
        counted = before.plus(part_totals(ledger.parts(state, since=parts)))
        if not state.checkpoints:
            self._counted = (state.published, counted)
        else:
            counted = counted.plus(part_totals(state.checkpoints[-1:]))
        written = total if self._committed is None or self._drops_open_part else self._committed
        if written != total or counted.counts != total:
            raise CountMismatchError(
                ledger.destination,
                records_in=written.records_in,
                out=counted.counts.rows_out,
                failed=counted.counts.rows_failed,
            )
        total.check(ledger.destination)
        if complete:
            self._done_objects = len(plan.objects)
        retried = RetryLedger(ledger).retried() if self._resumed else {}
        if retried:
            originals = [part for part in ledger.parts(state) if part.part in retried]
            counted = replace_retried(counted, originals, retried)
        objects_done = progress.objects_before + progress.objects_read
        return replace(counted, objects_done=objects_done, parts=state.published)
