"""Sum the records of a ledger: results of objects and parts, totals, and transfers between regions."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Final

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

WORST_MAX: Final = 20
"""The limit of objects with failures that a report names."""


@dataclass(frozen=True, slots=True)
class RegionTransfer:
    """Bytes that moved from one region to another: objects to workers, or predictions to the destination.

    Objects count with their stored (compressed) size. Objects that were read again count once.
    """

    from_region: str
    to_region: str
    nbytes: int


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

    `failures` counts failed records by reason. For a run with an output for each object, `worst` are the
    finished objects with the most failures, at most WORST_MAX of all `objects_with_failures`, and the
    predictions of the `objects_suppressed` are `rows_suppressed`.
    """

    counts: Counts = field(default_factory=Counts)
    out_bytes: int = 0
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    objects_done: int = 0
    parts: int = 0
    tasks: int = 0
    objects_with_failures: int = 0
    objects_suppressed: int = 0
    rows_suppressed: int = 0
    worst: tuple[ObjectResult, ...] = ()
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
    records: Iterable[TaskRecord],
    settings: RunSettings,
    *,
    retried: Retried | None = None,
    destination_region: str | None = None,
) -> RunTotals:
    """Return the totals of a run with tasks, from the records of its finished tasks."""
    sums = TaskSums(plan, settings, retried=retried, destination_region=destination_region)
    for record in records:
        sums.add(record)
    return sums.totals()


class TaskSums:
    """The sums of the records of finished tasks, which are added one by one, each once, in any order.

    The memory grows with the objects that are read in ranges, not with all objects.

    Args:
        plan: The plan of the tasks.
        settings: The settings of the run.
        retried: The results of retries that replace those of the records.
        destination_region: The region of the destination, if known.
    """

    def __init__(
        self,
        plan: Plan,
        settings: RunSettings,
        *,
        retried: Retried | None = None,
        destination_region: str | None = None,
    ) -> None:
        self.plan = plan
        """The plan, which may be replaced by one with more tasks."""
        self._settings = settings
        self._retried = retried or {}
        self._destination_region = destination_region
        self.done = set[int]()
        """The numbers of the added tasks."""
        self._totals = RunTotals()
        self._failures = Counter[str]()
        self._ranges: defaultdict[int, dict[int, ShardRecord]] = defaultdict(dict)
        """The finished ranges of objects that are not finished."""
        self._worst: list[ObjectResult] = []
        self._moved = Counter[tuple[str, str]]()

    def add(self, record: TaskRecord) -> None:
        """Add the record of a finished task."""
        self.done.add(record.task)
        shards = self.plan.tasks[record.task].shards
        self._add_transfers(record)
        if not self._settings.per_object:
            self._add_part(record)
        plain: list[ShardRecord] = []
        for shard, finished in zip(shards, record.shards, strict=True):
            if not shard.is_whole:
                self._add_range(shard, finished)
            elif finished.counts.has_failures or shard.index in self._retried:
                self._add_object([finished])
            else:
                plain.append(finished)
        self._add_plain(plain)

    def _add_range(self, shard: Shard, finished: ShardRecord) -> None:
        ranges = self._ranges[shard.index]
        ranges[shard.number] = finished
        if len(ranges) == shard.count:
            self._add_object([ranges[number] for number in sorted(ranges)])
            del self._ranges[shard.index]

    def _add_plain(self, shards: Sequence[ShardRecord]) -> None:
        """Add whole objects without failures all at once: there may be a million of them."""
        if not self._settings.per_object:
            self._add(Counts(), objects_done=len(shards))
            return
        records = sum([shard.counts.records_in for shard in shards])
        out_bytes = sum([shard.out_bytes for shard in shards])
        self._add(Counts(records, records), objects_done=len(shards), out_bytes=out_bytes)

    def _add_part(self, record: TaskRecord) -> None:
        part = _sum_parts([_task_part(record)], self._retried)
        self._failures.update(part.failures)
        self._add(replace(part.counts, objects_broken=0), out_bytes=part.out_bytes, parts=part.parts)

    def _add(self, counts: Counts, **more: int) -> None:
        sums = {name: getattr(self._totals, name) + number for name, number in more.items()}
        self._totals = replace(self._totals, counts=self._totals.counts.plus(counts), **sums)

    def _add_object(self, shards: Sequence[ShardRecord]) -> None:
        """Add a finished object."""
        index = shards[0].index
        if not self._settings.per_object:
            # Several broken ranges are one broken object.
            self._add(Counts(0, 0, 0, _counts_of(shards).objects_broken), objects_done=1)
            return
        result = _result(self.plan, index, shards, self._settings, self._retried.get(index))
        self._failures.update(result.failures)
        self._add(
            result.counts,
            objects_done=1,
            out_bytes=0 if result.suppressed else result.out_bytes,
            objects_suppressed=result.suppressed,
            rows_suppressed=result.counts.rows_out if result.suppressed else 0,
            objects_with_failures=result.counts.has_failures,
        )
        if result.counts.has_failures:
            self._worst = sorted([*self._worst, result], key=_severity)[:WORST_MAX]

    def _add_transfers(self, record: TaskRecord) -> None:
        """Add the bytes that the task moved between regions. Unknown regions are not counted."""
        worker, task = record.region, self.plan.tasks[record.task]
        if worker is None:
            return
        if task.region not in (None, worker):
            self._moved[task.region, worker] += sum(_shard_bytes(self.plan, s) for s in task.shards)
        if self._destination_region not in (None, worker):
            self._moved[worker, self._destination_region] += sum(s.out_bytes for s in record.shards)

    def copy(self) -> "TaskSums":
        """Return sums of the same records, to which others are added."""
        return deepcopy(self, {id(shared): shared for shared in (self.plan, self._settings, self._retried)})

    def totals(self) -> RunTotals:
        """Return the totals so far. More records may be added later."""
        totals, failures = self._totals, Counter(self._failures)
        if self._settings.per_object:
            # The records of a finished range count; its output does not exist yet.
            for ranges in self._ranges.values():
                totals = replace(totals, counts=totals.counts.plus(_counts_of(list(ranges.values()))))
                failures.update(_failures_of(list(ranges.values())))
        else:
            broken = sum(_counts_of(list(r.values())).objects_broken for r in self._ranges.values())
            totals = replace(totals, counts=totals.counts.plus(Counts(0, 0, 0, broken)))
        moved = (RegionTransfer(*places, nbytes) for places, nbytes in self._moved.most_common() if nbytes)
        return replace(
            totals,
            failures=dict(failures.most_common()),
            tasks=len(self.done),
            worst=tuple(self._worst),
            transfers=tuple(moved),
            tasks_left=tasks_left(self.plan, self.done),
        )


def _severity(result: ObjectResult) -> tuple[int, int]:
    return -result.counts.objects_broken, -result.counts.rows_failed


def _shard_bytes(plan: Plan, shard: Shard) -> int:
    size = plan.objects[shard.index].info.size_bytes or 0
    return (size if shard.stop is None else shard.stop) - shard.start


def tasks_left(plan: Plan, done: Collection[int]) -> dict[str, int]:
    """Return the number of unfinished tasks by region; "" stands for no region."""
    if len(done) == len(plan.tasks):
        return {}
    return dict(Counter(task.region or "" for task in plan.tasks if task.number not in done))


def _task_part(record: TaskRecord) -> tuple[int, Counts, int, Mapping[str, int]]:
    return record.task, record.counts, sum(s.out_bytes for s in record.shards), _failures_of(record.shards)


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
