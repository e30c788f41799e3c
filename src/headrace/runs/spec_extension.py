"""Read the ``headrace`` table of a spec file: options that SageMaker lacks, and plainer words.

Each field is checked by itself, as in `headrace.runs.sagemaker`; the settings check the rest.
"""

import logging
import re
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar, cast, get_args

from headrace.core.errors import ConfigError
from headrace.formats.contract import AudioChannels
from headrace.formats.json_path_grammar import SliceEnd
from headrace.formats.media.pixels import ImageMode
from headrace.runs.document import SpecTable, format_value
from headrace.runs.media_types import COMPRESSIONS, SPLITS, accept_of, kind_of
from headrace.runs.settings import Assemble, DataType, Join, OnError, OutputFormat
from headrace.storage.uri import parse

_log = logging.getLogger("headrace.runs")

W = TypeVar("W", bound=str)

_COUNT: Final = re.compile(r"\d{1,15}", re.ASCII)
_SHARE: Final = re.compile(r"(\d{1,3}(?:\.\d{1,9})?)\s*%", re.ASCII)
_IMAGE_EDGE_PX_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class SpecExtension:
    """The ``headrace`` table.

    An absent field is None or empty. Sizes are in bytes; `accept` is resolved.
    """

    model: str | None
    source: str | None
    output: str | None
    job_name: str | None
    instances: int | None
    in_flight_max: int | None
    timeout_s: float | None
    retries: int | None
    strict: bool | None
    data_type: DataType | None
    content_type: str | None
    split: str | None
    compression: str | None
    members: tuple[str, ...] | None
    header: str | None
    delimiter: str | None
    record_bytes_max: int | None
    image_size: tuple[int, int] | None
    image_mode: ImageMode | None
    image_scale: float | None
    window_ms: float | None
    hop_ms: float | None
    sample_rate_hz: int | None
    audio_channels: AudioChannels | None
    every_frames: int | None
    every_ms: float | None
    columns: tuple[str, ...] | tuple[int, ...] | None
    text_column: str | int | None
    whole_records: bool | None
    input_filter: str | None
    output_filter: str | None
    slice_end: SliceEnd | None
    join: Join | None
    accept: OutputFormat | None
    assemble: Assemble | None
    output_header: bool | None
    on_error: OnError | None
    max_failed: tuple[int | None, float | None]
    batch_rows_max: int | None
    batch_bytes_max: int | None
    prefetch_bytes_max: int | None
    task_bytes: int | None
    task_objects: int | None
    checkpoint_s: float | None

    def set_fields(self, *names: str) -> frozenset[str]:
        """Return those of the fields that the table sets."""
        return frozenset(name for name in names if getattr(self, name) is not None)


_RENAMED: Final = {
    "batch_rows": "batch_rows_max",
    "batch_bytes": "batch_bytes_max",
    "prefetch_bytes": "prefetch_bytes_max",
    "max_concurrent": "in_flight_max",
}
"""Old names of fields, for one release."""


def rename_old_fields(table: Any) -> Any:
    """Return the table with new names of its fields, and log a warning for each old one."""
    if not isinstance(table, dict):
        return table
    values = cast("dict[str, Any]", table)
    old = {name: values[name] for name in _RENAMED if name in values}
    for name in old:
        _log.warning("headrace.%s is deprecated: use headrace.%s", name, _RENAMED[name])
    renamed = {_RENAMED[name]: value for name, value in old.items()}
    return renamed | {name: value for name, value in values.items() if name not in old}


EXTENSION_FIELDS: Final = tuple(each.name for each in fields(SpecExtension))
"""The fields of the table."""
_POSITIVE_MIN: Final = 1e-6
"""The minimum of numbers that must be positive."""


def read_extension(table: SpecTable) -> SpecExtension:
    """Return the ``headrace`` table. Raises ConfigError for a wrong type or an invalid value."""
    return SpecExtension(
        model=table.text("model"),
        source=table.checked_text("source", parse),
        output=table.checked_text("output", parse),
        job_name=table.text("job_name"),
        instances=table.integer("instances", 1),
        in_flight_max=table.integer("in_flight_max", 1),
        timeout_s=table.number("timeout_s", _POSITIVE_MIN),
        retries=table.integer("retries", 0),
        strict=table.flag("strict"),
        data_type=_one_of(table, "data_type", get_args(DataType)),
        content_type=table.checked_text("content_type", kind_of),
        split=_one_of(table, "split", SPLITS),
        compression=_one_of(table, "compression", COMPRESSIONS),
        members=table.texts("members"),
        header=_one_of(table, "header", ("none", "drop", "names")),
        delimiter=_delimiter(table),
        record_bytes_max=table.size_bytes("record_bytes_max"),
        image_size=_image_size(table),
        image_mode=_one_of(table, "image_mode", get_args(ImageMode)),
        image_scale=table.number("image_scale", _POSITIVE_MIN),
        window_ms=table.number("window_ms", _POSITIVE_MIN),
        hop_ms=table.number("hop_ms", _POSITIVE_MIN),
        sample_rate_hz=table.integer("sample_rate_hz", 1),
        audio_channels=_one_of(table, "audio_channels", get_args(AudioChannels)),
        every_frames=table.integer("every_frames", 1),
        every_ms=table.number("every_ms", _POSITIVE_MIN),
        columns=_columns(table),
        text_column=_text_column(table),
        whole_records=table.flag("whole_records"),
        input_filter=table.text("input_filter"),
        output_filter=table.text("output_filter"),
        slice_end=_one_of(table, "slice_end", get_args(SliceEnd)),
        join=_one_of(table, "join", get_args(Join)),
        accept=table.parsed_text("accept", accept_of),
        assemble=_one_of(table, "assemble", get_args(Assemble)),
        output_header=table.flag("output_header"),
        on_error=_one_of(table, "on_error", get_args(OnError)),
        max_failed=_max_failed(table),
        batch_rows_max=table.integer("batch_rows_max", 1),
        batch_bytes_max=table.size_bytes("batch_bytes_max"),
        prefetch_bytes_max=table.size_bytes("prefetch_bytes_max"),
        task_bytes=table.size_bytes("task_bytes"),
        task_objects=table.integer("task_objects", 1),
        checkpoint_s=table.number("checkpoint_s", 0),
    )


def parse_max_failed(text: str | None) -> tuple[int | None, float | None]:
    """Return (failed_rows_max, failed_share_max) of a count ``"100"`` or a share ``"1%"``; one is None.

    Both are None without a text. Raises ConfigError for any other text.
    """
    if text is None:
        return None, None
    if _COUNT.fullmatch(text.strip()):
        return int(text), None
    share = _SHARE.fullmatch(text.strip())
    if share is None or float(share[1]) > 100:
        raise ConfigError(
            f"{format_value(text)} is neither a count of failed records such as 100, nor a share such as 1%"
        )
    return None, float(share[1]) / 100


def _max_failed(table: SpecTable) -> tuple[int | None, float | None]:
    value = table.values.get("max_failed")
    if value is None:
        return None, None
    if not isinstance(value, str):
        return table.integer("max_failed", 0), None
    return table.parsed_text("max_failed", parse_max_failed) or (None, None)


def _one_of(table: SpecTable, key: str, choices: tuple[W, ...]) -> W | None:
    return table.choice(key, dict(zip(choices, choices, strict=True)))


def _delimiter(table: SpecTable) -> str | None:
    delimiter = table.text("delimiter")
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
        raise table.error(
            "delimiter",
            f"must be one character other than a quote or a line end, not {format_value(delimiter)}",
        )
    return delimiter


def _image_size(table: SpecTable) -> tuple[int, int] | None:
    size = table.array("image_size")
    if size is None:
        return None
    match list(size):
        case [int() as height, int() as width] if all(
            type(edge) is int and 0 < edge <= _IMAGE_EDGE_PX_MAX for edge in size
        ):
            return height, width
        case _:
            raise table.error("image_size", f"must be [height, width] in pixels, not {format_value(size)}")


def _columns(table: SpecTable) -> tuple[str, ...] | tuple[int, ...] | None:
    columns: Any = table.array("columns")
    if columns is None:
        return None
    if all(isinstance(c, str) and c for c in columns) or all(type(c) is int and c >= 0 for c in columns):
        return tuple(columns)
    raise table.error(
        "columns", f"must be a list of names, or one of numbers from 0, not {format_value(columns)}"
    )


def _text_column(table: SpecTable) -> str | int | None:
    if type(table.values.get("text_column")) is int:
        return table.integer("text_column", 0)
    return table.text("text_column")
