"""``retry-failed``: retry the failed records of a finished transform and merge them into its outputs.

Input: a destination and a predictor. Output: merged outputs, ``KEY.out.failed`` with the records
that still fail, updated counts and a new report.

Most records are retried one by one. Some objects are scored again as a whole: broken objects,
objects whose output was suppressed, and tables (Parquet, Arrow), which cannot be merged.
"""

import logging
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from headrace.core.block import Failure, FailureKind
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import (
    ConfigError,
    DataError,
    LedgerError,
    LimitError,
    NotFoundError,
    ResumeRefusedError,
)
from headrace.core.predictor import Predictor
from headrace.formats.contract import BlockSelection
from headrace.formats.failures import FailedRecord, read_failed_records
from headrace.runs.encoders import Encoders, resolve_format
from headrace.runs.flow import Flow
from headrace.runs.items import ScoredBatch, selected_rows
from headrace.runs.ledger import TransformLedger
from headrace.runs.mapping import Mapper
from headrace.runs.merge import Outcome, RecoveredRecord, ordered_outcomes, write_merged
from headrace.runs.observation import RunObservation
from headrace.runs.page import PAGE_NAME, report_page
from headrace.runs.plan import TransformPlan, cut_tasks
from headrace.runs.progress import RunProgress
from headrace.runs.reasons import count_reason
from headrace.runs.records import RetriedObject
from headrace.runs.report import REPORT_NAME, TransformReport, make_report, object_results
from headrace.runs.retry_source import (
    ObjectFailures,
    RetrySource,
    needs_object,
    select_retryable,
    select_rows,
)
from headrace.runs.retry_whole import current_info, redo_objects, select_objects_to_redo
from headrace.runs.settings import TABLES, RunSettings, settings_from_identity
from headrace.runs.task_run import TransformWork
from headrace.runs.usage import cpu_s, peak_memory_mb
from headrace.storage.draft import open_draft
from headrace.storage.resolve import Stores

_log = logging.getLogger("headrace.runs")

FAILED_BYTES_MAX: Final = 256 << 20
"""The maximal size of one object's failed records, which are held in memory."""
_ROUND_BYTES: Final = 32 << 20
"""The approximate size of failed records that are retried together."""


class FailedRecordsRetry:
    """The retry of one destination's failed records. Used by one thread; `execute` is called once.

    The predictor must be started. A page of the transform is written again if a count changed; with
    `write_page`, a page is written in any case.
    """

    def __init__(
        self,
        destination: str,
        *,
        stores: Stores,
        predictor: Predictor,
        model_identity: str,
        other_model: bool = False,
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
        self._write_page_always = write_page
        self._observation: RunObservation | None = None
        self._clock = clock or SystemClock()
        self._ledger = TransformLedger(stores.for_uri(self.destination), self.destination)
        self._attempt = uuid.uuid4().hex[:12]
        self._retried: dict[int, RetriedObject] = {}
        self._begin_bytes: dict[int, int] = {}

    def execute(self) -> TransformReport:
        """Retry the records, merge the results and write a new report.

        Raises ConfigError if the destination has no transform, LedgerError if its transform is not
        finished, ResumeRefusedError for another model, LimitError for an object with too many
        failed records, and storage and model errors. Results that were merged before an error stay.

        An object that must be read again but is missing or changed is skipped. A broken object is
        read in its present version.
        """
        identity = finished_identity(self._ledger)
        self._check_model(identity)
        settings = settings_from_identity(identity["settings"], per_object=True)
        plan = self._plan(settings)
        began, cpu_before_s = self._clock.now(), cpu_s()
        if self._write_page_always or self._has_page():
            self._observation = RunObservation(began)
        self._retried = self._ledger.retried_objects()
        for retried in list(self._retried.values()):
            # A killed process may have committed the merge without publishing it.
            self._publish(plan, retried)
        learned = self._ledger.learned() or {}
        failed = self._failed_objects(plan)
        plan, whole = self._redo_objects(plan, settings, learned, set(failed))
        self._begin_bytes = self._read_begin_bytes()
        by_themselves = {index: nbytes for index, nbytes in failed.items() if index not in whole}
        for some in _rounds(self._records(plan, by_themselves, settings)):
            self._retry(plan, settings, learned, some)
        return self._report(identity, plan, settings, self._clock.now() - began, cpu_s() - cpu_before_s)

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

    def _plan(self, settings: RunSettings) -> TransformPlan:
        """Return the plan with its original tasks and the present versions of the objects."""
        planned = tuple(self._ledger.objects())
        tasks, renewed = cut_tasks(planned, settings), self._ledger.new_infos()
        objects = (replace(o, info=renewed.get(i, o.info)) for i, o in enumerate(planned))
        return TransformPlan(tuple(objects), tasks)

    # What failed

    def _failed_objects(self, plan: TransformPlan) -> dict[int, int]:
        """Return the sizes of the files of failed records, by object index."""
        found = self._ledger.store.list(self.destination)
        sizes = {i.uri: i.size_bytes or 0 for i in found if i.uri.endswith(".failed")}
        uris = ((index, self.destination + planned.failed) for index, planned in enumerate(plan.objects))
        return {index: sizes[uri] for index, uri in uris if uri in sizes}

    def _redoes_all(self, settings: RunSettings, learned: Mapping[str, Any]) -> bool:
        """Return True if every object with a failure is scored again as a whole."""
        kind = learned.get("format")
        is_table = resolve_format(settings, kind if isinstance(kind, str) else None) in TABLES
        return is_table or settings.failures.on_error == "object"

    def _broken_objects(self) -> set[int]:
        shards = (s for record in self._ledger.tasks().values() for s in record.shards)
        return {s.index for s in shards if s.counts.objects_broken}

    def _read_begin_bytes(self) -> dict[int, int]:
        """Return the number of bytes before the first record of each output, if there are any."""
        shards = sorted(
            (s for record in self._ledger.tasks().values() for s in record.shards),
            key=lambda s: (s.index, s.number),
        )
        return {s.index: s.begin_bytes for s in reversed(shards) if s.begin_bytes}

    def _records(
        self, plan: TransformPlan, failed: Mapping[int, int], settings: RunSettings
    ) -> Iterator[ObjectFailures]:
        """Yield the records to retry one by one, by object."""
        for index, nbytes in failed.items():
            planned = plan.objects[index]
            retried = select_retryable(
                index, planned.info, self._read(self.destination + planned.failed, nbytes)
            )
            if not retried.retryable:
                continue
            if (
                needs_object(retried, settings.read)
                and current_info(self._stores, planned.info) is not planned.info
            ):
                _log.warning(
                    "%s is missing or has changed: its failed records are not retried", planned.info.uri
                )
                continue
            yield retried

    def _read(self, uri: str, nbytes: int) -> list[FailedRecord]:
        if nbytes > FAILED_BYTES_MAX:
            raise LimitError(
                f"{uri} holds more than {FAILED_BYTES_MAX >> 20} MiB of failed records: find the cause, "
                "then transform again with --overwrite"
            )
        return list(read_failed_records(self._ledger.store.get(uri).splitlines()))

    # Whole objects

    def _redo_objects(
        self, plan: TransformPlan, settings: RunSettings, learned: Mapping[str, Any], failed: set[int]
    ) -> tuple[TransformPlan, set[int]]:
        """Score objects again as a whole.

        Return the updated plan, and the objects whose records are not retried.
        """
        begun, is_broken = self._ledger.objects_to_redo(), self._broken_objects()
        wanted = failed if self._redoes_all(settings, learned) else failed & is_broken
        # An interrupted redo may have mixed outputs of both runs: it is repeated even without
        # failures.
        wanted = wanted | begun
        found, plan = select_objects_to_redo(self._ledger, plan, self._stores, wanted, is_broken | begun)
        if begun - found:
            uri = plan.objects[min(begun - found)].info.uri
            raise LedgerError(
                f"{uri} is missing or has changed, but a killed process had begun to score it again: "
                "restore it, or transform again with --overwrite"
            )
        if found:
            work = TransformWork(
                plan=plan,
                settings=settings,
                stores=self._stores,
                ledger=self._ledger,
                learned=learned,
                progress=self.progress,
                clock=self._clock,
                observation=self._observation,
                replaces=True,
            )
            redo_objects(work, self._predictor, found)
            self._retried = self._ledger.retried_objects()
        return plan, wanted

    # Records by themselves

    def _retry(
        self,
        plan: TransformPlan,
        settings: RunSettings,
        learned: Mapping[str, Any],
        objects: Sequence[ObjectFailures],
    ) -> None:
        """Call the model for failed records of some objects, and merge the predictions."""
        mapper = Mapper(self._predictor.metadata, settings.mapping, settings.read, learned)
        encoders = Encoders(settings, mapper)
        source = RetrySource(objects, self._stores, settings.read)
        flow = Flow(source, mapper, self._predictor, settings.flow, progress=self.progress, clock=self._clock)
        recovered: defaultdict[int, list[RecoveredRecord]] = defaultdict(list)
        failed: defaultdict[int, list[Failure]] = defaultdict(list)
        headers: dict[int, bytes] = {}
        for batch in flow:
            if self._observation is not None:
                self._observation.add_batch(_with_true_positions(batch, objects), self._clock.now())
            for span in batch.spans:
                failed[span.index].extend(span.failures)
            for number, header, found in _outcomes(batch, objects, encoders):
                if isinstance(found, Failure):
                    failed[number].append(found)
                    continue
                headers.setdefault(number, header)
                recovered[number].append(found)
        # Its position is an index into the retryable records; the remaining failures have true
        # ones.
        self.progress.first_failure = None
        for number, retried in enumerate(objects):
            outcomes = ordered_outcomes(retried, recovered[number], failed[number])
            self._merge(plan, retried, outcomes, headers.get(number, b""))

    def _merge(
        self, plan: TransformPlan, retried: ObjectFailures, outcomes: Sequence[Outcome], header: bytes
    ) -> None:
        gained = [o for o in outcomes if isinstance(o, RecoveredRecord)]
        left = [o for o in outcomes if isinstance(o, FailedRecord)]
        planned, store = plan.objects[retried.index], self._ledger.store
        name = f"retry-{retried.index:05d}-{self._attempt}"
        out = open_draft(store, self._ledger.draft_uri(f"{name}.out"))
        failed = open_draft(store, self._ledger.draft_uri(f"{name}.failed"))
        before = self._retried.get(retried.index)
        begin_bytes = write_merged(
            store,
            self.destination + planned.output,
            outcomes,
            out,
            failed,
            header=header,
            begin_bytes=before.begin_bytes if before else self._begin_bytes.get(retried.index, 0),
        )
        reasons = Counter[str]()
        for outcome in left:
            count_reason(reasons, outcome.failure)
        record = RetriedObject(
            index=retried.index,
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
        self._ledger.commit_retried(record)
        self._retried[record.index] = record
        self._publish(plan, record)

    def _publish(self, plan: TransformPlan, record: RetriedObject) -> None:
        """Publish the output of a merge, unless that is done."""
        self._ledger.publish_retried(record, plan.objects[record.index])

    # The end

    def _report(
        self,
        identity: Mapping[str, Any],
        plan: TransformPlan,
        settings: RunSettings,
        elapsed_s: float,
        cpu_used_s: float,
    ) -> TransformReport:
        tasks = [record for _, record in sorted(self._ledger.tasks().items())]
        retried = self._ledger.retried_objects()
        results = object_results(plan, tasks, settings, retried)
        report = make_report(
            status="failed" if any(r.suppressed for r in results) else "complete",
            source=str(identity["source"]),
            output=self.destination,
            model=self._predictor.metadata.name,
            plan=plan,
            records=tasks,
            retried=retried,
            results=results,
            progress=self.progress,
            statistics=self._predictor.statistics(),
            elapsed_s=elapsed_s,
            cpu_s=cpu_used_s,
            peak_memory_mb=peak_memory_mb(),
            resumed=True,
            destination_region=identity.get("destination_region"),
        )
        text = orjson.dumps(report.to_json(), option=orjson.OPT_INDENT_2)
        self._ledger.publish(REPORT_NAME, text)
        self._write_page(report, settings)
        self._ledger.finish(report.to_record())
        _log.info("failed records retried", extra={"rows_failed": report.rows_failed})
        return report

    def _write_page(self, report: TransformReport, settings: RunSettings) -> None:
        """Write the page, unless the existing one has the same counts and the plots of a longer run."""
        if self._observation is None:
            return
        earlier = TransformReport.from_json(self._ledger.final_report() or report.to_record())
        if self._write_page_always or _counts_of(earlier) != _counts_of(report):
            page = report_page(report, self._observation, settings=settings)
            self._ledger.publish(PAGE_NAME, page)
            self.page = self.destination + PAGE_NAME


def _counts_of(report: TransformReport) -> tuple[Any, ...]:
    return report.records_in, report.rows_out, report.out_bytes, report.failures, report.failed_objects


def finished_identity(ledger: TransformLedger) -> Mapping[str, Any]:
    """Return the identity of the finished transform at a destination.

    Raises ConfigError if there is no transform, LedgerError if it is not finished.
    """
    identity = ledger.identity()
    if identity is None:
        raise ConfigError(f"{ledger.destination}: there is no transform: check the destination")
    if ledger.final_report() is None:
        raise LedgerError(
            f"{ledger.destination}: the transform is not finished: finish it with "
            "headrace transform … --resume, then retry its failed records"
        )
    return identity


def _rounds(records: Iterable[ObjectFailures]) -> Iterator[list[ObjectFailures]]:
    """Yield groups of objects with about _ROUND_BYTES of failed records."""
    some: list[ObjectFailures] = []
    held = 0
    for retried in records:
        some.append(retried)
        held += sum(len(f.failure.raw) for f in retried.records)
        if held >= _ROUND_BYTES:
            yield some
            some, held = [], 0
    if some:
        yield some


def _with_true_positions(batch: ScoredBatch, objects: Sequence[ObjectFailures]) -> ScoredBatch:
    """Return the batch with its failures at their positions in the objects."""
    spans = (
        replace(
            span,
            failures=tuple(
                replace(f, position=objects[span.index].retryable[f.position.record].failure.position)
                for f in span.failures
            ),
        )
        for span in batch.spans
    )
    return replace(batch, spans=tuple(spans))


def _outcomes(
    batch: ScoredBatch, objects: Sequence[ObjectFailures], encoders: Encoders
) -> Iterator[tuple[int, bytes, RecoveredRecord | Failure]]:
    """Yield the outcome of each record of a batch: its object's number, the header and the prediction.

    A record that does not have what the output filter selects fails; its position is its number
    among the retried records.
    """
    row = 0
    for span in batch.spans:
        block = span.selection.block
        encoder, header = None, b""
        places: list[int] = selected_rows(span.selection).tolist()
        for place in places:
            outputs = {name: data[row : row + 1] for name, data in batch.outputs.items()}
            row += 1
            if encoder is None:
                encoder = encoders.make(outputs, block)
                header = encoder.begin()
            record = objects[span.index].retryable[block.first.record + place]
            alone = select_rows(block, [place], record.failure.position)
            try:
                text = encoder.encode([BlockSelection(alone, 0, 1)], outputs)
            except DataError as error:
                yield span.index, header, block.failure(place, FailureKind.FORMAT, str(error))
                continue
            yield span.index, header, RecoveredRecord(record, text)
