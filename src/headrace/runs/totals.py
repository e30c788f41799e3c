"""Sum the records of a ledger: results of objects and parts, totals, and transfers between regions."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from headrace.runs.output import suppresses_output
from headrace.runs.plan import Plan, Shard
from headrace.runs.records import (
    Counts,
    PartRecord,
    RetriedOutput,
    ShardRecord,
    TaskRecord,
    repeated_bytes,
    sum_counts,
)
from headrace.runs.settings import RunSettings


@dataclass(frozen=True, slots=True)
class RegionTransfer:
    """Bytes that moved from one region to another: objects to workers, or predictions to the destination.

    Objects count with their stored (compressed) size. Objects that were read again count once.
    """

    from_region: str
    to_region: str
    nbytes: int


def region_transfers(
    plan: Plan, records: Sequence[TaskRecord], destination_region: str | None
) -> list[RegionTransfer]:
    """Return the transfers of all finished tasks, the largest first.

    Unknown regions are not counted.
    """
    moved = Counter[tuple[str, str]]()
    for record in records:
        worker_region, data_region = record.region, plan.tasks[record.task].region
        if worker_region is None:
            continue
        if data_region not in (None, worker_region):
            moved[data_region, worker_region] += sum(
                _shard_bytes(plan, shard) for shard in plan.tasks[record.task].shards
            )
        if destination_region not in (None, worker_region):
            moved[worker_region, destination_region] += sum(shard.out_bytes for shard in record.shards)
    return [RegionTransfer(*places, nbytes) for places, nbytes in moved.most_common() if nbytes]


def _shard_bytes(plan: Plan, shard: Shard) -> int:
    size = plan.objects[shard.index].info.size_bytes or 0
    return (size if shard.stop is None else shard.stop) - shard.start


def tasks_left(plan: Plan, records: Sequence[TaskRecord]) -> dict[str, int]:
    """Return the number of unfinished tasks by region; "" stands for no region."""
    done = {record.task for record in records}
    return dict(Counter(task.region or "" for task in plan.tasks if task.number not in done))


@dataclass(frozen=True, slots=True)
class ObjectResult:
    """The result of one object with an output of its own. `failures` counts its failures by reason.

    If `suppressed`, the object has failed records and therefore no output, as the settings require.
    """

    uri: str
    output: str
    counts: Counts
    out_bytes: int
    failures: Mapping[str, int]
    suppressed: bool = False


@dataclass(frozen=True, slots=True)
class RunTotals:
    """The totals of a run.

    `failures` counts failed records by reason. `objects` are the results of the finished objects,
    empty for a run that writes parts.
    """

    counts: Counts = field(default_factory=Counts)
    out_bytes: int = 0
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    objects_done: int = 0
    parts: int = 0
    tasks: int = 0
    objects: tuple[ObjectResult, ...] = ()
    transfers: tuple[RegionTransfer, ...] = ()
    tasks_left: Mapping[str, int] = field(default_factory=dict[str, int])

    def plus(self, other: "RunTotals") -> "RunTotals":
        """Return the sum of the totals of two series of parts."""
        failures = Counter(self.failures)
        failures.update(other.failures)
        return replace(
            self,
            counts=self.counts.plus(other.counts),
            out_bytes=self.out_bytes + other.out_bytes,
            failures=dict(failures.most_common()),
        )


Retried = Mapping[int, RetriedOutput]
"""The outputs whose failed records were retried, by number."""


def part_totals(parts: Iterable[PartRecord], retried: Retried | None = None) -> RunTotals:
    """Return the totals of a run that wrote its parts in the order of the source."""
    return _sum_parts(((r.part, r.in_part, r.out_bytes, r.failures) for r in parts), retried or {})


def replace_retried(totals: RunTotals, originals: Sequence[PartRecord], retried: Retried) -> RunTotals:
    """Return the totals with the results of a retry in the place of some of their parts."""
    before, now = part_totals(originals), part_totals(originals, retried)
    failures = Counter(totals.failures)
    failures.subtract(before.failures)
    failures.update(now.failures)
    return replace(
        totals,
        counts=totals.counts.minus(before.counts).plus(now.counts),
        out_bytes=totals.out_bytes - before.out_bytes + now.out_bytes,
        failures=dict((+failures).most_common()),
    )


def task_totals(
    plan: Plan,
    records: Sequence[TaskRecord],
    settings: RunSettings,
    *,
    retried: Retried | None = None,
    destination_region: str | None = None,
) -> RunTotals:
    """Return the totals of a run with tasks, from the records of its finished tasks."""
    by_object = _by_object(records)
    if settings.per_object:
        totals = _sum_objects(plan, by_object, settings, retried or {})
    else:
        outputs = [_task_part(record) for record in records]
        totals = _sum_parts(outputs, retried or {})
        # Several broken ranges are one broken object.
        broken = sum(_counts_of(shards).objects_broken for shards in by_object.values())
        totals = replace(
            totals,
            counts=replace(totals.counts, objects_broken=broken),
            objects_done=len(_finished(plan, by_object)),
        )
    return replace(
        totals,
        tasks=len(records),
        transfers=tuple(region_transfers(plan, records, destination_region)),
        tasks_left=tasks_left(plan, records),
    )


def _sum_objects(
    plan: Plan, by_object: Mapping[int, Sequence[ShardRecord]], settings: RunSettings, retried: Retried
) -> RunTotals:
    finished = _finished(plan, by_object)
    results = [_result(plan, i, by_object[i], settings, retried.get(i)) for i in finished]
    gained = sum(record.rows for record in retried.values())
    counts = sum_counts(map(_counts_of, by_object.values())).plus(Counts(0, gained, -gained))
    failures = Counter[str]()
    for index, shards in by_object.items():
        failures.update(retried[index].failures if index in retried else _failures_of(shards))
    return RunTotals(
        counts=counts,
        out_bytes=sum(result.out_bytes for result in results if not result.suppressed),
        failures=dict(failures.most_common()),
        objects_done=len(results),
        objects=tuple(results),
    )


def _task_part(record: TaskRecord) -> tuple[int, Counts, int, Mapping[str, int]]:
    counts = sum_counts(shard.counts for shard in record.shards)
    return record.task, counts, sum(s.out_bytes for s in record.shards), _failures_of(record.shards)


def _sum_parts(outputs: Iterable[tuple[int, Counts, int, Mapping[str, int]]], retried: Retried) -> RunTotals:
    """Return the totals of parts: the number, counts, size and failures of each."""
    counts, out_bytes, parts, failures = Counts(), 0, 0, Counter[str]()
    for number, in_part, nbytes, reasons in outputs:
        again = retried.get(number)
        gained = again.rows if again else 0
        counts = counts.plus(in_part).plus(Counts(0, gained, -gained))
        out_bytes += again.out_bytes if again else nbytes
        parts += bool(in_part.rows_out or in_part.has_failures or nbytes)
        failures.update(again.failures if again else reasons)
    return RunTotals(counts, out_bytes, dict(failures.most_common()), parts=parts)


def _finished(plan: Plan, by_object: Mapping[int, Sequence[ShardRecord]]) -> list[int]:
    """Return the indices of the objects whose shards are all finished."""
    counts = {shard.index: shard.count for task in plan.tasks for shard in task.shards}
    return [index for index, shards in by_object.items() if len(shards) == counts[index]]


def _by_object(records: Iterable[TaskRecord]) -> dict[int, list[ShardRecord]]:
    """Return the finished shards of every object, in order."""
    shards = sorted((s for r in records for s in r.shards), key=lambda s: (s.index, s.number))
    return {index: list(group) for index, group in groupby(shards, key=lambda s: s.index)}


def _result(
    plan: Plan,
    index: int,
    shards: Sequence[ShardRecord],
    settings: RunSettings,
    retried: RetriedOutput | None,
) -> ObjectResult:
    counts = _counts_of(shards)
    out_bytes = sum(s.out_bytes for s in shards) - sum(repeated_bytes(shards))
    failures = _failures_of(shards)
    if retried is not None:
        counts = counts.plus(Counts(0, retried.rows, -retried.rows))
        out_bytes, failures = retried.out_bytes, Counter(retried.failures)
    planned = plan.objects[index]
    suppressed = suppresses_output(settings, failed=counts.has_failures)
    output = planned.output_name(counts)
    return ObjectResult(planned.info.uri, output, counts, out_bytes, dict(failures), suppressed)


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
