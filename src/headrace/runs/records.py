"""The records of a ledger: objects, counts, finished tasks and parts, and checkpoints, as versioned JSON."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Final, Self, TypeVar

import msgspec
import orjson
from typing_extensions import override

from headrace.core.block import Position
from headrace.core.errors import CountMismatchError, LedgerError
from headrace.runs.items import Cursor, Replay
from headrace.storage.contract import ObjectInfo
from headrace.storage.draft import PersistedDraft, PersistedRange

T = TypeVar("T")

LEDGER_FOLDER: Final = "_headrace"
VERSION: Final = 4
"""The version of all records of a ledger. Plan files of version 3 had no head."""


@dataclass(frozen=True, slots=True)
class ReadBound:
    """The place in an object at which a run stops to read: `record` is the first that is not scored.

    `member_byte` and `record` are those of a `Position`.
    """

    record: int
    member_byte: int = 0


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """An input object and its region, if known.

    If the run writes an output for each object, it is ``DEST/`` + `output`, and its failed records
    are ``DEST/`` + `failed`. The output of an object that was not read to its end is ``DEST/`` +
    `partial`. In a run that writes parts, all are empty. The last object of a run with a limit has a
    `bound`.
    """

    info: ObjectInfo
    output: str = ""
    region: str | None = None
    bound: ReadBound | None = None

    @property
    def failed(self) -> str:
        """The name of the file of failed records, below the destination."""
        return f"{self.output}.failed" if self.output else ""

    @property
    def partial(self) -> str:
        """The name of an output that ends before its object, below the destination."""
        return f"{self.output}.partial" if self.output else ""

    def output_name(self, counts: "Counts") -> str:
        """Return the name of the output of an object with these counts, below the destination."""
        return self.partial if counts.objects_broken else self.output


@dataclass(frozen=True, slots=True)
class PlanHead:
    """The first line of a plan file: its numbers of objects and tasks, and the bytes of its objects.

    With `has_ranges`, some of the tasks are ranges of objects.
    """

    objects: int
    tasks: int
    nbytes: int
    has_ranges: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of records, and of objects that could not be read to their end."""

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

    @property
    def has_failures(self) -> bool:
        """True if a record failed or an object is broken."""
        return bool(self.rows_failed or self.objects_broken)

    def check(self, where: str) -> None:
        """Raise CountMismatchError, with the place, unless records in = rows out + failed."""
        if self.records_in != self.rows_out + self.rows_failed:
            raise CountMismatchError(
                where, records_in=self.records_in, out=self.rows_out, failed=self.rows_failed
            )


def sum_counts(counts: Iterable[Counts]) -> Counts:
    """Return the sum of the counts."""
    found = list(counts)
    return Counts(
        sum([one.records_in for one in found]),
        sum([one.rows_out for one in found]),
        sum([one.rows_failed for one in found]),
        sum([one.objects_broken for one in found]),
    )


class LedgerRecord:
    """A versioned record of a ledger."""

    __slots__ = ()

    def to_json(self) -> bytes:
        """Return the record as versioned JSON with sorted keys."""
        return dump_json({"v": VERSION, **_shallow_dict(self)})

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Return the record from its JSON. Raises LedgerError for another version.

        A damaged record raises other errors: see `parse_record`.
        """
        return msgspec.convert(parse_versioned(text), cls)


@dataclass(frozen=True, slots=True)
class ShardPosition:
    """The start or end of a shard.

    `record` and `line` count from the shard's start or the object's.
    """

    byte: int
    record: int
    line: int

    @classmethod
    def from_position(cls, position: Position) -> "ShardPosition":
        """Return the shard position of a position in an object that is not an archive."""
        return cls(position.byte, position.record, position.line)

    def position(self, uri: str) -> Position:
        """Return the position in the object `uri`."""
        return Position(uri, record=self.record, line=self.line, byte=self.byte)


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A finished shard.

    `begin` and `end` are set for ranges. The `end` of a range must equal the `begin` of the next
    one; otherwise one of them was misplaced. If `relative`, the positions of its failures count
    from its own begin, in the object and in the output. `out` and `failed` locate the persisted
    output. They are None if the output is published (for a whole object) or empty.
    """

    index: int
    number: int
    counts: Counts
    out_bytes: int
    begin: ShardPosition | None = None
    end: ShardPosition | None = None
    relative: bool = False
    begin_bytes: int = 0
    """The number of bytes before the first record: a header, unless an earlier range wrote it."""
    out: PersistedRange | None = None
    failed: PersistedRange | None = None
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    """Numbers of failed records by reason."""


@dataclass(frozen=True, slots=True)
class TaskRecord(LedgerRecord):
    """A finished task with its shards in order. `elapsed_s` and `region` are those of its worker."""

    task: int
    attempt: str
    shards: tuple[ShardRecord, ...]
    elapsed_s: float = 0.0
    region: str | None = None

    @override
    def to_json(self) -> bytes:
        """Return the record without the default values of its shards, which may be ten thousand."""
        shards = [_without_defaults(shard) for shard in self.shards]
        return dump_json({"v": VERSION, **_shallow_dict(self), "shards": shards})

    @property
    def counts(self) -> Counts:
        """The sum of the counts of the shards."""
        return sum_counts(shard.counts for shard in self.shards)


@dataclass(frozen=True, slots=True)
class TaskCheckpoint(LedgerRecord):
    """The progress of a task: its finished shards, and the position in the next one.

    If `is_inside`, the records of the next shard up to `member` and `record` are delivered; `line`
    and `byte` are those of a `Cursor`, `counts` those of this shard. `begin` is the
    shard's start. `out` and `failed` hold the unpublished output so far.
    """

    task: int
    done: tuple[ShardRecord, ...]
    is_inside: bool = False
    record: int = 0
    line: int = 1
    byte: int = 0
    counts: Counts = field(default_factory=Counts)
    begin: ShardPosition | None = None
    relative: bool = False
    member_byte: int = 0
    member: str | None = None
    begin_bytes: int = 0
    out: PersistedRange | None = None
    failed: PersistedRange | None = None
    failures: Mapping[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def at(cls, position: Position) -> "TaskCheckpoint":
        """Return the checkpoint of a run without tasks: the position alone."""
        return cls(
            task=-1,
            done=(),
            is_inside=True,
            record=position.record,
            line=position.line,
            byte=position.byte,
            member=position.member,
            member_byte=position.member_byte,
        )

    def position(self, uri: str) -> Position:
        """Return the position of the first record that is not delivered, in the object `uri`."""
        return Position(uri, self.member, self.record, self.line, self.byte, self.member_byte)


@dataclass(frozen=True, slots=True)
class PartRecord(LedgerRecord):
    """A commit of a run without tasks: part `part` up to `cursor`, published or under way.

    A part with a `checkpoint` above 0 is under way. `total` counts everything up to the cursor,
    `in_part` only this part. `replay` is the part of the source that a resumption replays first, if
    sequences are live at the cursor. `out_bytes` is the size of the predictions; `begin_bytes` of
    them precede the first record. `failures` counts the failed records of the part by reason.
    """

    part: int
    checkpoint: int
    cursor: Cursor
    total: Counts
    in_part: Counts
    attempt: str
    out_bytes: int = 0
    begin_bytes: int = 0
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    replay: Replay | None = None

    @override
    def to_json(self) -> bytes:
        replay = None if self.replay is None else self.replay.to_json()
        nested = {"cursor": self.cursor.to_json(), "replay": replay}
        return dump_json({"v": VERSION, **_shallow_dict(self), **nested})

    @classmethod
    @override
    def from_json(cls, text: bytes) -> Self:
        data = parse_versioned(text)
        data["cursor"] = Cursor.from_json(data["cursor"])
        data["replay"] = None if data["replay"] is None else Replay.from_json(data["replay"])
        return msgspec.convert(data, cls)


@dataclass(frozen=True, slots=True)
class RetriedOutput(LedgerRecord):
    """An output whose failed records were retried; `rows` of them are predicted since.

    `number` is that of the output: of its object, or of the part. `out_bytes` is the size of the
    output; `begin_bytes` of them precede the first record. `failures` counts the records that still
    fail, by reason. `out` and `failed` are the drafts to publish. They are None once published.
    """

    number: int
    rows: int
    out_bytes: int
    failures: Mapping[str, int]
    out: PersistedDraft | None = None
    failed: PersistedDraft | None = None
    begin_bytes: int = 0


def repeated_bytes(shards: Sequence[ShardRecord]) -> list[int]:
    """Return, for each shard of one object, the size of its header if an earlier shard has a header."""
    found: list[int] = []
    begun = False
    for shard in shards:
        found.append(shard.begin_bytes if begun else 0)
        begun = begun or shard.begin_bytes > 0
    return found


def _shallow_dict(record: Any) -> dict[str, Any]:
    """Return a dataclass's own fields. The JSON writer converts nested dataclasses, faster."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


_SHARD_DEFAULTS: Final = {
    each.name: None if each.default is MISSING else each.default for each in fields(ShardRecord)
}


def _without_defaults(shard: ShardRecord) -> dict[str, Any]:
    values = {name: getattr(shard, name) for name in _SHARD_DEFAULTS}
    return {name: value for name, value in values.items() if value != _SHARD_DEFAULTS[name] and value != {}}


def parse_record(uri: str, text: bytes, parse: Callable[[bytes], T]) -> T:
    """Return `parse` of a record at `uri`. Raises LedgerError, with the URI, for a damaged record."""
    try:
        return parse(text)
    except (msgspec.MsgspecError, ValueError, TypeError, LookupError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else error
        raise LedgerError(
            f"{uri}: the record is damaged: {why}. Restore it, or choose another destination"
        ) from error


def parse_object(text: bytes) -> dict[str, Any]:
    """Return the fields of a record without a version."""
    return msgspec.convert(orjson.loads(text), dict[str, Any])


def parse_versioned(text: bytes) -> dict[str, Any]:
    """Return a record's fields. Raises LedgerError for another version."""
    data = parse_object(text)
    if data.get("v") != VERSION:
        raise LedgerError(
            f"the ledger has version {data.get('v')}, but this headrace writes version {VERSION}: finish "
            "the run with the headrace that started it, or start again with --overwrite"
        )
    return data


def dump_json(data: Mapping[str, Any]) -> bytes:
    """Return readable JSON with sorted keys."""
    return orjson.dumps(data, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)
