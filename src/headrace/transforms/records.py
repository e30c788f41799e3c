"""What a transform's ledger records: shards and tasks that are done or under way, as versioned JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

import orjson

from headrace.core.block import Position
from headrace.core.errors import LedgerError
from headrace.pipeline.ledger import Counts
from headrace.storage.draft import Kept, KeptRange

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in an object: where a shard begins or ends. `record` and `line` count from `Shard`'s own begin, or the object's."""

    byte: int
    record: int
    line: int

    @classmethod
    def of(cls, position: Position) -> "Spot":
        """Of a position in an object that is no archive."""
        return cls(position.byte, position.record, position.line)

    def position(self, uri: str) -> Position:
        """In the object `uri`."""
        return Position(uri, record=self.record, line=self.line, byte=self.byte)


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A shard that is done.

    `begin` and `end` are told of ranges: each one's `end` is the next one's `begin`, or one of them was cut wrong.
    `relative`: positions in its failures count from its own begin, and so do their places in the output. `out` and
    `failed` are where its output is kept; None where it is published (a whole object's) or empty.
    """

    index: int
    number: int
    counts: Counts
    out_bytes: int
    begin: Spot | None = None
    end: Spot | None = None
    relative: bool = False
    begin_bytes: int = 0
    """What of the output stands before the first record: a header, unless a range before it here had one."""
    out: KeptRange | None = None
    failed: KeptRange | None = None
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many records failed, by reason."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "ShardRecord":
        """Read back."""
        return cls(
            index=data["index"],
            number=data["number"],
            counts=Counts(**data["counts"]),
            out_bytes=data["out_bytes"],
            begin=_maybe(Spot, data["begin"]),
            end=_maybe(Spot, data["end"]),
            relative=data["relative"],
            begin_bytes=data["begin_bytes"],
            out=_kept(data["out"]),
            failed=_kept(data["failed"]),
            failures=data["failures"],
        )


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task that is done: its shards', in order. `elapsed_s` and `region` are of the worker that did it."""

    task: int
    attempt: str
    shards: tuple[ShardRecord, ...]
    elapsed_s: float = 0.0
    region: str | None = None

    def to_json(self) -> bytes:
        """Versioned, with sorted keys."""
        return dump({"v": VERSION, **_fields_of(self)})

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Read back; LedgerError for another version."""
        data = versioned(text)
        shards = tuple(map(ShardRecord.from_json, data["shards"]))
        return cls(data["task"], data["attempt"], shards, data["elapsed_s"], data.get("region"))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A task under way: the shards that are done, and how far the next one is.

    `entries` of it are delivered, up to `member` and `record`; `line` and `byte` are told as a `Cursor` tells them. `begin` is
    where it began; `out` and `failed` hold its output so far.
    """

    task: int
    done: tuple[ShardRecord, ...]
    entries: int = 0
    record: int = 0
    line: int = 1
    byte: int = 0
    counts: Counts = field(default_factory=Counts)
    begin: Spot | None = None
    relative: bool = False
    member_byte: int = 0
    member: str | None = None
    begin_bytes: int = 0
    out: KeptRange | None = None
    failed: KeptRange | None = None
    failures: Mapping[str, int] = field(default_factory=dict[str, int])

    def position(self, uri: str) -> Position:
        """Of the first record that is not delivered, in the object `uri`."""
        return Position(uri, self.member, self.record, self.line, self.byte, self.member_byte)

    def to_json(self) -> bytes:
        """Versioned, with sorted keys."""
        return dump({"v": VERSION, **_fields_of(self)})

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Read back; LedgerError for another version."""
        data = versioned(text)
        del data["v"]
        data["done"] = tuple(map(ShardRecord.from_json, data["done"]))
        data["counts"] = Counts(**data["counts"])
        data["begin"] = _maybe(Spot, data["begin"])
        data["out"], data["failed"] = _kept(data["out"]), _kept(data["failed"])
        return cls(**data)


@dataclass(frozen=True, slots=True)
class RetriedObject:
    """An object of which failed records were tried again: `rows` of them are predicted by now.

    `out_bytes` is what its output has now, `begin_bytes` of it before the first record; `failures` why the others still
    fail. `out` and `failed` are what is to be published; None once it is.
    """

    index: int
    rows: int
    out_bytes: int
    failures: Mapping[str, int]
    out: Kept | None = None
    failed: Kept | None = None
    begin_bytes: int = 0

    def to_json(self) -> bytes:
        """Versioned, with sorted keys."""
        return dump({"v": VERSION, **_fields_of(self)})

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Read back; LedgerError for another version."""
        data = versioned(text)
        del data["v"]
        data["out"], data["failed"] = _maybe(Kept, data["out"]), _maybe(Kept, data["failed"])
        return cls(**data)


def repeated_bytes(shards: Sequence[ShardRecord]) -> list[int]:
    """Of each shard of one object, how much of its output's begin the object has already: all but the first one's."""
    found: list[int] = []
    begun = False
    for shard in shards:
        found.append(shard.begin_bytes if begun else 0)
        begun = begun or shard.begin_bytes > 0
    return found


def _maybe(kind: Any, data: Mapping[str, Any] | None) -> Any:
    return None if data is None else kind(**data)


def _kept(data: Mapping[str, Any] | None) -> KeptRange | None:
    return None if data is None else KeptRange(Kept(**data["kept"]), data["start"], data["stop"])


def _fields_of(record: Any) -> dict[str, Any]:
    """A dataclass's own fields; those of dataclasses in them are left to the writer of JSON, which is quick at it."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def versioned(text: bytes) -> dict[str, Any]:
    """A record's fields. LedgerError for one of another version."""
    data: dict[str, Any] = orjson.loads(text)
    if data.get("v") != VERSION:
        raise LedgerError(
            f"the ledger says version {data.get('v')}, this headrace writes {VERSION}: finish the run with the version "
            "that began it, or start anew with --overwrite"
        )
    return data


def dump(data: Mapping[str, Any]) -> bytes:
    """As JSON for people to read, with sorted keys."""
    return orjson.dumps(data, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)
