"""Run a transform: one predictions file for each object of a source, resumable at any point.

Input: a source, a destination and a started runner. Output: predictions, failed records, a ledger
and a report.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import orjson

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import (
    CountMismatchError,
    HeadraceError,
    LedgerError,
    OutputExistsError,
    ResumeRefusedError,
    TooManyFailuresError,
)
from headrace.core.predictor import PredictorStatistics
from headrace.runs.assembler import Assembler
from headrace.runs.items import ScoredBatch
from headrace.runs.ledger import TransformLedger
from headrace.runs.observation import RunObservation
from headrace.runs.page import PAGE_NAME, report_page
from headrace.runs.part_ledger import LEDGER_FOLDER
from headrace.runs.plan import PlannedObject, TransformPlan, cut_tasks, make_plan, no_region
from headrace.runs.probe import learn
from headrace.runs.progress import RunProgress
from headrace.runs.records import TaskCheckpoint, TaskRecord
from headrace.runs.report import (
    REPORT_NAME,
    ObjectResult,
    Status,
    TransformReport,
    make_report,
    object_results,
    sum_counts,
)
from headrace.runs.runner import Runner
from headrace.runs.settings import SHARE_ROWS_MIN, RunSettings
from headrace.runs.task_run import TransformWork
from headrace.runs.usage import cpu_s, peak_memory_mb
from headrace.storage.resolve import Stores

_log = logging.getLogger("headrace.runs")

IfExists = Literal["refuse", "resume", "overwrite"]


class Transform:
    """The transform of one source to one destination.

    Used by one thread; any thread may call `drain`.

    `execute` is called once. After an error or a drain, finished work stays, and another transform
    can resume it. With an `observation`, an HTML page (``_report.html``) is written at the end,
    also after an error.

    Args:
        source: An object, a prefix, a glob or a manifest, or several of them.
        destination: The folder of the outputs.
        stores: The object stores.
        runner: The started runner of the tasks.
        settings: The settings that shape the output.
        model_identity: The fingerprint of the model; a resumption must have the same.
        if_exists: The action for an existing transform at the destination.
        model_reference: The name and options of the model, to open it again.
        clock: The clock of elapsed times.
        observation: The observation of all batches.
        region_of: A function from an object's URI to its region.
    """

    def __init__(
        self,
        source: str | Sequence[str],
        destination: str,
        *,
        stores: Stores,
        runner: Runner,
        settings: RunSettings,
        model_identity: str,
        if_exists: IfExists = "refuse",
        model_reference: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        observation: RunObservation | None = None,
        region_of: Callable[[str], str | None] = no_region,
    ) -> None:
        self.source = source
        self.destination = destination.rstrip("/") + "/"
        self.progress = RunProgress()
        self.plan: TransformPlan | None = None
        """The plan; set once `execute` has listed the source."""
        self.page: str | None = None
        """The URI of the page; set once the page is written."""
        self._stores = stores
        self._runner = runner
        self._settings = settings
        self._model_identity = model_identity
        self._if_exists: IfExists = if_exists
        self._model_reference = dict(model_reference or {})
        """The name and options of the model, for a later retry."""
        self._clock = clock or SystemClock()
        self._observation = observation
        self._region_of = region_of
        """A function from an object's URI to its region."""
        self._drained = False
        self._ledger = TransformLedger(stores.for_uri(self.destination), self.destination)
        self._records: dict[int, TaskRecord] = {}
        self._resumed = False

    def drain(self) -> None:
        """Start no more work, persist work in progress, and leave a ledger to resume from."""
        self._drained = True
        self._runner.drain()

    def statistics(self) -> PredictorStatistics:
        """Return the model's statistics. Any thread may call it."""
        return self._runner.statistics()

    def reading(self) -> Sequence[str]:
        """Return the objects that are being read. Any thread may call it."""
        return self._runner.reading()

    def execute(self) -> TransformReport:
        """Run the transform and publish its outputs. Return after everything is committed.

        Raises OutputExistsError, ResumeRefusedError, EmptySourceError, TooManyFailuresError,
        storage errors and model errors.
        """
        finished = self._open()
        if finished is not None:
            return finished
        began, cpu_before_s = self._clock.now(), cpu_s()
        if self._observation is not None:
            self._observation.begin(began)
        try:
            complete = self._run_tasks()
        except HeadraceError as error:
            self._write_error_page(error, self._clock.now() - began, cpu_s() - cpu_before_s)
            raise
        return self._finish(complete, self._clock.now() - began, cpu_s() - cpu_before_s)

    # Beginning

    def _open(self) -> TransformReport | None:
        """Begin or resume the run. Return the report of a finished run."""
        begun = self._ledger.identity() is not None
        if begun and self._if_exists == "resume":
            return self._resume()
        if begun and self._if_exists == "refuse":
            raise OutputExistsError(self.destination)
        # A run that cannot start must neither delete an existing output nor leave files.
        self.plan = make_plan(
            self.source, self.destination, self._stores, self._settings, region_of=self._region_of
        )
        learned = learn(self.plan, self._stores, self._settings, self._runner.metadata)
        if begun:
            self._delete_output()
        self._ledger.learn(learned)
        more = {"made_with": self._model_reference, "destination_region": self._region_of(self.destination)}
        self._ledger.begin({**self._identity(), **more}, self.plan.objects)
        _log.info("transform started", extra={"output": self.destination, "objects": len(self.plan.objects)})
        return None

    def _identity(self) -> Mapping[str, Any]:
        source = self.source if isinstance(self.source, str) else list(self.source)
        return {"source": source, "model": self._model_identity, "settings": self._settings.identity()}

    def _resume(self) -> TransformReport | None:
        self._ledger.check_identity(self._identity())
        self._resumed = True
        finished = self._ledger.final_report()
        if finished is not None:
            return TransformReport.from_json(finished)
        objects = tuple(self._ledger.objects())
        self._check_unchanged(objects)
        self.plan = TransformPlan(objects, cut_tasks(objects, self._settings))
        self._records = self._ledger.tasks()
        for number in self._ledger.remove_lost_tasks(
            self._records, assembled=self._ledger.assembled_objects()
        ):
            del self._records[number]
        _log.info("transform resumed", extra={"output": self.destination, "tasks_done": len(self._records)})
        return None

    def _check_unchanged(self, objects: Sequence[PlannedObject]) -> None:
        """Raise ResumeRefusedError, with the differences, unless the source is unchanged."""
        now = make_plan(self.source, self.destination, self._stores, self._settings).objects
        before = {o.info.uri: o.info for o in objects}
        after = {o.info.uri: o.info for o in now}
        changed = [f"{uri} is new" for uri in after if uri not in before]
        changed += [f"{uri} is missing" for uri in before if uri not in after]
        changed += [
            f"{uri} has changed"
            for uri, info in before.items()
            if uri in after and (after[uri].etag, after[uri].size_bytes) != (info.etag, info.size_bytes)
        ]
        if changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            raise ResumeRefusedError(
                f"{self.destination}: the source has changed since the run started: "
                f"{'; '.join(changed[:3])}{more}. Restore it, or start again with --overwrite"
            )

    def _delete_output(self) -> None:
        """Delete the output of an earlier transform, and nothing else."""
        store = self._ledger.store
        self._ledger.abandon()
        for planned in self._ledger.objects():
            store.delete(self.destination + planned.output)
            store.delete(self.destination + planned.failed)
        store.delete(self.destination + REPORT_NAME)
        store.delete(self.destination + PAGE_NAME)
        self._ledger.delete()

    # Doing

    def _run_tasks(self) -> bool:
        """Run the remaining tasks. Return False if the run was drained before the last one."""
        assert self.plan is not None, "opened before"
        assembler = Assembler(self._ledger, self.plan, self._settings, self._records.values())
        checkpoints = self._ledger.checkpoints() if self._resumed else {}
        self._begin_progress(self.plan, checkpoints)

        def on_task(record: TaskRecord) -> None:
            self._records[record.task] = record
            assembler.add_task(record)

        work = TransformWork(
            plan=self.plan,
            settings=self._settings,
            stores=self._stores,
            ledger=self._ledger,
            learned=self._learned(self.plan),
            progress=self.progress,
            clock=self._clock,
            on_task=on_task,
            on_batch=self._check_failures_so_far,
            observation=self._observation,
            run_id=self._ledger.run_id(),
        )
        assembler.publish_all()
        left = [task for task in self.plan.tasks if task.number not in self._records]
        if left and not self._runner.run(
            work, left, range_starts=assembler.range_starts(), checkpoints=checkpoints
        ):
            return False
        return self._redo_ranges(work, assembler)

    def _redo_ranges(self, work: TransformWork, assembler: Assembler) -> bool:
        """Score ranges with a wrong start again, until all are right."""
        redo_work = TransformWork(
            plan=work.plan,
            settings=work.settings,
            stores=work.stores,
            ledger=work.ledger,
            learned=work.learned,
            on_task=work.on_task,
            clock=work.clock,
            replaces=True,
            run_id=work.run_id,
        )
        while misplaced := assembler.ranges_to_redo():
            _log.info(
                "ranges scored again: their starts were guessed wrong", extra={"tasks": sorted(misplaced)}
            )
            tasks = [work.plan.tasks[number] for number in sorted(misplaced)]
            if not self._runner.run(redo_work, tasks, range_starts=dict(misplaced.values()), checkpoints={}):
                return False
        missing = assembler.unassembled()
        if missing:
            raise LedgerError(
                f"{self.destination}: {len(missing)} objects were not assembled although all tasks are "
                f"finished; the first is {work.plan.objects[missing[0]].info.uri}. Do not trust this output; "
                "please report it"
            )
        return True

    def _learned(self, plan: TransformPlan) -> dict[str, Any]:
        """Return the properties of the first records, read once for all workers and resumptions."""
        learned = self._ledger.learned()
        if learned is None:
            learned = learn(plan, self._stores, self._settings, self._runner.metadata)
            self._ledger.learn(learned)
        return learned

    def _begin_progress(self, plan: TransformPlan, checkpoints: Mapping[int, TaskCheckpoint]) -> None:
        progress = self.progress
        counts = [s.counts for r in self._records.values() for s in r.shards]
        for checkpoint in (c for c in checkpoints.values() if c.task not in self._records):
            counts += [checkpoint.counts, *(s.counts for s in checkpoint.done)]
        total = sum_counts(counts)
        progress.records = total.records_in
        progress.rows_out, progress.rows_failed = total.rows_out, total.rows_failed
        progress.objects_broken = total.objects_broken
        progress.objects_total = len(plan.objects)
        progress.bytes_total = plan.nbytes
        done = [shard for number in self._records for shard in plan.tasks[number].shards]
        sizes = [(plan.objects[s.index].info.size_bytes or 0) // s.count for s in done]
        progress.begin(objects_before=sum(s.ends_object for s in done), bytes_before=sum(sizes))

    def _check_failures_so_far(self, _: ScoredBatch | None) -> None:
        self._check_failures(self.progress.rows_failed, self.progress.records, at_end=False)

    def _check_failures(self, failed: int, records: int, *, at_end: bool) -> None:
        """Raise TooManyFailuresError if more records failed than the policy allows."""
        policy = self._settings.failures
        most, share = policy.failed_rows_max, policy.failed_share_max
        if most is not None and failed > most:
            why = f"{failed:,} records failed, and failed_rows_max is {most:,}"
        elif share is not None and failed > share * records and (at_end or records >= SHARE_ROWS_MIN):
            why = f"{failed:,} of {records:,} records failed, and failed_share_max is {share:g}"
        else:
            return
        raise TooManyFailuresError(
            f"{self.destination}: {why}. Finished work stays; its failed records are in *.failed. "
            "Continue with --resume and a higher limit"
        )

    # Ending

    def _finish(self, complete: bool, elapsed_s: float, cpu_used_s: float) -> TransformReport:
        assert self.plan is not None, "opened before"
        # Count from the ledger, not from what workers reported.
        records = [record for _, record in sorted(self._ledger.tasks().items())]
        results = object_results(self.plan, records, self._settings)
        if complete:
            self._check_counts(self.plan, records, len(results))
            total = sum_counts(s.counts for r in records for s in r.shards)
            self._check_failures(total.rows_failed, total.records_in, at_end=True)
        suppressed = any(r.suppressed for r in results)
        cut_short: Status = "drained" if self._drained else "partial"
        status: Status = cut_short if not complete else "failed" if suppressed else "complete"
        report = self._report(status, records, results, elapsed_s, cpu_used_s)
        _log.info(
            "transform %s", report.status, extra={"output": self.destination, "rows_out": report.rows_out}
        )
        if complete:
            text = orjson.dumps(report.to_json(), option=orjson.OPT_INDENT_2)
            self._ledger.publish(REPORT_NAME, text)
        self._write_page(report)
        if complete:
            self._ledger.finish(report.to_record())
        return report

    def _report(
        self,
        status: Status,
        records: Sequence[TaskRecord],
        results: Sequence[ObjectResult],
        elapsed_s: float,
        cpu_used_s: float,
    ) -> TransformReport:
        assert self.plan is not None, "opened before"
        return make_report(
            status=status,
            source=self.source if isinstance(self.source, str) else ", ".join(self.source),
            output=self.destination,
            model=self._runner.metadata.name,
            plan=self.plan,
            records=records,
            results=results,
            progress=self.progress,
            statistics=self._runner.statistics(),
            elapsed_s=elapsed_s,
            cpu_s=cpu_used_s + self._runner.cpu_s(),
            peak_memory_mb=peak_memory_mb() + self._runner.peak_memory_mb(),
            resumed=self._resumed,
            destination_region=(self._ledger.identity() or {}).get("destination_region"),
        )

    def _write_error_page(self, error: HeadraceError, elapsed_s: float, cpu_used_s: float) -> None:
        """Write the page of a run that stopped with an error."""
        if self._observation is None or self.plan is None:
            return
        try:
            records = [record for _, record in sorted(self._ledger.tasks().items())]
            results = object_results(self.plan, records, self._settings)
            self._write_page(self._report("failed", records, results, elapsed_s, cpu_used_s), str(error))
        except HeadraceError:
            # The destination may be the cause; the first error is the one to report.
            _log.warning("cannot write %s%s", self.destination, PAGE_NAME, exc_info=True)

    def _write_page(self, report: TransformReport, error: str = "") -> None:
        if self._observation is not None:
            page = report_page(report, self._observation, settings=self._settings, error=error)
            self._ledger.publish(PAGE_NAME, page)
            self.page = self.destination + PAGE_NAME

    def _check_counts(self, plan: TransformPlan, records: Sequence[TaskRecord], objects_done: int) -> None:
        """Check from the ledger that every task, object and record of the run is counted once."""
        if len(records) != len(plan.tasks) or objects_done != len(plan.objects):
            raise LedgerError(
                f"{self.destination}{LEDGER_FOLDER}/: the run reports success with {len(records)} of "
                f"{len(plan.tasks)} tasks and {objects_done} of {len(plan.objects)} objects finished. Do not "
                "trust this output; please report it"
            )
        for record in records:
            for shard in record.shards:
                counts = shard.counts
                if counts.records_in != counts.rows_out + counts.rows_failed:
                    raise CountMismatchError(
                        plan.objects[shard.index].info.uri,
                        records_in=counts.records_in,
                        out=counts.rows_out,
                        failed=counts.rows_failed,
                    )
