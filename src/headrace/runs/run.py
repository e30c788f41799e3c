"""A run: from a source to published predictions, resumable at any point.

Input: a source, a destination, and a started predictor or runner. Output: predictions, failed
records, a ledger, a report and a page.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import (
    ConfigError,
    EmptySourceError,
    HeadraceError,
    LedgerError,
    NotFoundError,
    OutputExistsError,
    PredictError,
)
from headrace.core.predictor import Predictor, PredictorStatistics
from headrace.reports.observation import RunObservation
from headrace.reports.report import Report, RunKind, Status
from headrace.runs.items import ScoredBatch
from headrace.runs.ledger import Ledger
from headrace.runs.limit import limit_pages, refuse_limit
from headrace.runs.objects import (
    iterate_infos,
    no_region,
    notice_objects,
    select_typed_objects,
    source_covers,
)
from headrace.runs.output import quote_hint
from headrace.runs.output_columns import check_columns
from headrace.runs.plan import Plan
from headrace.runs.plan_pages import PAGE_OBJECTS
from headrace.runs.records import PlannedObject
from headrace.runs.run_plan import GrowingObjects, Planning, RunPlan
from headrace.runs.sample import accept_schema, schema_of
from headrace.runs.schema import Schema
from headrace.runs.scoring import PartScoring, Scoring
from headrace.runs.settings import SAMPLED, RunSettings
from headrace.runs.table_output import TableOutput
from headrace.runs.tasks import InProcessRunner, Runner, TaskScoring
from headrace.runs.work import RunProgress, RunReporter, RunWork
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores

_log = logging.getLogger("headrace.runs")

IfExists = Literal["refuse", "resume", "overwrite"]


class Run:
    """The run of one source to one destination: a stream or a transform, as its settings say.

    One thread uses it; any thread or signal handler may call `drain`. `execute` scores the objects
    that the source has at that moment. Alternatively, `append` and `append_notice` score objects as
    they arrive (a watched prefix, event notifications); each call adds to the same output. An
    object is scored once however often it is named, also by another process that resumes the
    destination. After an error, the next call continues from the last commit.

    With a `predictor`, a stream writes its parts in the order of the source, and a transform runs
    its tasks in this process. With a `runner`, both run by tasks. With an `observation`, a page
    (``_report.html``) is written at the end, also after an error.

    Args:
        source: An object, a prefix, a glob or a manifest, or several of them.
        destination: The folder of the outputs.
        stores: The object stores.
        settings: The settings that shape the output.
        model_identity: The fingerprint of the model; a resumption must have the same.
        predictor: The predictor, started before the first call.
        runner: The runner of the tasks, started before the first call, instead of a predictor.
        if_exists: The action for an existing run at the destination.
        model_reference: The name and options of the model, to open it again for a retry.
        clock: The clock of elapsed times and checkpoints.
        observation: The observation of all batches.
        region_of: A function from an object's URI to its region.
        table: The table that the output is committed to, before the run is recorded as finished.
    """

    def __init__(
        self,
        source: str | Sequence[str],
        destination: str,
        *,
        stores: Stores,
        settings: RunSettings,
        model_identity: str,
        predictor: Predictor | None = None,
        runner: Runner | None = None,
        if_exists: IfExists = "refuse",
        model_reference: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        observation: RunObservation | None = None,
        region_of: Callable[[str], str | None] = no_region,
        table: TableOutput | None = None,
    ) -> None:
        self.source = source
        self.destination = destination.rstrip("/") + "/"
        self.kind: RunKind = "transform" if settings.per_object else "stream"
        self.progress = RunProgress()
        self.plan: Plan | None = None
        """The plan; set once the source is listed."""
        self._stores = stores
        self._settings = settings
        self._model_identity = model_identity
        self._if_exists: IfExists = if_exists
        self._model_reference = dict(model_reference or {})
        self._observation = observation
        self._region_of = region_of
        self._table = table
        self._ledger = Ledger(stores.for_uri(self.destination), self.destination)
        self._objects = RunPlan(source, self._ledger, settings, region_of)
        self._planning = Planning(iter(()), self._add_page, self._complete_plan)
        self._finished = 0
        """The number of objects that were in the plan when the run was last complete."""
        self._resumed = False
        self.was_finished = False
        """True if `execute` found a finished run, and did nothing."""
        self._appending = False
        self.draining = False
        """True after a call of `drain`."""
        work = RunWork(
            stores=stores,
            ledger=self._ledger,
            settings=settings,
            progress=self.progress,
            clock=clock or SystemClock(),
            on_batch=self._check_failures_so_far,
            observation=observation,
        )
        self._reporter = RunReporter(work, source)
        self._scoring = _make_scoring(work, predictor, runner)

    def select(self) -> list[ObjectInfo]:
        """Return the objects that the source has now. The errors are those of `select_objects`."""
        return select_typed_objects(self.source, self._stores, self._settings.data_type)

    @property
    def page(self) -> str | None:
        """The URI of the page; set once the page is written."""
        return self._reporter.page

    def execute(self) -> Report:
        """Score the source and publish the output. Return when everything is committed.

        Work that was committed before an error or a drain stays and can be resumed.

        Raises:
            OutputExistsError: The destination has output, and `if_exists` is "refuse".
            ResumeRefusedError: The destination belongs to another run.
            EmptySourceError: The source has no objects.
            TooManyFailuresError: More records failed than the settings allow.
            StorageError: A store failed.
            BrokenModelError: The model raised the same exception for every row of its first batches.
            ModelError: The model failed.
        """
        finished = self._open(lambda: iterate_infos(self.source, self._stores, self._settings))
        return finished or self._score()

    def append(self, objects: Iterable[ObjectInfo]) -> Report | None:
        """Score the objects that this run has not planned yet. Return None without new objects."""
        refuse_limit(self._settings)
        if self._table is not None and self._settings.per_object:
            raise ConfigError(
                "a transform that watches its source cannot write to a table: use a stream, whose parts are "
                "in the order of their commits"
            )
        self._appending = True
        objects = list(objects)
        if any(info.table is not None for info in objects):
            raise ConfigError(
                "a table cannot be watched: compaction rewrites its rows into new files, which would be "
                "scored again. Score a version of it, as in delta:FOLDER@VERSION"
            )
        if self.plan is None:
            self._open(lambda: iter(()))
        assert self.plan is not None, "opened"
        fresh = self._objects.unplanned(objects)
        if not fresh and self._finished == len(self.plan.objects):
            return None
        if fresh:
            for planned in self._objects.prepare(fresh):
                self._learn(planned)
                self._ledger.reopen()
                self._objects.add(planned)
            self.plan = self._make_plan()
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
        self.draining = True
        self._scoring.drain()

    def statistics(self) -> PredictorStatistics:
        """Return the model's statistics. Any thread may call it."""
        return self._scoring.figures.statistics()

    def reading(self) -> Sequence[str]:
        """Return the objects that are being read. Any thread may call it."""
        return self._scoring.figures.reading()

    def _make_plan(self) -> Plan:
        plan = self._objects.plan(by_tasks=self._by_tasks)
        self.progress.objects_total, self.progress.bytes_total = len(plan.objects), plan.nbytes
        if self._by_tasks or not self._planning.is_listing:
            return plan
        return replace(plan, objects=GrowingObjects(self._objects, self._planning))

    @property
    def _by_tasks(self) -> bool:
        return self._scoring.mode == "tasks"

    @property
    def _planned(self) -> int:
        """The number of planned objects."""
        return len(self.plan.objects) if self.plan else 0

    # Beginning

    def _open(self, select: Callable[[], Iterator[ObjectInfo]]) -> Report | None:
        """Begin or resume the run. Return the report if the run is already finished, else None."""
        self._scoring.check()
        found = self._ledger.kind()
        if found not in (None, self.kind):
            raise LedgerError(
                f"{self._ledger.uri('run.json')}: the destination has the output of headrace {found}: choose "
                "another destination"
            )
        if found and self._if_exists == "resume":
            return self._resume(select)
        if self._if_exists != "overwrite" and (found or any(self._objects.parts())):
            raise OutputExistsError(self.destination)
        self._begin(select())
        return None

    def _begin(self, infos: Iterator[ObjectInfo]) -> None:
        # A run that cannot start must neither delete an existing output nor leave files.
        pages = self._pages(infos)
        planned = [next(pages)]
        in_background = self._may_list_later(planned[0])
        if not in_background:
            planned += pages
        schema = self._schema_of([one for page in planned for one in page])
        check_columns(self._settings, self._scoring.figures.metadata, schema)
        if self._if_exists == "overwrite":
            self._objects.delete_output()
        if self._table is not None:
            self._table.begin()
        if schema.formats:
            self._ledger.write_schema(schema)
        for page in planned:
            self._objects.add(page)
        if not in_background:
            self._objects.complete()
        # A resumption must repeat the identity; a retry reads these.
        more = {"made_with": self._model_reference, "destination_region": self._region_of(self.destination)}
        self._ledger.begin(self._identity() | more, self.kind)
        if in_background:
            self._plan_pages(pages, in_background=True)
        self.plan = self._make_plan()
        _log.info("run started", extra={"output": self.destination, "objects": self._planned})

    def _may_list_later(self, first: Sequence[PlannedObject]) -> bool:
        """Return True if the pages after the first one may be planned while it is scored.

        A resumption cannot find the objects up to a limit of records again, nor the files of a table, whose
        version may be gone.
        """
        is_long = len(first) == PAGE_OBJECTS and first[0].info.table is None
        return is_long and self._settings.subset.limit is None

    def _pages(self, infos: Iterator[ObjectInfo]) -> Iterator[Sequence[PlannedObject]]:
        """Yield the objects of a listing as pages of the plan, up to the limit of records."""
        if not self._settings.per_object:
            infos = self._objects.without_own_output(infos)
        return limit_pages(self._objects.prepare(infos), self._stores, self._settings)

    def _plan_pages(self, pages: Iterator[Sequence[PlannedObject]], *, in_background: bool) -> None:
        """Add pages to the plan: now, or while the first ones are scored."""
        self._planning = Planning(pages, self._add_page, self._complete_plan)
        if in_background:
            self.progress.is_listing = True
            self._planning.start()
        else:
            self._planning.run()

    def _complete_plan(self) -> None:
        self._objects.complete()
        self.progress.is_listing = False

    def _add_page(self, planned: Sequence[PlannedObject]) -> None:
        """Add a page that was listed while the run goes on. Called in the thread of the listing."""
        if self._by_tasks:
            # A flow without tasks finds the schema of a format in its first block.
            self._learn(planned)
        self._objects.add(planned)
        self.progress.objects_total += len(planned)
        self.progress.bytes_total += sum(one.info.size_bytes or 0 for one in planned)

    def _learn(self, planned: Sequence[PlannedObject]) -> None:
        """Add the schemas of the formats that only these objects have to the schema of the run."""
        known = self._ledger.schema()
        schema = self._schema_of(planned, known)
        if schema != known:
            self._ledger.write_schema(schema)

    def _schema_of(self, planned: Sequence[PlannedObject], known: Schema | None = None) -> Schema:
        return schema_of(
            [one.info for one in planned],
            self._stores,
            self._settings,
            self._scoring.figures.metadata,
            known=known,
        )

    def _identity(self) -> dict[str, Any]:
        """Return the properties that a resumption must repeat."""
        return {
            "source": self.source if isinstance(self.source, str) else list(self.source),
            "model": self._model_identity,
            "settings": self._settings.identity(),
            "mode": self._scoring.mode,
        }

    def _resume(self, select: Callable[[], Iterator[ObjectInfo]]) -> Report | None:
        self._ledger.check_identity(self._identity(), self.kind)
        self._resumed = True
        if self._settings.schema not in SAMPLED:
            accept_schema(self._settings.schema, self._stores, self._ledger)
        finished = self._ledger.final_report()
        self._objects.load()
        is_listed = self._settings.per_object or not self._objects.is_complete
        if is_listed and finished is None and not self._appending:
            infos = self._objects.unplanned_after(select())
            many = self._objects.pages.objects >= PAGE_OBJECTS
            self._plan_pages(self._new_pages(infos), in_background=many)
        self.plan = self._make_plan()
        self._scoring.resume(self.plan, finished=finished is not None)
        at = {"output": self.destination, "objects": self._planned, "records": self.progress.records}
        _log.info("run resumed", extra=at)
        if finished is None:
            return None
        self._finished = self._planned
        self.was_finished = True
        return Report.from_json(finished)

    def _new_pages(self, infos: Iterator[ObjectInfo]) -> Iterator[Sequence[PlannedObject]]:
        """Yield pages of the objects of a listing that an earlier process did not plan, if it has any."""
        return (page for page in self._pages(infos) if page)

    # Scoring

    def _score(self) -> Report:
        """Score all objects that are not finished, and report."""
        assert self.plan is not None, "opened before"
        self._reporter.begin()
        try:
            complete = self._execute()
        except BaseException as error:
            self._planning.stop()
            self._reporter.end()
            if isinstance(error, PredictError) and error.traceback is not None:
                self.progress.tracebacks.setdefault(error.traceback.key, error.traceback)
            self._write_error_page(error)
            self._delete_traces()
            raise
        self._reporter.end()
        return self._finish(complete)

    def _execute(self) -> bool:
        """Score the objects that are planned, and those that are planned meanwhile.

        Return False if stopped before the end.
        """
        while True:
            assert self.plan is not None, "opened before"
            pages = len(self._objects.pages)
            if not self._scoring.execute(self.plan, appended=self._appending):
                self._planning.stop()
                return False
            has_more = self._planning.wait(partial(self._has_tasks_after, pages))
            self.plan = self._make_plan()
            if not has_more:
                return True

    def _has_tasks_after(self, pages: int) -> bool:
        return self._by_tasks and len(self._objects.pages) > pages

    def _delete_traces(self) -> None:
        """Delete all traces of a run that broke before its first commit."""
        if self._resumed or self._scoring.has_committed:
            return
        try:
            self._objects.delete_output()
            self.plan = None
        except HeadraceError:
            _log.warning("the traces of the run cannot be deleted", exc_info=True)

    def _check_failures_so_far(self, _: ScoredBatch | None) -> None:
        self._planning.check()
        self._check_failures(self.progress.rows_failed, self.progress.records, at_end=False)

    def _check_failures(self, failed: int, records: int, *, at_end: bool) -> None:
        progress = self.progress
        first = progress.first_failure
        self._settings.failures.check(
            self.destination,
            failed,
            records,
            at_end=at_end,
            failed_bytes=progress.failed_bytes,
            hint="" if first is None else quote_hint(first, self._settings.read.format),
        )

    # Ending

    def _finish(self, complete: bool) -> Report:
        report = self._report(None if complete else "drained" if self.draining else "partial")
        at = {"output": self.destination, "parts": report.parts}
        counts = {name: getattr(report, name) for name in ("records_in", "rows_out", "rows_failed")}
        if complete:
            self._check_failures(report.rows_failed, report.records_in, at_end=True)
        _log.info("run %s", report.status, extra=at | counts)
        if complete:
            self._reporter.publish(report)
        self._reporter.write_page(report)
        if complete:
            if self._table is not None:
                self._table.commit(self._ledger.run_id() or "", report.rows_out)
            self._ledger.finish(report.to_json())
            self._finished = self._planned
        return report

    def _report(self, stopped: Status | None) -> Report:
        """Return the report of a complete run (`stopped` None), or of one that stopped before its end."""
        assert self.plan is not None, "opened before"
        return self._reporter.make(
            self._scoring.totals(self.plan, complete=stopped is None),
            self._scoring.figures,
            objects=self._planned,
            resumed=self._resumed,
            stopped=stopped,
        )

    def _write_error_page(self, error: BaseException) -> None:
        """Write the page of a run that stopped with an error."""
        if self._observation is None or not isinstance(error, HeadraceError):
            return
        try:
            self._reporter.write_page(self._report("failed"), str(error))
        except HeadraceError:
            # The destination may be the cause; the first error is the one to report.
            _log.warning("cannot write the page of %s", self.destination, exc_info=True)


def _make_scoring(work: RunWork, predictor: Predictor | None, runner: Runner | None) -> Scoring:
    if (predictor is None) == (runner is None):
        raise ConfigError("a run needs either a predictor or a runner")
    if runner is not None:
        return TaskScoring(work, runner)
    assert predictor is not None, "checked above"
    if work.settings.per_object:
        return TaskScoring(work, InProcessRunner(predictor))
    return PartScoring(work, predictor)


class SourceWatcher:
    """A poller of a run's source with the interval `poll_s`.

    Objects in cloud stores appear whole. A local file may still be growing, so it is scored when
    two successive polls see it unchanged.
    """

    def __init__(self, run: Run, *, poll_s: float, clock: Clock) -> None:
        self._run = run
        self._poll_s = poll_s
        self._clock = clock
        self._stop = threading.Event()
        self._last_etags: dict[str, str] = {}

    def tick(self) -> Report | None:
        """Poll once: score new objects and return the report, or None without new objects."""
        try:
            listed = self._run.select()
        except (EmptySourceError, NotFoundError):
            listed = []
        ready = [i for i in listed if self._is_unchanged(i)]
        self._last_etags = {i.uri: i.etag for i in listed}
        return self._run.append(ready)

    def _is_unchanged(self, info: ObjectInfo) -> bool:
        local = "://" not in info.uri or info.uri.startswith("file:")
        return not local or self._last_etags.get(info.uri) == info.etag

    def serve(self, report: Callable[[Report], None]) -> None:
        """Poll until `stop`. Call `report` after every poll that scored objects."""
        while not self._stop.is_set():
            done = self.tick()
            if done is not None:
                report(done)
            self._clock.sleep(self._poll_s, self._stop)

    def stop(self) -> None:
        """Stop after the pending batches are delivered and committed."""
        self._stop.set()
        self._run.drain()
