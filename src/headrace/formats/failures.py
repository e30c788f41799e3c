"""The failed-records file: one JSON line for each record that got no prediction, and the way back.

The format is kept: every line says its version ``v``, and `read_failures` reads all versions there have been.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from headrace.core.block import RAW_BYTES_KEPT_MAX, Failure, FailureKind, Position
from headrace.core.errors import DataError

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """A failure, and where in its object's output the record's prediction would have stood: behind so many rows and bytes."""

    failure: Failure
    output_row: int
    output_byte: int


def failed_record_line(record: FailedRecord) -> bytes:
    """A failed record as one line: that of `failure_line`, with the keys ``output_row`` and ``output_byte``."""
    place = {"output_row": record.output_row, "output_byte": record.output_byte}
    return _line(_fields_of(record.failure) | place)


def read_failed_records(lines: Iterable[bytes]) -> Iterator[FailedRecord]:
    """The records of a ``KEY.out.failed`` file, in order; what `read_failures` raises, for lines without a place too."""
    for number, line in enumerate(lines, 1):
        try:
            fields = _fields(line)
            yield FailedRecord(_failure(fields), fields["output_row"], fields["output_byte"])
        except (ValueError, KeyError, TypeError) as error:
            raise _no_failure(number, line, error) from error


def failure_line(failure: Failure) -> bytes:
    r"""A failure as one line, with its newline.

    Keys: ``v`` (1), ``object`` (URI), ``member`` (null outside archives), ``record`` (from 0), ``line`` (from 1),
    ``byte`` (offset after decompression), ``member_byte`` (in archives: offset of the member's header), ``kind``
    (format, decode, model, object), ``reason``, ``attempts``; and the record, as ``raw`` where it is UTF-8, else as
    ``raw_base64``. ``raw_truncated`` (true) is there when the record fills what is kept of one (64 KiB), so that
    its rest, if it had one, is only in the source.
    """
    return _line(_fields_of(failure))


def _fields_of(failure: Failure) -> dict[str, Any]:
    at = failure.position
    fields: dict[str, Any] = {
        "v": VERSION,
        "object": at.object,
        "member": at.member,
        "record": at.record,
        "line": at.line,
        "byte": at.byte,
    }
    if at.member is not None or at.member_byte:
        fields["member_byte"] = at.member_byte
    fields |= {"kind": failure.kind.value, "reason": failure.why, "attempts": failure.attempts}
    return fields | _raw_fields(failure.raw)


def _line(fields: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        # A name that is not UTF-8 has lone surrogates, which only an escape can write.
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _raw_fields(raw: bytes) -> dict[str, Any]:
    truncated = {"raw_truncated": True} if len(raw) >= RAW_BYTES_KEPT_MAX else {}
    try:
        # A cut in the middle of a character makes text look like none; base64 loses nothing either way.
        return {"raw": raw.decode(), **truncated}
    except UnicodeDecodeError:
        return {"raw_base64": b64encode(raw).decode(), **truncated}


def read_failures(lines: Iterable[bytes]) -> Iterator[Failure]:
    """The failures of such a file, in order; ``read_failures([failure_line(f)])`` gives `f` back.

    `lines` may be an open binary file. Keys that are not known are ignored. Raises DataError, naming the line,
    for one that is no failure or whose version is newer than this program.
    """
    for number, line in enumerate(lines, 1):
        try:
            yield _failure(_fields(line))
        except (ValueError, KeyError, TypeError) as error:
            raise _no_failure(number, line, error) from error


def _no_failure(number: int, line: bytes, error: Exception) -> DataError:
    why = f"{type(error).__name__}: {error}"
    return DataError(f"line {number} is no failed record as headrace writes them ({why}): {line[:100]!r}")


def _fields(line: bytes) -> Mapping[str, Any]:
    # Not orjson: it refuses the lone surrogates of names that are not UTF-8.
    fields = json.loads(line)
    version = fields["v"]
    if version != VERSION:
        raise ValueError(f"version {version!r}, and this program knows {VERSION}: upgrade headrace")
    return fields


def _failure(fields: Mapping[str, Any]) -> Failure:
    encoded = fields.get("raw_base64")
    raw = fields["raw"].encode() if encoded is None else b64decode(encoded, validate=True)
    position = Position(
        object=fields["object"],
        member=fields["member"],
        record=fields["record"],
        line=fields["line"],
        byte=fields["byte"],
        member_byte=fields.get("member_byte", 0),
    )
    return Failure(position, FailureKind(fields["kind"]), fields["reason"], raw, fields["attempts"])
