"""The record of a run's progress, beside its output, from which ``--resume`` continues exactly.

All records are small objects below ``DEST/_headrace/``, each written whole:

===============================  ================================================================
``run.json``                     the run: source, model fingerprint, settings
``plan-00000.jsonl``             a page of the plan: its head, then the objects with size and ETag, and the
                                 names of their outputs; a watched source adds pages
``plan.json``                    the plan has all objects of the source
``schema.json``                  the schema of the records
``part-00003.json``              part 3 is published: its end, and the counts up to there
``part-00004.checkpoint-0001``   part 4 is in progress: the same, with its bytes in ``….out`` and
                                 ``….failed``
``task-00012.json``              task 12 is finished: bounds, counts and output of each shard
``task-00012.checkpoint.json``   task 12 is in progress: the same, for its persisted part
``output-00007.json``            an output of several shards is published
``files-00007.json``             the names of an output's files, before they are written, if it has
                                 partitions
``retried-00007.json``           failed records of an output were retried: its counts now
``again.json``                   objects that an unfinished retry is scoring again as a whole
``renewed-00007.json``           a repaired object: size and ETag of the version that was read
``drafts/``                      unpublished outputs
``workers/``                     the status of remote workers, for engines without messages
``report.json``                  the run is finished: its report
===============================  ================================================================

A run has either parts, in the order of the source, or tasks, which workers may finish in any order.
Parts and tasks are recorded after their output is written, so a kill in between only costs a
rewrite of the same bytes. The record of a task is created only if it is absent. A second worker
that finishes the same task, after a retry or by speculation, changes nothing.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from secrets import token_hex
from typing import Any, Final, TypeVar, cast

import msgspec
import orjson

from headrace.core.errors import AlreadyExistsError, LedgerError, ResumeRefusedError
from headrace.reports.report import RunKind
from headrace.runs.records import (
    LEDGER_FOLDER,
    VERSION,
    Counts,
    PartRecord,
    PlanHead,
    PlannedObject,
    RetriedOutput,
    ShardRecord,
    TaskCheckpoint,
    TaskRecord,
    dump_json,
    parse_object,
    parse_record,
    parse_versioned,
)
from headrace.runs.schema import Schema, schema_from_json
from headrace.storage.contract import ObjectInfo, Store
from headrace.storage.draft import DraftPublisher, assemble, discard, is_complete, open_draft
from headrace.storage.local import LocalStore

T = TypeVar("T")

DRAFTS: Final = "drafts/"
WORKERS: Final = "workers/"
"""The folder of remote workers' statuses; no counts depend on it."""
_CHECKPOINT: Final = ".checkpoint.json"
_HEAD_BYTES_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class PartsState:
    """The parts that a ledger records."""

    last: PartRecord | None = None
    """The last part or checkpoint, or None before the first commit."""
    checkpoints: list[PartRecord] = field(default_factory=list[PartRecord])
    """The checkpoints of the part in progress, in order."""

    @property
    def total(self) -> Counts:
        """The counts of all committed work."""
        return self.last.total if self.last else Counts()

    @property
    def published(self) -> int:
        """The number of published parts."""
        return self.last.part + (not self.checkpoints) if self.last else 0


class Ledger:
    """The records of one destination. Several processes may use it at once, with one thread each."""

    def __init__(self, store: Store, destination: str) -> None:
        self.store = store
        self.destination = destination
        self._base = f"{destination}{LEDGER_FOLDER}/"

    def uri(self, name: str) -> str:
        """Return the URI of a ledger object."""
        return self._base + name

    def publish(self, name: str, data: bytes) -> None:
        """Write or replace an object of the destination that is not an output."""
        draft = open_draft(self.store, self.draft_uri(f"{name}-{token_hex(4)}"))
        try:
            draft.write(data)
            draft.publish(self.destination + name)
        finally:
            draft.close()

    def draft_uri(self, name: str) -> str:
        """Return the URI of a draft."""
        return self.uri(DRAFTS + name)

    def draft_publisher(self) -> DraftPublisher:
        """Return a writer of small objects of the destination. The caller closes it."""
        return DraftPublisher(self.store, self.destination, drafts=self.uri(DRAFTS))

    # The run

    def begin(self, identity: Mapping[str, Any], kind: RunKind) -> None:
        """Create a run. Write the plan first: a run without its plan must never exist."""
        self.create("run.json", dump_json(dict(identity) | {"v": VERSION, "kind": kind, "run": token_hex(8)}))

    def kind(self) -> RunKind | None:
        """Return the kind of the run at the destination, of any version, or None without a run."""
        found = self.find("run.json", parse_object)
        return None if found is None else found.get("kind", "stream")

    def identity(self) -> dict[str, Any] | None:
        """Return the identity of the run at the destination, or None.

        Raises LedgerError for a ledger of another version.
        """
        return self.find("run.json", parse_versioned)

    def run_id(self) -> str | None:
        """Return the unique id of the run, or None without a run."""
        return (self.identity() or {}).get("run")

    def check_identity(self, identity: Mapping[str, Any], kind: RunKind) -> None:
        """Raise ResumeRefusedError, with the differences, unless the run has this identity."""
        wanted: dict[str, Any] = orjson.loads(dump_json(dict(identity) | {"kind": kind}))
        found = list(_differences(self.identity() or {}, wanted))
        if found:
            raise ResumeRefusedError(
                f"{self.uri('run.json')}: the destination has another run ({'; '.join(found)}): resume it "
                "with its own source, model and settings, or start again with --overwrite"
            )

    def write_plan(self, number: int, objects: Sequence[PlannedObject], head: PlanHead) -> None:
        """Write page `number` of the plan: its head, then one object per line."""
        lines = [orjson.dumps(head), *map(_planned_object_line, objects), b""]
        self.store.put(self._plan_uri(number), b"\n".join(lines))

    def _plan_uri(self, number: int) -> str:
        return self.uri(f"plan-{number:05d}.jsonl")

    def plan_heads(self) -> list[PlanHead]:
        """Return the heads of all pages of the plan, in order; none while the run is being deleted."""
        starts = ((uri, self.store.get_range(uri, 0, _HEAD_BYTES_MAX)) for uri in self._plan_uris())
        return [parse_record(uri, start.partition(b"\n")[0], _plan_head) for uri, start in starts]

    def plan_page(self, number: int) -> list[PlannedObject]:
        """Return the objects of a page of the plan."""
        uri = self._plan_uri(number)
        return list(_planned_objects(uri, self.store.get(uri)))

    def planned_objects(self) -> Iterator[PlannedObject]:
        """Yield all objects of the plan, also of one of an earlier version."""
        for uri in self._plan_uris():
            yield from _planned_objects(uri, self.store.get(uri))

    def _plan_uris(self) -> list[str]:
        listed = (info.uri for info in self.store.list(self.uri("plan")))
        return sorted((uri for uri in listed if uri.endswith(".jsonl")), key=_in_order)

    def complete_plan(self) -> None:
        """Record that the plan has all objects of the source."""
        self.store.put(self.uri("plan.json"), dump_json({"v": VERSION}))

    def has_complete_plan(self) -> bool:
        """Return True if the plan has all objects that the source had."""
        return self.find("plan.json", parse_versioned) is not None

    def write_schema(self, schema: Schema) -> None:
        """Write or replace the schema of the records."""
        self.store.put(self.uri("schema.json"), dump_json(schema.to_json()))

    def schema(self) -> Schema:
        """Return the schema of the records; an empty one if no record has been read."""
        return self.find("schema.json", schema_from_json) or Schema()

    # Parts

    def parts_state(self) -> PartsState:
        """Return the last part and the checkpoints of the part in progress."""
        names = [i.uri.removeprefix(self._base) for i in self.store.list(self.uri("part-"))]
        parts = sorted((n for n in names if n.count("-") == 1), key=_in_order)
        last = self._read(parts[-1], PartRecord.from_json) if parts else None
        begun = f"part-{last.part + 1 if last else 0:05d}.checkpoint-"
        under_way = sorted((n for n in names if n.startswith(begun) and n.endswith(".json")), key=_in_order)
        checkpoints = [self._read(name, PartRecord.from_json) for name in under_way]
        return PartsState(checkpoints[-1] if checkpoints else last, checkpoints)

    def parts(self, state: PartsState, *, since: int = 0) -> Iterator[PartRecord]:
        """Yield the records of the published parts from `since` on."""
        for number in range(since, state.published):
            yield self._read(f"part-{number:05d}.json", PartRecord.from_json)

    def checkpoint_part(self, record: PartRecord, out: bytes, failed: bytes) -> None:
        """Store the output that the part in progress gained since its last checkpoint."""
        name = _part_checkpoint(record.part, record.checkpoint)
        self.store.put(self.uri(f"{name}.out"), out)
        self.store.put(self.uri(f"{name}.failed"), failed)
        self.create(f"{name}.json", record.to_json())

    def part_bytes(self, record: PartRecord) -> tuple[bytes, bytes]:
        """Return the output and the failed records of a checkpoint."""
        name = _part_checkpoint(record.part, record.checkpoint)
        return self.store.get(self.uri(f"{name}.out")), self.store.get(self.uri(f"{name}.failed"))

    def commit_part(self, record: PartRecord) -> None:
        """Record that a part is published, and delete its checkpoints."""
        self.create(f"part-{record.part:05d}.json", replace(record, checkpoint=0).to_json())
        # A checkpoint without its bytes must never be visible.
        for number in range(1, record.checkpoint + 1):
            for suffix in (".json", ".out", ".failed"):
                self.store.delete(self.uri(_part_checkpoint(record.part, number) + suffix))

    # Tasks

    def commit_task(self, record: TaskRecord) -> bool:
        """Record a finished task. Return False if it had been recorded; the first record stays."""
        name = f"task-{record.task:05d}"
        try:
            self.store.put_if_absent(self.uri(f"{name}.json"), record.to_json())
        except AlreadyExistsError:
            return False
        self.store.delete(self.uri(name + _CHECKPOINT))
        return True

    def replace_task(self, record: TaskRecord) -> None:
        """Replace the record of a task that was scored again because its bounds were wrong."""
        self.store.put(self.uri(f"task-{record.task:05d}.json"), record.to_json())

    def checkpoint(self, checkpoint: TaskCheckpoint) -> None:
        """Record the progress of a task."""
        self.store.put(self.uri(f"task-{checkpoint.task:05d}{_CHECKPOINT}"), checkpoint.to_json())

    def tasks(self) -> dict[int, TaskRecord]:
        """Return the records of all finished tasks."""
        return {record.task: record for record in self.iterate_tasks()}

    def iterate_tasks(self, *, without: Collection[int] = ()) -> Iterator[TaskRecord]:
        """Yield the records of all finished tasks by number, except those of the tasks in `without`."""
        for number in sorted(self.done_tasks().difference(without)):
            yield self._read(f"task-{number:05d}.json", TaskRecord.from_json)

    def done_tasks(self) -> set[int]:
        """Return the numbers of the finished tasks. Lists the records without reading them."""
        prefix = self.uri("task-")
        names = (
            i.uri.removeprefix(prefix) for i in self.store.list(prefix) if not i.uri.endswith(_CHECKPOINT)
        )
        return {int(name.removesuffix(".json")) for name in names}

    def is_lost(self, record: TaskRecord) -> bool:
        """Return True if a draft of a finished task is missing, as after a power failure."""
        return not all(map(self.is_complete, record.shards))

    def delete_task(self, number: int) -> None:
        """Delete the record of a task, which is then unfinished."""
        self.store.delete(self.uri(f"task-{number:05d}.json"))

    def task(self, number: int) -> TaskRecord | None:
        """Return the record of a finished task, or None."""
        return self.find(f"task-{number:05d}.json", TaskRecord.from_json)

    def checkpoints(self, tasks: Iterable[int] | None = None) -> dict[int, TaskCheckpoint]:
        """Return the checkpoints of all tasks, or of those in `tasks`."""
        if tasks is None:
            names = [i.uri.removeprefix(self._base) for i in self.store.list(self.uri("task-"))]
            found = [self._read(n, TaskCheckpoint.from_json) for n in names if n.endswith(_CHECKPOINT)]
        else:
            found = [self.find(f"task-{n:05d}{_CHECKPOINT}", TaskCheckpoint.from_json) for n in tasks]
        return {checkpoint.task: checkpoint for checkpoint in found if checkpoint is not None}

    def is_complete(self, record: ShardRecord | TaskCheckpoint) -> bool:
        """Return True if all drafts of a shard or checkpoint still exist."""
        drafts = (record.out, record.failed)
        return all(draft is None or is_complete(self.store, draft.kept) for draft in drafts)

    # Outputs of several shards

    def commit_output(self, number: int) -> None:
        """Record that the output was assembled and published."""
        self.store.put(self.uri(f"output-{number:05d}.json"), dump_json({"v": VERSION, "output": number}))

    def assembled(self) -> set[int]:
        """Return the numbers of the assembled outputs."""
        prefix = self.uri("output-")
        return {int(i.uri.removeprefix(prefix).removesuffix(".json")) for i in self.store.list(prefix)}

    # Files of partitions

    def claim_files(self, number: int, names: Sequence[str]) -> None:
        """Record the files of an output before they are written.

        Files of an earlier attempt that are not among them are deleted.
        """
        name, data = f"files-{number:05d}.json", dump_json({"v": VERSION, "files": sorted(names)})
        try:
            self.store.put_if_absent(self.uri(name), data)
        except AlreadyExistsError:
            for earlier in sorted(set(self._read(name, _file_names)).difference(names)):
                self.store.delete(self.destination + earlier)
            self.store.put(self.uri(name), data)

    def claimed_files(self) -> Iterator[str]:
        """Yield the names of the files of all outputs with partitions, below the destination."""
        for info in self.store.list(self.uri("files-")):
            yield from self._read(info.uri.removeprefix(self._base), _file_names)

    # The end

    def finish(self, report: Mapping[str, Any]) -> None:
        """Record the report of a complete run, and remove drafts and checkpoints."""
        for info in list(self.store.list(self._base)):
            name = info.uri.removeprefix(self._base)
            if name.startswith((DRAFTS, WORKERS)) or ".checkpoint" in name:
                self.store.delete(info.uri)
        self._remove_unfinished()
        self.store.put(self.uri("report.json"), dump_json(report))

    def final_report(self) -> dict[str, Any] | None:
        """Return the report of a finished run, or None."""
        return self.find("report.json", parse_object)

    def reopen(self) -> None:
        """Record that the run has new objects and is incomplete again."""
        self.store.delete(self.uri("report.json"))

    def abandon(self) -> None:
        """Make the run impossible to resume, before its output is deleted."""
        kind = self.kind()
        if kind is not None:
            self.store.put(self.uri("run.json"), dump_json({"v": VERSION, "kind": kind}))

    def delete(self) -> None:
        """Delete the run's records.

        The records that identify a run go last, so that no new run finds a rest.
        """
        infos = list(self.store.list(self._base))
        plans = sorted(i.uri for i in infos if i.uri.startswith(self.uri("plan")))
        last = [*plans, self.uri("run.json")]
        for info in infos:
            if info.uri not in last:
                self.store.delete(info.uri)
        self._remove_unfinished()
        for uri in last:
            self.store.delete(uri)

    def _remove_unfinished(self) -> None:
        """Delete the temporary files of killed writers. Only disks have temporary files."""
        if isinstance(self.store, LocalStore):
            for folder in (DRAFTS, WORKERS, ""):
                self.store.clean(self.uri(folder), older_than_s=0.0)

    def find(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """Return `parse` of a ledger object, or None if it does not exist.

        Raises LedgerError for a damaged object.
        """
        found = next(iter(self.store.list(self.uri(name))), None)
        return None if found is None or found.uri != self.uri(name) else self._read(name, parse)

    def _read(self, name: str, parse: Callable[[bytes], T]) -> T:
        return parse_record(self.uri(name), self.store.get(self.uri(name)), parse)

    def create(self, name: str, data: bytes) -> None:
        """Create a ledger object. Raise LedgerError if it exists."""
        try:
            self.store.put_if_absent(self.uri(name), data)
        except AlreadyExistsError as error:
            raise LedgerError(
                f"{self.uri(name)} was written by another process: two runs use the same destination; "
                "stop one of them, then --resume"
            ) from error


class RetryLedger:
    """The records of the retries of one destination. Used by one thread."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._store = ledger.store

    # Failed records

    def commit(self, record: RetriedOutput) -> None:
        """Record that an output's failed records were retried.

        The new output only remains to be published.
        """
        self._store.put(self._ledger.uri(f"retried-{record.number:05d}.json"), record.to_json())

    def publish(self, record: RetriedOutput, output: str, failed: str) -> None:
        """Publish the drafts of a record under the names of its output, unless that is done."""
        if record.out is None:
            return
        name, destination = f"retry-{record.number:05d}-copy", self._ledger.destination
        if record.out.nbytes:  # else it is as empty as before
            draft_uri = self._ledger.draft_uri(f"{name}.out")
            assemble(self._store, [record.out.full_range], draft_uri, destination + output)
        if record.failed is None:
            self._store.delete(destination + failed)
        else:
            draft_uri = self._ledger.draft_uri(f"{name}.failed")
            assemble(self._store, [record.failed.full_range], draft_uri, destination + failed)
        self.commit(replace(record, out=None, failed=None))
        for draft in (record.out, record.failed):
            if draft is not None:
                discard(self._store, draft)

    def retried(self) -> dict[int, RetriedOutput]:
        """Return the outputs whose failed records were retried, by number."""
        uris = [info.uri for info in self._store.list(self._ledger.uri("retried-"))]
        records = (parse_record(uri, self._store.get(uri), RetriedOutput.from_json) for uri in uris)
        return {record.number: record for record in records}

    # Whole objects

    def begin_redo(self, indices: Iterable[int]) -> None:
        """Record the objects that are scored again as a whole.

        Their records are unreliable until `end_redo`.
        """
        found = sorted(indices)
        self._store.put(self._ledger.uri("again.json"), dump_json({"v": VERSION, "indices": found}))

    def objects_to_redo(self) -> set[int]:
        """Return the objects of an unfinished redo."""
        return self._ledger.find("again.json", lambda text: set(parse_versioned(text)["indices"])) or set()

    def end_redo(self) -> None:
        """Record that the redo is finished."""
        self._store.delete(self._ledger.uri("again.json"))

    def reset_output(self, number: int) -> None:
        """Remove the records of an output that is written again: its assembly and its retried records."""
        self._store.delete(self._ledger.uri(f"output-{number:05d}.json"))
        self._store.delete(self._ledger.uri(f"retried-{number:05d}.json"))

    def save_new_info(self, index: int, info: ObjectInfo) -> None:
        """Record the version of an object that is read instead of the planned one."""
        data = dump_json(asdict(info) | {"v": VERSION})
        self._store.put(self._ledger.uri(f"renewed-{index:05d}.json"), data)

    def new_infos(self) -> dict[int, ObjectInfo]:
        """Return the versions that replace planned ones, by object index."""
        prefix, found = self._ledger.uri("renewed-"), dict[int, ObjectInfo]()
        for listed in self._store.list(prefix):
            number = int(listed.uri.removeprefix(prefix).removesuffix(".json"))
            text = self._store.get(listed.uri)
            found[number] = parse_record(
                listed.uri, text, lambda text: msgspec.convert(parse_versioned(text), ObjectInfo)
            )
        return found


def _in_order(name: str) -> tuple[int, str]:
    """Return the sort key of numbered names: numbers beyond the padding have more digits."""
    return len(name), name


def _part_checkpoint(part: int, number: int) -> str:
    return f"part-{part:05d}.checkpoint-{number:04d}"


def _planned_objects(uri: str, text: bytes) -> Iterator[PlannedObject]:
    for number, line in enumerate(text.splitlines(), start=1):
        planned = parse_record(f"{uri}: line {number}", line, _planned_object) if line else None
        if planned is not None:
            yield planned


def _planned_object_line(planned: PlannedObject) -> bytes:
    fields: dict[str, Any] = {"info": planned.info, "output": planned.output, "region": planned.region}
    return orjson.dumps(fields if planned.bound is None else fields | {"bound": planned.bound})


def _planned_object(line: bytes) -> PlannedObject | None:
    """Return the object of a line, or None for the head of a page."""
    data = parse_object(line)
    if "tasks" in data:
        return None
    if "info" not in data:  # a stream of version 1, whose output is about to be deleted
        data = {"info": data}
    planned = msgspec.convert(data, PlannedObject)
    table = planned.info.table
    if table is None:
        return planned
    # All files of a table share the text of its schema.
    shared = replace(table, schema=sys.intern(table.schema))
    return replace(planned, info=replace(planned.info, table=shared))


def _file_names(text: bytes) -> list[str]:
    return msgspec.convert(parse_versioned(text)["files"], list[str])


def _plan_head(line: bytes) -> PlanHead:
    return msgspec.convert(parse_object(line), PlanHead)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """Yield the changed settings by full name: ``settings.read.header was 'none', is 'names'``."""
    for key, value in now.items():
        was, name = before.get(key), within + key
        if isinstance(was, dict) and isinstance(value, dict):
            yield from _differences(cast("dict[str, Any]", was), cast("dict[str, Any]", value), f"{name}.")
        elif was != value:
            yield f"{name} was {was!r}, is {value!r}"
