"""A whole object to blocks, layer by layer: decompress, walk the archive, cut records.

Which layers an object has is told by its name (``day.tar.gz``, ``x.csv``) or by `ReadOptions`. What breaks inside a
member costs that member; what breaks the object itself is raised, after every whole record before it was given.
"""

import fnmatch
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, cast, get_args

from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import ConfigError, CorruptError, DataError, EmptySourceError
from headrace.formats import tar
from headrace.formats.compression import Compression, decompress
from headrace.formats.contract import RECORD_BYTES_MAX, AudioChannels, Buffer, Format
from headrace.formats.csv import CsvFormat
from headrace.formats.json import JsonFormat
from headrace.formats.jsonl import JsonLinesFormat
from headrace.formats.line import LineFormat
from headrace.formats.pixels import ImageMode
from headrace.formats.recordio import RecordIOFormat
from headrace.formats.whole import WholeFormat

FormatName = Literal[
    "csv", "jsonl", "json", "line", "whole", "tfrecord", "recordio", "parquet", "image", "audio", "video"
]
AUTO = "auto"

_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".bz2": "bzip2", ".zst": "zstd", ".zstd": "zstd"}
_TAR_SHORT: dict[str, Compression] = {".tgz": "gzip", ".tbz2": "bzip2", ".tbz": "bzip2", ".tzst": "zstd"}
_FORMATS: dict[str, FormatName] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), "csv"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".json": "json",
    **dict.fromkeys((".tfrecord", ".tfrecords"), "tfrecord"),
    ".parquet": "parquet",
    **dict.fromkeys((".rec", ".recordio"), "recordio"),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"), "image"),
    **dict.fromkeys((".wav", ".flac"), "audio"),
    **dict.fromkeys((".mp4", ".m4v", ".mov", ".mkv", ".webm"), "video"),
}
_TEXTS = ("csv", "jsonl", "line")
# Of which nothing is to be said but how long a record may be.
_PLAIN = {
    "jsonl": JsonLinesFormat,
    "json": JsonFormat,
    "line": LineFormat,
    "whole": WholeFormat,
    "recordio": RecordIOFormat,
}
_PARQUET = (
    "Parquet is read from its end, not as a stream: use headrace transform, convert it to JSON Lines, or leave it "
    "out of the source"
)
_WEB = ("http://", "https://")  # where what follows a question mark is no part of the name
_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How objects are read; every "auto" goes by the object's or member's name.

    `members` are globs: with a slash they match the whole member name, without one its last part. `header` is that
    of CSV files. `delimiter` None is a comma, or a tab for ``.tsv``. `size_px` is (height, width) of images and
    frames, `image_mode` their channels; the rest is for audio (windows) and video (which frames). Raises
    ConfigError for a compression, archive or format that is not known.
    """

    compression: str = AUTO
    archive: str = AUTO
    format: str = AUTO
    members: tuple[str, ...] = ()
    delimiter: str | None = None
    header: Literal["none", "drop", "names"] = "none"
    record_bytes_max: int = RECORD_BYTES_MAX
    size_px: tuple[int, int] | None = None
    image_mode: ImageMode = "RGB"
    window_ms: float | None = None
    hop_ms: float | None = None
    sample_rate_hz: int | None = None
    audio_channels: AudioChannels = "mono"
    every_frames: int | None = None
    every_ms: float | None = None

    def __post_init__(self) -> None:
        for what, known in (
            ("compression", (AUTO, "none", *get_args(Compression))),
            ("archive", (AUTO, "none", "tar")),
            ("format", (AUTO, *get_args(FormatName))),
        ):
            if getattr(self, what) not in known:
                raise ConfigError(f"{what} {getattr(self, what)!r}: choose one of {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class _Layers:
    """What a name says: how it is compressed, whether it is an archive, and the suffix that is left."""

    compression: Compression | None
    is_tar: bool
    suffix: str


def _layers(name: str, options: ReadOptions, *, inside: bool) -> _Layers:
    return _layers_of(*_suffixes(name), options, inside=inside)


def _suffixes(name: str) -> tuple[str, str]:
    """A name's last two suffixes, as `PurePath.suffix` has them, in lower case; empty where it has none."""
    if name.startswith(_WEB):
        name = name.split("?", 1)[0]
    stem, _, last = name.rstrip("/").rpartition("/")[2].rpartition(".")
    if not stem or not last:
        return "", ""
    before, _, inner = stem.rpartition(".")
    return (f".{inner.lower()}" if before and inner else ""), f".{last.lower()}"


@lru_cache(maxsize=256)
def _layers_of(inner: str, suffix: str, options: ReadOptions, *, inside: bool) -> _Layers:
    compression: Compression | None = None
    is_tar = False
    if suffix in _TAR_SHORT:
        compression, is_tar = _TAR_SHORT[suffix], True
    elif suffix in _COMPRESSIONS:
        compression = _COMPRESSIONS[suffix]
        suffix = inner
    is_tar = is_tar or suffix == ".tar"
    if inside:  # options speak of the object itself
        return _Layers(compression, is_tar, suffix)
    if options.compression != AUTO:
        compression = None if options.compression == "none" else cast("Compression", options.compression)
    if options.archive != AUTO:
        is_tar = options.archive == "tar"
    return _Layers(compression, is_tar, suffix)


def format_name(name: str, options: ReadOptions) -> FormatName | None:
    """The format of an object or member, by option or by name; None when neither tells."""
    if options.format != AUTO:
        return cast("FormatName", options.format)
    return _FORMATS.get(_layers(name, options, inside=True).suffix)


def delimiter_of(name: str, options: ReadOptions) -> str:
    """What stands between the cells of a CSV object or member."""
    if options.delimiter is not None:
        return options.delimiter
    return "\t" if _layers(name, options, inside=True).suffix == ".tsv" else ","


def seekable(uri: str, options: ReadOptions) -> bool:
    """Whether reading can begin at any member's header: so in an archive that is not compressed."""
    layers = _layers(uri, options, inside=False)
    return layers.is_tar and layers.compression is None


def text_format(uri: str, options: ReadOptions) -> CsvFormat | LineFormat | None:
    """How an object is cut that is plain text, so that any range of it can be read by itself; None where it is not."""
    return _text_format(*_suffixes(uri), options)


@lru_cache(maxsize=256)
def _text_format(inner: str, suffix: str, options: ReadOptions) -> CsvFormat | LineFormat | None:
    """By a name's suffixes, which is all that counts of it: many objects have the same."""
    name = f"x{inner}{suffix}"
    layers = _layers(name, options, inside=False)
    kind = format_name(name, options)
    if layers.is_tar or layers.compression is not None or kind not in _TEXTS:
        return None
    made = make_format(name, kind, options)
    return made if isinstance(made, CsvFormat | LineFormat) else None


def by_row_groups(uri: str, options: ReadOptions) -> bool:
    """Whether an object is a Parquet file, which is read in parts from anywhere in it, and not as its bytes come."""
    layers = _layers(uri, options, inside=False)
    in_archive = layers.is_tar and options.format != "parquet"
    return not in_archive and layers.compression is None and format_name(uri, options) == "parquet"


def unreadable(uri: str, options: ReadOptions) -> str:
    """Why an object cannot be read at all as it comes, by its name and the options; empty when it may be."""
    if _layers(uri, options, inside=False).is_tar and options.format != "parquet":
        return ""
    kind = format_name(uri, options)
    if kind == "parquet":
        return f"{uri}: {_PARQUET}"
    if kind is not None:
        return ""
    *others, last = get_args(FormatName)
    return (
        f"{uri}: its name does not tell what is in it; say so with --format ({', '.join(others)} or {last}; of a "
        "transform: --split or --content-type), or leave it out of the source"
    )


def read_object(
    uri: str,
    chunks: Iterable[Buffer],
    options: ReadOptions,
    *,
    resume: Position | None = None,
    started_at: int = 0,
) -> Iterator[Block]:
    """Every block of an object, in order.

    With `resume` the records before that position are read past: everything else is as if they had been given.
    `started_at` says at which byte of a `seekable` object the chunks begin (a member's header).

    Raises CorruptError and TruncatedError for the object's own layers, EmptySourceError for an archive in which
    nothing is to be read, ConfigError when the format is unknown or Parquet.
    """
    layers = _layers(uri, options, inside=False)
    try:
        if layers.compression is not None:
            chunks = decompress(layers.compression, chunks)
        if layers.is_tar:
            yield from _read_archive(uri, chunks, options, resume, started_at)
            return
        name = format_name(uri, options)
        if name is None or name == "parquet":
            raise ConfigError(unreadable(uri, options))
        blocks = make_format(uri, name, options).blocks(chunks, Position(uri))
        yield from after(blocks, resume)
    except CorruptError as error:
        raise error.at(uri, None) from error


def make_format(name: str, kind: FormatName, options: ReadOptions) -> Format:
    """The format `kind`, set up as the options say. Some formats are extras, imported here.

    Raises ConfigError for Parquet, which is not read from chunks: see `parquet_read`.
    """
    limit = options.record_bytes_max
    if kind == "csv":
        delimiter = delimiter_of(name, options)
        return CsvFormat(delimiter=delimiter, header=options.header, record_bytes_max=limit)
    if kind in _PLAIN:
        return _PLAIN[kind](record_bytes_max=limit)
    if kind == "parquet":
        raise ConfigError(f"{name}: {_PARQUET}")
    if kind == "tfrecord":
        from headrace.formats.tfrecord import TfRecordFormat  # noqa: PLC0415 - an extra

        return TfRecordFormat(record_bytes_max=limit)
    return _media_format(name, kind, options)


def _media_format(name: str, kind: FormatName, options: ReadOptions) -> Format:
    if kind == "image":
        from headrace.formats.image import ImageFormat  # noqa: PLC0415 - an extra

        return ImageFormat(size_px=options.size_px, mode=options.image_mode)
    if kind == "audio":
        from headrace.formats.audio import AudioFormat  # noqa: PLC0415 - an extra

        if options.window_ms is None:
            raise ConfigError(f"{name} is audio: say how long a window is with --window-ms")
        return AudioFormat(
            window_ms=options.window_ms,
            hop_ms=options.hop_ms,
            sample_rate_hz=options.sample_rate_hz,
            channels=options.audio_channels,
        )
    from headrace.formats.video import VideoFormat  # noqa: PLC0415 - an extra

    return VideoFormat(
        every_frames=options.every_frames,
        every_ms=options.every_ms,
        size_px=options.size_px,
        mode=options.image_mode,
    )


class _Archive:
    """The archive's own chunks; remembers its error, to tell it from a member's."""

    def __init__(self) -> None:
        self.error: CorruptError | None = None

    def watched(self, pieces: Iterable[Buffer]) -> Iterator[Buffer]:
        try:
            yield from pieces
        except CorruptError as error:
            self.error = error
            raise


def _read_archive(
    uri: str,
    chunks: Iterable[Buffer],
    options: ReadOptions,
    resume: Position | None,
    started_at: int,
) -> Iterator[Block]:
    names: list[str] = []
    matched = False
    for member in tar.members(chunks, start_byte=started_at):
        if len(names) <= _NAMES_SHOWN:
            names.append(member.name)
        if not _wanted(member.name, options.members):
            continue
        matched = True
        if resume is not None and member.header_byte < resume.member_byte:
            continue
        here = resume if resume is not None and member.header_byte == resume.member_byte else None
        first = Position(uri, member.name, member_byte=member.header_byte)
        yield from after(_read_member(member, first, options), here)
    if matched:
        return
    if not names:
        raise EmptySourceError(uri, "the archive holds no files")
    globs, shown = ", ".join(options.members), ", ".join(names[:_NAMES_SHOWN])
    more = ", …" if len(names) > _NAMES_SHOWN else ""
    raise EmptySourceError(uri, f"no member matches {globs}; its members are {shown}{more}")


def _wanted(name: str, globs: tuple[str, ...]) -> bool:
    last = name.rsplit("/", 1)[-1]
    return not globs or any(fnmatch.fnmatchcase(name if "/" in glob else last, glob) for glob in globs)


def _read_member(member: tar.Member, first: Position, options: ReadOptions) -> Iterator[Block]:
    """A member's blocks, and a failure when the rest of it cannot be read."""
    last: Block | None = None
    archive = _Archive()
    try:
        for block in _member_blocks(member, archive, first, options):
            last = block
            yield block
    except DataError as error:
        if archive.error is not None:
            raise archive.error.at(first.object, first.member) from error
        if isinstance(error, CorruptError):
            error = error.at(first.object, first.member)
        reached = first if last is None else behind(last)
        failure = Failure(reached, FailureKind.OBJECT, f"{error}; the rest of this member is not read")
        yield Block(reached, failures=(failure,))


def behind(block: Block) -> Position:
    """Where the record after a block begins, as far as the block tells."""
    here = block.failures[-1].position if block.failures else block.first
    if len(block) and block.data and not block.failures:
        here = block.position(len(block) - 1)
        if block.header_bytes is not None:
            byte = here.byte + block.header_bytes + len(block.data) - int(block.starts[-1])
            return replace(here, byte=byte, record=here.record + 1)
        stop = int(block.ends[-1])
        stop += 2 if block.data.startswith(b"\r\n", stop) else block.data.startswith(b"\n", stop)
        text = block.data[int(block.starts[-1]) : stop]
        here = replace(here, line=here.line + text.count(b"\n"), byte=here.byte + len(text))
    return replace(here, record=block.first.record + block.records)


def _member_blocks(
    member: tar.Member, archive: _Archive, first: Position, options: ReadOptions
) -> Iterator[Block]:
    layers = _layers(member.name, options, inside=True)
    kind = format_name(member.name, options)
    refused = member.refused
    if layers.is_tar:
        refused = "it is an archive within an archive, which is not read; unpack it first, or leave it out"
    elif kind is None:
        refused = "its name does not tell what is in it; say --format (of a transform: --split), or choose members with --members"
    elif kind == "parquet":
        refused = _PARQUET
    if refused or kind is None:
        raise DataError(f"{member.name} in {first.object}: {refused}")
    chunks: Iterable[Buffer] = archive.watched(member.pieces)
    if layers.compression is not None:
        chunks = decompress(layers.compression, chunks)
    yield from make_format(member.name, kind, options).blocks(chunks, first)


def after(blocks: Iterator[Block], resume: Position | None) -> Iterator[Block]:
    """The blocks without their first `resume.record` entries."""
    if resume is None or not resume.record:
        yield from blocks
        return
    for block in blocks:
        past = resume.record - block.first.record
        if past <= 0:
            yield block
        elif past < block.records:
            yield _without_first(block, past)


def _without_first(block: Block, count: int) -> Block:
    """A block's entries from number `count` on: its records, then its failures."""
    failures = block.failures[max(0, count - len(block)) :]
    first = block.position(count) if count < len(block) else failures[0].position
    return replace(
        block,
        first=first,
        starts=block.starts[count:],
        ends=block.ends[count:],
        columns={name: data[count:] for name, data in block.columns.items()},
        failures=failures,
    )


def only_first(block: Block, count: int) -> Block:
    """A block's first `count` entries: its records, then its failures."""
    return replace(
        block,
        starts=block.starts[:count],
        ends=block.ends[:count],
        columns={name: data[:count] for name, data in block.columns.items()},
        failures=block.failures[: max(0, count - len(block))],
    )
