"""The record of a transform's progress, beside its output, from which ``--resume`` continues exactly.

All records are small objects below ``DEST/_headrace/``, each written whole:

==============================  =================================================================
``run.json``                    the run: source, model fingerprint, settings
``plan.jsonl``                  the objects with size and ETag, and the names of their outputs
``learned.json``                properties of the first records: number of columns, shape of a row
``task-00012.json``             task 12 is finished: bounds, counts and output of each shard
``task-00012.checkpoint.json``  task 12 is in progress: the same, for its persisted part
``object-00007.json``           an object of several shards is published
``retried-00007.json``          failed records of an object were retried: its counts now
``again.json``                  objects that an unfinished retry is scoring again as a whole
``renewed-00007.json``          a repaired object: size and ETag of the version that was read
``drafts/``                     unpublished outputs
``workers/``                    the status of remote workers, for engines without messages
``report.json``                 the run is finished: its report
==============================  =================================================================

The record of a task is created only if it is absent. A second worker that finishes the same task,
after a retry or by speculation, changes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from secrets import token_hex
from typing import Any, Final

import orjson

from headrace.core.errors import AlreadyExistsError, LedgerError, ResumeRefusedError
from headrace.runs.part_ledger import LEDGER_FOLDER, differences
from headrace.runs.plan import PlannedObject
from headrace.runs.records import (
    VERSION,
    RetriedObject,
    ShardRecord,
    TaskCheckpoint,
    TaskRecord,
    dump_json,
    parse_versioned,
)
from headrace.storage.contract import ObjectInfo, Store
from headrace.storage.draft import assemble, discard, discard_all, is_complete, open_draft, remove_unfinished

KIND: Final = "transform"
DRAFTS: Final = "drafts/"
WORKERS: Final = "workers/"
"""The folder of remote workers' statuses; no counts depend on it."""
_CHECKPOINT: Final = ".checkpoint.json"


class TransformLedger:
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

    # The run

    def begin(self, identity: Mapping[str, Any], objects: Sequence[PlannedObject]) -> None:
        """Create a run. The plan is written first: a run without its plan never exists."""
        lines = (orjson.dumps({"info": o.info, "output": o.output, "region": o.region}) for o in objects)
        self.store.put(self.uri("plan.jsonl"), b"\n".join(lines) + b"\n")
        self._create(
            "run.json", dump_json(dict(identity) | {"v": VERSION, "kind": KIND, "run": token_hex(8)})
        )

    def identity(self) -> dict[str, Any] | None:
        """Return the identity of the run at the destination, or None.

        Raises LedgerError if the ledger is not a transform's.
        """
        found = self._get("run.json")
        if found is None:
            return None
        data = parse_versioned(found)
        if data.get("kind") != KIND:
            raise LedgerError(
                f"{self.uri('run.json')}: the destination has the output of headrace stream: choose another"
                " destination"
            )
        return data

    def run_id(self) -> str | None:
        """Return the unique id of the run. None without a run, or for a run of an older version."""
        return (self.identity() or {}).get("run")

    def check_identity(self, identity: Mapping[str, Any]) -> None:
        """Raise ResumeRefusedError, with the differences, unless the run has this identity."""
        wanted: dict[str, Any] = orjson.loads(dump_json(identity))
        found = list(differences(self.identity() or {}, wanted))
        if found:
            raise ResumeRefusedError(
                f"{self.uri('run.json')}: the run differs ({'; '.join(found)}): resume it with its "
                "own source, model and settings, or start again with --overwrite"
            )

    def objects(self) -> list[PlannedObject]:
        """Return the objects of the plan; none while the run is being deleted."""
        found: list[PlannedObject] = []
        for line in (self._get("plan.jsonl") or b"").splitlines():
            data = orjson.loads(line)
            found.append(PlannedObject(ObjectInfo(**data["info"]), data["output"], data.get("region")))
        return found

    def learn(self, learned: Mapping[str, Any]) -> None:
        """Store the properties of the first records."""
        self.store.put(self.uri("learned.json"), dump_json(learned))

    def learned(self) -> dict[str, Any] | None:
        """Return the properties of the first records, or None if they have not been read."""
        found = self._get("learned.json")
        return None if found is None else orjson.loads(found)

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
        return {r.task: r for r in map(TaskRecord.from_json, self._records("task-", checkpoints=False))}

    def done_tasks(self) -> set[int]:
        """Return the numbers of the finished tasks. Lists the records without reading them."""
        prefix = self.uri("task-")
        names = (
            i.uri.removeprefix(prefix) for i in self.store.list(prefix) if not i.uri.endswith(_CHECKPOINT)
        )
        return {int(name.removesuffix(".json")) for name in names}

    def remove_lost_tasks(self, records: Mapping[int, TaskRecord], *, assembled: Iterable[int]) -> set[int]:
        """Remove the records of tasks whose persisted output is lost, and return their numbers.

        A power failure can lose drafts. The drafts of objects in `assembled` were removed on
        purpose.
        """
        done = frozenset(assembled)
        lost = {
            record.task
            for record in records.values()
            for shard in record.shards
            if shard.index not in done and not self.is_complete(shard)
        }
        for number in lost:
            self.store.delete(self.uri(f"task-{number:05d}.json"))
        return lost

    def task(self, number: int) -> TaskRecord | None:
        """Return the record of a finished task, or None."""
        found = self._get(f"task-{number:05d}.json")
        return None if found is None else TaskRecord.from_json(found)

    def checkpoints(self, tasks: Iterable[int] | None = None) -> dict[int, TaskCheckpoint]:
        """Return the checkpoints of all tasks, or of those in `tasks`."""
        if tasks is None:
            texts = list(self._records("task-", checkpoints=True))
        else:
            found = (self._get(f"task-{number:05d}.checkpoint.json") for number in tasks)
            texts = [text for text in found if text is not None]
        return {c.task: c for c in map(TaskCheckpoint.from_json, texts)}

    def is_complete(self, record: ShardRecord | TaskCheckpoint) -> bool:
        """Return True if all drafts of a shard or checkpoint still exist."""
        parts = (record.out, record.failed)
        return all(part is None or is_complete(self.store, part.kept) for part in parts)

    def _records(self, prefix: str, *, checkpoints: bool) -> Iterator[bytes]:
        for info in self.store.list(self.uri(prefix)):
            if info.uri.endswith(_CHECKPOINT) == checkpoints:
                yield self.store.get(info.uri)

    # Objects of several shards

    def commit_object(self, index: int) -> None:
        """Record that the object was assembled and published."""
        self.store.put(self.uri(f"object-{index:05d}.json"), dump_json({"v": VERSION, "index": index}))

    def assembled_objects(self) -> set[int]:
        """Return the indices of the assembled objects."""
        prefix = self.uri("object-")
        return {int(i.uri.removeprefix(prefix).removesuffix(".json")) for i in self.store.list(prefix)}

    def reset_object(self, index: int) -> None:
        """Remove the records of an object that is scored again: its assembly and its retried records."""
        self.store.delete(self.uri(f"object-{index:05d}.json"))
        self.store.delete(self.uri(f"retried-{index:05d}.json"))

    def begin_redo(self, indices: Iterable[int]) -> None:
        """Record the objects that are scored again as a whole.

        Their records are unreliable until `end_redo`.
        """
        self.store.put(self.uri("again.json"), dump_json({"v": VERSION, "indices": sorted(indices)}))

    def objects_to_redo(self) -> set[int]:
        """Return the objects of an unfinished redo."""
        found = self._get("again.json")
        return set() if found is None else set(parse_versioned(found)["indices"])

    def end_redo(self) -> None:
        """Record that the redo is finished."""
        self.store.delete(self.uri("again.json"))

    def save_new_info(self, index: int, info: ObjectInfo) -> None:
        """Record the version of an object that is read instead of the planned one."""
        self.store.put(self.uri(f"renewed-{index:05d}.json"), dump_json(asdict(info) | {"v": VERSION}))

    def new_infos(self) -> dict[int, ObjectInfo]:
        """Return the versions that replace planned ones, by object index."""
        prefix, found = self.uri("renewed-"), dict[int, ObjectInfo]()
        for listed in self.store.list(prefix):
            data = parse_versioned(self.store.get(listed.uri))
            del data["v"]
            found[int(listed.uri.removeprefix(prefix).removesuffix(".json"))] = ObjectInfo(**data)
        return found

    # Failed records that were tried again

    def commit_retried(self, record: RetriedObject) -> None:
        """Record that an object's failed records were retried.

        The new output only remains to be published.
        """
        self.store.put(self.uri(f"retried-{record.index:05d}.json"), record.to_json())

    def publish_retried(self, record: RetriedObject, planned: PlannedObject) -> None:
        """Publish the output of `commit_retried`, unless that is done."""
        if record.out is None:
            return
        parts = [record.out.full_range] if record.out.nbytes else []
        name = f"retry-{record.index:05d}-copy"
        assemble(self.store, parts, self.draft_uri(f"{name}.out"), self.destination + planned.output)
        if record.failed is None:
            self.store.delete(self.destination + planned.failed)
        else:
            parts = [record.failed.full_range]
            uri = self.destination + planned.failed
            assemble(self.store, parts, self.draft_uri(f"{name}.failed"), uri)
        self.commit_retried(replace(record, out=None, failed=None))
        for draft in (record.out, record.failed):
            if draft is not None:
                discard(self.store, draft)

    def retried_objects(self) -> dict[int, RetriedObject]:
        """Return the objects whose failed records were retried, by index."""
        records = (
            RetriedObject.from_json(self.store.get(i.uri)) for i in self.store.list(self.uri("retried-"))
        )
        return {record.index: record for record in records}

    # The end

    def finish(self, report: Mapping[str, Any]) -> None:
        """Record the report of a complete run, and remove drafts and checkpoints."""
        for info in self.store.list(self.uri("task-")):
            if info.uri.endswith(_CHECKPOINT):
                self.store.delete(info.uri)
        for folder in (DRAFTS, WORKERS):
            discard_all(self.store, self.uri(folder))
        remove_unfinished(self.store, self._base)
        self.store.put(self.uri("report.json"), dump_json(report))

    def final_report(self) -> dict[str, Any] | None:
        """Return the report of a finished run, or None."""
        found = self._get("report.json")
        return None if found is None else orjson.loads(found)

    def abandon(self) -> None:
        """Make the run impossible to resume, before its output is deleted."""
        self.store.put(self.uri("run.json"), dump_json({"v": VERSION, "kind": KIND}))

    def delete(self) -> None:
        """Delete the run's records.

        The records that identify a run go last, so that no new run finds a rest.
        """
        last = [self.uri("plan.jsonl"), self.uri("run.json")]
        for info in list(self.store.list(self._base)):
            if info.uri not in last:
                self.store.delete(info.uri)
        for folder in (self.uri(DRAFTS), self.uri(WORKERS), self._base):
            remove_unfinished(self.store, folder)
        for uri in last:
            self.store.delete(uri)

    def _get(self, name: str) -> bytes | None:
        found = next(iter(self.store.list(self.uri(name))), None)
        return None if found is None or found.uri != self.uri(name) else self.store.get(found.uri)

    def _create(self, name: str, data: bytes) -> None:
        try:
            self.store.put_if_absent(self.uri(name), data)
        except AlreadyExistsError as error:
            raise LedgerError(
                f"{self.uri(name)} was written by another process: two transforms use the same "
                "destination. Stop one of them, then --resume"
            ) from error
