"""Score a plan by tasks, which a runner distributes; they may finish in any order."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from headrace.core.errors import ConfigError, LedgerError
from headrace.runs.assembler import Assembler
from headrace.runs.plan import Plan
from headrace.runs.probe import learn
from headrace.runs.progress import RunProgress, WorkFigures
from headrace.runs.records import LEDGER_FOLDER, PlannedObject, TaskCheckpoint, TaskRecord, sum_counts
from headrace.runs.retried_run import RetryLedger
from headrace.runs.runner import Runner
from headrace.runs.scoring import Mode, Scoring
from headrace.runs.totals import RunTotals, task_totals
from headrace.runs.work import RunWork, ignore

_log = logging.getLogger("headrace.runs")


class TaskScoring(Scoring):
    """The scoring of a transform, or of a stream with workers. The runner is started before."""

    def __init__(self, work: RunWork, runner: Runner) -> None:
        self._work = work
        self._runner = runner
        self._records: dict[int, TaskRecord] = {}
        """The records of finished tasks, of this process and of earlier ones."""
        self._settled: dict[int, TaskRecord] = {}
        """The records of tasks that were counted when the run was complete; they do not change."""
        self._resumed = self._has_checkpoints = False

    @property
    @override
    def figures(self) -> WorkFigures:
        return self._runner.figures

    @property
    @override
    def mode(self) -> Mode:
        return "tasks"

    @override
    def check(self) -> None:
        settings = self._work.settings
        if settings.flow.batch_delay_ms is not None or settings.mapping.sequence is not None:
            name = "batch_delay_ms" if settings.mapping.sequence is None else "sequence"
            raise ConfigError(
                f"{name} needs the records in the order of the source, but workers run their tasks in any "
                "order: remove it, or run without workers"
            )

    @override
    def learn(self, objects: Sequence[PlannedObject], known: Mapping[str, Any]) -> Mapping[str, Any]:
        work = self._work
        return learn(objects, work.stores, work.settings, self.figures.metadata, known=known)

    @override
    def resume(self, plan: Plan, *, finished: bool) -> None:
        ledger = self._work.ledger
        self._resumed = True
        self._records = ledger.tasks()
        if finished:
            self._settled = dict(self._records)
            return
        self._has_checkpoints = True
        assembled = Assembler(ledger, plan, self._work.settings).assembled_tasks()
        for number in ledger.remove_lost_tasks(self._records, assembled=assembled):
            del self._records[number]

    @override
    def execute(self, plan: Plan, *, appended: bool) -> bool:
        work = self._work
        assembler = Assembler(work.ledger, plan, work.settings, self._records.values())
        checkpoints = work.ledger.checkpoints() if self._has_checkpoints else {}
        self._has_checkpoints = True
        self._begin_progress(plan, checkpoints)

        def on_task(record: TaskRecord) -> None:
            self._records[record.task] = record
            assembler.add_task(record)

        assembler.publish_all()
        work = replace(
            work,
            plan=plan,
            # Read once for all workers and resumptions.
            learned=work.ledger.learned(),
            on_task=on_task,
            run_id=work.ledger.run_id(),
            range_starts=assembler.range_starts(),
            checkpoints=checkpoints,
        )
        left = [task for task in plan.tasks if task.number not in self._records]
        if left and not self._runner.run(work, left):
            return False
        return self._redo_ranges(work, assembler)

    def _redo_ranges(self, work: RunWork, assembler: Assembler) -> bool:
        """Score ranges with a wrong start again, until all are right."""
        # The records were counted when they were scored first.
        work = replace(
            work, progress=RunProgress(), on_batch=ignore, observation=None, replaces=True, checkpoints={}
        )
        while misplaced := assembler.ranges_to_redo():
            _log.info(
                "ranges scored again: their starts were guessed wrong", extra={"tasks": sorted(misplaced)}
            )
            tasks = [work.plan.tasks[number] for number in sorted(misplaced)]
            if not self._runner.run(replace(work, range_starts=dict(misplaced.values())), tasks):
                return False
        missing = assembler.unassembled()
        if missing:
            raise LedgerError(
                f"{work.ledger.destination}: {len(missing)} objects were not assembled although all tasks "
                f"are finished; the first is {work.plan.objects[missing[0]].info.uri}. Do not trust this "
                "output; please report it"
            )
        return True

    def _begin_progress(self, plan: Plan, checkpoints: Mapping[int, TaskCheckpoint]) -> None:
        progress = self._work.progress
        counts = [s.counts for r in self._records.values() for s in r.shards]
        for checkpoint in (c for c in checkpoints.values() if c.task not in self._records):
            counts += [checkpoint.counts, *(s.counts for s in checkpoint.done)]
        progress.counts = sum_counts(counts)
        progress.objects_total = len(plan.objects)
        progress.bytes_total = plan.nbytes
        done = [shard for number in self._records for shard in plan.tasks[number].shards]
        sizes = [(plan.objects[s.index].info.size_bytes or 0) // s.count for s in done]
        progress.begin(objects_before=sum(s.ends_object for s in done), bytes_before=sum(sizes))

    @override
    def totals(self, plan: Plan, *, complete: bool) -> RunTotals:
        ledger = self._work.ledger
        # Count from the ledger, not from what workers reported.
        found = self._settled | ledger.tasks(without=self._settled)
        records = [found[number] for number in sorted(found)]
        totals = task_totals(
            plan,
            records,
            self._work.settings,
            retried=RetryLedger(ledger).retried() if self._resumed else None,
            destination_region=(ledger.identity() or {}).get("destination_region"),
        )
        if complete:
            self._check_counts(plan, records, totals.objects_done)
            self._records, self._settled = dict(found), found
        return totals

    def _check_counts(self, plan: Plan, records: Sequence[TaskRecord], objects_done: int) -> None:
        """Check from the ledger that every task, object and record of the run is counted once."""
        if len(records) != len(plan.tasks) or objects_done != len(plan.objects):
            raise LedgerError(
                f"{self._work.ledger.destination}{LEDGER_FOLDER}/: the run reports success with "
                f"{len(records)} of {len(plan.tasks)} tasks and {objects_done} of {len(plan.objects)} "
                "objects finished. Do not trust this output; please report it"
            )
        for record in records:
            for shard in record.shards:
                shard.counts.check(plan.objects[shard.index].info.uri)

    @override
    def drain(self) -> None:
        self._runner.drain()
