"""``retry-failed``: a finished transform's failed records, tried once more, and merged back into place.

Arrives: a destination, and a runner whose model is loaded. Leaves: outputs with what came out now, ``KEY.out.failed`` with
what is still failed, counts to match, and a new report.

Most records are tried by themselves. Objects that broke, that have no output because of what failed, or whose output is a
table (Parquet, Arrow), which nothing can be put into, are done again whole.
"""

import logging
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from headrace.core.block import Failure, FailureKind
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError, LedgerError, LimitError, ResumeRefusedError
from headrace.core.predictor import Predictor
from headrace.formats.failures import FailedRecord, read_failed_records
from headrace.pipeline.flow import Flow
from headrace.pipeline.items import ScoredBatch, piece_rows
from headrace.pipeline.mapping import Mapper
from headrace.pipeline.progress import Progress
from headrace.pipeline.usage import cpu_s, peak_memory_mb
from headrace.storage.draft import open_draft
from headrace.storage.resolve import Stores
from headrace.transforms.assembler import Assembler
from headrace.transforms.encoders import Encoders, accepted
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.merge import Outcome, Recovered, in_place, write_merged
from headrace.transforms.page import PAGE_NAME
from headrace.transforms.plan import TransformPlan, cut_tasks
from headrace.transforms.reasons import reason_of
from headrace.transforms.records import RetriedObject, TaskRecord
from headrace.transforms.report import REPORT_NAME, TransformReport, make_report, object_results
from headrace.transforms.retry_source import Retried, RetrySource, chosen
from headrace.transforms.settings import TABLES, TransformSettings, settings_of
from headrace.transforms.work import TaskRun, Work

_log = logging.getLogger("headrace.transform")

FAILED_BYTES_MAX: Final = 256 << 20
"""Failed records of one object that are held at once."""
_ROUND_BYTES: Final = 32 << 20
"""About how much of failed records is tried together."""


class Retry:
    """One destination's failed records. Use from one thread, `execute` once, with the predictor started."""

    def __init__(
        self,
        destination: str,
        *,
        stores: Stores,
        predictor: Predictor,
        model_identity: str,
        other_model: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.destination = destination.rstrip("/") + "/"
        self.progress = Progress()
        self._stores = stores
        self._predictor = predictor
        self._model_identity = model_identity
        self._other_model = other_model
        self._clock = clock or SystemClock()
        self._ledger = TransformLedger(stores.for_uri(self.destination), self.destination)
        self._attempt = uuid.uuid4().hex[:12]

    def execute(self) -> TransformReport:
        """Try, merge, and count again.

        Raises ConfigError where no transform was written, LedgerError where one is not finished, ResumeRefusedError for
        another model, LimitError for more failed records of one object than can be held, ChangedError when an object that
        must be read again is another one now, and storage and model errors. What was merged before an error stays.
        """
        identity = finished_identity(self._ledger)
        self._check_model(identity)
        settings = settings_of(identity["settings"])
        objects = tuple(self._ledger.objects())
        plan = TransformPlan(objects, cut_tasks(objects, settings))
        began, cpu_before_s = self._clock.now(), cpu_s()
        for retried in self._ledger.retried().values():
            self._publish(plan, retried)  # what a killed process had written, and perhaps not published
        learned = self._ledger.learned() or {}
        again, records = self._failed(plan, settings, learned)
        if again:
            self._do_again(plan, settings, learned, again)
            # What was done again may have failed records that can be tried by themselves.
            records = self._failed(plan, settings, learned)[1]
        for some in _rounds(records):
            self._try(plan, settings, learned, some)
        return self._report(identity, plan, settings, self._clock.now() - began, cpu_s() - cpu_before_s)

    def _check_model(self, identity: Mapping[str, Any]) -> None:
        if self._other_model or identity["model"] == self._model_identity:
            return
        raise ResumeRefusedError(
            f"{self.destination}: it was written by model {identity['model']}, and this is {self._model_identity}: its "
            "predictions would stand among the others'. Say --other-model if that is what you want"
        )

    # What failed

    def _failed(
        self, plan: TransformPlan, settings: TransformSettings, learned: Mapping[str, Any]
    ) -> tuple[set[int], list[Retried]]:
        """The objects to do again whole, and the records to try by themselves."""
        kind = learned.get("format")
        is_table = accepted(settings.output, kind if isinstance(kind, str) else None) in TABLES
        again: set[int] = set()
        records: list[Retried] = []
        there = {i.uri for i in self._ledger.store.list(self.destination) if i.uri.endswith(".failed")}
        for index, planned in enumerate(plan.objects):
            if self.destination + planned.failed not in there:
                continue
            failed = self._read(self.destination + planned.failed)
            broken = any(f.failure.kind is FailureKind.OBJECT for f in failed)
            if broken or is_table or settings.failures.on_error == "object":
                again.add(index)
                continue
            retried = chosen(index, planned.info, failed)
            if retried.tried:
                records.append(retried)
        return again, records

    def _read(self, uri: str) -> list[FailedRecord]:
        store = self._ledger.store
        if (store.head(uri).size_bytes or 0) > FAILED_BYTES_MAX:
            raise LimitError(
                f"{uri} holds more than {FAILED_BYTES_MAX >> 20} MiB of failed records: find out why they fail, and "
                "transform anew with --overwrite"
            )
        return list(read_failed_records(store.get(uri).splitlines()))

    # Whole objects

    def _do_again(
        self,
        plan: TransformPlan,
        settings: TransformSettings,
        learned: Mapping[str, Any],
        indices: set[int],
    ) -> None:
        tasks = [task for task in plan.tasks if any(s.index in indices for s in task.shards)]
        touched = {s.index for task in tasks for s in task.shards}
        for index in touched:
            self._ledger.forget_object(index)
            self._delete(self.destination + plan.objects[index].failed)
        left = [r for r in self._ledger.tasks().values() if r.task not in {t.number for t in tasks}]
        assembler = Assembler(self._ledger, plan, settings, left)
        work = Work(
            plan=plan,
            settings=settings,
            stores=self._stores,
            ledger=self._ledger,
            learned=learned,
            progress=self.progress,
            clock=self._clock,
            on_task=assembler.done,
            replaces=True,
        )
        TaskRun(work, tasks, self._predictor, begins=assembler.begins()).execute()
        while wrong := assembler.wrong():
            redone = [plan.tasks[number] for number in sorted(wrong)]
            TaskRun(work, redone, self._predictor, begins=dict(wrong.values())).execute()

    def _delete(self, uri: str) -> None:
        self._ledger.store.delete(uri)

    # Records by themselves

    def _try(
        self,
        plan: TransformPlan,
        settings: TransformSettings,
        learned: Mapping[str, Any],
        objects: Sequence[Retried],
    ) -> None:
        """Ask the model about some objects' failed records, and merge what comes out."""
        mapper = Mapper(self._predictor.metadata, settings.mapping, settings.read, learned)
        encoders = Encoders(settings.output, mapper)
        source = RetrySource(objects, self._stores, settings.read)
        flow = Flow(source, mapper, self._predictor, settings.flow, progress=self.progress, clock=self._clock)
        recovered: defaultdict[int, list[Recovered]] = defaultdict(list)
        failed: defaultdict[int, list[Failure]] = defaultdict(list)
        headers: dict[int, bytes] = {}
        for batch in flow:
            for span in batch.spans:
                failed[span.index].extend(span.failures)
            for number, header, found in _recovered(batch, objects, encoders):
                headers[number] = header
                recovered[number].append(found)
        # Told of with places among the tried; what is left says where it is.
        self.progress.first_failure = None
        for number, retried in enumerate(objects):
            outcomes = in_place(retried, recovered[number], failed[number])
            self._merge(plan, retried, outcomes, headers.get(number, b""))

    def _merge(
        self, plan: TransformPlan, retried: Retried, outcomes: Sequence[Outcome], header: bytes
    ) -> None:
        gained = [o for o in outcomes if isinstance(o, Recovered)]
        left = [o for o in outcomes if isinstance(o, FailedRecord)]
        planned, store = plan.objects[retried.index], self._ledger.store
        name = f"retry-{retried.index:05d}-{self._attempt}"
        out = open_draft(store, self._ledger.draft_uri(f"{name}.out"))
        failed = open_draft(store, self._ledger.draft_uri(f"{name}.failed"))
        write_merged(store, self.destination + planned.output, outcomes, out, failed, header=header)
        before = self._ledger.retried().get(retried.index)
        record = RetriedObject(
            index=retried.index,
            rows=len(gained) + (before.rows if before else 0),
            out_bytes=out.nbytes,
            failures=dict(Counter(reason_of(o.failure) for o in left)),
            out=out.keep(),
            failed=failed.keep() if left else None,
        )
        out.close()
        failed.close()
        # From here on both are published whatever happens: by this process, or by the next.
        self._ledger.commit_retried(record)
        self._publish(plan, record)

    def _publish(self, plan: TransformPlan, record: RetriedObject) -> None:
        """Publish what a merge has written; once that is done, nothing is left to do."""
        self._ledger.publish_retried(record, plan.objects[record.index])

    # The end

    def _report(
        self,
        identity: Mapping[str, Any],
        plan: TransformPlan,
        settings: TransformSettings,
        elapsed_s: float,
        cpu_used_s: float,
    ) -> TransformReport:
        tasks: list[TaskRecord] = [record for _, record in sorted(self._ledger.tasks().items())]
        retried = self._ledger.retried()
        results = object_results(plan, tasks, settings, retried)
        report = make_report(
            status="failed" if any(r.withheld for r in results) else "complete",
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
        )
        text = orjson.dumps(report.to_json(), option=orjson.OPT_INDENT_2)
        self._ledger.store.put(self.destination + REPORT_NAME, text)
        # The page is of the run that wrote it, and its counts are no longer true.
        self._ledger.store.delete(self.destination + PAGE_NAME)
        self._ledger.finish(report.to_json())
        _log.info("failed records tried again", extra={"rows_failed": report.rows_failed})
        return report


def finished_identity(ledger: TransformLedger) -> Mapping[str, Any]:
    """What the finished transform at a destination is. Raises ConfigError where there is none, LedgerError where it is not finished."""
    identity = ledger.identity()
    if identity is None:
        raise ConfigError(f"{ledger.destination}: no transform was written here; check the destination")
    if ledger.finished() is None:
        raise LedgerError(
            f"{ledger.destination}: the transform is not finished: finish it with headrace transform … --resume, then try "
            "its failed records again"
        )
    return identity


def _rounds(records: Sequence[Retried]) -> Iterator[list[Retried]]:
    """Objects together, up to about _ROUND_BYTES of failed records."""
    some: list[Retried] = []
    held = 0
    for retried in records:
        some.append(retried)
        held += sum(len(f.failure.raw) for f in retried.all)
        if held >= _ROUND_BYTES:
            yield some
            some, held = [], 0
    if some:
        yield some


def _recovered(
    batch: ScoredBatch, objects: Sequence[Retried], encoders: Encoders
) -> Iterator[tuple[int, bytes, Recovered]]:
    """Each record of a batch that is predicted now, one by one, since they are few: its object's number and header."""
    row = 0
    for span in batch.spans:
        block = span.piece.block
        places: list[int] = piece_rows(span.piece).tolist()
        for place in places:
            outputs = {name: data[row : row + 1] for name, data in batch.outputs.items()}
            row += 1
            encoder = encoders.make(outputs, block)
            header = encoder.begin()
            text = encoder.encode([replace(span.piece, start=place, stop=place + 1, rows=None)], outputs)
            record = objects[span.index].tried[block.first.record + place]
            yield span.index, header, Recovered(record, text)
