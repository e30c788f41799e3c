"""What a content type, a split and a compression say of how objects are read, and an accept of what is written."""

import difflib
from typing import Final, Literal, cast, get_args

from headrace.core.errors import ConfigError
from headrace.formats.read import AUTO, FormatName, ReadOptions
from headrace.transforms.settings import Accept

Kind = Literal[
    "csv", "json", "jsonl", "text", "whole", "recordio", "tfrecord", "parquet", "image", "audio", "video"
]
"""What an object holds, whatever its content type is called."""

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
    "application/x-image": "image",
    "line": "text",
}
_FAMILIES: Final[dict[str, Kind]] = {"image": "image", "audio": "audio", "video": "video"}

_RECORDS: Final[dict[Kind, FormatName]] = {"text": "line"}
"""The format of a kind's records, where it is called otherwise."""
_LINES: Final[dict[Kind, FormatName]] = {
    "csv": "csv",
    "json": "jsonl",
    "jsonl": "jsonl",
    "text": "line",
    "whole": "line",
}
_BARE: Final[dict[Kind, FormatName]] = {"json": "json", "image": "image"}
"""The format of whole objects, where it is not their bytes."""

SPLITS: Final = ("none", "line", "recordio", "tfrecord", "csv", "jsonl", "parquet", "tar")
COMPRESSIONS: Final = (AUTO, "none", "gzip", "bzip2", "zstd")

_ACCEPTS: Final[dict[str, Accept]] = {
    "*/*": "auto",
    "text/plain": "text",
    "application/octet-stream": "text",
    "application/vnd.apache.arrow.file": "arrow",
    **{
        name: cast("Accept", kind)
        for name, kind in _KINDS.items()
        if kind in {"csv", "json", "jsonl", "parquet"}
    },
}


def kind_of(content_type: str) -> Kind:
    """What a MIME type, or one of headrace's short names, says of an object; parameters and case are passed over.

    A MIME type that is not known is "whole": bytes that only the model understands. ConfigError for what is neither.
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
        f"{', '.join(get_args(Kind))}{_nearest(name, (*get_args(Kind), *_KINDS))}"
    )


def accept_of(accept: str) -> Accept:
    """What is written for a MIME type or one of headrace's short names; parameters and case are passed over.

    ConfigError for what cannot be written.
    """
    name = bare_type(accept)
    if name in get_args(Accept):
        return cast("Accept", name)
    if (found := _ACCEPTS.get(name)) is not None:
        return found
    raise ConfigError(
        f"accept {accept!r} is not written here: choose one of {', '.join(sorted(_ACCEPTS))}, or one of "
        f"{', '.join(get_args(Accept))}"
    )


def read_options(
    content_type: str | None = None, split: str | None = None, compression: str | None = None
) -> ReadOptions:
    """How objects of a content type (MIME type or short name) are read, split and decompressed.

    Each None goes by what is left: without a split by the content type, without either by an object's name.

    - split "none": an object is one record, whatever its name ends in: JSON is parsed, images are decoded, all else
      is its bytes.
    - split "line": text/csv is cut into CSV records, so that a newline in quotes stays in its record. That is so in
      strict mode too: the vendor cuts there, and says not to have such newlines. JSON and JSON Lines are a JSON value
      a line; any other text is its lines. ConfigError for what has no lines: images, audio, video, Parquet, RecordIO, TFRecord.
    - split "recordio", "tfrecord", "csv", "jsonl", "parquet": that, whatever the content type.
    - split "tar": objects are archives, and their members are what the content type says, or go by their names.

    Words are taken in any case. ConfigError for a word or content type that is not known.
    """
    kind = None if content_type is None else kind_of(content_type)
    split = _word("split", split, SPLITS)
    name, archive = _layers(kind, split, content_type)
    return ReadOptions(
        compression=_word("compression", compression, COMPRESSIONS) or AUTO, archive=archive, format=name
    )


def _layers(kind: Kind | None, split: str | None, content_type: str | None) -> tuple[str, str]:
    """Format and archive."""
    by_kind = AUTO if kind is None else str(_RECORDS.get(kind, kind))
    match split:
        case None:
            return by_kind, AUTO
        case "none":
            return (_BARE.get(kind, "whole") if kind else "whole"), "none"
        case "line":
            return _of_lines(kind, content_type), AUTO
        case "tar":
            return by_kind, "tar"
        case _:
            return split, AUTO


def _of_lines(kind: Kind | None, content_type: str | None) -> str:
    if kind is None:
        return "line"
    if kind not in _LINES:
        raise ConfigError(
            f"{content_type} has no lines to split at: leave the split out, or choose one that fits: "
            f"{', '.join(s for s in SPLITS if s != 'line')}"
        )
    return _LINES[kind]


def bare_type(content_type: str) -> str:
    """A content type without its parameters, in small letters."""
    return content_type.partition(";")[0].strip().lower()


def _word(what: str, word: str | None, known: tuple[str, ...]) -> str | None:
    if word is None or word.lower() in known:
        return None if word is None else word.lower()
    raise ConfigError(f"{what} {word!r}: choose one of {', '.join(known)}{_nearest(word.lower(), known)}")


def _nearest(word: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""
