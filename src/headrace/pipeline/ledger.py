"""The record of what a run has done, beside its output: what makes ``--resume`` exact.

Everything is small objects below ``DEST/_headrace/``, each written whole and (but for the plan) only if absent:

=============================== =====================================================================
``run.json``                    what is run: source, model's fingerprint, settings
``plan-00000.jsonl``            which objects, with size and ETag; a watched prefix adds files
``learned.json``                what the first records decided: how many columns, the shape of a row
``part-00003.json``             part 3 is published: where it ends, and the counts up to there
``part-00004.checkpoint-0001``  part 4 is under way: the same, with its bytes so far in ``….out``, ``….failed``
``report.json``                 the run is finished: its counts
=============================== =====================================================================

A part's record is written after the part itself, so a kill in between costs a rewrite of the same bytes. A second
process that works on the same destination writes other records and is stopped by the store (put-if-absent).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import orjson

from headrace.core.errors import AlreadyExistsError, LedgerError, ResumeRefusedError
from headrace.pipeline.items import Cursor, Replay
from headrace.storage.contract import ObjectInfo, Store

LEDGER_FOLDER = "_headrace"
LEDGER_VERSION = 1


@dataclass(frozen=True, slots=True)
class Counts:
    """``records_in == rows_out + rows_failed``; broken objects stand apart."""

    records_in: int = 0
    rows_out: int = 0
    rows_failed: int = 0
    objects_broken: int = 0

    def plus(self, other: "Counts") -> "Counts":
        """The sum."""
        return Counts(
            self.records_in + other.records_in,
            self.rows_out + other.rows_out,
            self.rows_failed + other.rows_failed,
            self.objects_broken + other.objects_broken,
        )

    def minus(self, other: "Counts") -> "Counts":
        """The difference."""
        return Counts(
            self.records_in - other.records_in,
            self.rows_out - other.rows_out,
            self.rows_failed - other.rows_failed,
            self.objects_broken - other.objects_broken,
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a run stands: `part` is published, or (`checkpoint` > 0) under way, up to `cursor`.

    `total` counts everything up to the cursor, `in_part` only this part. `replay` is what a resumption gives the model
    again first, where sequences live at the cursor.
    """

    part: int
    checkpoint: int
    cursor: Cursor
    total: Counts
    in_part: Counts
    attempt: str
    part_bytes: int = 0
    replay: Replay | None = None

    def to_json(self) -> bytes:
        """Versioned, with sorted keys."""
        data = asdict(self) | {"v": LEDGER_VERSION, "cursor": self.cursor.to_json()}
        del data["replay"]
        if self.replay is not None:
            data["replay"] = self.replay.to_json()
        return orjson.dumps(data, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)

    @classmethod
    def from_json(cls, text: bytes) -> "Mark":
        """Read back; raises LedgerError for another version."""
        data = _versioned(text)
        return cls(
            part=data["part"],
            checkpoint=data["checkpoint"],
            cursor=Cursor.from_json(data["cursor"]),
            total=Counts(**data["total"]),
            in_part=Counts(**data["in_part"]),
            attempt=data["attempt"],
            part_bytes=data["part_bytes"],
            replay=Replay.from_json(data["replay"]) if "replay" in data else None,
        )


@dataclass(frozen=True, slots=True)
class State:
    """What a ledger tells at a resumption."""

    last: Mark | None = None
    """The last part or checkpoint; None when none was committed."""
    checkpoints: list[Mark] = field(default_factory=list[Mark])
    """Those of the part under way, in order."""
    finished: Mapping[str, Any] | None = None
    """The report, when the run is complete."""


def _versioned(text: bytes) -> dict[str, Any]:
    data: dict[str, Any] = orjson.loads(text)
    if data.get("v") != LEDGER_VERSION:
        raise LedgerError(
            f"the ledger says version {data.get('v')}, this headrace writes {LEDGER_VERSION}: finish the run "
            "with the version that began it, or start anew with --overwrite"
        )
    return data


class Ledger:
    """Reads and writes the records of one destination. One thread at a time."""

    def __init__(self, store: Store, destination: str) -> None:
        self._store = store
        self._base = f"{destination}{LEDGER_FOLDER}/"

    def _uri(self, name: str) -> str:
        return self._base + name

    def identity(self) -> dict[str, Any] | None:
        """What run is here, or None."""
        found = next((i for i in self._store.list(self._uri("run.json"))), None)
        return None if found is None else _versioned(self._store.get(found.uri))

    def begin(self, identity: Mapping[str, Any], plan: Sequence[ObjectInfo]) -> None:
        """Open a new run. The plan goes first: a run is there only with its plan."""
        self.write_plan(0, plan)
        self._create("run.json", _dump(dict(identity) | {"v": LEDGER_VERSION}))

    def check_identity(self, identity: Mapping[str, Any]) -> None:
        """Raise ResumeRefusedError, naming what differs, unless this is the run that was begun here."""
        begun = self.identity() or {}
        wanted: dict[str, Any] = orjson.loads(_dump(dict(identity)))
        found = list(changes(begun, wanted))
        if not found:
            return
        raise ResumeRefusedError(
            f"{self._base}run.json: this is another run ({'; '.join(found)}). Resume with what it was begun with, or "
            "start anew with --overwrite"
        )

    def write_plan(self, number: int, plan: Sequence[ObjectInfo]) -> None:
        """The objects of plan file `number`, a line each."""
        lines = (orjson.dumps(asdict(info)) for info in plan)
        self._store.put(self._uri(f"plan-{number:05d}.jsonl"), b"\n".join(lines) + b"\n")

    def read_plans(self) -> list[list[ObjectInfo]]:
        """All plan files, in order."""
        found: list[list[ObjectInfo]] = []
        # By length first: names grow a digit when they run out of them.
        for info in sorted(self._store.list(self._uri("plan-")), key=lambda i: _in_order(i.uri)):
            lines = self._store.get(info.uri).splitlines()
            found.append([ObjectInfo(**orjson.loads(line)) for line in lines if line])
        return found

    def learn(self, learned: Mapping[str, Any]) -> None:
        """Keep what the first records decided, for a resumption."""
        self._store.put(self._uri("learned.json"), _dump(learned))

    def learned(self) -> dict[str, Any]:
        """What the first records decided; empty when none was delivered yet."""
        found = next((i for i in self._store.list(self._uri("learned.json"))), None)
        return {} if found is None else orjson.loads(self._store.get(found.uri))

    def state(self) -> State:
        """Where the run stands."""
        names = [i.uri.removeprefix(self._base) for i in self._store.list(self._base)]
        parts = sorted((n for n in names if n.startswith("part-") and n.count("-") == 1), key=_in_order)
        last = self._mark(parts[-1]) if parts else None
        number = last.part + 1 if last else 0
        begun = f"part-{number:05d}.checkpoint-"
        under_way = sorted((n for n in names if n.startswith(begun) and n.endswith(".json")), key=_in_order)
        checkpoints = [self._mark(n) for n in under_way]
        report = self._store.get(self._uri("report.json")) if "report.json" in names else None
        return State(
            last=checkpoints[-1] if checkpoints else last,
            checkpoints=checkpoints,
            finished=orjson.loads(report) if report else None,
        )

    def count(self, state: State, *, since: int = 0) -> Counts:
        """The counts of every published part from number `since` on, and of the part under way, added up."""
        total = Counts()
        published = state.last.part + (not state.checkpoints) if state.last else 0
        for part in range(since, published):
            total = total.plus(self._mark(f"part-{part:05d}.json").in_part)
        return total.plus(state.checkpoints[-1].in_part) if state.checkpoints else total

    def _mark(self, name: str) -> Mark:
        return Mark.from_json(self._store.get(self._uri(name)))

    def checkpoint(self, mark: Mark, out: bytes, failed: bytes) -> None:
        """Keep what the part under way has gained since its last checkpoint."""
        name = _checkpoint_name(mark.part, mark.checkpoint)
        self._store.put(self._uri(f"{name}.out"), out)
        self._store.put(self._uri(f"{name}.failed"), failed)
        self._create(f"{name}.json", mark.to_json())

    def checkpoint_bytes(self, mark: Mark) -> tuple[bytes, bytes]:
        """The output and failures that checkpoint kept."""
        name = _checkpoint_name(mark.part, mark.checkpoint)
        return self._store.get(self._uri(f"{name}.out")), self._store.get(self._uri(f"{name}.failed"))

    def commit_part(self, mark: Mark) -> None:
        """Part `mark.part` is published; its checkpoints are no longer needed."""
        self._create(f"part-{mark.part:05d}.json", replace(mark, checkpoint=0).to_json())
        # The record's last line first: a checkpoint without its bytes must never be seen.
        for number in range(1, mark.checkpoint + 1):
            name = _checkpoint_name(mark.part, number)
            for suffix in (".json", ".out", ".failed"):
                self._store.delete(self._uri(name + suffix))

    def finish(self, report: Mapping[str, Any]) -> None:
        """The run is complete; what a kill between a part's commit and its tidying left behind goes now."""
        for info in list(self._store.list(self._uri("part-"))):
            if ".checkpoint-" in info.uri:
                self._store.delete(info.uri)
        self._store.put(self._uri("report.json"), _dump(report))

    def reopen(self) -> None:
        """More objects have come: the run is no longer complete."""
        self._store.delete(self._uri("report.json"))

    def _create(self, name: str, data: bytes) -> None:
        try:
            self._store.put_if_absent(self._uri(name), data)
        except AlreadyExistsError as error:
            raise LedgerError(
                f"{self._uri(name)} was written by another process: two runs are working on the same "
                "destination. Stop one of them, then --resume"
            ) from error


def _in_order(name: str) -> tuple[int, str]:
    return len(name), name


def _checkpoint_name(part: int, number: int) -> str:
    return f"part-{part:05d}.checkpoint-{number:04d}"


def _dump(data: Mapping[str, Any]) -> bytes:
    return orjson.dumps(data, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)


def changes(before: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """What `now` has that `before` has not, by its whole name: ``settings.read.header was 'none', is 'names'``."""
    for key, value in now.items():
        was, name = before.get(key), within + key
        if isinstance(was, dict) and isinstance(value, dict):
            yield from changes(cast("dict[str, Any]", was), cast("dict[str, Any]", value), f"{name}.")
        elif was != value:
            yield f"{name} was {was!r}, is {value!r}"
