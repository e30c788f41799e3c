"""The record of what a transform has done, beside its output: what makes ``--resume`` exact, and the counts provable.

Everything is small objects below ``DEST/_headrace/``, each written whole:

============================== =====================================================================
``run.json``                   what is run: source, model's fingerprint, settings
``plan.jsonl``                 which objects, with size and ETag, and what their outputs are called
``learned.json``               what the first records decided: how many columns, the shape of a row
``task-00012.json``            task 12 is done: each shard's bounds and counts, and where its output is
``task-00012.checkpoint.json`` task 12 is under way: the same, of what is kept so far
``object-00007.json``          an object of several shards is put together
``retried-00007.json``         failed records of an object were tried again: what its counts are now
``again.json``                 objects that are being done again whole, by a retry that is not through with them
``renewed-00007.json``         an object that was broken is another one now: size and ETag of what was read instead
``drafts/``                    outputs under way
``workers/``                   what workers on other machines tell of themselves, where an engine does not carry it
``report.json``                the run is finished: its counts
============================== =====================================================================

A task's record is created if absent: whoever finishes a task second, after a retry or by speculation, changes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from secrets import token_hex
from typing import Any, Final

import orjson

from headrace.core.errors import AlreadyExistsError, LedgerError, ResumeRefusedError
from headrace.pipeline.ledger import LEDGER_FOLDER, changes
from headrace.storage.contract import ObjectInfo, Store
from headrace.storage.draft import assemble, discard, discard_all, is_whole, open_draft, remove_unfinished
from headrace.transforms.plan import PlannedObject
from headrace.transforms.records import (
    VERSION,
    Checkpoint,
    RetriedObject,
    ShardRecord,
    TaskRecord,
    dump,
    versioned,
)

KIND: Final = "transform"
DRAFTS: Final = "drafts/"
WORKERS: Final = "workers/"
"""What workers far away have told of themselves; nothing that counts."""
_CHECKPOINT: Final = ".checkpoint.json"


class TransformLedger:
    """Reads and writes the records of one destination. Safe from several processes at once, one thread each."""

    def __init__(self, store: Store, destination: str) -> None:
        self.store = store
        self.destination = destination
        self._base = f"{destination}{LEDGER_FOLDER}/"

    def uri(self, name: str) -> str:
        """Where something of the ledger is."""
        return self._base + name

    def publish(self, name: str, data: bytes) -> None:
        """Write an object of the destination that is none of the outputs, whole and replacing."""
        draft = open_draft(self.store, self.draft_uri(f"{name}-{token_hex(4)}"))
        try:
            draft.write(data)
            draft.publish(self.destination + name)
        finally:
            draft.close()

    def draft_uri(self, name: str) -> str:
        """Where a draft is."""
        return self.uri(DRAFTS + name)

    # The run

    def begin(self, identity: Mapping[str, Any], objects: Sequence[PlannedObject]) -> None:
        """Open a new run. The plan goes first: a run is there only with its plan."""
        lines = (orjson.dumps({"info": o.info, "output": o.output, "region": o.region}) for o in objects)
        self.store.put(self.uri("plan.jsonl"), b"\n".join(lines) + b"\n")
        self._create("run.json", dump(dict(identity) | {"v": VERSION, "kind": KIND, "run": token_hex(8)}))

    def identity(self) -> dict[str, Any] | None:
        """What run is here, or None. LedgerError when it is no transform's."""
        found = self._get("run.json")
        if found is None:
            return None
        data = versioned(found)
        if data.get("kind") != KIND:
            raise LedgerError(
                f"{self.uri('run.json')}: this is the output of headrace stream; choose another destination"
            )
        return data

    def run(self) -> str | None:
        """The run's own name, which no other run has; None where there is none, or it was begun before runs had names."""
        return (self.identity() or {}).get("run")

    def check_identity(self, identity: Mapping[str, Any]) -> None:
        """Raise ResumeRefusedError, naming what differs, unless this is the run that was begun here."""
        wanted: dict[str, Any] = orjson.loads(dump(identity))
        found = list(changes(self.identity() or {}, wanted))
        if found:
            raise ResumeRefusedError(
                f"{self.uri('run.json')}: this is another run ({'; '.join(found)}). Resume with what it was begun "
                "with, or start anew with --overwrite"
            )

    def objects(self) -> list[PlannedObject]:
        """The plan's objects; none of a run that is being deleted."""
        found: list[PlannedObject] = []
        for line in (self._get("plan.jsonl") or b"").splitlines():
            data = orjson.loads(line)
            found.append(PlannedObject(ObjectInfo(**data["info"]), data["output"], data.get("region")))
        return found

    def learn(self, learned: Mapping[str, Any]) -> None:
        """Keep what the first records decided."""
        self.store.put(self.uri("learned.json"), dump(learned))

    def learned(self) -> dict[str, Any] | None:
        """What the first records decided; None when they were not looked at yet."""
        found = self._get("learned.json")
        return None if found is None else orjson.loads(found)

    # Tasks

    def commit_task(self, record: TaskRecord) -> bool:
        """A task is done. False when somebody else had finished it before: then what they wrote stands."""
        name = f"task-{record.task:05d}"
        try:
            self.store.put_if_absent(self.uri(f"{name}.json"), record.to_json())
        except AlreadyExistsError:
            return False
        self.store.delete(self.uri(name + _CHECKPOINT))
        return True

    def replace_task(self, record: TaskRecord) -> None:
        """A task was done again, because its bounds had been guessed wrong."""
        self.store.put(self.uri(f"task-{record.task:05d}.json"), record.to_json())

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        """A task is under way, so far."""
        self.store.put(self.uri(f"task-{checkpoint.task:05d}{_CHECKPOINT}"), checkpoint.to_json())

    def tasks(self) -> dict[int, TaskRecord]:
        """Every task that is done."""
        return {r.task: r for r in map(TaskRecord.from_json, self._records("task-", checkpoints=False))}

    def done(self) -> set[int]:
        """The numbers of the tasks that are done: a listing, whatever is in the records."""
        prefix = self.uri("task-")
        names = (
            i.uri.removeprefix(prefix) for i in self.store.list(prefix) if not i.uri.endswith(_CHECKPOINT)
        )
        return {int(name.removesuffix(".json")) for name in names}

    def forget_lost(self, records: Mapping[int, TaskRecord], *, assembled: Iterable[int]) -> set[int]:
        """Forget the tasks of which a kept output is gone, as a power cut may leave it; their numbers.

        Outputs of objects that are `assembled` are gone rightly.
        """
        done = frozenset(assembled)
        lost = {
            record.task
            for record in records.values()
            for shard in record.shards
            if shard.index not in done and not self.is_whole(shard)
        }
        for number in lost:
            self.store.delete(self.uri(f"task-{number:05d}.json"))
        return lost

    def task(self, number: int) -> TaskRecord | None:
        """One task's record, when it is done."""
        found = self._get(f"task-{number:05d}.json")
        return None if found is None else TaskRecord.from_json(found)

    def checkpoints(self, tasks: Iterable[int] | None = None) -> dict[int, Checkpoint]:
        """Every task that is under way, or those of `tasks` that are."""
        if tasks is None:
            texts = list(self._records("task-", checkpoints=True))
        else:
            found = (self._get(f"task-{number:05d}.checkpoint.json") for number in tasks)
            texts = [text for text in found if text is not None]
        return {c.task: c for c in map(Checkpoint.from_json, texts)}

    def is_whole(self, record: ShardRecord | Checkpoint) -> bool:
        """Whether all is there that was kept of a shard, or of the one that a checkpoint goes on in."""
        parts = (record.out, record.failed)
        return all(part is None or is_whole(self.store, part.kept) for part in parts)

    def _records(self, prefix: str, *, checkpoints: bool) -> Iterator[bytes]:
        for info in self.store.list(self.uri(prefix)):
            if info.uri.endswith(_CHECKPOINT) == checkpoints:
                yield self.store.get(info.uri)

    # Objects of several shards

    def commit_object(self, index: int) -> None:
        """An object's shards are put together and published."""
        self.store.put(self.uri(f"object-{index:05d}.json"), dump({"v": VERSION, "index": index}))

    def assembled(self) -> set[int]:
        """The objects that were put together."""
        prefix = self.uri("object-")
        return {int(i.uri.removeprefix(prefix).removesuffix(".json")) for i in self.store.list(prefix)}

    def forget_object(self, index: int) -> None:
        """An object is done again: what was put together, or merged into it, counts no more."""
        self.store.delete(self.uri(f"object-{index:05d}.json"))
        self.store.delete(self.uri(f"retried-{index:05d}.json"))

    def begin_again(self, indices: Iterable[int]) -> None:
        """Objects are about to be done again whole; until `end_again`, nothing that is told of them can be relied on."""
        self.store.put(self.uri("again.json"), dump({"v": VERSION, "indices": sorted(indices)}))

    def again(self) -> set[int]:
        """The objects of which that is not done yet."""
        found = self._get("again.json")
        return set() if found is None else set(versioned(found)["indices"])

    def end_again(self) -> None:
        """All of them are done."""
        self.store.delete(self.uri("again.json"))

    def renew(self, index: int, info: ObjectInfo) -> None:
        """An object is read as it is now, and no longer as it was planned."""
        self.store.put(self.uri(f"renewed-{index:05d}.json"), dump(asdict(info) | {"v": VERSION}))

    def renewed(self) -> dict[int, ObjectInfo]:
        """The objects that are."""
        prefix, found = self.uri("renewed-"), dict[int, ObjectInfo]()
        for listed in self.store.list(prefix):
            data = versioned(self.store.get(listed.uri))
            del data["v"]
            found[int(listed.uri.removeprefix(prefix).removesuffix(".json"))] = ObjectInfo(**data)
        return found

    # Failed records that were tried again

    def commit_retried(self, record: RetriedObject) -> None:
        """An object's failed records were tried again; its new output is written, and only needs publishing."""
        self.store.put(self.uri(f"retried-{record.index:05d}.json"), record.to_json())

    def publish_retried(self, record: RetriedObject, planned: PlannedObject) -> None:
        """Publish what `commit_retried` told of, if that is still to be done."""
        if record.out is None:
            return
        parts = [record.out.whole] if record.out.nbytes else []
        name = f"retry-{record.index:05d}-copy"
        assemble(self.store, parts, self.draft_uri(f"{name}.out"), self.destination + planned.output)
        if record.failed is None:
            self.store.delete(self.destination + planned.failed)
        else:
            parts = [record.failed.whole]
            uri = self.destination + planned.failed
            assemble(self.store, parts, self.draft_uri(f"{name}.failed"), uri)
        self.commit_retried(replace(record, out=None, failed=None))
        for kept in (record.out, record.failed):
            if kept is not None:
                discard(self.store, kept)

    def retried(self) -> dict[int, RetriedObject]:
        """The objects whose failed records were tried again."""
        records = (
            RetriedObject.from_json(self.store.get(i.uri)) for i in self.store.list(self.uri("retried-"))
        )
        return {record.index: record for record in records}

    # The end

    def finish(self, report: Mapping[str, Any]) -> None:
        """The run is complete: drafts and checkpoints go, and the report stays."""
        for info in self.store.list(self.uri("task-")):
            if info.uri.endswith(_CHECKPOINT):
                self.store.delete(info.uri)
        for folder in (DRAFTS, WORKERS):
            discard_all(self.store, self.uri(folder))
        remove_unfinished(self.store, self._base)
        self.store.put(self.uri("report.json"), dump(report))

    def finished(self) -> dict[str, Any] | None:
        """The report of a finished run."""
        found = self._get("report.json")
        return None if found is None else orjson.loads(found)

    def abandon(self) -> None:
        """Its output is about to be deleted: from here on nothing can resume it, and it can only be deleted."""
        self.store.put(self.uri("run.json"), dump({"v": VERSION, "kind": KIND}))

    def delete(self) -> None:
        """Forget the run. What tells that there is one goes last, so that no new run finds what is left of it."""
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
                f"{self.uri(name)} was written by another process: two transforms are working on the same "
                "destination. Stop one of them, then --resume"
            ) from error
