"""The final report of a run."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from headrace.core.predictor import PredictorStatistics
from headrace.runs.figures import failure_figures
from headrace.runs.markup import summary
from headrace.runs.part_ledger import LEDGER_VERSION, Counts
from headrace.runs.progress import RunProgress
from headrace.runs.usage import peak_memory_mb


@dataclass(frozen=True, slots=True)
class Report:
    """The counts of a run. ``records_in == rows_out + rows_failed`` was checked against the ledger.

    `status` is complete, or drained if the run was stopped and can be resumed. The counts cover the
    whole run. `bytes_read`, `elapsed_s`, `rows_per_s`, `cpu_s` and the figures of the model cover
    this process only (this append, if the run is appended to). `peak_memory_mb` and
    `records_replayed` cover the whole life of the process. `records_replayed` counts records that
    were delivered before and replayed to rebuild the states of the model.
    """

    status: Literal["complete", "drained"]
    source: str
    output: str
    model: str
    records_in: int
    rows_out: int
    rows_failed: int
    objects_read: int
    objects_broken: int
    parts: int
    bytes_read: int
    elapsed_s: float
    rows_per_s: float
    cpu_s: float
    peak_memory_mb: float
    instance_busy_share: float
    instance_starved_s: float
    model_calls: int
    retries: int
    batches_closed_by: dict[str, int] = field(default_factory=dict[str, int])
    resumed: bool = False
    records_replayed: int = 0

    @property
    def exit_code(self) -> int:
        """The exit status of the command: 0, 1 or 3.

        It is 0 on success, 3 if records failed, and 1 if an object was not read whole or the run
        was drained.
        """
        if self.objects_broken or self.status == "drained":
            return 1
        return 3 if self.rows_failed else 0

    def to_json(self) -> dict[str, Any]:
        """Return the report for ``report.json`` and ``--json``."""
        return {"v": LEDGER_VERSION, **asdict(self), "exit_code": self.exit_code}

    def figures(self, progress: RunProgress | None = None) -> dict[str, str]:
        """Return the figures of the run for people, by name, as the command prints them.

        `progress` adds the first failures.
        """
        failed, calls = f"{self.rows_failed:,}", self.model_calls
        first = failure_figures(progress or RunProgress())
        replayed = f"{self.records_replayed:,} records, to restore sequence states"
        figures = {
            "predictions": f"{self.output} ({self.parts} part{'s' if self.parts != 1 else ''})",
            "records in": f"{self.records_in:,} = {self.rows_out:,} out + {failed} failed",
            "failures": f"{self.output}part-*.failed.jsonl"
            if self.rows_failed or self.objects_broken
            else "",
            "first failure": first["first failure"],
            "broken objects": f"{self.objects_broken:,}" if self.objects_broken else "",
            "first broken": first["first broken"],
            "replayed": replayed if self.records_replayed else "",
            "rows/s": f"{self.rows_per_s:,.0f} over {self.elapsed_s:.2f} s",
            "instances busy": f"{self.instance_busy_share:.0%}, {calls:,} call{'s' if calls != 1 else ''}",
            "peak memory": f"{self.peak_memory_mb:,.0f} MB",
            "status": self.status if self.status == "complete" else "stopped: continue with --resume",
        }
        return {name: value for name, value in figures.items() if value}

    def _repr_html_(self) -> str:
        """Return the figures as a table, for notebooks."""
        return summary("Stream run", self.figures().items())


def make_report(
    *,
    status: Literal["complete", "drained"],
    source: str,
    output: str,
    model: str,
    total: Counts,
    parts: int,
    progress: RunProgress,
    statistics: PredictorStatistics,
    elapsed_s: float,
    cpu_s: float,
    resumed: bool,
) -> Report:
    """Return the report of the ledger's counts and this process's figures."""
    rows = progress.records - progress.records_before
    return Report(
        status=status,
        source=source,
        output=output,
        model=model,
        records_in=total.records_in,
        rows_out=total.rows_out,
        rows_failed=total.rows_failed,
        objects_read=progress.objects_before + progress.objects_read,
        objects_broken=total.objects_broken,
        parts=parts,
        bytes_read=progress.bytes_read,
        elapsed_s=round(elapsed_s, 3),
        rows_per_s=round(rows / elapsed_s, 1) if elapsed_s > 0 else 0.0,
        cpu_s=round(cpu_s, 3),
        peak_memory_mb=round(peak_memory_mb(), 1),
        instance_busy_share=round(statistics.busy_share, 4),
        instance_starved_s=round(statistics.starved_s, 3),
        model_calls=statistics.calls,
        retries=statistics.retries,
        batches_closed_by={reason.value: count for reason, count in sorted(progress.closed_by.items())},
        resumed=resumed,
        records_replayed=progress.records_replayed,
    )
