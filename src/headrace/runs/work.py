"""The work of a run: what its stages and workers share, its progress, and its report.

A `RunGuard` stops a worker from writing after its run is over. `RunReporter` writes the report and the
page at the end.
"""

import re
import resource
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from headrace.batching.dynamic import CloseReason
from headrace.core.block import Failure, FailureKind
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import LedgerError
from headrace.core.model_traceback import TRACEBACKS_MAX, ModelTraceback
from headrace.core.predictor import PredictorStatistics
from headrace.core.tensor import ModelMetadata, RowFailure
from headrace.reports.observation import RunObservation
from headrace.reports.page import PAGE_NAME, report_page
from headrace.reports.report import REPORT_NAME, Report, RunKind, Status
from headrace.runs.items import ScoredBatch
from headrace.runs.ledger import Ledger
from headrace.runs.plan import Plan
from headrace.runs.records import Counts, ShardPosition, TaskCheckpoint, TaskRecord
from headrace.runs.schema import Schema
from headrace.runs.settings import RunSettings, SubsetSettings
from headrace.runs.totals import ObjectResult, RunTotals
from headrace.storage.resolve import Stores

_STATUS = Path("/proc/self/status")
_PEAK_KIB = re.compile(rb"^VmHWM:\s*(\d+) kB$", re.MULTILINE)
CHECK_INTERVAL_S: Final = 1.0


@dataclass(slots=True)
class RunProgress:
    """The counters of one run. One thread writes each of them; readers may see slightly old values.

    `records` counts delivered records: ``records == rows_out + rows_failed``. The counts of a
    resumed run include the earlier ones.
    """

    bytes_total: int = 0
    objects_total: int = 0
    bytes_read: int = 0
    objects_read: int = 0
    records: int = 0
    rows_out: int = 0
    rows_failed: int = 0
    objects_broken: int = 0
    batches: int = 0
    closed_by: Counter[CloseReason] = field(default_factory=Counter[CloseReason])
    """The submitted batches, by the reason for which they were closed."""
    parts: int = 0
    objects_before: int = 0
    """Objects that an earlier process or append read to their ends."""
    bytes_before: int = 0
    """The bytes of these objects."""
    is_listing: bool = False
    """True while the source is being listed, and the totals of objects and bytes still grow."""
    records_before: int = 0
    """Records that were delivered earlier; they do not count for the rate."""
    records_to_replay: int = 0
    """Records that the model receives again before new ones, to rebuild its sequences."""
    records_replayed: int = 0
    """The number of replayed records so far."""
    first_failure: Failure | None = None
    """The first failed record of this process or append."""
    first_broken: Failure | None = None
    """The first object or member that was not read to its end."""
    failed_bytes: int = 0
    """The bytes of the failed records of this process, as far as they are kept."""
    tracebacks: dict[tuple[str, str, int], ModelTraceback] = field(
        default_factory=dict[tuple[str, str, int], ModelTraceback]
    )
    """The first traceback of each unexpected exception of the model, by type, file and line."""

    def begin(self, *, objects_before: int, bytes_before: int) -> None:
        """Start a new part of the run: what follows is new. The run calls it."""
        self.objects_before, self.bytes_before = objects_before, bytes_before
        self.records_before = self.records
        self.objects_read = self.bytes_read = 0
        self.first_failure = self.first_broken = None

    @property
    def counts(self) -> Counts:
        """The numbers of delivered records."""
        return Counts(self.records, self.rows_out, self.rows_failed, self.objects_broken)

    @counts.setter
    def counts(self, counts: Counts) -> None:
        self.records, self.rows_out = counts.records_in, counts.rows_out
        self.rows_failed, self.objects_broken = counts.rows_failed, counts.objects_broken

    def set_read(self, bytes_read: int, objects_read: int) -> None:
        """Set the read position. The reader calls it."""
        self.bytes_read = bytes_read
        self.objects_read = objects_read

    def add_tracebacks(self, failures: Sequence[RowFailure]) -> None:
        """Keep the tracebacks of failed rows that are the first of their kind, up to TRACEBACKS_MAX."""
        for failure in failures:
            if failure.traceback is not None and len(self.tracebacks) < TRACEBACKS_MAX:
                self.tracebacks.setdefault(failure.traceback.key, failure.traceback)

    def batch_delivered(self, batch: ScoredBatch) -> None:
        """Count a delivered batch. The iterating thread calls it."""
        broken, failures = batch.broken, batch.failures
        self.batches += 1
        self.records += batch.entries - broken
        self.rows_out += batch.rows
        self.rows_failed += len(failures) - broken
        self.objects_broken += broken
        if failures:
            self.failed_bytes += sum([len(failure.raw) for failure in failures])
        if failures and self.first_failure is None:
            self.first_failure = next((f for f in failures if f.kind is not FailureKind.OBJECT), None)
        if broken and self.first_broken is None:
            self.first_broken = next(f for f in failures if f.kind is FailureKind.OBJECT)


def ignore(_: Any) -> None:
    """Ignore the event."""


def _no_check() -> None:
    """Allow all writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWork:
    """The properties that the stages of a run, and all its tasks, share.

    Attributes:
        plan: The plan of the run, for tasks.
        settings: The settings of the run.
        stores: The object stores.
        ledger: The ledger of the destination.
        schema: The schema of the records.
        range_starts: The known starts of ranges, by object index and range number.
        checkpoints: The progress of earlier work, by task number.
        progress: The counters of this run.
        clock: The clock of checkpoints and elapsed times.
        on_task: Called with the record of every committed task, by the working thread.
        on_batch: Called with every delivered batch, by the working thread. A runner of remote workers
            passes None from time to time, after an update of `progress`.
        observation: The observation of every batch, also of one that stops the run before it is written.
        replaces: The tasks replace earlier ones with wrong starts.
        region: The region of this worker, if set.
        run_id: The id of the run, for remote workers.
        check: Called before every write; raises an error once the run is over.
    """

    settings: RunSettings
    stores: Stores
    ledger: Ledger
    plan: Plan = field(default_factory=Plan)
    schema: Schema = field(default_factory=Schema)
    range_starts: Mapping[tuple[int, int], ShardPosition] = field(
        default_factory=dict[tuple[int, int], ShardPosition]
    )
    checkpoints: Mapping[int, TaskCheckpoint] = field(default_factory=dict[int, TaskCheckpoint])
    progress: RunProgress = field(default_factory=RunProgress)
    clock: Clock = field(default_factory=SystemClock)
    on_task: Callable[[TaskRecord], None] = ignore
    on_batch: Callable[[ScoredBatch | None], None] = ignore
    observation: RunObservation | None = None
    replaces: bool = False
    region: str | None = None
    run_id: str | None = None
    check: Callable[[], None] = _no_check

    def with_schema(self, schema: Schema) -> "RunWork":
        """Return the work with the schema of the records, and with what it says about reading them."""
        return replace(self, schema=schema, settings=schema.apply_to(self.settings))


class RunGuard:
    """The check that a worker's run is still active. Used by one thread.

    A worker can be separated from its run and survive: its machine was declared lost, or an engine
    started its tasks elsewhere. During the same run that is harmless, because a task is recorded
    once and its outputs are always the same bytes. After the run, the worker must not write. The
    ledger is read at most once in `CHECK_INTERVAL_S`; writes within that time are not prevented.

    Args:
        ledger: The ledger of the destination.
        run_id: The id of the worker's run.
        clock: The clock of `CHECK_INTERVAL_S`.
    """

    def __init__(self, ledger: Ledger, run_id: str, clock: Clock) -> None:
        self._ledger = ledger
        self._run_id = run_id
        self._clock = clock
        self._checked_s: float | None = None

    def check(self) -> None:
        """Raise LedgerError if the run is finished, or another run has replaced it."""
        now_s = self._clock.now()
        if self._checked_s is not None and now_s - self._checked_s < CHECK_INTERVAL_S:
            return
        self._checked_s = now_s
        if self._ledger.run_id() != self._run_id or self._ledger.final_report() is not None:
            raise LedgerError(
                f"{self._ledger.destination}: the run of this worker is over: the worker stops writing"
            )


def cpu_s() -> float:
    """Return the processor seconds of all threads, in user and system mode."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_memory_mb() -> float:
    """Return the peak memory of the process in MiB, accurate to about 1 MiB."""
    try:
        # On Linux, a new process inherits the maximum of its parent everywhere but in this file.
        found = _PEAK_KIB.search(_STATUS.read_bytes())
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) / 1024
    # The BSDs and macOS report bytes, Linux reports KiB.
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


class WorkFigures(Protocol):
    """Figures of the work on a run: of the model, and of other processes. Any thread may read them."""

    @property
    def metadata(self) -> ModelMetadata:
        """The model's metadata; available once the model is loaded."""
        ...

    def statistics(self) -> PredictorStatistics:
        """Return the model's statistics so far."""
        ...

    def reading(self) -> Sequence[str]:
        """Return the objects that are being read."""
        ...

    def cpu_s(self) -> float:
        """Return the processor time of other processes in seconds; 0 if there are none."""
        return 0.0

    def peak_memory_mb(self) -> float:
        """Return the sum of the other processes' peak memory in MB; 0 if there are none."""
        return 0.0


class RunReporter:
    """The writer of the report and the page of one run. Used by one thread.

    Args:
        work: The properties of the run. Without an observation, there is no page.
        source: The source of the run.
    """

    def __init__(self, work: RunWork, source: str | Sequence[str]) -> None:
        self._work = work
        self._source = source if isinstance(source, str) else ", ".join(source)
        self.page: str | None = None
        """The URI of the page; set once the page is written."""
        self._began_s = self._cpu_before_s = 0.0
        self._elapsed_s = self._cpu_s = 0.0

    def begin(self) -> None:
        """Measure times from now on."""
        self._began_s, self._cpu_before_s = self._work.clock.now(), cpu_s()
        if self._work.observation is not None:
            self._work.observation.begin(self._began_s)

    def end(self) -> None:
        """Measure times until now; counting the ledger and writing the report is not part of them."""
        self._elapsed_s, self._cpu_s = self._work.clock.now() - self._began_s, cpu_s() - self._cpu_before_s

    def make(
        self,
        totals: RunTotals,
        figures: WorkFigures,
        *,
        objects: int,
        resumed: bool,
        stopped: Status | None = None,
    ) -> Report:
        """Return the report of the ledger's totals, this process's figures and those of the work.

        Args:
            totals: The totals of the run.
            figures: The figures of the model and of other processes.
            objects: The number of planned objects.
            resumed: Whether the run continues the work of an earlier process.
            stopped: The status of a run that stopped before its end.
        """
        return make_report(
            kind="transform" if self._work.settings.per_object else "stream",
            stopped=stopped,
            source=self._source,
            output=self._work.ledger.destination,
            model=figures.metadata.name,
            objects=objects,
            totals=totals,
            progress=self._work.progress,
            statistics=figures.statistics(),
            elapsed_s=self._elapsed_s,
            cpu_s=self._cpu_s + figures.cpu_s(),
            peak_memory_mb=peak_memory_mb() + figures.peak_memory_mb(),
            resumed=resumed,
            schema=self._work.ledger.schema().text(),
            failure_limit=self._work.settings.failures.describe(),
            subset=self._work.settings.subset,
        )

    def publish(self, report: Report) -> None:
        """Write the report as JSON."""
        self._work.ledger.publish(REPORT_NAME, orjson.dumps(report.to_json(), option=orjson.OPT_INDENT_2))

    def write_page(self, report: Report, error: str = "") -> None:
        """Write the page, if there is an observation."""
        if self._work.observation is not None:
            page = report_page(report, self._work.observation, settings=self._work.settings, error=error)
            self._work.ledger.publish(PAGE_NAME, page)
            self.page = self._work.ledger.destination + PAGE_NAME


def make_report(
    *,
    kind: RunKind,
    stopped: Status | None,
    source: str,
    output: str,
    model: str,
    objects: int,
    totals: RunTotals,
    progress: RunProgress,
    statistics: PredictorStatistics,
    elapsed_s: float,
    cpu_s: float,
    peak_memory_mb: float,
    resumed: bool,
    subset: SubsetSettings,
    schema: str = "",
    failure_limit: str = "",
) -> Report:
    """Return the report of the ledger's totals and this process's figures."""
    counts, suppressed = totals.counts, totals.objects_suppressed
    rows = progress.records - progress.records_before
    return Report(
        kind=kind,
        status=stopped or ("failed" if suppressed else "complete"),
        source=source,
        output=output,
        model=model,
        objects=objects,
        objects_done=totals.objects_done,
        objects_with_failures=totals.objects_with_failures,
        objects_broken=counts.objects_broken,
        objects_suppressed=suppressed,
        records_in=counts.records_in,
        rows_out=counts.rows_out - totals.rows_suppressed,
        rows_failed=counts.rows_failed,
        rows_suppressed=totals.rows_suppressed,
        parts=totals.parts,
        out_bytes=totals.out_bytes,
        bytes_read=progress.bytes_read,
        tasks=totals.tasks,
        elapsed_s=round(elapsed_s, 3),
        rows_per_s=round(rows / elapsed_s, 1) if elapsed_s > 0 else 0.0,
        cpu_s=round(cpu_s, 3),
        peak_memory_mb=round(peak_memory_mb, 1),
        instance_busy_share=round(statistics.busy_share, 4),
        instance_starved_s=round(statistics.starved_s, 3),
        model_calls=statistics.calls,
        retries=statistics.retries,
        batches_closed_by={reason.value: count for reason, count in sorted(progress.closed_by.items())},
        failures=dict(totals.failures),
        failed_objects=[_failed_object_json(r) for r in totals.worst],
        bytes_across_regions=[
            {"from": c.from_region, "to": c.to_region, "bytes": c.nbytes} for c in totals.transfers
        ],
        tasks_left=dict(totals.tasks_left),
        resumed=resumed,
        records_replayed=progress.records_replayed,
        schema=schema,
        tracebacks=[traceback.to_json() for traceback in progress.tracebacks.values()],
        failure_limit=failure_limit,
        limit=subset.limit,
        sample=subset.sample,
        sample_seed=subset.sample_seed,
    )


def _failed_object_json(result: ObjectResult) -> dict[str, Any]:
    counts = result.counts
    return {
        "object": result.uri,
        "output": result.output,
        "records_in": counts.records_in,
        "rows_failed": counts.rows_failed,
        "broken": bool(counts.objects_broken),
        "suppressed": result.suppressed,
        "withheld": result.suppressed,  # the old key, for one release
    }
