"""``retry-failed``: retry the failed records of a finished run and merge them into its outputs.

Input: a destination and a predictor. Output: merged outputs, files of the records that still fail,
updated counts and a new report.

Most records are retried one by one. Some objects of a transform are scored again as a whole: broken
objects, objects whose output was suppressed, and tables (Parquet, Arrow), which cannot be merged.
"""

import logging
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from headrace.core.block import Failure
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import LedgerError, LimitError, NotFoundError, ResumeRefusedError
from headrace.core.predictor import Predictor
from headrace.formats.failures import FailedRecord, read_failed_records
from headrace.reports.observation import RunObservation
from headrace.reports.page import PAGE_NAME
from headrace.reports.report import Report
from headrace.runs.encoders import Encoders
from headrace.runs.flow import Flow
from headrace.runs.ledger import Ledger, RetryLedger
from headrace.runs.mapping import Mapper
from headrace.runs.output import count_reason
from headrace.runs.records import RetriedOutput
from headrace.runs.retried_run import (
    RetriedRun,
    current_info,
    finished_identity,
    redo_objects,
    select_objects_to_redo,
)
from headrace.runs.retry_records import (
    ObjectFailures,
    Outcome,
    OutputFailures,
    RecoveredRecord,
    RetrySource,
    needs_object,
    ordered_outcomes,
    record_outcomes,
    select_retryable,
    with_true_positions,
    write_merged,
)
from headrace.runs.sample import accept_schema
from headrace.runs.scoring import PredictorWork
from headrace.runs.settings import RunSettings
from headrace.runs.work import RunProgress, RunReporter, RunWork
from headrace.storage.draft import open_draft
from headrace.storage.resolve import Stores

_log = logging.getLogger("headrace.runs")

FAILED_BYTES_MAX: Final = 256 << 20
"""The maximal size of one output's failed records, which are held in memory."""
_ROUND_BYTES: Final = 32 << 20
"""The approximate size of failed records that are retried together."""


class FailedRecordsRetry:
    """The retry of one destination's failed records. Used by one thread; `execute` is called once.

    The predictor must be started. A page of the run is written again if a count changed; with
    `write_page`, a page is written in any case. With `only_changed`, the retry is limited to broken objects
    of a transform that have changed since.
    """

    def __init__(
        self,
        destination: str,
        *,
        stores: Stores,
        predictor: Predictor,
        model_identity: str,
        other_model: bool = False,
        schema: str | None = None,
        only_changed: bool = False,
        write_page: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.destination = destination.rstrip("/") + "/"
        self.progress = RunProgress()
        self.page: str | None = None
        """The URI of the page; set once the page is written."""
        self._stores = stores
        self._predictor = predictor
        self._model_identity = model_identity
        self._other_model = other_model
        self._schema_file = schema
        self._only_changed = only_changed
        self._write_page_always = write_page
        self._observation: RunObservation | None = None
        self._clock = clock or SystemClock()
        self._ledger = Ledger(stores.for_uri(self.destination), self.destination)
        self._records = RetryLedger(self._ledger)
        self._attempt = uuid.uuid4().hex[:12]
        self._retried: dict[int, RetriedOutput] = {}
        self._begin_bytes: dict[int, int] = {}

    def has_changed_objects(self) -> bool:
        """Return True if a broken object has changed since it was read. Errors are those of `execute`."""
        run = RetriedRun(self._ledger, self._records, finished_identity(self._ledger))
        return bool(self._changed_objects(run))

    def _changed_objects(self, run: RetriedRun) -> set[int]:
        infos = {index: run.plan.objects[index].info for index in run.broken_objects()}
        return {i for i, info in infos.items() if current_info(self._stores, info) not in (None, info)}

    def execute(self) -> Report:
        """Retry the records, merge the results and write a new report.

        Raises ConfigError if the destination has no run, or one whose output cannot be changed,
        LedgerError if its run is not finished, ResumeRefusedError for another model, LimitError for
        an output with too many failed records, and storage and model errors. Results that were
        merged before an error stay.

        An object that must be read again but is missing or changed is skipped. A broken object of a
        transform is read in its present version; those of a stream stay broken.
        """
        identity = finished_identity(self._ledger)
        self._check_model(identity)
        run = RetriedRun(self._ledger, self._records, identity)
        run.check()
        if self._schema_file is not None:
            run.schema = accept_schema(self._schema_file, self._stores, self._ledger)
        if self._write_page_always or self._has_page():
            self._observation = RunObservation()
        work = RunWork(
            settings=run.settings,
            stores=self._stores,
            ledger=self._ledger,
            progress=self.progress,
            clock=self._clock,
            observation=self._observation,
        ).with_schema(run.schema)
        reporter = RunReporter(work, identity["source"])
        reporter.begin()
        self._retried = self._records.retried()
        for retried in list(self._retried.values()):
            # A killed process may have committed the merge without publishing it.
            self._records.publish(retried, *run.names(retried.number))
        failed = run.failed_outputs()
        whole = self._redo_objects(run, work, set(failed)) if run.settings.per_object else set[int]()
        self._begin_bytes = run.begin_bytes()
        by_themselves = {number: nbytes for number, nbytes in failed.items() if number not in whole}
        if self._only_changed:
            by_themselves = {}
        for some in _rounds(self._failures(run, by_themselves)):
            self._retry(run, some)
        reporter.end()
        return self._report(run, reporter)

    def _has_page(self) -> bool:
        try:
            self._ledger.store.head(self.destination + PAGE_NAME)
        except NotFoundError:
            return False
        return True

    def _check_model(self, identity: Mapping[str, Any]) -> None:
        if self._other_model or identity["model"] == self._model_identity:
            return
        raise ResumeRefusedError(
            f"{self.destination}: the output was written by model {identity['model']}, but this is "
            f"{self._model_identity}: predictions of both would be mixed. Add --other-model to accept that"
        )

    # What failed

    def _failures(self, run: RetriedRun, failed: Mapping[int, int]) -> Iterator[OutputFailures]:
        """Yield the outputs with records to retry one by one."""
        infos = {planned.info.uri: planned.info for planned in run.plan.objects}
        for number, nbytes in failed.items():
            records = self._read(self.destination + run.names(number)[1], nbytes)
            groups = groupby(records, key=lambda record: record.failure.position.object)
            objects = (select_retryable(infos[uri], list(group)) for uri, group in groups)
            found = OutputFailures(number, tuple(self._without_lost(one, run.settings) for one in objects))
            if any(one.retryable for one in found.objects):
                yield found

    def _without_lost(self, failures: ObjectFailures, settings: RunSettings) -> ObjectFailures:
        """Return the failures without retryable records if their object is needed, but lost."""
        info = failures.info
        if not failures.retryable or not needs_object(failures, settings.read):
            return failures
        if current_info(self._stores, info) is info:
            return failures
        _log.warning("%s is missing or has changed: its failed records are not retried", info.uri)
        return replace(failures, retryable=())

    def _read(self, uri: str, nbytes: int) -> list[FailedRecord]:
        if nbytes > FAILED_BYTES_MAX:
            raise LimitError(
                f"{uri} holds more than {FAILED_BYTES_MAX >> 20} MiB of failed records: find the cause, "
                "then run again with --overwrite"
            )
        return list(read_failed_records(self._ledger.store.get(uri).splitlines()))

    # Whole objects

    def _redo_objects(self, run: RetriedRun, work: RunWork, failed: set[int]) -> set[int]:
        """Score objects again as a whole. Return the objects whose records are not retried."""
        begun, is_broken = self._records.objects_to_redo(), run.broken_objects()
        wanted = failed if run.redoes_all else failed & is_broken
        if self._only_changed:
            wanted = self._changed_objects(run)
        # An interrupted redo may have mixed outputs of both runs: it is repeated even without
        # failures.
        wanted = wanted | begun
        found, run.plan = select_objects_to_redo(
            self._records, run.plan, self._stores, wanted, is_broken | begun
        )
        if begun - found:
            uri = run.plan.objects[min(begun - found)].info.uri
            raise LedgerError(
                f"{uri} is missing or has changed, but a killed process had begun to score it again: "
                "restore it, or transform again with --overwrite"
            )
        if found:
            work = replace(work, plan=run.plan, replaces=True)
            redo_objects(work, self._predictor, found)
            self._retried = self._records.retried()
        return wanted

    # Records by themselves

    def _retry(self, run: RetriedRun, outputs: Sequence[OutputFailures]) -> None:
        """Call the model for failed records of some outputs, and merge the predictions."""
        settings = run.settings
        mapper = Mapper(self._predictor.metadata, settings.mapping, settings.read, run.schema)
        encoders = Encoders(settings, mapper)
        objects = [one for output in outputs for one in output.objects]
        source = RetrySource(objects, self._stores, settings.read)
        flow = Flow(source, mapper, self._predictor, settings.flow, progress=self.progress, clock=self._clock)
        recovered: defaultdict[int, list[RecoveredRecord]] = defaultdict(list)
        failed: defaultdict[int, list[Failure]] = defaultdict(list)
        headers: dict[int, bytes] = {}
        for batch in flow:
            if self._observation is not None:
                self._observation.add_batch(with_true_positions(batch, objects), self._clock.now())
            for span in batch.spans:
                failed[span.index].extend(span.failures)
            for number, header, found in record_outcomes(batch, objects, encoders):
                if isinstance(found, Failure):
                    failed[number].append(found)
                    continue
                headers.setdefault(number, header)
                recovered[number].append(found)
        # Its position is an index into the retryable records; the remaining failures have true
        # ones.
        self.progress.first_failure = None
        first = 0
        for output in outputs:
            numbers = range(first, first + len(output.objects))
            first = numbers.stop
            outcomes = [
                outcome
                for number in numbers
                for outcome in ordered_outcomes(objects[number], recovered[number], failed[number])
            ]
            header = next((headers[number] for number in numbers if number in headers), b"")
            self._merge(run, output.number, outcomes, header)

    def _merge(self, run: RetriedRun, number: int, outcomes: Sequence[Outcome], header: bytes) -> None:
        gained = [o for o in outcomes if isinstance(o, RecoveredRecord)]
        left = [o for o in outcomes if isinstance(o, FailedRecord)]
        names, store = run.names(number), self._ledger.store
        name = f"retry-{number:05d}-{self._attempt}"
        out = open_draft(store, self._ledger.draft_uri(f"{name}.out"))
        failed = open_draft(store, self._ledger.draft_uri(f"{name}.failed"))
        before = self._retried.get(number)
        begin_bytes = write_merged(
            store,
            self.destination + names[0],
            outcomes,
            out,
            failed,
            header=header,
            begin_bytes=before.begin_bytes if before else self._begin_bytes.get(number, 0),
        )
        reasons = Counter[str]()
        for outcome in left:
            count_reason(reasons, outcome.failure)
        record = RetriedOutput(
            number=number,
            rows=len(gained) + (before.rows if before else 0),
            out_bytes=out.nbytes,
            failures=dict(reasons),
            begin_bytes=begin_bytes,
            out=out.persist(),
            failed=failed.persist() if left else None,
        )
        out.close()
        failed.close()
        # From here on both drafts are published, by this process or by the next.
        self._records.commit(record)
        self._retried[number] = record
        self._records.publish(record, *names)

    # The end

    def _report(self, run: RetriedRun, reporter: RunReporter) -> Report:
        report = reporter.make(
            run.totals(),
            PredictorWork(self._predictor),
            objects=len(run.plan.objects),
            resumed=True,
        )
        reporter.publish(report)
        # A page with the same counts stays: it has the plots of a longer run.
        earlier = Report.from_json(self._ledger.final_report() or report.to_json())
        if self._write_page_always or _counts_of(earlier) != _counts_of(report):
            reporter.write_page(report)
        self.page = reporter.page
        self._ledger.finish(report.to_json())
        _log.info("failed records retried", extra={"rows_failed": report.rows_failed})
        return report


def _counts_of(report: Report) -> tuple[Any, ...]:
    return report.records_in, report.rows_out, report.out_bytes, report.failures, report.failed_objects


def _rounds(outputs: Iterable[OutputFailures]) -> Iterator[list[OutputFailures]]:
    """Yield groups of outputs with about _ROUND_BYTES of failed records."""
    some: list[OutputFailures] = []
    held = 0
    for output in outputs:
        some.append(output)
        held += output.nbytes
        if held >= _ROUND_BYTES:
            yield some
            some, held = [], 0
    if some:
        yield some
