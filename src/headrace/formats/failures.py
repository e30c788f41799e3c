"""The file of failed records: one JSON line for each record without a prediction, written and read.

The format is stable: every line contains its version ``v``, and `read_failures` reads all versions.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import orjson

from headrace.core.block import RAW_BYTES_KEPT_MAX, Failure, FailureKind, Position
from headrace.core.errors import DataError

VERSION: Final = 1
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """A failure with the place of the missing prediction in the output of its object.

    `output_row` and `output_byte` are the rows and bytes before that place.
    """

    failure: Failure
    output_row: int
    output_byte: int


def failed_record_line(record: FailedRecord) -> bytes:
    """Return a failed record as one line: `failure_line` plus ``output_row`` and ``output_byte``."""
    output_position = {"output_row": record.output_row, "output_byte": record.output_byte}
    return _encode_line(_failure_fields(record.failure) | output_position)


def read_failed_records(lines: Iterable[bytes]) -> Iterator[FailedRecord]:
    """Yield the records of a ``KEY.out.failed`` file in order.

    Raise DataError as `read_failures` does, and for lines without ``output_row`` or
    ``output_byte``.
    """
    return _read_lines(
        lines, lambda f: FailedRecord(_failure_from_fields(f), f["output_row"], f["output_byte"])
    )


def failure_line(failure: Failure) -> bytes:
    """Return a failure as one line, with its newline.

    The keys are ``v`` (1), ``object`` (URI), ``member`` (null outside archives), ``record`` (from
    0), ``line`` (from 1), ``byte`` (offset after decompression and conversion to UTF-8),
    ``member_byte`` (in archives: offset of the member's header), ``kind`` (format, decode, model,
    object), ``reason`` and ``attempts``. The record is ``raw`` if it is UTF-8, else ``raw_base64``.
    ``raw_truncated`` (true) is present if the record fills the kept size (64 KiB): then the rest of
    the record, if any, is only in the source.
    """
    return _encode_line(_failure_fields(failure))


def _failure_fields(failure: Failure) -> dict[str, Any]:
    position = failure.position
    fields: dict[str, Any] = {
        "v": VERSION,
        "object": position.object,
        "member": position.member,
        "record": position.record,
        "line": position.line,
        "byte": position.byte,
    }
    if position.member is not None or position.member_byte:
        fields["member_byte"] = position.member_byte
    fields |= {"kind": failure.kind.value, "reason": failure.why, "attempts": failure.attempts}
    return fields | _raw_fields(failure.raw)


def _encode_line(fields: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        # A name that is not UTF-8 has lone surrogates, and only an escape can write them.
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _raw_fields(raw: bytes) -> dict[str, Any]:
    truncated = {"raw_truncated": True} if len(raw) >= RAW_BYTES_KEPT_MAX else {}
    try:
        # Text cut within a character is not UTF-8; base64 loses nothing in either case.
        return {"raw": raw.decode(), **truncated}
    except UnicodeDecodeError:
        return {"raw_base64": b64encode(raw).decode(), **truncated}


def read_failures(lines: Iterable[bytes]) -> Iterator[Failure]:
    """Yield the failures of such a file in order; ``read_failures([failure_line(f)])`` yields `f`.

    `lines` may be an open binary file. Unknown keys are ignored. Raise DataError with the line
    number for a line that is not a failure, or whose version is newer than this program.
    """
    return _read_lines(lines, _failure_from_fields)


def _read_lines(lines: Iterable[bytes], read: Callable[[Mapping[str, Any]], _T]) -> Iterator[_T]:
    for number, line in enumerate(lines, 1):
        try:
            yield read(_parse_line(line))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"line {number} is not a failed record written by headrace "
                f"({type(error).__name__}: {error}): {line[:100]!r}"
            ) from error


def _parse_line(line: bytes) -> Mapping[str, Any]:
    # orjson rejects the lone surrogates of names that are not UTF-8.
    fields = json.loads(line)
    version = fields["v"]
    if version != VERSION:
        raise ValueError(f"version {version!r} is not supported, only {VERSION}: upgrade headrace")
    return fields


def _failure_from_fields(fields: Mapping[str, Any]) -> Failure:
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
