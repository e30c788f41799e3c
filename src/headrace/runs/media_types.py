"""Map content type, split and compression to read options, and an accept type to an output format."""

import difflib
from typing import Any, Final, Literal, cast, get_args

from headrace.core.errors import ConfigError
from headrace.formats.read_options import AUTO, V2, FormatName, ReadOptions
from headrace.runs.output_settings import OutputFormat

Kind = Literal[
    "csv",
    "json",
    "jsonarray",
    "jsonl",
    "v2",
    "text",
    "whole",
    "recordio",
    "tfrecord",
    "parquet",
    "arrow",
    "orc",
    "avro",
    "image",
    "audio",
    "video",
]
"""The kind of an object's contents, for all names of its content type."""

_KINDS: Final[dict[str, Kind]] = {
    "text/csv": "csv",
    "application/json": "json",
    **dict.fromkeys(
        (
            "application/jsonlines",
            "application/jsonl",
            "application/json-lines",
            "application/x-jsonlines",
            "application/x-ndjson",
            "application/ndjson",
        ),
        "jsonl",
    ),
    "text/plain": "text",
    "application/octet-stream": "whole",
    **dict.fromkeys(("application/x-recordio-protobuf", "application/x-recordio"), "recordio"),
    "application/x-tfrecord": "tfrecord",
    **dict.fromkeys(
        ("application/x-parquet", "application/parquet", "application/vnd.apache.parquet"), "parquet"
    ),
    **dict.fromkeys(("application/vnd.apache.arrow.file", "application/vnd.apache.arrow.stream"), "arrow"),
    **dict.fromkeys(("application/orc", "application/x-orc", "application/vnd.apache.orc"), "orc"),
    **dict.fromkeys(("application/avro", "application/x-avro", "avro/binary"), "avro"),
    "application/x-image": "image",
    "line": "text",
}
_FAMILIES: Final[dict[str, Kind]] = {"image": "image", "audio": "audio", "video": "video"}

_RECORD_FORMATS: Final[dict[Kind, FormatName]] = {"text": "line"}
"""Formats of records whose name differs from the kind's."""
_LINE_FORMATS: Final[dict[Kind, FormatName]] = {
    "csv": "csv",
    "json": "jsonl",
    "jsonl": "jsonl",
    "v2": V2,
    "text": "line",
    "whole": "line",
}
_WHOLE_FORMATS: Final[dict[Kind, FormatName]] = {"json": "json", "v2": V2, "image": "image"}
"""Formats of whole objects that are not read as bytes."""

Split = Literal[
    "none",
    "line",
    "recordio",
    "tfrecord",
    "csv",
    "jsonl",
    "jsonarray",
    "v2",
    "parquet",
    "arrow",
    "orc",
    "avro",
    "tar",
    "zip",
    "webdataset",
]
SPLITS: Final = get_args(Split)
COMPRESSIONS: Final = (AUTO, "none", "gzip", "bzip2", "zstd")

_ACCEPTS: Final[dict[str, OutputFormat]] = {
    "*/*": "auto",
    "text/plain": "text",
    "application/octet-stream": "text",
    "application/vnd.apache.arrow.file": "arrow",
    **{
        name: cast("OutputFormat", kind)
        for name, kind in _KINDS.items()
        if kind in {"csv", "json", "jsonl", "parquet"}
    },
}


def kind_of(content_type: str) -> Kind:
    """Return the kind of objects of a MIME type or short name; parameters and case are ignored.

    An unknown MIME type is "whole": bytes that only the model understands. Raises ConfigError for
    any other text.
    """
    name = bare_type(content_type)
    if name in get_args(Kind):
        return cast("Kind", name)
    if (kind := _KINDS.get(name)) is not None:
        return kind
    family, slash, rest = name.partition("/")
    if slash and family and rest and not set(" ,") & set(name):
        return _FAMILIES.get(family, "whole")
    raise ConfigError(
        f"content type {content_type!r} is neither a MIME type such as text/csv nor one of "
        f"{', '.join(get_args(Kind))}{_suggestion(name, (*get_args(Kind), *_KINDS))}"
    )


def accept_of(accept: str) -> OutputFormat:
    """Return the output format of a MIME type or short name; parameters and case are ignored.

    Raises ConfigError for a format that cannot be written.
    """
    name = bare_type(accept)
    if name in get_args(OutputFormat):
        return cast("OutputFormat", name)
    if (found := _ACCEPTS.get(name)) is not None:
        return found
    raise ConfigError(
        f"accept {accept!r} cannot be written: choose one of {', '.join(sorted(_ACCEPTS))}, or one of "
        f"{', '.join(get_args(OutputFormat))}"
    )


def read_options(
    content_type: str | None = None, split: str | None = None, compression: str | None = None
) -> ReadOptions:
    """Return the read options of a content type (MIME type or short name), a split and a compression.

    An argument of None is derived from the others: the split from the content type; without a
    content type, both from the object's name.

    - split "none": an object is one record, regardless of its name. JSON is parsed, images are
      decoded, other objects are bytes.
    - split "line": text/csv is split into CSV records; a newline in quotes does not end a record,
      in strict mode neither. (SageMaker splits at it, and advises against such newlines.) JSON and
      JSON Lines have one JSON value per line; another text has one record per line. Raises
      ConfigError for content without lines: images, audio, video, tables, RecordIO, TFRecord.
    - split "recordio", "tfrecord", "csv", "jsonl", "jsonarray", "v2", "parquet", "arrow", "orc", "avro": this
      format, regardless of the content type.
    - split "tar", "zip": objects are archives. The content type, or a member's name, selects its format.
    - split "webdataset": objects are archives, and members with the same key are one record.

    Words are case-insensitive. Raises ConfigError for an unknown word or content type.
    """
    kind = None if content_type is None else kind_of(content_type)
    split = _parse_choice("split", split, SPLITS)
    name, archive = _format_and_archive(kind, split, content_type)
    words: Any = {
        "compression": _parse_choice("compression", compression, COMPRESSIONS) or AUTO,
        "archive": archive,
        "format": name,
    }
    return ReadOptions(**words)


def _format_and_archive(kind: Kind | None, split: str | None, content_type: str | None) -> tuple[str, str]:
    """Return the format and the archive type."""
    by_kind = AUTO if kind is None else str(_RECORD_FORMATS.get(kind, kind))
    match split:
        case None:
            return by_kind, AUTO
        case "none":
            return (_WHOLE_FORMATS.get(kind, "whole") if kind else "whole"), "none"
        case "line":
            return _line_format(kind, content_type), AUTO
        case "tar" | "zip":
            return by_kind, split
        case _:
            return split, AUTO


def _line_format(kind: Kind | None, content_type: str | None) -> str:
    if kind is None:
        return "line"
    if kind not in _LINE_FORMATS:
        raise ConfigError(
            f"{content_type} has no lines to split at: remove the split, or choose another: "
            f"{', '.join(s for s in SPLITS if s != 'line')}"
        )
    return _LINE_FORMATS[kind]


def bare_type(content_type: str) -> str:
    """Return a content type in lower case without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def _parse_choice(name: str, word: str | None, known: tuple[str, ...]) -> str | None:
    if word is None or word.lower() in known:
        return None if word is None else word.lower()
    raise ConfigError(f"{name} {word!r}: choose one of {', '.join(known)}{_suggestion(word.lower(), known)}")


def _suggestion(word: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""
