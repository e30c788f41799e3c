"""Make and write the report of a run, and its page."""

from collections.abc import Sequence
from typing import Any, Final

import orjson

from headrace.core.predictor import PredictorStatistics
from headrace.reports.page import PAGE_NAME, report_page
from headrace.reports.report import REPORT_NAME, Report, RunKind, Status
from headrace.runs.progress import RunProgress, WorkFigures, cpu_s, peak_memory_mb
from headrace.runs.totals import ObjectResult, RunTotals
from headrace.runs.work import RunWork

_WORST_MAX: Final = 20


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
        suppressed = any(result.suppressed for result in totals.objects)
        return make_report(
            kind="transform" if self._work.settings.per_object else "stream",
            status=stopped or ("failed" if suppressed else "complete"),
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
    status: Status,
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
) -> Report:
    """Return the report of the ledger's totals and this process's figures."""
    results, counts = totals.objects, totals.counts
    suppressed_rows = sum(r.counts.rows_out for r in results if r.suppressed)
    worst = sorted((r for r in results if r.counts.has_failures), key=_severity)
    rows = progress.records - progress.records_before
    return Report(
        kind=kind,
        status=status,
        source=source,
        output=output,
        model=model,
        objects=objects,
        objects_done=totals.objects_done,
        objects_with_failures=len(worst),
        objects_broken=counts.objects_broken,
        objects_suppressed=sum(r.suppressed for r in results),
        records_in=counts.records_in,
        rows_out=counts.rows_out - suppressed_rows,
        rows_failed=counts.rows_failed,
        rows_suppressed=suppressed_rows,
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
        failed_objects=[_failed_object_json(r) for r in worst[:_WORST_MAX]],
        bytes_across_regions=[
            {"from": c.from_region, "to": c.to_region, "bytes": c.nbytes} for c in totals.transfers
        ],
        tasks_left=dict(totals.tasks_left),
        resumed=resumed,
        records_replayed=progress.records_replayed,
    )


def _severity(result: ObjectResult) -> tuple[int, int]:
    return -result.counts.objects_broken, -result.counts.rows_failed


def _failed_object_json(result: ObjectResult) -> dict[str, Any]:
    counts = result.counts
    return {
        "object": result.uri,
        "records_in": counts.records_in,
        "rows_failed": counts.rows_failed,
        "broken": bool(counts.objects_broken),
        "suppressed": result.suppressed,
        "withheld": result.suppressed,  # the old key, for one release
    }
