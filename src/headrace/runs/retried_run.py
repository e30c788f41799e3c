"""The finished run of a destination, as a retry of its failed records sees it."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from headrace.core.errors import ConfigError
from headrace.runs.encoders import resolve_format
from headrace.runs.ledger import Ledger, RunKind
from headrace.runs.parts import part_names
from headrace.runs.plan import Plan, make_plan
from headrace.runs.records import PartRecord
from headrace.runs.retry_ledger import RetryLedger
from headrace.runs.settings import TABLES, settings_from_identity
from headrace.runs.totals import RunTotals, part_totals, task_totals

_FAILED_PART: Final = ".failed.jsonl"


class RetriedRun:
    """The plan, the outputs and the totals of a finished run. Used by one thread.

    An output has a number: that of its object in a transform, that of the part in a stream.
    """

    def __init__(self, ledger: Ledger, records: RetryLedger, identity: Mapping[str, Any]) -> None:
        self._ledger = ledger
        self._records = records
        self.identity = identity
        self.kind: RunKind = identity["kind"]
        self.settings = settings_from_identity(identity["settings"], per_object=self.kind == "transform")
        self.learned = ledger.learned()
        self._by_tasks = identity["mode"] == "tasks"
        self.plan = self._make_plan()
        """The plan with its original tasks and the present versions of the objects."""

    def _make_plan(self) -> Plan:
        plan = make_plan(self._ledger.plans(), self.settings, by_tasks=self._by_tasks)
        renewed = self._records.new_infos()
        objects = (replace(o, info=renewed.get(i, o.info)) for i, o in enumerate(plan.objects))
        return Plan(tuple(objects), plan.tasks)

    @cached_property
    def _parts(self) -> list[PartRecord]:
        """The records of the parts, which a retry does not change."""
        return list(self._ledger.parts(self._ledger.parts_state()))

    def check(self) -> None:
        """Raise ConfigError if the failed records of the run cannot be retried."""
        if self.settings.per_object:
            return
        where = f"{self._ledger.destination}: "
        if self.settings.output.format in TABLES:
            raise ConfigError(
                f"{where}parts in the format {self.settings.output.format} cannot be changed: run the stream "
                "again with --overwrite, or write csv or jsonl"
            )
        if self.settings.mapping.sequence is not None:
            raise ConfigError(
                f"{where}the records of a sequence depend on those before them, so single records cannot be "
                "retried: run the stream again with --overwrite"
            )

    @property
    def redoes_all(self) -> bool:
        """True if every object with a failure is scored again as a whole."""
        kind = self.learned.get("format")
        output_format = resolve_format(self.settings, kind if isinstance(kind, str) else None)
        return output_format in TABLES or self.settings.failures.on_error == "object"

    def names(self, number: int) -> tuple[str, str]:
        """Return the names of an output and of its failed records, below the destination."""
        if self.settings.per_object:
            planned = self.plan.objects[number]
            return planned.output, planned.failed
        return part_names(number, self.settings.output.format)

    def failed_outputs(self) -> dict[int, int]:
        """Return the sizes of the files of failed records, by number of their output."""
        destination, store = self._ledger.destination, self._ledger.store
        if not self.settings.per_object:
            prefix = f"{destination}part-"
            listed = [i for i in store.list(prefix) if i.uri.endswith(_FAILED_PART)]
            numbers = (i.uri.removeprefix(prefix).removesuffix(_FAILED_PART) for i in listed)
            return {int(n): i.size_bytes or 0 for n, i in zip(numbers, listed, strict=True) if n.isdecimal()}
        sizes = {i.uri: i.size_bytes or 0 for i in store.list(destination) if i.uri.endswith(".failed")}
        uris = ((index, destination + planned.failed) for index, planned in enumerate(self.plan.objects))
        return {index: sizes[uri] for index, uri in uris if uri in sizes}

    def broken_objects(self) -> set[int]:
        """Return the objects that were not read to their end."""
        shards = (s for record in self._ledger.tasks().values() for s in record.shards)
        return {s.index for s in shards if s.counts.objects_broken}

    def begin_bytes(self) -> dict[int, int]:
        """Return the number of bytes before the first record of each output, if there are any."""
        if not self._by_tasks:
            return {part.part: part.begin_bytes for part in self._parts if part.begin_bytes}
        tasks = self._ledger.tasks()
        shards = [(task, shard) for task, record in tasks.items() for shard in record.shards]
        if not self.settings.per_object:
            return {task: shard.begin_bytes for task, shard in shards if shard.begin_bytes}
        ordered = sorted((shard for _, shard in shards), key=lambda s: (s.index, s.number))
        return {s.index: s.begin_bytes for s in reversed(ordered) if s.begin_bytes}

    def totals(self) -> RunTotals:
        """Return the totals of the run with the records gained by all retries."""
        retried = self._records.retried()
        if not self._by_tasks:
            return replace(part_totals(self._parts, retried), objects_done=len(self.plan.objects))
        tasks = [record for _, record in sorted(self._ledger.tasks().items())]
        region = self.identity.get("destination_region")
        return task_totals(self.plan, tasks, self.settings, retried=retried, destination_region=region)
