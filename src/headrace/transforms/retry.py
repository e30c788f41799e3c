"""``retry-failed``: a finished transform's failed records, tried once more, and merged back into place.

Arrives: a destination, and a runner whose model is loaded. Leaves: outputs with what came out now, ``KEY.out.failed`` with
what is still failed, counts to match, and a new report.

Most records are tried by themselves. Objects that broke, that have no output because of what failed, or whose output is a
table (Parquet, Arrow), which nothing can be put into, are done again whole.
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
from headrace.core.errors import ConfigError, DataError, LedgerError, LimitError, ResumeRefusedError
from headrace.core.predictor import Predictor
from headrace.formats.contract import Piece
from headrace.formats.failures import FailedRecord, read_failed_records
from headrace.pipeline.flow import Flow
from headrace.pipeline.items import ScoredBatch, piece_rows
from headrace.pipeline.mapping import Mapper
from headrace.pipeline.progress import Progress
from headrace.pipeline.usage import cpu_s, peak_memory_mb
from headrace.storage.draft import open_draft
from headrace.storage.resolve import Stores
from headrace.transforms.encoders import Encoders, accepted
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.merge import Outcome, Recovered, in_place, write_merged
from headrace.transforms.page import PAGE_NAME
from headrace.transforms.plan import TransformPlan, cut_tasks
from headrace.transforms.reasons import count_reason
from headrace.transforms.records import RetriedObject
from headrace.transforms.report import REPORT_NAME, TransformReport, make_report, object_results
from headrace.transforms.retry_source import Retried, RetrySource, chosen, only, reads_object
from headrace.transforms.retry_whole import do_again, object_now, to_do_again
from headrace.transforms.settings import TABLES, TransformSettings, settings_of
from headrace.transforms.work import Work

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
        self._retried: dict[int, RetriedObject] = {}
        self._begin_bytes: dict[int, int] = {}

    def execute(self) -> TransformReport:
        """Try, merge, and count again.

        Raises ConfigError where no transform was written, LedgerError where one is not finished, ResumeRefusedError for
        another model, LimitError for more failed records of one object than can be held, and storage and model errors.
        What was merged before an error stays. An object that must be read again, and is gone or another one now, stays as
        it is; but one that was broken is taken as it is now.
        """
        identity = finished_identity(self._ledger)
        self._check_model(identity)
        settings = settings_of(identity["settings"])
        plan = self._plan(settings)
        began, cpu_before_s = self._clock.now(), cpu_s()
        self._retried = self._ledger.retried()
        for retried in list(self._retried.values()):
            self._publish(plan, retried)  # what a killed process had written, and perhaps not published
        learned = self._ledger.learned() or {}
        failed = self._failed(plan)
        plan, whole = self._do_again(plan, settings, learned, set(failed))
        self._begin_bytes = self._begins()
        by_themselves = {index: nbytes for index, nbytes in failed.items() if index not in whole}
        for some in _rounds(self._records(plan, by_themselves, settings)):
            self._try(plan, settings, learned, some)
        return self._report(identity, plan, settings, self._clock.now() - began, cpu_s() - cpu_before_s)

    def _check_model(self, identity: Mapping[str, Any]) -> None:
        if self._other_model or identity["model"] == self._model_identity:
            return
        raise ResumeRefusedError(
            f"{self.destination}: it was written by model {identity['model']}, and this is {self._model_identity}: its "
            "predictions would stand among the others'. Say --other-model if that is what you want"
        )

    def _plan(self, settings: TransformSettings) -> TransformPlan:
        """The plan, cut as it was, with the objects that are read now."""
        planned = tuple(self._ledger.objects())
        tasks, renewed = cut_tasks(planned, settings), self._ledger.renewed()
        objects = (replace(o, info=renewed.get(i, o.info)) for i, o in enumerate(planned))
        return TransformPlan(tuple(objects), tasks)

    # What failed

    def _failed(self, plan: TransformPlan) -> dict[int, int]:
        """The objects of which something failed, and how many bytes tell of it."""
        found = self._ledger.store.list(self.destination)
        sizes = {i.uri: i.size_bytes or 0 for i in found if i.uri.endswith(".failed")}
        uris = ((index, self.destination + planned.failed) for index, planned in enumerate(plan.objects))
        return {index: sizes[uri] for index, uri in uris if uri in sizes}

    def _is_whole(self, settings: TransformSettings, learned: Mapping[str, Any]) -> bool:
        """Whether every object with a failure is done again whole."""
        kind = learned.get("format")
        is_table = accepted(settings.output, kind if isinstance(kind, str) else None) in TABLES
        return is_table or settings.failures.on_error == "object"

    def _broken(self) -> set[int]:
        shards = (s for record in self._ledger.tasks().values() for s in record.shards)
        return {s.index for s in shards if s.counts.objects_broken}

    def _begins(self) -> dict[int, int]:
        """How much of each object's output stands before its first record, as far as anything does."""
        shards = sorted(
            (s for record in self._ledger.tasks().values() for s in record.shards),
            key=lambda s: (s.index, s.number),
        )
        return {s.index: s.begin_bytes for s in reversed(shards) if s.begin_bytes}

    def _records(
        self, plan: TransformPlan, failed: Mapping[int, int], settings: TransformSettings
    ) -> Iterator[Retried]:
        """The records to try by themselves, object by object."""
        for index, nbytes in failed.items():
            planned = plan.objects[index]
            retried = chosen(index, planned.info, self._read(self.destination + planned.failed, nbytes))
            if not retried.tried:
                continue
            if (
                reads_object(retried, settings.read)
                and object_now(self._stores, planned.info) is not planned.info
            ):
                _log.warning("%s is gone or another object now: its failed records stay", planned.info.uri)
                continue
            yield retried

    def _read(self, uri: str, nbytes: int) -> list[FailedRecord]:
        if nbytes > FAILED_BYTES_MAX:
            raise LimitError(
                f"{uri} holds more than {FAILED_BYTES_MAX >> 20} MiB of failed records: find out why they fail, and "
                "transform anew with --overwrite"
            )
        return list(read_failed_records(self._ledger.store.get(uri).splitlines()))

    # Whole objects

    def _do_again(
        self, plan: TransformPlan, settings: TransformSettings, learned: Mapping[str, Any], failed: set[int]
    ) -> tuple[TransformPlan, set[int]]:
        """Do objects again whole; the plan with what is read now, and those whose records are not tried by themselves."""
        begun, is_broken = self._ledger.again(), self._broken()
        wanted = failed if self._is_whole(settings, learned) else failed & is_broken
        # What a killed process was doing again may be half of each run: it is done again even if nothing has failed.
        wanted = wanted | begun
        found, plan = to_do_again(self._ledger, plan, self._stores, wanted, is_broken | begun)
        if begun - found:
            uri = plan.objects[min(begun - found)].info.uri
            raise LedgerError(
                f"{uri} was being done again by a process that died, and is gone or another object now: bring it back, or "
                "transform anew with --overwrite"
            )
        if found:
            work = Work(
                plan=plan,
                settings=settings,
                stores=self._stores,
                ledger=self._ledger,
                learned=learned,
                progress=self.progress,
                clock=self._clock,
                replaces=True,
            )
            do_again(work, self._predictor, found)
            self._retried = self._ledger.retried()
        return plan, wanted

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
            for number, header, found in _outcomes(batch, objects, encoders):
                if isinstance(found, Failure):
                    failed[number].append(found)
                    continue
                headers.setdefault(number, header)
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
            out=out.keep(),
            failed=failed.keep() if left else None,
        )
        out.close()
        failed.close()
        # From here on both are published whatever happens: by this process, or by the next.
        self._ledger.commit_retried(record)
        self._retried[record.index] = record
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
        tasks = [record for _, record in sorted(self._ledger.tasks().items())]
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
            destination_region=identity.get("destination_region"),
        )
        text = orjson.dumps(report.to_json(), option=orjson.OPT_INDENT_2)
        self._ledger.publish(REPORT_NAME, text)
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


def _rounds(records: Iterable[Retried]) -> Iterator[list[Retried]]:
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


def _outcomes(
    batch: ScoredBatch, objects: Sequence[Retried], encoders: Encoders
) -> Iterator[tuple[int, bytes, Recovered | Failure]]:
    """Each record of a batch that is predicted now, one by one: its object's number, header and text.

    Or its failure, with its number among the tried, where an output filter asks for what it has not.
    """
    row = 0
    for span in batch.spans:
        block = span.piece.block
        encoder, header = None, b""
        places: list[int] = piece_rows(span.piece).tolist()
        for place in places:
            outputs = {name: data[row : row + 1] for name, data in batch.outputs.items()}
            row += 1
            if encoder is None:
                encoder = encoders.make(outputs, block)
                header = encoder.begin()
            record = objects[span.index].tried[block.first.record + place]
            alone = only(block, [place], record.failure.position)
            try:
                text = encoder.encode([Piece(alone, 0, 1)], outputs)
            except DataError as error:
                yield span.index, header, block.failure(place, FailureKind.FORMAT, str(error))
                continue
            yield span.index, header, Recovered(record, text)
