"""What a transform says of itself at its end, for people and for machines."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any, Final, Literal

from headrace.core.predictor import PredictorStatistics
from headrace.pipeline.ledger import Counts
from headrace.pipeline.progress import Progress
from headrace.transforms.crossings import crossings, tasks_left
from headrace.transforms.plan import TransformPlan
from headrace.transforms.records import RetriedObject, ShardRecord, TaskRecord, repeated_bytes
from headrace.transforms.settings import TransformSettings

REPORT_VERSION: Final = 1
REPORT_NAME: Final = "_report.json"
_WORST_MAX: Final = 20

Status = Literal["complete", "failed", "drained", "partial"]


@dataclass(frozen=True, slots=True)
class ObjectResult:
    """What became of one object; `failures` are how many of its records failed, by reason.

    `withheld`: it has failed records, and so no output, as was asked.
    """

    uri: str
    output: str
    counts: Counts
    out_bytes: int
    failures: Mapping[str, int]
    withheld: bool = False


@dataclass(frozen=True, slots=True)
class TransformReport:
    """A transform's counts. ``records_in == rows_out + rows_failed + rows_withheld`` was checked from the ledger.

    `status` is complete; failed, where objects got no output because a record of theirs failed and that was asked for;
    drained, when it was asked to stop, or partial, where tasks were left to workers in their own regions: then a resumption
    goes on. Counts are of the whole transform; `bytes_read`,
    `elapsed_s`, `rows_per_s`, `cpu_s` and what is said of the model are of this run of it alone. `failures` are
    how many records failed, by reason; `failed_objects` are those with most of them. `bytes_across_regions` are each a
    ``from``, a ``to`` and ``bytes``, as far as workers and data say where they are; `tasks_left` are by region.
    """

    status: Status
    source: str
    output: str
    model: str
    objects: int
    objects_done: int
    objects_with_failures: int
    objects_broken: int
    objects_withheld: int
    records_in: int
    rows_out: int
    rows_failed: int
    rows_withheld: int
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
        """0 all good; 3 some records failed; 1 an object is broken or has no output, or the run was cut short."""
        if self.status != "complete" or self.objects_broken:
            return 1
        return 3 if self.rows_failed else 0

    def to_json(self) -> dict[str, Any]:
        """For ``_report.json`` and ``--json``."""
        return {"v": REPORT_VERSION, **asdict(self), "exit_code": self.exit_code}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "TransformReport":
        """Read back what `to_json` gave."""
        return cls(**{k: v for k, v in data.items() if k not in ("v", "exit_code")})


def object_results(
    plan: TransformPlan,
    records: Iterable[TaskRecord],
    settings: TransformSettings,
    retried: Mapping[int, RetriedObject] | None = None,
) -> list[ObjectResult]:
    """What became of every object of which all shards are done, with what trying its failed records again gained."""
    wanted = {shard.index: shard.of for task in plan.tasks for shard in task.shards}
    again = retried or {}
    found = _by_object(records).items()
    return [_result(plan, i, done, settings, again.get(i)) for i, done in found if len(done) == wanted[i]]


def _by_object(records: Iterable[TaskRecord]) -> dict[int, list[ShardRecord]]:
    """The shards that are done of every object, in order."""
    shards = sorted((s for r in records for s in r.shards), key=lambda s: (s.index, s.number))
    return {index: list(group) for index, group in groupby(shards, key=lambda s: s.index)}


def _result(
    plan: TransformPlan,
    index: int,
    shards: Sequence[ShardRecord],
    settings: TransformSettings,
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
    withheld = failed and settings.failures.on_error == "object"
    return ObjectResult(planned.info.uri, planned.output, counts, out_bytes, dict(failures), withheld)


def _counts_of(shards: Sequence[ShardRecord]) -> Counts:
    """Of one object's shards; where several of them broke, it is one object still."""
    counts = sum_counts(s.counts for s in shards)
    return replace(counts, objects_broken=1) if len(shards) > 1 and counts.objects_broken else counts


def _failures_of(shards: Sequence[ShardRecord]) -> Counter[str]:
    """How many records of some shards failed, by reason."""
    failures = Counter[str]()
    for shard in shards:
        if shard.failures:
            failures.update(shard.failures)
    return failures


def sum_counts(counts: Iterable[Counts]) -> Counts:
    """All of them together."""
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
    progress: Progress,
    statistics: PredictorStatistics,
    elapsed_s: float,
    cpu_s: float,
    peak_memory_mb: float,
    resumed: bool,
    destination_region: str | None = None,
    retried: Mapping[int, RetriedObject] | None = None,
) -> TransformReport:
    """Put a report together from the ledger's counts and this process's figures; `results` are `object_results` of them."""
    by_object, again = _by_object(records), retried or {}
    gained = sum(r.rows for r in again.values())
    total = sum_counts(map(_counts_of, by_object.values())).plus(Counts(0, gained, -gained, 0))
    failures = Counter[str]()
    for index, shards in by_object.items():
        failures.update(again[index].failures if index in again else _failures_of(shards))
    withheld_rows = sum(r.counts.rows_out for r in results if r.withheld)
    worst = sorted((r for r in results if r.counts.rows_failed or r.counts.objects_broken), key=_badness)
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
        objects_withheld=sum(r.withheld for r in results),
        records_in=total.records_in,
        rows_out=total.rows_out - withheld_rows,
        rows_failed=total.rows_failed,
        rows_withheld=withheld_rows,
        out_bytes=sum(r.out_bytes for r in results if not r.withheld),
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
        failed_objects=[_shown(r) for r in worst[:_WORST_MAX]],
        bytes_across_regions=[
            {"from": c.from_region, "to": c.to_region, "bytes": c.nbytes}
            for c in crossings(plan, records, destination_region)
        ],
        tasks_left=tasks_left(plan, records),
        resumed=resumed,
    )


def _badness(result: ObjectResult) -> tuple[int, int]:
    return -result.counts.objects_broken, -result.counts.rows_failed


def _shown(result: ObjectResult) -> dict[str, Any]:
    counts = result.counts
    return {
        "object": result.uri,
        "records_in": counts.records_in,
        "rows_failed": counts.rows_failed,
        "broken": bool(counts.objects_broken),
        "withheld": result.withheld,
    }
