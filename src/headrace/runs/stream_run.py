"""A run: from a source to published predictions, resumable at any point.

A source, a destination and a started predictor become parts, failures, a ledger and a `Report`.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from headrace.core.block import FailureKind
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import (
    ConfigError,
    CountMismatchError,
    EmptySourceError,
    HeadraceError,
    OutputExistsError,
    ResumeRefusedError,
)
from headrace.core.predictor import Predictor
from headrace.runs.encoders import Encoders
from headrace.runs.flow import Flow, open_flow
from headrace.runs.items import Cursor, Replay
from headrace.runs.notice import notice_objects
from headrace.runs.objects import plan_objects, source_covers
from headrace.runs.part_ledger import LEDGER_FOLDER, Counts, Ledger, ResumeState
from headrace.runs.parts import PART_NAME, Sink
from headrace.runs.progress import RunProgress
from headrace.runs.sequences import Sequencer
from headrace.runs.settings import RunSettings
from headrace.runs.stream_report import Report, make_report
from headrace.runs.usage import cpu_s
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from headrace.storage.uri import absolute

_log = logging.getLogger("headrace.runs")

IfExists = Literal["refuse", "resume", "overwrite"]


class Run:
    """The run of one destination.

    One thread uses it; any thread or signal handler may call `drain`. `execute` scores the objects
    that the source has at that moment. Alternatively, `append` and `append_notice` score objects as
    they arrive (a watched prefix, event notifications); each call adds to the same output. An
    object, identified by URI and ETag, is scored once however often it is named, also by another
    process that resumes the destination. After an error, the next call continues from the last
    commit.
    """

    def __init__(
        self,
        source: str | Sequence[str],
        destination: str,
        *,
        stores: Stores,
        predictor: Predictor,
        settings: RunSettings,
        model_identity: str,
        if_exists: IfExists = "refuse",
        clock: Clock | None = None,
    ) -> None:
        self.source = source
        self.destination = destination.rstrip("/") + "/"
        self.progress = RunProgress()
        self._stores = stores
        self._store = stores.for_uri(self.destination)
        self._predictor = predictor
        self._settings = settings
        self._model_identity = model_identity
        self._if_exists: IfExists = if_exists
        self._clock = clock or SystemClock()
        self._ledger = Ledger(self._store, self.destination)
        self._flow: Flow | None = None
        self._plan: list[ObjectInfo] = []
        self._plans = 0
        self._state: ResumeState | None = None
        self._done_objects = 0
        self._counted = (0, Counts())
        """The number of parts whose records were counted, and their counts."""
        self._resumed = False
        self._sequencer: Sequencer | None = None
        """The state of the predictor's sequences, if all submitted batches were delivered."""
        self._appending = False
        self._draining = False

    def execute(self) -> Report:
        """Score the source and publish the output. Return when everything is committed.

        Work that was committed before an error stays and can be resumed.

        Raises:
            OutputExistsError: The destination has output, and `if_exists` is "refuse".
            ResumeRefusedError: The destination belongs to another run.
            EmptySourceError: The source has no objects or no records.
            StorageError: A store failed.
            ModelError: The model failed.
        """
        report = self.open(lambda: plan_objects(self.source, self._stores, self._settings.read))
        return report or self._score()

    def append(self, objects: Iterable[ObjectInfo]) -> Report | None:
        """Score the objects that this run has not planned yet. Return None without new objects."""
        self._appending = True
        if not self._plans:
            self.open(list)
        planned = {(i.uri, i.etag) for i in self._plan}
        named = {(i.uri, i.etag): i for i in objects}
        fresh = [info for key, info in named.items() if key not in planned]
        if not fresh and self._done_objects == len(self._plan):
            return None
        if fresh:
            self._refuse_loop(fresh)
            self._ledger.reopen()
            self._ledger.write_plan(self._plans, fresh)
            self._plans += 1
            self._plan.extend(fresh)
        return self._score()

    def append_notice(self, notice: bytes | str | Mapping[str, Any]) -> Report | None:
        """Score the objects of an event notification, or return None if none of them is new.

        The objects are those that the notification says were created and that the source selects.
        `notice` is the JSON that S3, MinIO and Ceph send, bare or wrapped by SNS and SQS. A
        repeated notification changes nothing, also after a restart with the same ledger. Objects
        outside the source are skipped, such as the output of this run in the same bucket. The
        errors are those of `execute`.

        Raises:
            DataError: The format of the notification is unknown.
        """
        return self.append(i for i in notice_objects(notice) if source_covers(self.source, i.uri))

    def drain(self) -> None:
        """Stop reading, deliver the pending batches, and leave a ledger to resume from."""
        self._draining = True
        if self._flow:
            self._flow.drain()

    @property
    def draining(self) -> bool:
        """True after a call of `drain`."""
        return self._draining

    @property
    def _cursor(self) -> Cursor:
        """The position after all committed work and all finished objects."""
        last = self._state.last.cursor if self._state and self._state.last else Cursor()
        return last if last.index >= self._done_objects else Cursor(self._done_objects)

    def open(self, select: Callable[[], list[ObjectInfo]]) -> Report | None:
        """Begin or resume the run. Return the report if the run is already finished, else None.

        Raises:
            OutputExistsError: The destination has output, and `if_exists` is "refuse".
            ResumeRefusedError: The destination belongs to another run.
            ConfigError: The source contains the output, or the model does not support the settings.
        """
        self._check_sequences()
        exists = self._ledger.identity() is not None
        if self._if_exists == "overwrite":
            self._delete_output()
        elif exists and self._if_exists == "resume":
            return self._resume()
        elif exists or next(self._parts(), None):
            raise OutputExistsError(self.destination)
        plan = select()
        self._refuse_loop(plan)
        self._ledger.begin(self._identity(), plan)
        self._plan, self._plans = list(plan), 1
        _log.info("run begun", extra={"output": self.destination, "objects": len(plan)})
        return None

    def _resume(self) -> Report | None:
        self._ledger.check_identity(self._identity())
        self._resumed = True
        plans = self._ledger.read_plans()
        self._plan, self._plans = [info for plan in plans for info in plan], len(plans)
        self._state = self._ledger.state()
        self._count_before(self._state)
        at = {"output": self.destination, "objects": len(self._plan), "records": self.progress.records}
        _log.info("run resumed", extra=at)
        if self._state.finished is None:
            return None
        self._done_objects = len(self._plan)
        known = {k: v for k, v in self._state.finished.items() if k not in ("v", "exit_code")}
        return Report(**known)

    def _count_before(self, state: ResumeState) -> None:
        """Set the progress to the committed work, of an earlier process or before an error."""
        total, progress = state.last.total if state.last else Counts(), self.progress
        progress.records = total.records_in
        progress.rows_out, progress.rows_failed = total.rows_out, total.rows_failed
        progress.objects_broken = total.objects_broken

    def _identity(self) -> Mapping[str, Any]:
        source = self.source if isinstance(self.source, str) else list(self.source)
        return {"source": source, "model": self._model_identity, "settings": self._settings.identity()}

    def _refuse_loop(self, plan: Sequence[ObjectInfo]) -> None:
        """Raise ConfigError if the source contains the output: the run would never end."""
        output = absolute(self.destination)
        inside = next((i.uri for i in plan if absolute(i.uri).startswith(output)), None)
        if inside:
            raise ConfigError(
                f"{inside} is in the output {self.destination}: a run must not read its own output; "
                "choose an --output outside the source"
            )

    def _delete_output(self) -> None:
        """Delete the output of a run here, and nothing else."""
        ledger = self._store.list(f"{self.destination}{LEDGER_FOLDER}/")
        for info in [*ledger, *self._parts()]:
            self._store.delete(info.uri)

    def _parts(self) -> Iterator[ObjectInfo]:
        """Yield the objects that have the name of a part."""
        for info in self._store.list(f"{self.destination}part-"):
            if PART_NAME.fullmatch(info.uri.removeprefix(self.destination)):
                yield info

    def _score(self) -> Report:
        """Stream all objects from the cursor on into parts."""
        began, cpu_before_s = self._clock.now(), cpu_s()
        progress = self.progress
        progress.objects_total = len(self._plan)
        progress.bytes_total = sum(i.size_bytes or 0 for i in self._plan)
        cursor, learned = self._cursor, self._ledger.learned()
        progress.begin(
            objects_before=cursor.index,
            bytes_before=sum(i.size_bytes or 0 for i in self._plan[: cursor.index]),
        )
        sequencer = self._restored_sequencer(learned)
        self._sequencer = None
        self._flow = flow = open_flow(
            self._plan,
            self._stores,
            self._predictor,
            self._settings,
            start=cursor,
            sequencer=sequencer,
            resumable=True,
            appended=self._appending,
            learned=learned,
            progress=progress,
            clock=self._clock,
        )
        if self._draining:
            flow.drain()
        sink = Sink(
            self._store,
            self.destination,
            self._ledger,
            Encoders(self._settings, flow.mapper).make,
            self._settings.output,
            state=self._state,
            clock=self._clock,
        )
        try:
            for batch in flow:
                if flow.mapper.learned != learned:
                    learned = dict(flow.mapper.learned)
                    self._ledger.learn(learned)
                for failure in batch.failures if batch.broken else ():
                    if failure.kind is FailureKind.OBJECT:
                        _log.info("object broken: %s", failure.why, extra={"at": str(failure.position)})
                sink.write(batch)
                progress.parts = sink.parts
            if flow.drained:
                sink.checkpoint()
            sink.finish(end=not flow.drained)
        except BaseException:
            self._keep_delivered(sink)
            raise
        progress.parts = sink.parts
        if not flow.drained:
            self._sequencer = sequencer
        return self._finish(
            sink,
            drained=flow.drained,
            elapsed_s=self._clock.now() - began,
            cpu_used_s=cpu_s() - cpu_before_s,
        )

    def _check_sequences(self) -> None:
        """Raise ConfigError before any write if the model does not support the sequence settings."""
        metadata, mapping = self._predictor.metadata, self._settings.mapping
        if metadata.is_stateful or mapping.sequence is not None:
            Sequencer(metadata, mapping, self._settings.flow)

    def _restored_sequencer(self, learned: Mapping[str, Any]) -> Sequencer | None:
        """Return the state of the predictor's sequences at the last commit.

        Replay records first if the state is unknown.
        """
        if self._settings.mapping.sequence is None:
            return None
        if self._sequencer is not None:
            return self._sequencer
        sequencer = Sequencer(self._predictor.metadata, self._settings.mapping, self._settings.flow)
        last = self._state.last if self._state else None
        # A sequence of an object or member ends with it, so nothing is unfinished at the start of
        # another.
        unfinished = not self._settings.mapping.by_place or self._cursor.position is not None
        if last is not None and last.replay is not None and unfinished:
            self._replay(last.replay, last.cursor, learned, sequencer)
        return sequencer

    def _replay(self, replay: Replay, stop: Cursor, learned: Mapping[str, Any], sequencer: Sequencer) -> None:
        """Feed the model the earlier records of its live sequences, in the same batches.

        The predictions were delivered before.

        Raises:
            ResumeRefusedError: The source has changed.
        """
        _log.info(
            "replaying records for the states of sequences",
            extra={"output": self.destination, "records": replay.records},
        )
        replayed = RunProgress()
        self._flow = flow = open_flow(
            self._plan,
            self._stores,
            self._predictor,
            self._settings,
            start=replay.begin,
            stop=stop,
            resumable=False,
            appended=True,
            learned=learned,
            progress=replayed,
            clock=self._clock,
            sequencer=sequencer,
        )
        if self._draining:
            flow.drain()
        before = self.progress.records_replayed
        self.progress.records_to_replay += replay.records
        for _ in flow:
            self.progress.records_replayed = before + replayed.records
        if not flow.drained and (replayed.records, replayed.objects_broken) != (
            replay.records,
            replay.broken,
        ):
            raise ResumeRefusedError(
                f"{self.destination}: the states of its sequences cannot be rebuilt: the source had "
                f"{replay.records} records and {replay.broken} broken objects or members, and now has "
                f"{replayed.records} and {replayed.objects_broken}: restore the source, or start anew with "
                "--overwrite"
            )

    def _keep_delivered(self, sink: Sink) -> None:
        """Keep the delivered work of a broken run, or delete all traces if there is none."""
        try:
            sink.checkpoint()
        except HeadraceError:
            # The destination itself may have failed: keep its contents, and report the first error.
            _log.warning("the output since the last commit could not be saved", exc_info=True)
        finally:
            sink.abort()
        try:
            self._state = self._ledger.state()
            self._count_before(self._state)
            if not self._resumed and self._state.last is None:
                self._delete_output()
                self._plan, self._plans = [], 0
        except HeadraceError:
            _log.warning("the ledger cannot be read", exc_info=True)

    def _finish(self, sink: Sink, *, drained: bool, elapsed_s: float, cpu_used_s: float) -> Report:
        total = self._check_ledger(sink)
        report = make_report(
            status="drained" if drained else "complete",
            source=self.source if isinstance(self.source, str) else ", ".join(self.source),
            output=self.destination,
            model=self._predictor.metadata.name,
            total=total,
            parts=sink.parts,
            progress=self.progress,
            statistics=self._predictor.statistics(),
            elapsed_s=elapsed_s,
            cpu_s=cpu_used_s,
            resumed=self._resumed,
        )
        counts = {
            "records_in": total.records_in,
            "rows_out": total.rows_out,
            "rows_failed": total.rows_failed,
        }
        _log.info("run %s", report.status, extra={"output": self.destination, "parts": sink.parts, **counts})
        if drained:
            return report
        if not (total.records_in or total.objects_broken or self._appending):
            self._delete_output()
            raise EmptySourceError(report.source, f"{len(self._plan)} object(s) without a single record")
        self._ledger.finish(report.to_json())
        self._done_objects = len(self._plan)
        return report

    def _check_ledger(self, sink: Sink) -> Counts:
        """Return the total counts, after a check of the ledger against the sink.

        Raises:
            CountMismatchError: The summed parts differ from the last commit or from the sink.
        """
        self._state = self._ledger.state()
        total = self._state.last.total if self._state.last else Counts()
        # Only new parts are read: after ten thousand appends, all of them would take too long.
        parts, before = self._counted
        counted = before.plus(self._ledger.count(self._state, since=parts))
        if not self._state.checkpoints:
            self._counted = (sink.parts, counted)
        lost = sink.committed != total and not sink.drops_open_part
        if lost or counted != total or total.records_in != total.rows_out + total.rows_failed:
            raise CountMismatchError(
                self.destination,
                records_in=sink.committed.records_in,
                out=counted.rows_out,
                failed=counted.rows_failed,
            )
        return total
