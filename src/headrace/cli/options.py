"""Options of ``headrace stream``: their parsers and the settings made from them.

Invalid values exit with status 2 before a source is opened.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

import click
from click.core import ParameterSource

from headrace.app.predictors import PredictorOptions
from headrace.cli.renamed import old_option_name
from headrace.formats.read import FormatName, ReadOptions
from headrace.runs.parts import PART_SUFFIXES
from headrace.runs.settings import (
    BY_PLACE,
    MIB,
    FailurePolicy,
    FlowSettings,
    MappingOptions,
    OutputSettings,
    StreamSettings,
    TaskSettings,
)
from headrace.runs.spec_extension import parse_max_failed

Command = TypeVar("Command", bound=Callable[..., Any])

_COUNT = click.IntRange(min=1)
POSITIVE = click.FloatRange(min=0, min_open=True)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmg]?)(?:i?b)?", re.IGNORECASE)
_SCALES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_RANGE = re.compile(r"(\d+)-(\d+)")
_COLUMNS_MAX = 100_000
_REQUIRED_OPTIONS = {
    "instances": "model",
    "protocol": "endpoint",
    "endpoint_model": "endpoint",
    "in_flight_max": "endpoint",
    "timeout_s": "endpoint",
    "retry_s": "endpoint",
    "sequence": "model",
    "sequence_end": "sequence",
    "sequences_live_max": "sequence",
}
"""Options that have no effect without another option."""


def parse_bytes(_: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Return a size in bytes: ``16MiB``, ``64k`` or ``1000``. Units are powers of 1024."""
    if value is None:
        return None
    match = _SIZE.fullmatch(value.strip())
    size = int(float(match[1]) * _SCALES[match[2].lower()]) if match else 0
    if size < 1:
        raise click.BadParameter(f"{value!r} is not a size: write 16MiB, 64k or 1000", param=parameter)
    return size


def parse_columns(_: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str | int, ...]:
    """Return the columns of ``a,b,c`` or ``0,3,5-9``."""
    if not value:
        return ()
    found: list[str | int] = []
    for part in map(str.strip, value.split(",")):
        span = _RANGE.fullmatch(part)
        if not part:
            raise click.BadParameter(f"{value!r} contains an empty column name", param=parameter)
        if span is None:
            found.append(int(part) if part.isdecimal() else part)
            continue
        low, high = int(span[1]), int(span[2])
        if not low <= high < low + _COLUMNS_MAX:
            raise click.BadParameter(
                f"{part} is not a range: write the lower index first, and at most {_COLUMNS_MAX} columns",
                param=parameter,
            )
        found.extend(range(low, high + 1))
    if len({type(c) for c in found}) > 1:
        raise click.BadParameter("name all columns, or give the indices of all columns", param=parameter)
    return tuple(found)


def parse_sequence(_: click.Context, parameter: click.Parameter, value: str | None) -> str | int | None:
    """Return a column name or index, or one of the words with ``@``."""
    if value is not None and (not value or (value[0] == "@" and value not in BY_PLACE)):
        raise click.BadParameter(
            f"{value!r} is neither a column nor {' or '.join(BY_PLACE)}: "
            "for a column whose name begins with @, give its index",
            param=parameter,
        )
    return _name_or_index(value)


def parse_delimiter(_: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    r"""Return a single character; ``\t`` is a tab."""
    if value is None:
        return None
    found = "\t" if value == r"\t" else value
    if len(found) != 1:
        raise click.BadParameter(f"{value!r} is not a single character", param=parameter)
    return found


def parse_size_px(
    _context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    """Return height and width of ``224x224``."""
    if value is None:
        return None
    height, _, width = value.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise click.BadParameter(
            f"{value!r} is not a size: write HEIGHTxWIDTH, as in 224x224", param=parameter
        )
    return int(height), int(width)


def combined_options(*parts: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return one decorator for several options; the help lists them in this order."""

    def decorate(command: Command) -> Command:
        for part in reversed(parts):
            command = part(command)
        return command

    return decorate


def _log_options(verbose_help: str) -> Callable[[Command], Command]:
    """Return the options for logs, which all commands that log have."""
    return combined_options(
        click.option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            help="Format of logs on standard error: for people (text), or a JSON object per line (json).",
        ),
        click.option("-v", "--verbose", count=True, help=verbose_help),
    )


RUN_LOG_OPTIONS = _log_options("Log what the run does, not only warnings; -vv includes debug logs.")
SERVER_LOG_OPTIONS = _log_options("Include debug logs.")

MEDIA_OPTIONS = combined_options(
    click.option(
        "--image-size",
        callback=parse_size_px,
        metavar="HxW",
        help="Height and width in pixels to which images and frames are resized.",
    ),
    click.option(
        "--image-mode",
        default="RGB",
        show_default=True,
        type=click.Choice(["RGB", "L"]),
        help="Channels of images and frames: RGB, or L for greyscale.",
    ),
    click.option(
        "--image-scale",
        type=POSITIVE,
        default=1 / 255,
        show_default="1/255",
        help="Factor that is applied to pixel values (0-255) for float inputs.",
    ),
    click.option("--window-ms", type=POSITIVE, help="Audio window length in milliseconds."),
    click.option(
        "--hop-ms",
        type=POSITIVE,
        help="Time between the starts of two audio windows in milliseconds.  [default: --window-ms]",
    ),
    click.option("--sample-rate-hz", type=_COUNT, help="Audio sample rate in Hz after resampling."),
    old_option_name("--sample-rate", "--sample-rate-hz"),
    click.option(
        "--audio-channels",
        default="mono",
        show_default=True,
        type=click.Choice(["mono", "keep"]),
        help="Audio channels: their mean (mono), or all of them (keep).",
    ),
    click.option("--every-frames", type=_COUNT, help="Interval of video frames to read, in frames."),
    click.option("--every-ms", type=POSITIVE, help="Interval of video frames to read, in milliseconds."),
)

SOURCE_OPTIONS = combined_options(
    click.option("--members", multiple=True, metavar="GLOB", help="Archive members to read. Repeatable."),
    click.option(
        "--format",
        "format_",
        default="auto",
        show_default=True,
        type=click.Choice(["auto", *get_args(FormatName)]),
        help="Format of objects and members; auto chooses by file name.",
    ),
    click.option(
        "--compression",
        default="auto",
        show_default=True,
        type=click.Choice(["auto", "none", "gzip", "bzip2", "zstd"]),
        help="Compression of objects.",
    ),
    click.option(
        "--delimiter",
        callback=parse_delimiter,
        metavar="C",
        help=r"Delimiter of CSV cells; \t is a tab.  [default: , or tab for .tsv]",
    ),
    click.option(
        "--header",
        default="none",
        show_default=True,
        type=click.Choice(["none", "drop", "names"]),
        help="First record of a CSV file: data (none), a header to skip (drop), or column names (names).",
    ),
    click.option(
        "--columns",
        callback=parse_columns,
        metavar="A,B,…",
        help="Columns or fields for the model, by name or by index (0-9).",
    ),
    click.option("--text-column", metavar="NAME", help="Column or field for the model, as text."),
    click.option(
        "--record-bytes-max",
        default="16MiB",
        show_default=True,
        callback=parse_bytes,
        metavar="SIZE",
        help="Size limit of a record; longer records fail.",
    ),
    MEDIA_OPTIONS,
)

SEQUENCE_OPTIONS = combined_options(
    click.option(
        "--sequence",
        metavar="COLUMN",
        callback=parse_sequence,
        help="Column or field with the sequence id, for models with a step method; or @object or @member, "
        "for one sequence per object or archive member.  [default: each record is a sequence]",
    ),
    click.option(
        "--sequence-end",
        metavar="COLUMN",
        help="Column or field that is true, or 1, in the last record of a sequence.",
    ),
    click.option(
        "--sequences-live-max",
        type=_COUNT,
        help="Limit of unfinished sequences.  [default: the model's sequences.live_max]",
    ),
)

OLD_FLOW_NAMES = combined_options(
    old_option_name("--batch-rows", "--batch-rows-max"),
    old_option_name("--batch-bytes", "--batch-bytes-max"),
    old_option_name("--prefetch-bytes", "--prefetch-bytes-max"),
)

FLOW_OPTIONS = combined_options(
    OLD_FLOW_NAMES,
    old_option_name("--in-flight", "--in-flight-max"),
    click.option(
        "--batch-rows-max", type=_COUNT, help="Batch size in records.  [default: the model's max_batch_rows]"
    ),
    click.option(
        "--batch-bytes-max",
        default="64MiB",
        show_default=True,
        callback=parse_bytes,
        metavar="SIZE",
        help="Batch size in bytes.",
    ),
    click.option(
        "--batch-delay-ms",
        type=POSITIVE,
        help="Longest wait of a batch's first record in milliseconds.  [default: no limit]",
    ),
    click.option(
        "--prefetch-bytes-max",
        default="32MiB",
        show_default=True,
        callback=parse_bytes,
        metavar="SIZE",
        help="Size of the read-ahead.",
    ),
    click.option(
        "--instances",
        type=_COUNT,
        help="Number of model instances, each in a thread.  [default: 1]",
    ),
    click.option(
        "--protocol",
        default="auto",
        show_default=True,
        type=click.Choice(["auto", "oip", "torchserve"]),
        help="Protocol of the endpoint; auto chooses by URL.",
    ),
    click.option("--endpoint-model", metavar="NAME", help="Model name, for an endpoint URL without one."),
    click.option(
        "--in-flight-max",
        type=_COUNT,
        default=16,
        show_default=True,
        help="Limit of concurrent requests to the endpoint.",
    ),
    click.option(
        "--timeout-s",
        type=POSITIVE,
        default=60.0,
        show_default=True,
        help="Timeout of a request to the endpoint in seconds.",
    ),
    click.option(
        "--retry-s",
        type=click.FloatRange(min=0),
        default=120.0,
        show_default=True,
        help="Seconds for which a failed request is retried.",
    ),
)

PART_OPTIONS = combined_options(
    click.option(
        "--output-format",
        default="auto",
        show_default=True,
        type=click.Choice([*PART_SUFFIXES]),
        help="Format of the predictions; auto is csv.",
    ),
    click.option(
        "--join",
        default="none",
        show_default=True,
        type=click.Choice(["none", "input"]),
        help="Columns beside a prediction: none, or the input record (for media, its position).",
    ),
    click.option(
        "--output-header/--no-output-header",
        default=None,
        help="Write a header line in CSV parts.  [default: with --header names]",
    ),
    old_option_name("--part-bytes", "--part-bytes-max"),
    click.option(
        "--part-bytes-max",
        callback=parse_bytes,
        metavar="SIZE",
        help="Approximate size of a part.  [default: 16MiB]",
    ),
    click.option(
        "--checkpoint-s",
        type=click.FloatRange(min=0),
        default=5.0,
        show_default=True,
        help="Checkpoint interval in seconds: the most work that a kill can lose.",
    ),
)


def stream_settings(params: Mapping[str, Any]) -> StreamSettings:
    """Return the stream settings of the options. Raise ConfigError for invalid limits."""
    return StreamSettings(
        read=ReadOptions(
            compression=params["compression"],
            format=params["format_"],
            members=params["members"],
            delimiter=params["delimiter"],
            header=params["header"],
            record_bytes_max=params["record_bytes_max"],
            size_px=params["image_size"],
            image_mode=params["image_mode"],
            window_ms=params["window_ms"],
            hop_ms=params["hop_ms"],
            sample_rate_hz=params["sample_rate_hz"],
            audio_channels=params["audio_channels"],
            every_frames=params["every_frames"],
            every_ms=params["every_ms"],
        ),
        mapping=MappingOptions(
            columns=params["columns"],
            input_filter=params["input_filter"] or "$",
            slice_end=params["slice_end"] or "exclusive",
            text_column=_name_or_index(params["text_column"]),
            image_scale=params["image_scale"],
            sequence=params["sequence"],
            sequence_end=_name_or_index(params["sequence_end"]),
        ),
        flow=FlowSettings(
            batch_rows_max=params["batch_rows_max"],
            batch_bytes_max=params["batch_bytes_max"],
            batch_delay_ms=params["batch_delay_ms"],
            prefetch_bytes_max=params["prefetch_bytes_max"],
            sequences_live_max=params["sequences_live_max"],
        ),
        output=OutputSettings(
            format=params["output_format"],
            join=params["join"],
            output_filter=params["output_filter"] or "$",
            slice_end=params["slice_end"] or "exclusive",
            header=params["output_header"],
            part_bytes_max=params["part_bytes_max"] or 16 * MIB,
            checkpoint_s=params["checkpoint_s"],
        ),
        failures=FailurePolicy(params["on_error"] or "record", *parse_max_failed(params["max_failed"])),
        tasks=TaskSettings() if params["task_bytes"] is None else TaskSettings(params["task_bytes"]),
    )


def _name_or_index(text: str | None) -> str | int | None:
    return int(text) if text and text.isdecimal() else text


def predictor_options(params: Mapping[str, Any]) -> PredictorOptions:
    """Return the predictor options for the model or endpoint."""
    return PredictorOptions(
        instances=params["instances"] or 1,
        protocol=params["protocol"],
        endpoint_model=params["endpoint_model"],
        in_flight_max=params["in_flight_max"],
        timeout_s=params["timeout_s"],
        retry_s=params["retry_s"],
    )


def check_usage(context: click.Context) -> None:
    """Raise UsageError for options that exclude or require each other."""
    params, source = context.params, context.params["source"]
    # An unset shell variable yields an empty string. An empty path would read the whole disk.
    if not all(s.removeprefix("manifest:") for s in source):
        raise click.UsageError("SOURCE is empty")
    if not params["output"]:
        raise click.UsageError("--output is empty")
    if (params["model"] is None) == (params["endpoint"] is None):
        raise click.UsageError("give either --model or --endpoint")
    if params["columns"] and params["text_column"] is not None:
        raise click.UsageError("--columns and --text-column cannot be combined")
    if params["sequence"] in BY_PLACE and params["sequence_end"] is not None:
        raise click.UsageError(f"--sequence {params['sequence']} and --sequence-end cannot be combined")
    if params["every_frames"] and params["every_ms"]:
        raise click.UsageError("--every-frames and --every-ms cannot be combined")
    for name, required in _REQUIRED_OPTIONS.items():
        missing = params[required] is None or params[required] is False
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE and missing:
            option, required_option = (f"--{n.replace('_', '-')}" for n in (name, required))
            raise click.UsageError(f"{option} requires {required_option}")
