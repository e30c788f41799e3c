"""The options for reading objects: the layers and formats of objects, and how each format is read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final, Literal

from headrace.core.errors import ConfigError
from headrace.core.settings import Setting, check
from headrace.formats.compression import Compression
from headrace.formats.contract import RECORD_BYTES_MAX, AudioChannels, ImageMode
from headrace.formats.csv import Header
from headrace.formats.csv_dialect import CsvDialect, Decimal
from headrace.formats.encoding import UTF8, checked_encoding

FormatName = Literal[
    "csv",
    "jsonl",
    "json",
    "v2",
    "jsonarray",
    "line",
    "whole",
    "tfrecord",
    "recordio",
    "parquet",
    "arrow",
    "orc",
    "avro",
    "image",
    "audio",
    "video",
    "webdataset",
]
Archive = Literal["tar", "zip"]
AUTO: Final = "auto"
V2: Final = "v2"
"""The format of inference requests of the Open Inference Protocol, one JSON document per line."""
WEBDATASET: Final = "webdataset"
"""The format of records whose fields are members of an archive, such as ``0001.jpg`` and ``0001.json``."""
TABLE_FORMATS: Final[frozenset[str]] = frozenset({"parquet", "arrow", "orc", "avro"})
"""The formats whose records are rows of typed columns (`Block.table`)."""
RANDOM_ACCESS: Final[frozenset[str | None]] = frozenset({"parquet", "orc"})
"""The formats whose metadata is at the end of the file."""
IMAGE_EDGE_PX_MAX: Final = 1 << 16


def _checked_delimiter(text: str) -> str:
    if len(text) != 1 or text in '"\r\n':
        raise ConfigError(f"must be one character other than a quote or a line end, not {text!r:.40}")
    return text


def _checked_quote(text: str) -> str:
    return _checked_character(text) if text else text


def _checked_character(text: str) -> str:
    if len(text) != 1 or not text.isascii() or text in "\r\n\0":
        raise ConfigError(f"must be one ASCII character other than a line end, not {text!r:.40}")
    return text


def _checked_comment(text: str) -> str:
    if not text or not set(text).isdisjoint("\r\n\0"):
        raise ConfigError(f"must be text without line ends, not {text!r:.40}")
    return text


_CHARACTER_CHECKS: Final[Mapping[str, Callable[[str], str]]] = {
    "quote": _checked_quote,
    "escape": _checked_character,
    "comment": _checked_comment,
    "encoding": checked_encoding,
}
"""The checks of options that are text, by their fields."""


def _checked_size_px(size: tuple[int, int]) -> tuple[int, int]:
    if not all(0 < edge <= IMAGE_EDGE_PX_MAX for edge in size):
        raise ConfigError(f"must be [height, width] from 1 to {IMAGE_EDGE_PX_MAX} pixels, not {list(size)}")
    return size


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options for reading objects. "auto" means a choice by the name of the object or member.

    `members` are globs. A glob with a slash matches the whole member name, any other glob its last
    part. Raises ConfigError for an unknown word, and for characters of CSV with two meanings.
    """

    compression: Annotated[Literal["auto", "none", Compression], Setting("Compression of objects.")] = "auto"
    archive: Annotated[
        Literal["auto", "none", Archive], Setting("Archive format of objects.", python_only=True)
    ] = "auto"
    format: Annotated[
        Literal["auto", FormatName],
        Setting("Format of objects and members; auto chooses by file name."),
    ] = "auto"
    members: Annotated[tuple[str, ...], Setting("Archive members to read. Repeatable.", metavar="GLOB")] = ()
    delimiter: Annotated[
        str | None,
        Setting(
            r"Delimiter of CSV cells; \t is a tab.",
            default=", or tab for .tsv",
            metavar="C",
            expected="one character",
            parse=_checked_delimiter,
        ),
    ] = None
    quote: Annotated[
        str,
        Setting(
            "Quote around CSV cells; empty for none.",
            metavar="C",
            expected="one character, or an empty text",
            parse=_checked_quote,
        ),
    ] = '"'
    escape: Annotated[
        str | None,
        Setting(
            "Character in CSV that makes the next one data.",
            default="none",
            metavar="C",
            expected="one character",
            parse=_checked_character,
        ),
    ] = None
    null_words: Annotated[
        tuple[str, ...],
        Setting(
            "CSV cell that means a missing number: NaN for floats, a failure for integers. Repeatable.",
            option="null_word",
            metavar="WORD",
        ),
    ] = ()
    decimal: Annotated[Decimal, Setting("Decimal mark of numbers in CSV.")] = "."
    comment: Annotated[
        str | None,
        Setting(
            "Start of the lines of CSV, JSON Lines and text that are not records.",
            default="none",
            metavar="PREFIX",
            expected="text without line ends",
            parse=_checked_comment,
        ),
    ] = None
    skip_rows: Annotated[
        int, Setting("First lines of each object or member of CSV, JSON Lines and text to drop.", least=0)
    ] = 0
    encoding: Annotated[
        str,
        Setting(
            "Encoding of CSV, JSON, JSON Lines and text, such as latin-1 or utf-16.",
            metavar="NAME",
            expected="the name of a text encoding",
            parse=checked_encoding,
        ),
    ] = UTF8
    header: Annotated[
        Header,
        Setting(
            "First record of a CSV file: data (none), a header to skip (drop), column names (names), or a "
            "header only if it has the known column names (auto)."
        ),
    ] = "auto"
    names: Annotated[tuple[str, ...], Setting("Known column names of CSV, in order.", python_only=True)] = ()
    record_bytes_max: Annotated[int, Setting("Size limit of a record; longer records fail.", least=1)] = (
        RECORD_BYTES_MAX
    )
    size_px: Annotated[
        tuple[int, int] | None,
        Setting(
            "Height and width in pixels to which images and frames are resized.",
            name="image_size",
            expected="[height, width] in pixels",
            parse=_checked_size_px,
            metavar="HxW",
        ),
    ] = None
    image_mode: Annotated[ImageMode, Setting("Channels of images and frames: RGB, or L for greyscale.")] = (
        "RGB"
    )
    window_ms: Annotated[float | None, Setting("Audio window length in milliseconds.", above=0)] = None
    hop_ms: Annotated[
        float | None,
        Setting(
            "Time between the starts of two audio windows in milliseconds.", above=0, default="--window-ms"
        ),
    ] = None
    sample_rate_hz: Annotated[
        int | None, Setting("Audio sample rate in Hz after resampling.", old_names=("sample_rate",), least=1)
    ] = None
    audio_channels: Annotated[
        AudioChannels, Setting("Audio channels: their mean (mono), or all of them (keep).")
    ] = "mono"
    every_frames: Annotated[int | None, Setting("Interval of video frames to read, in frames.", least=1)] = (
        None
    )
    every_ms: Annotated[
        float | None, Setting("Interval of video frames to read, in milliseconds.", above=0)
    ] = None

    def __post_init__(self) -> None:
        check(self)
        for name, parse in _CHARACTER_CHECKS.items():
            value: str | None = getattr(self, name)
            try:
                if value is not None:
                    parse(value)
            except ConfigError as error:
                raise ConfigError(f"{name} {error}") from None
        if self.delimiter is not None:
            dialect_of(self.delimiter, self)

    @property
    def has_column_names(self) -> bool:
        """True if the blocks of CSV have column names, from their headers or from `names`."""
        return self.header == "names" or bool(self.names)


@lru_cache(maxsize=16)
def dialect_of(delimiter: str, options: ReadOptions) -> CsvDialect:
    """Return the dialect of CSV with a delimiter. Raise ConfigError if a character has two meanings in it."""
    return CsvDialect.from_strings(
        delimiter,
        options.quote,
        escape=options.escape,
        null_words=options.null_words,
        decimal=options.decimal,
        encoding=options.encoding,
    )
