"""The records of a retry in the ledger of a finished run."""

from collections.abc import Iterable
from dataclasses import asdict, replace

from headrace.runs.ledger import Ledger
from headrace.runs.records import VERSION, RetriedOutput, dump_json, parse_versioned
from headrace.storage.contract import ObjectInfo
from headrace.storage.draft import assemble, discard


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
        infos = self._store.list(self._ledger.uri("retried-"))
        records = (RetriedOutput.from_json(self._store.get(info.uri)) for info in infos)
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
        found = self._ledger.get("again.json")
        return set() if found is None else set(parse_versioned(found)["indices"])

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
            data = parse_versioned(self._store.get(listed.uri))
            del data["v"]
            found[int(listed.uri.removeprefix(prefix).removesuffix(".json"))] = ObjectInfo(**data)
        return found
