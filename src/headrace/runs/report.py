"""The final report of a transform, for people and for programs."""

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any, Final, Literal

from headrace.core.predictor import PredictorStatistics
from headrace.runs.figures import failure_figures, one_line
from headrace.runs.markup import summary
from headrace.runs.part_ledger import Counts
from headrace.runs.plan import TransformPlan
from headrace.runs.progress import RunProgress
from headrace.runs.records import RetriedObject, ShardRecord, TaskRecord, repeated_bytes
from headrace.runs.region_transfers import region_transfers, tasks_left
from headrace.runs.settings import RunSettings

REPORT_VERSION: Final = 1
REPORT_NAME: Final = "_report.json"
_WORST_MAX: Final = 20
_REASONS_SHOWN: Final = 5

Status = Literal["complete", "failed", "drained", "partial"]


@dataclass(frozen=True, slots=True)
class ObjectResult:
    """The result of one object. `failures` counts its failed records by reason.

    If `suppressed`, the object has failed records and therefore no output, as the settings require.
    """

    uri: str
    output: str
    counts: Counts
    out_bytes: int
    failures: Mapping[str, int]
    suppressed: bool = False


@dataclass(frozen=True, slots=True)
class TransformReport:
    """The report of a transform.

    ``records_in == rows_out + rows_failed + rows_suppressed`` was verified.

    Counts are of the whole transform, from its ledger. Other figures are of this run alone:
    `bytes_read`, `elapsed_s`, `rows_per_s`, `cpu_s` and those of the model.

    Attributes:
        status: "complete". "failed": objects have no output because one of their records failed
            (`FailurePolicy.on_error` "object"). "drained": stopped on request, can be resumed.
            "partial": tasks are left for workers in other regions, can be resumed.
        rows_suppressed: Predictions that were not written, in objects without output.
        failures: Failed records by reason.
        failed_objects: The objects with the most failed records.
        bytes_across_regions: Transfers with ``from``, ``to`` and ``bytes``, for known regions.
        tasks_left: Unfinished tasks by region.
    """

    status: Status
    source: str
    output: str
    model: str
    objects: int
    objects_done: int
    objects_with_failures: int
    objects_broken: int
    objects_suppressed: int
    records_in: int
    rows_out: int
    rows_failed: int
    rows_suppressed: int
    out_bytes: int
    bytes_read: int
    tasks: int
    elapsed_s: float
    rows_per_s: float
    cpu_s: float
    peak_memory_mb: float
    instance_busy_share: float
    instance_starved_s: float
    model_calls: int
    retries: int
    batches_closed_by: dict[str, int] = field(default_factory=dict[str, int])
    failures: dict[str, int] = field(default_factory=dict[str, int])
    failed_objects: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    bytes_across_regions: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    tasks_left: dict[str, int] = field(default_factory=dict[str, int])
    resumed: bool = False

    @property
    def exit_code(self) -> int:
        """The exit status of the command.

        0: every record is predicted. 3: records failed. 1: an object is broken or has no output, or
        the run stopped before its end.
        """
        if self.status != "complete" or self.objects_broken:
            return 1
        return 3 if self.rows_failed else 0

    @property
    def objects_withheld(self) -> int:
        """Return `objects_suppressed`. Deprecated, removed in the next release."""
        _warn_renamed("objects_withheld")
        return self.objects_suppressed

    @property
    def rows_withheld(self) -> int:
        """Return `rows_suppressed`. Deprecated, removed in the next release."""
        _warn_renamed("rows_withheld")
        return self.rows_suppressed

    def to_json(self) -> dict[str, Any]:
        """Return the report for ``_report.json`` and ``--json``.

        For one release, renamed keys are there under their old names too.
        """
        data = asdict(self)
        old = {name: data[new] for name, new in _RENAMED.items()}
        return {"v": REPORT_VERSION, **data, **old, "exit_code": self.exit_code}

    def to_record(self) -> dict[str, Any]:
        """Return the report for the ledger, whose records keep the old names."""
        data = self.to_json()
        for name in _RENAMED.values():
            del data[name]
        for entry in data["failed_objects"]:
            del entry["suppressed"]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "TransformReport":
        """Return the report from the form of `to_json` or of `to_record`."""
        values = {_RENAMED.get(k, k): v for k, v in data.items() if k not in ("v", "exit_code")}
        values["failed_objects"] = [{**e, "suppressed": e["withheld"]} for e in values["failed_objects"]]
        return cls(**values)

    def figures(self, progress: RunProgress | None = None) -> dict[str, str]:
        """Return the figures of the transform for people, by name, as the command prints them.

        A figure may have several lines. `progress` adds the first failures.
        """
        first = failure_figures(progress or RunProgress())
        figures = {
            "predictions": f"{self.output} ({_objects(self)})",
            "records in": _records(self),
            "failures": _failures(self),
            "first failure": first["first failure"],
            "broken objects": f"{self.objects_broken:,}" if self.objects_broken else "",
            "first broken": first["first broken"],
            "no output": f"{self.objects_suppressed:,} objects, since one of their records failed"
            if self.objects_suppressed
            else "",
            "across regions": _across_regions(self),
            "rows/s": f"{self.rows_per_s:,.0f} over {self.elapsed_s:.2f} s",
            "instances busy": f"{self.instance_busy_share:.0%}, {self.model_calls:,} calls",
            "peak memory": f"{self.peak_memory_mb:,.0f} MB",
            "status": _STATUS_TEXTS.get(self.status, self.status),
        }
        return {name: value for name, value in figures.items() if value}

    def _repr_html_(self) -> str:
        """Return the figures as a table, for notebooks."""
        return summary("Batch transform", self.figures().items())


_STATUS_TEXTS: Final = {
    "drained": "stopped: continue with --resume",
    "partial": "tasks are left for workers in other regions: continue there with --resume",
}


def _objects(report: TransformReport) -> str:
    done = f"{report.objects_done:,} of " if report.status in _STATUS_TEXTS else ""
    return f"{done}{report.objects:,} object{'s' if report.objects != 1 else ''}"


def _records(report: TransformReport) -> str:
    suppressed = f" + {report.rows_suppressed:,} suppressed" if report.rows_suppressed else ""
    return f"{report.records_in:,} = {report.rows_out:,} out + {report.rows_failed:,} failed{suppressed}"


def _across_regions(report: TransformReport) -> str:
    """Return the bytes transferred between regions and the tasks left in them."""
    lines = [f"{c['bytes']:,} bytes from {c['from']} to {c['to']}" for c in report.bytes_across_regions]
    if report.status == "partial":
        lines += [f"{count:,} task(s) left in {region}" for region, count in report.tasks_left.items()]
    return "\n".join(lines)


def _failures(report: TransformReport) -> str:
    """Return the most frequent failure reasons, one per line."""
    if not report.failures:
        return ""
    shown = list(report.failures.items())[:_REASONS_SHOWN]
    lines = [f"{report.output}**.failed, {report.objects_with_failures:,} object(s); by reason:"]
    lines += [f"{count:>9,}  {one_line(reason)}" for reason, count in shown]
    if len(report.failures) > len(shown):
        lines.append(f"           … and {len(report.failures) - len(shown)} more reasons, in _report.json")
    return "\n".join(lines)


_RENAMED: Final = {"objects_withheld": "objects_suppressed", "rows_withheld": "rows_suppressed"}


def _warn_renamed(name: str) -> None:
    message = f"TransformReport.{name} is deprecated: use {_RENAMED[name]}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def object_results(
    plan: TransformPlan,
    records: Iterable[TaskRecord],
    settings: RunSettings,
    retried: Mapping[int, RetriedObject] | None = None,
) -> list[ObjectResult]:
    """Return the results of all objects whose shards are finished, with the records gained by a retry."""
    shard_counts = {shard.index: shard.count for task in plan.tasks for shard in task.shards}
    retried_by_index = retried or {}
    found = _by_object(records).items()
    return [
        _result(plan, i, done, settings, retried_by_index.get(i))
        for i, done in found
        if len(done) == shard_counts[i]
    ]


def _by_object(records: Iterable[TaskRecord]) -> dict[int, list[ShardRecord]]:
    """Return the finished shards of every object, in order."""
    shards = sorted((s for r in records for s in r.shards), key=lambda s: (s.index, s.number))
    return {index: list(group) for index, group in groupby(shards, key=lambda s: s.index)}


def _result(
    plan: TransformPlan,
    index: int,
    shards: Sequence[ShardRecord],
    settings: RunSettings,
    retried: RetriedObject | None,
) -> ObjectResult:
    counts = _counts_of(shards)
    out_bytes = sum(s.out_bytes for s in shards) - sum(repeated_bytes(shards))
    failures = _failures_of(shards)
    if retried is not None:
        counts = counts.plus(Counts(0, retried.rows, -retried.rows, 0))
        out_bytes, failures = retried.out_bytes, Counter(retried.failures)
    failed = bool(counts.rows_failed or counts.objects_broken)
    planned = plan.objects[index]
    suppressed = failed and settings.failures.on_error == "object"
    return ObjectResult(planned.info.uri, planned.output, counts, out_bytes, dict(failures), suppressed)


def _counts_of(shards: Sequence[ShardRecord]) -> Counts:
    """Return the counts of one object's shards. Several broken shards are one broken object."""
    counts = sum_counts(s.counts for s in shards)
    return replace(counts, objects_broken=1) if len(shards) > 1 and counts.objects_broken else counts


def _failures_of(shards: Sequence[ShardRecord]) -> Counter[str]:
    """Return the numbers of failed records of the shards, by reason."""
    failures = Counter[str]()
    for shard in shards:
        if shard.failures:
            failures.update(shard.failures)
    return failures


def sum_counts(counts: Iterable[Counts]) -> Counts:
    """Return the sum of the counts."""
    total = Counts()
    for one in counts:
        total = total.plus(one)
    return total


def make_report(
    *,
    status: Status,
    source: str,
    output: str,
    model: str,
    plan: TransformPlan,
    records: Sequence[TaskRecord],
    results: Sequence[ObjectResult],
    progress: RunProgress,
    statistics: PredictorStatistics,
    elapsed_s: float,
    cpu_s: float,
    peak_memory_mb: float,
    resumed: bool,
    destination_region: str | None = None,
    retried: Mapping[int, RetriedObject] | None = None,
) -> TransformReport:
    """Return the report from the ledger's records and this run's figures.

    `results` are the `object_results` of the records.
    """
    by_object, retried_by_index = _by_object(records), retried or {}
    gained = sum(r.rows for r in retried_by_index.values())
    total = sum_counts(map(_counts_of, by_object.values())).plus(Counts(0, gained, -gained, 0))
    failures = Counter[str]()
    for index, shards in by_object.items():
        failures.update(
            retried_by_index[index].failures if index in retried_by_index else _failures_of(shards)
        )
    suppressed_rows = sum(r.counts.rows_out for r in results if r.suppressed)
    worst = sorted((r for r in results if r.counts.rows_failed or r.counts.objects_broken), key=_severity)
    rows = progress.records - progress.records_before
    return TransformReport(
        status=status,
        source=source,
        output=output,
        model=model,
        objects=len(plan.objects),
        objects_done=len(results),
        objects_with_failures=len(worst),
        objects_broken=total.objects_broken,
        objects_suppressed=sum(r.suppressed for r in results),
        records_in=total.records_in,
        rows_out=total.rows_out - suppressed_rows,
        rows_failed=total.rows_failed,
        rows_suppressed=suppressed_rows,
        out_bytes=sum(r.out_bytes for r in results if not r.suppressed),
        bytes_read=progress.bytes_read,
        tasks=len(records),
        elapsed_s=round(elapsed_s, 3),
        rows_per_s=round(rows / elapsed_s, 1) if elapsed_s > 0 else 0.0,
        cpu_s=round(cpu_s, 3),
        peak_memory_mb=round(peak_memory_mb, 1),
        instance_busy_share=round(statistics.busy_share, 4),
        instance_starved_s=round(statistics.starved_s, 3),
        model_calls=statistics.calls,
        retries=statistics.retries,
        batches_closed_by={reason.value: count for reason, count in sorted(progress.closed_by.items())},
        failures=dict(failures.most_common()),
        failed_objects=[_failed_object_json(r) for r in worst[:_WORST_MAX]],
        bytes_across_regions=[
            {"from": c.from_region, "to": c.to_region, "bytes": c.nbytes}
            for c in region_transfers(plan, records, destination_region)
        ],
        tasks_left=tasks_left(plan, records),
        resumed=resumed,
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
