"""The record of finished work beside the output. It makes ``--resume`` exact.

The ledger consists of small objects below ``DEST/_headrace/``. Each is written whole and, except
for the plan, only if it does not exist:

===============================  ===============================================================
``run.json``                     the run: source, fingerprint of the model, settings
``plan-00000.jsonl``             the objects with size and ETag; a watched prefix adds files
``learned.json``                 what the first records decided: number of columns, row shape
``part-00003.json``              part 3 is published: its end, and the counts up to there
``part-00004.checkpoint-0001``   part 4 is unfinished: the same, with its bytes in ``….out``,
                                 ``….failed``
``report.json``                  the run is finished: its counts
===============================  ===============================================================

A part's record is written after the part, so a kill in between only costs a rewrite of the same
bytes. A second process on the same destination writes other records, and put-if-absent stops it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import orjson

from headrace.core.errors import AlreadyExistsError, LedgerError, ResumeRefusedError
from headrace.runs.items import Cursor, Replay
from headrace.storage.contract import ObjectInfo, Store

LEDGER_FOLDER = "_headrace"
LEDGER_VERSION = 1


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of a run: ``records_in == rows_out + rows_failed``, and broken objects separately."""

    records_in: int = 0
    rows_out: int = 0
    rows_failed: int = 0
    objects_broken: int = 0

    def plus(self, other: "Counts") -> "Counts":
        """Return the sum."""
        return Counts(
            self.records_in + other.records_in,
            self.rows_out + other.rows_out,
            self.rows_failed + other.rows_failed,
            self.objects_broken + other.objects_broken,
        )

    def minus(self, other: "Counts") -> "Counts":
        """Return the difference."""
        return Counts(
            self.records_in - other.records_in,
            self.rows_out - other.rows_out,
            self.rows_failed - other.rows_failed,
            self.objects_broken - other.objects_broken,
        )


@dataclass(frozen=True, slots=True)
class LedgerMark:
    """A commit of a run: `part` is published, or unfinished with `checkpoint` > 0, up to `cursor`.

    `total` counts everything up to the cursor, `in_part` only this part. `replay` is the part of
    the source that a resumption replays first, if sequences are live at the cursor.
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
        """Return the record as versioned JSON with sorted keys."""
        data = asdict(self) | {"v": LEDGER_VERSION, "cursor": self.cursor.to_json()}
        del data["replay"]
        if self.replay is not None:
            data["replay"] = self.replay.to_json()
        return orjson.dumps(data, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)

    @classmethod
    def from_json(cls, text: bytes) -> "LedgerMark":
        """Return the mark of a record.

        Raises:
            LedgerError: The record has another version.
        """
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
class ResumeState:
    """The state of a run that a ledger records."""

    last: LedgerMark | None = None
    """The last part or checkpoint, or None before the first commit."""
    checkpoints: list[LedgerMark] = field(default_factory=list[LedgerMark])
    """The checkpoints of the unfinished part, in order."""
    finished: Mapping[str, Any] | None = None
    """The report of a complete run."""


def _versioned(text: bytes) -> dict[str, Any]:
    data: dict[str, Any] = orjson.loads(text)
    if data.get("v") != LEDGER_VERSION:
        raise LedgerError(
            f"the ledger has version {data.get('v')}, this headrace supports {LEDGER_VERSION}: finish "
            "the run with the headrace version that began it, or start anew with --overwrite"
        )
    return data


class Ledger:
    """The records of one destination. One thread at a time uses it."""

    def __init__(self, store: Store, destination: str) -> None:
        self._store = store
        self._base = f"{destination}{LEDGER_FOLDER}/"

    def _uri(self, name: str) -> str:
        return self._base + name

    def identity(self) -> dict[str, Any] | None:
        """Return the identity of the recorded run, or None."""
        found = next((i for i in self._store.list(self._uri("run.json"))), None)
        return None if found is None else _versioned(self._store.get(found.uri))

    def begin(self, identity: Mapping[str, Any], plan: Sequence[ObjectInfo]) -> None:
        """Record a new run. The plan is written first, so a recorded run always has its plan."""
        self.write_plan(0, plan)
        self._create("run.json", _dump(dict(identity) | {"v": LEDGER_VERSION}))

    def check_identity(self, identity: Mapping[str, Any]) -> None:
        """Raise ResumeRefusedError with the differences, unless this is the recorded run."""
        begun = self.identity() or {}
        wanted: dict[str, Any] = orjson.loads(_dump(dict(identity)))
        found = list(differences(begun, wanted))
        if not found:
            return
        raise ResumeRefusedError(
            f"{self._base}run.json: the destination has another run ({'; '.join(found)}): resume it with its "
            "original settings, or start anew with --overwrite"
        )

    def write_plan(self, number: int, plan: Sequence[ObjectInfo]) -> None:
        """Write the objects of plan file `number`, one per line."""
        lines = (orjson.dumps(asdict(info)) for info in plan)
        self._store.put(self._uri(f"plan-{number:05d}.jsonl"), b"\n".join(lines) + b"\n")

    def read_plans(self) -> list[list[ObjectInfo]]:
        """Return all plan files, in order."""
        found: list[list[ObjectInfo]] = []
        # Longer names are later: numbers beyond the padding have more digits.
        for info in sorted(self._store.list(self._uri("plan-")), key=lambda i: _in_order(i.uri)):
            lines = self._store.get(info.uri).splitlines()
            found.append([ObjectInfo(**orjson.loads(line)) for line in lines if line])
        return found

    def learn(self, learned: Mapping[str, Any]) -> None:
        """Store what the first records decided, for a resumption."""
        self._store.put(self._uri("learned.json"), _dump(learned))

    def learned(self) -> dict[str, Any]:
        """Return what the first records decided; empty before the first delivery."""
        found = next((i for i in self._store.list(self._uri("learned.json"))), None)
        return {} if found is None else orjson.loads(self._store.get(found.uri))

    def state(self) -> ResumeState:
        """Return the state of the run."""
        names = [i.uri.removeprefix(self._base) for i in self._store.list(self._base)]
        parts = sorted((n for n in names if n.startswith("part-") and n.count("-") == 1), key=_in_order)
        last = self._mark(parts[-1]) if parts else None
        number = last.part + 1 if last else 0
        begun = f"part-{number:05d}.checkpoint-"
        under_way = sorted((n for n in names if n.startswith(begun) and n.endswith(".json")), key=_in_order)
        checkpoints = [self._mark(n) for n in under_way]
        report = self._store.get(self._uri("report.json")) if "report.json" in names else None
        return ResumeState(
            last=checkpoints[-1] if checkpoints else last,
            checkpoints=checkpoints,
            finished=orjson.loads(report) if report else None,
        )

    def count(self, state: ResumeState, *, since: int = 0) -> Counts:
        """Return the summed counts of published parts from `since` on, and of the unfinished part."""
        total = Counts()
        published = state.last.part + (not state.checkpoints) if state.last else 0
        for part in range(since, published):
            total = total.plus(self._mark(f"part-{part:05d}.json").in_part)
        return total.plus(state.checkpoints[-1].in_part) if state.checkpoints else total

    def _mark(self, name: str) -> LedgerMark:
        return LedgerMark.from_json(self._store.get(self._uri(name)))

    def checkpoint(self, mark: LedgerMark, out: bytes, failed: bytes) -> None:
        """Store the output that the unfinished part gained since its last checkpoint."""
        name = _checkpoint_name(mark.part, mark.checkpoint)
        self._store.put(self._uri(f"{name}.out"), out)
        self._store.put(self._uri(f"{name}.failed"), failed)
        self._create(f"{name}.json", mark.to_json())

    def checkpoint_bytes(self, mark: LedgerMark) -> tuple[bytes, bytes]:
        """Return the output and the failures of a checkpoint."""
        name = _checkpoint_name(mark.part, mark.checkpoint)
        return self._store.get(self._uri(f"{name}.out")), self._store.get(self._uri(f"{name}.failed"))

    def commit_part(self, mark: LedgerMark) -> None:
        """Record that part `mark.part` is published, and delete its checkpoints."""
        self._create(f"part-{mark.part:05d}.json", replace(mark, checkpoint=0).to_json())
        # The .json object is deleted first, because a checkpoint without its bytes must never be
        # visible.
        for number in range(1, mark.checkpoint + 1):
            name = _checkpoint_name(mark.part, number)
            for suffix in (".json", ".out", ".failed"):
                self._store.delete(self._uri(name + suffix))

    def finish(self, report: Mapping[str, Any]) -> None:
        """Record that the run is complete. Delete checkpoints that a killed commit left behind."""
        for info in list(self._store.list(self._uri("part-"))):
            if ".checkpoint-" in info.uri:
                self._store.delete(info.uri)
        self._store.put(self._uri("report.json"), _dump(report))

    def reopen(self) -> None:
        """Record that the run has new objects and is incomplete again."""
        self._store.delete(self._uri("report.json"))

    def _create(self, name: str, data: bytes) -> None:
        try:
            self._store.put_if_absent(self._uri(name), data)
        except AlreadyExistsError as error:
            raise LedgerError(
                f"{self._uri(name)} was written by another process: two runs use the same "
                "destination; stop one of them, then --resume"
            ) from error


def _in_order(name: str) -> tuple[int, str]:
    return len(name), name


def _checkpoint_name(part: int, number: int) -> str:
    return f"part-{part:05d}.checkpoint-{number:04d}"


def _dump(data: Mapping[str, Any]) -> bytes:
    return orjson.dumps(data, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)


def differences(before: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """Yield the changed settings by full name: ``settings.read.header was 'none', is 'names'``."""
    for key, value in now.items():
        was, name = before.get(key), within + key
        if isinstance(was, dict) and isinstance(value, dict):
            yield from differences(cast("dict[str, Any]", was), cast("dict[str, Any]", value), f"{name}.")
        elif was != value:
            yield f"{name} was {was!r}, is {value!r}"
