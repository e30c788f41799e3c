"""WebDataset shards: consecutive members of an archive with the same key are the fields of one record.

::

    train/0001.jpg    the field `jpg` of the record `train/0001`: encoded bytes
    train/0001.json   its field `json`: any JSON
    train/0001.cls    its field `cls`: an integer
    train/0001.txt    its field `txt`: text

A record is a JSON object of its text fields, and of its key as ``__key__``. Other fields are columns of
the block, [1, bytes] of uint8, and are decoded only for a model that takes them.

The rules of names and types are those of the library webdataset (`tariterators`, `autodecode`): a key
ends at the first dot of a member's last component, and fields are in lower case. Members without a dot,
and those that begin with ``__NAME__``, are no fields.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import orjson

from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import CorruptError
from headrace.formats.contract import ArchiveMember

KEY: Final = "__key__"
"""The field that has the key."""
TEXT_FIELDS: Final = frozenset({"txt", "text", "transcript"})
INTEGER_FIELDS: Final = frozenset({"cls", "cls2", "class", "count", "index", "inx", "id"})
JSON_FIELDS: Final = frozenset({"json", "jsn"})
_NO_FIELD: Final = re.compile("__[^/]*__($|/)")
_INTEGER: Final = re.compile(rb"\s*[+-]?[0-9]{1,19}\s*")
_INTEGERS: Final = range(-(1 << 63), 1 << 63)


def split_name(name: str) -> tuple[str, str] | None:
    """Return the key and the field of a member, or None if it is no field of a record."""
    folder, slash, last = name.rpartition("/")
    stem, _, suffix = last.partition(".")
    if not stem or not suffix or _NO_FIELD.match(name):
        return None
    return f"{folder}{slash}{stem}", suffix.lower()


def last_suffix(field_name: str) -> str:
    """Return the part of a field's name that decides its type: `png` of ``seg.png``."""
    return field_name.rpartition(".")[2]


def record_blocks(members: Iterable[ArchiveMember], uri: str, *, record_bytes_max: int) -> Iterator[Block]:
    """Yield a block with one record, or with a failure in its place, for each key of consecutive members.

    The position of a record has the key as its member, and the header of its first member. A record fails
    (kind FORMAT) if a field is not of its type or is there twice, or if its members have more than
    `record_bytes_max` bytes. Damage to the archive raises CorruptError, after the records before it.
    """
    record: _Record | None = None
    for member in members:
        found = split_name(member.name)
        if found is None:
            continue
        key, name = found
        if record is None or key != record.first.member:
            if record is not None:
                yield record.block()
            record = _Record(Position(uri, key, member_byte=member.header_byte), record_bytes_max)
        record.add(name, member)
    if record is not None:
        yield record.block()


class _BadFieldError(Exception):
    """A field that costs its record; the message is the reason."""


@dataclass(slots=True)
class _Record:
    """The fields of the record in progress, and its failure if there is one."""

    first: Position
    bytes_left: int
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    encoded: dict[str, bytes] = field(default_factory=dict[str, bytes])
    failure: Failure | None = None

    def add(self, name: str, member: ArchiveMember) -> None:
        """Read a member as a field. After a failure, members are skipped."""
        if self.failure is not None:
            return
        try:
            self._put(name, self._read(name, member))
        except _BadFieldError as error:
            why = f"field {name}: {error}"
            self.failure = Failure(self.first, FailureKind.FORMAT, why)

    def _read(self, name: str, member: ArchiveMember) -> bytes:
        if name in self.values or name in self.encoded:
            raise _BadFieldError("the record has this field twice")
        if member.unreadable_reason:
            raise _BadFieldError(member.unreadable_reason)
        pieces: list[bytes] = []
        try:
            for piece in member.pieces:
                self.bytes_left -= len(piece)
                if self.bytes_left < 0:
                    raise _BadFieldError("the record is longer than record_bytes_max")
                pieces.append(bytes(piece))
        except CorruptError as error:
            if not member.is_independent:
                raise
            raise _BadFieldError(str(error)) from error
        return b"".join(pieces)

    def _put(self, name: str, data: bytes) -> None:
        suffix = last_suffix(name)
        if suffix in TEXT_FIELDS:
            self.values[name] = _text(data)
        elif suffix in INTEGER_FIELDS:
            self.values[name] = _integer(data)
        elif suffix in JSON_FIELDS:
            self.values[name] = _json(data)
        else:
            self.encoded[name] = data

    def block(self) -> Block:
        """Return the block of the record, or of its failure."""
        if self.failure is not None:
            return Block(self.first, failures=(self.failure,))
        key = (self.first.member or "").encode(errors="surrogateescape").decode(errors="replace")
        text = orjson.dumps({KEY: key, **self.values})
        columns = {name: np.frombuffer(data, np.uint8)[np.newaxis] for name, data in self.encoded.items()}
        return Block(self.first, text, np.zeros(1, np.int64), np.array([len(text)], np.int64), columns)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _BadFieldError(f"not UTF-8 at byte {error.start}") from None


def _integer(data: bytes) -> int:
    if not _INTEGER.fullmatch(data) or int(data) not in _INTEGERS:
        raise _BadFieldError(f"not an integer: {data[:40]!r}")
    return int(data)


def _json(data: bytes) -> orjson.Fragment:
    """Return valid JSON on one line, with its digits unchanged. Line ends are only between its tokens."""
    text = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r", b" ").replace(b"\n", b" ").strip()
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _BadFieldError(f"not JSON: {error}") from None
    return orjson.Fragment(text)
