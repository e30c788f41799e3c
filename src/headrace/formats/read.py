"""Blocks of a whole object, layer by layer: decompress, read the archive, decode the text, cut records.

The layers of an object come from its name (``day.tar.gz``, ``x.csv``) or from `ReadOptions`. Damage
inside a member fails that member only. Damage to the object itself raises an error, after every
whole record before the damage.
"""

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import get_args

from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import ConfigError, CorruptError, DataError, EmptySourceError
from headrace.formats import tar
from headrace.formats.compression import Compression, decompress
from headrace.formats.contract import ArchiveMember, Buffer, Format, ReadAt
from headrace.formats.csv import CsvFormat
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.encoding import is_utf8, to_utf8
from headrace.formats.frames import RecordIOFormat
from headrace.formats.json_array import JsonArrayFormat, JsonOrArrayFormat
from headrace.formats.line import JsonFormat, JsonLinesFormat, LineFormat, WholeFormat
from headrace.formats.read_options import (
    AUTO,
    RANDOM_ACCESS,
    V2,
    WEBDATASET,
    Archive,
    FormatName,
    ReadOptions,
    dialect_of,
)
from headrace.formats.webdataset import record_blocks

_COMPRESSION_SUFFIXES: dict[str, Compression] = {
    ".gz": "gzip",
    ".bz2": "bzip2",
    ".zst": "zstd",
    ".zstd": "zstd",
}
_TAR_SUFFIXES: dict[str, Compression] = {".tgz": "gzip", ".tbz2": "bzip2", ".tbz": "bzip2", ".tzst": "zstd"}
_ARCHIVE_SUFFIXES: dict[str, Archive] = {".tar": "tar", ".zip": "zip"}
_FORMAT_SUFFIXES: dict[str, FormatName] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), "csv"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".json": "json",
    **dict.fromkeys((".tfrecord", ".tfrecords"), "tfrecord"),
    ".parquet": "parquet",
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    ".orc": "orc",
    ".avro": "avro",
    **dict.fromkeys((".rec", ".recordio"), "recordio"),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"), "image"),
    **dict.fromkeys((".wav", ".flac"), "audio"),
    **dict.fromkeys((".mp4", ".m4v", ".mov", ".mkv", ".webm"), "video"),
}
_TEXT_FORMATS = ("csv", "jsonl", V2, "line")
_ENCODED_FORMATS = (*_TEXT_FORMATS, "json", "jsonarray")
# Formats of one record per line.
_LINE_FORMATS = {
    "jsonl": JsonLinesFormat,
    V2: JsonLinesFormat,
    "line": LineFormat,
}
# Formats with a single option, the maximum length of a record.
_SIMPLE_FORMATS = {
    "json": JsonFormat,
    "jsonarray": JsonArrayFormat,
    "whole": WholeFormat,
    "recordio": RecordIOFormat,
}
_NOT_STREAMED: dict[str | None, str] = {
    **dict.fromkeys(
        RANDOM_ACCESS,
        "Parquet and ORC are read from their ends, so they can be neither compressed nor members of "
        "archives: unpack the file first, or exclude it from the source",
    ),
    WEBDATASET: "a WebDataset shard is an archive, but the name does not end in .tar, .tar.gz or .zip: "
    "rename or exclude the object, or choose another format",
}
"""The formats that are not read from the chunks of one object or member, each with the reason."""
_WEB_SCHEMES = ("http://", "https://")  # Names with these schemes end at a question mark.
_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class _Layers:
    """The layers in a name: the compression, the archive, and the remaining suffix."""

    compression: Compression | None
    archive: Archive | None
    suffix: str


def _layers_from_name(name: str, options: ReadOptions, *, in_archive: bool) -> _Layers:
    return _cached_layers(*_last_suffixes(name), options, in_archive=in_archive)


def _last_suffixes(name: str) -> tuple[str, str]:
    """Return the last two suffixes of a name as `PurePath.suffix` does, in lower case.

    A missing suffix is empty.
    """
    if name.startswith(_WEB_SCHEMES):
        name = name.split("?", 1)[0]
    stem, _, last = name.rstrip("/").rpartition("/")[2].rpartition(".")
    if not stem or not last:
        return "", ""
    before, _, inner = stem.rpartition(".")
    return (f".{inner.lower()}" if before and inner else ""), f".{last.lower()}"


@lru_cache(maxsize=256)
def _cached_layers(inner: str, suffix: str, options: ReadOptions, *, in_archive: bool) -> _Layers:
    compression: Compression | None = None
    archive: Archive | None = None
    if suffix in _TAR_SUFFIXES:
        compression, archive = _TAR_SUFFIXES[suffix], "tar"
    elif suffix in _COMPRESSION_SUFFIXES:
        compression = _COMPRESSION_SUFFIXES[suffix]
        suffix = inner
    archive = archive or _ARCHIVE_SUFFIXES.get(suffix)
    if in_archive:  # Options describe the object itself, not its members.
        return _Layers(compression, archive, suffix)
    if options.compression != AUTO:
        compression = None if options.compression == "none" else options.compression
    if options.archive != AUTO:
        archive = None if options.archive == "none" else options.archive
    return _Layers(compression, archive, suffix)


def format_name(name: str, options: ReadOptions) -> FormatName | None:
    """Return the format of an object or member from the option or the name, or None if unknown."""
    if options.format != AUTO:
        return options.format
    return _FORMAT_SUFFIXES.get(_layers_from_name(name, options, in_archive=True).suffix)


def is_file_name(name: str) -> bool:
    """Return True if the name has the suffix of a format, a compression or an archive."""
    layers = _layers_from_name(name, ReadOptions(), in_archive=True)
    return layers.archive is not None or layers.compression is not None or layers.suffix in _FORMAT_SUFFIXES


def csv_dialect(name: str, options: ReadOptions, *, delimiter: str | None = None) -> CsvDialect:
    """Return the dialect of a CSV object or member, with another `delimiter` if there is one.

    Raise ConfigError if a character has two meanings in it.
    """
    delimiter = delimiter or options.delimiter
    if delimiter is None:
        is_tsv = _layers_from_name(name, options, in_archive=True).suffix == ".tsv"
        delimiter = "\t" if is_tsv else ","
    return dialect_of(delimiter, options)


def is_seekable(uri: str, options: ReadOptions) -> bool:
    """Return True if a stream can begin at the header of any member: in an uncompressed tar archive."""
    layers = _layers_from_name(uri, options, in_archive=False)
    return layers.archive == "tar" and layers.compression is None


def text_format(uri: str, options: ReadOptions) -> CsvFormat | LineFormat | None:
    """Return the format of a plain-text object, or None for other objects.

    Any range of such an object can be read on its own. In other encodings than UTF-8, a range could
    begin within a character.
    """
    return _cached_text_format(*_last_suffixes(uri), options)


@lru_cache(maxsize=256)
def _cached_text_format(inner: str, suffix: str, options: ReadOptions) -> CsvFormat | LineFormat | None:
    """Return the text format for the suffixes of a name, on which alone it depends."""
    name = f"x{inner}{suffix}"
    layers = _layers_from_name(name, options, in_archive=False)
    kind = format_name(name, options)
    if layers.archive is not None or layers.compression is not None or kind not in _TEXT_FORMATS:
        return None
    if not is_utf8(options.encoding):
        return None
    candidate = make_format(name, kind, options)
    return candidate if isinstance(candidate, CsvFormat | LineFormat) else None


def is_random_access(uri: str, options: ReadOptions) -> bool:
    """Return True for Parquet and ORC: they are read in parts at any offset instead of as a stream."""
    layers = _layers_from_name(uri, options, in_archive=False)
    is_archive = layers.archive is not None and options.format not in RANDOM_ACCESS
    return not is_archive and layers.compression is None and format_name(uri, options) in RANDOM_ACCESS


def is_zip(uri: str, options: ReadOptions) -> bool:
    """Return True for a zip archive: it is read by `read_zip`, at any offset instead of as a stream."""
    layers = _layers_from_name(uri, options, in_archive=False)
    return layers.archive == "zip" and layers.compression is None and options.format not in RANDOM_ACCESS


def unreadable_reason(uri: str, options: ReadOptions) -> str:
    """Return why an object cannot be read as a stream, from its name and the options.

    An empty string means that the object may be readable.
    """
    layers = _layers_from_name(uri, options, in_archive=False)
    if layers.archive == "zip" and layers.compression is not None:
        return f"{uri}: a zip archive is read from its end, so it must not be compressed: decompress it first"
    if layers.archive is not None and options.format not in RANDOM_ACCESS:
        return ""
    kind = format_name(uri, options)
    if kind in _NOT_STREAMED:
        return f"{uri}: {_NOT_STREAMED[kind]}"
    if kind is not None:
        return ""
    *others, last = get_args(FormatName)
    return (
        f"{uri}: the name does not determine the format; choose it with --format "
        f"({', '.join(others)} or {last}; in a transform: --split or --content-type), "
        "or exclude the object from the source"
    )


def read_object(
    uri: str,
    chunks: Iterable[Buffer],
    options: ReadOptions,
    *,
    resume: Position | None = None,
    start_byte: int = 0,
    columns: Sequence[str] | None = None,
) -> Iterator[Block]:
    """Yield every block of an object, in order.

    With `resume`, records before that position are skipped and everything else is unchanged.
    `columns` are the columns of a table to keep, or None for all; members keep all of them.
    `start_byte` is the offset in a seekable object (see `is_seekable`) at which the chunks begin:
    the header of a member.

    Raise CorruptError and TruncatedError for damage to the object's own layers, EmptySourceError
    for an archive without a selected member, and ConfigError if the format is unknown or of random access, or
    if the object is a zip archive (`read_zip`).
    """
    layers = _layers_from_name(uri, options, in_archive=False)
    try:
        if layers.compression is not None:
            chunks = decompress(layers.compression, chunks)
        if layers.archive == "tar":
            yield from _read_members(uri, tar.members(chunks, start_byte=start_byte), options, resume)
            return
        name = format_name(uri, options)
        if name is None or name in _NOT_STREAMED or layers.archive is not None:
            raise ConfigError(unreadable_reason(uri, options))
        blocks = make_format(uri, name, options, columns=columns).blocks(
            _text_chunks(chunks, name, options), Position(uri)
        )
        yield from skip_records(blocks, resume)
    except CorruptError as error:
        raise error.with_location(uri, None) from error


def read_zip(
    uri: str,
    read_at: ReadAt,
    size_bytes: int | None,
    options: ReadOptions,
    *,
    resume: Position | None = None,
) -> Iterator[Block]:
    """Yield every block of a zip archive, in the order of the bytes of its members.

    `resume` is that of `read_object`; members before that position are not read. Raise CorruptError for
    an archive of unknown size or with a damaged directory, EmptySourceError for an archive without a
    selected member, and the errors of `read_at`.
    """
    from headrace.formats import zip_archive  # noqa: PLC0415 - most commands need no zipfile

    if size_bytes is None:
        raise CorruptError(
            "its size is unknown, but a zip archive is read from its end: copy it to a store with sizes",
            byte=0,
            object=uri,
        )
    try:
        yield from _read_members(uri, zip_archive.members(read_at, size_bytes), options, resume)
    except CorruptError as error:
        raise error.with_location(uri, None) from error


def _text_chunks(chunks: Iterable[Buffer], kind: FormatName, options: ReadOptions) -> Iterable[Buffer]:
    """Return the chunks of a text in UTF-8, and those of other formats unchanged."""
    if kind not in _ENCODED_FORMATS or is_utf8(options.encoding):
        return chunks
    return to_utf8(chunks, options.encoding)


def make_format(
    name: str, kind: FormatName, options: ReadOptions, *, columns: Sequence[str] | None = None
) -> Format:
    """Return the format `kind`, configured by the options. Optional formats are imported here.

    `columns` are the columns of a table to keep, or None for all.

    Raise ConfigError for Parquet and ORC, which are not read from chunks (see `is_random_access`), and for
    WebDataset, of which an archive is read.
    """
    limit = options.record_bytes_max
    if kind == "json" and options.format == AUTO:
        return JsonOrArrayFormat(record_bytes_max=limit)
    if kind == "csv":
        return CsvFormat(
            dialect=csv_dialect(name, options),
            header=options.header,
            names=options.names,
            comment=options.comment or "",
            skip_rows=options.skip_rows,
            record_bytes_max=limit,
        )
    if kind in _LINE_FORMATS:
        return _LINE_FORMATS[kind](
            comment=options.comment or "", skip_rows=options.skip_rows, record_bytes_max=limit
        )
    if kind in _SIMPLE_FORMATS:
        return _SIMPLE_FORMATS[kind](record_bytes_max=limit)
    if kind in _NOT_STREAMED:
        raise ConfigError(f"{name}: {_NOT_STREAMED[kind]}")
    if kind == "arrow":
        from headrace.formats.arrow_read import ArrowFormat  # noqa: PLC0415 - an extra

        return ArrowFormat(columns=columns, record_bytes_max=limit)
    if kind == "avro":
        from headrace.formats.avro_read import AvroFormat  # noqa: PLC0415 - an extra

        return AvroFormat(columns=columns, record_bytes_max=limit)
    if kind == "tfrecord":
        from headrace.formats.tfrecord import TfRecordFormat  # noqa: PLC0415 - an extra

        return TfRecordFormat(record_bytes_max=limit)
    return _media_format(name, kind, options)


def _media_format(name: str, kind: FormatName, options: ReadOptions) -> Format:
    if kind == "image":
        from headrace.formats.media.image import ImageFormat  # noqa: PLC0415 - an extra

        return ImageFormat(size_px=options.size_px, mode=options.image_mode)
    if kind == "audio":
        from headrace.formats.media.audio import AudioFormat  # noqa: PLC0415 - an extra

        if options.window_ms is None:
            raise ConfigError(f"{name} is audio: set the length of a window with --window-ms")
        return AudioFormat(
            window_ms=options.window_ms,
            hop_ms=options.hop_ms,
            sample_rate_hz=options.sample_rate_hz,
            channels=options.audio_channels,
        )
    from headrace.formats.media.video import VideoFormat  # noqa: PLC0415 - an extra

    return VideoFormat(
        every_frames=options.every_frames,
        every_ms=options.every_ms,
        size_px=options.size_px,
        mode=options.image_mode,
    )


class _ArchiveErrors:
    """The error of the archive's own chunks, to distinguish it from an error of a member."""

    def __init__(self) -> None:
        self.error: CorruptError | None = None

    def track(self, pieces: Iterable[Buffer]) -> Iterator[Buffer]:
        try:
            yield from pieces
        except CorruptError as error:
            self.error = error
            raise


def _read_members(
    uri: str, members: Iterable[ArchiveMember], options: ReadOptions, resume: Position | None
) -> Iterator[Block]:
    selected = _selected_members(uri, members, options.members, 0 if resume is None else resume.member_byte)
    if options.format == WEBDATASET:
        blocks = record_blocks(selected, uri, record_bytes_max=options.record_bytes_max)
    else:
        blocks = (block for member in selected for block in _read_member(uri, member, options))
    yield from skip_records(blocks, resume)


def _selected_members(
    uri: str, members: Iterable[ArchiveMember], globs: tuple[str, ...], start_byte: int
) -> Iterator[ArchiveMember]:
    """Yield the members that match one of the globs, and whose header is not before `start_byte`.

    Raise EmptySourceError after the last member if none matches.
    """
    names: list[str] = []
    matched = False
    for member in members:
        if len(names) <= _NAMES_SHOWN:
            names.append(member.name)
        if not _matches(member.name, globs):
            continue
        matched = True
        if member.header_byte >= start_byte:
            yield member
    if matched:
        return
    if not names:
        raise EmptySourceError(uri, "the archive holds no files")
    wanted, shown_names = ", ".join(globs), ", ".join(names[:_NAMES_SHOWN])
    more = ", …" if len(names) > _NAMES_SHOWN else ""
    raise EmptySourceError(uri, f"no member matches {wanted}; the members are {shown_names}{more}")


def _matches(name: str, globs: tuple[str, ...]) -> bool:
    last = name.rsplit("/", 1)[-1]
    return not globs or any(fnmatch.fnmatchcase(name if "/" in glob else last, glob) for glob in globs)


def _read_member(uri: str, member: ArchiveMember, options: ReadOptions) -> Iterator[Block]:
    """Yield the blocks of a member, and a failure if the rest of the member cannot be read."""
    first = Position(uri, member.name, member_byte=member.header_byte)
    last: Block | None = None
    archive_errors = _ArchiveErrors()
    try:
        for block in _decode_member(member, archive_errors, first, options):
            last = block
            yield block
    except DataError as error:
        if archive_errors.error is not None:
            raise archive_errors.error.with_location(first.object, first.member) from error
        if isinstance(error, CorruptError):
            error = error.with_location(first.object, first.member)
        failed_at = first if last is None else position_after(last)
        failure = Failure(failed_at, FailureKind.OBJECT, f"{error}; the rest of this member is not read")
        yield Block(failed_at, failures=(failure,))


def position_after(block: Block) -> Position:
    """Return the start of the record after a block, as far as the block determines it."""
    member_resume = block.failures[-1].position if block.failures else block.first
    if len(block) and block.data and not block.failures:
        member_resume = block.position(len(block) - 1)
        if block.header_bytes is not None:
            byte = member_resume.byte + block.header_bytes + len(block.data) - int(block.starts[-1])
            return replace(member_resume, byte=byte, record=member_resume.record + 1)
        stop = int(block.ends[-1])
        stop += 2 if block.data.startswith(b"\r\n", stop) else block.data.startswith(b"\n", stop)
        text = block.data[int(block.starts[-1]) : stop]
        member_resume = replace(
            member_resume, line=member_resume.line + text.count(b"\n"), byte=member_resume.byte + len(text)
        )
    return replace(member_resume, record=block.number(block.records))


def _decode_member(
    member: ArchiveMember, archive_errors: _ArchiveErrors, first: Position, options: ReadOptions
) -> Iterator[Block]:
    layers = _layers_from_name(member.name, options, in_archive=True)
    kind = format_name(member.name, options)
    reason = member.unreadable_reason
    if layers.archive is not None:
        reason = "an archive within an archive is not supported; unpack it first, or exclude it"
    elif kind is None:
        reason = (
            "the name does not determine the format; choose it with --format (in a transform: --split), "
            "or select members with --members"
        )
    elif kind in _NOT_STREAMED:
        reason = _NOT_STREAMED[kind]
    if reason or kind is None:
        raise DataError(f"{member.name} in {first.object}: {reason}")
    chunks: Iterable[Buffer] = member.pieces
    if not member.is_independent:
        chunks = archive_errors.track(chunks)
    if layers.compression is not None:
        chunks = decompress(layers.compression, chunks)
    yield from make_format(member.name, kind, options).blocks(_text_chunks(chunks, kind, options), first)


def skip_records(blocks: Iterator[Block], resume: Position | None) -> Iterator[Block]:
    """Yield the blocks without the first `resume.record` entries of the member, or object, of `resume`."""
    if resume is None or not resume.record:
        yield from blocks
        return
    for block in blocks:
        is_resumed = block.first.member_byte == resume.member_byte
        skipped = resume.record - block.first.record if is_resumed else 0
        if skipped <= 0:
            yield block
        elif skipped < block.records:
            yield block.slice(skipped, block.records)
