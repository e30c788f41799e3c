"""What ``headrace stream`` can be told: options, how their values are read, and the settings they make.

A value that cannot be is refused here, with exit status 2 and before anything is opened.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

import click
from click.core import ParameterSource

from headrace.app.streaming import PredictorOptions
from headrace.formats.read import FormatName, ReadOptions
from headrace.pipeline.run import IfExists
from headrace.pipeline.settings import BY_PLACE, FlowSettings, MappingOptions, OutputSettings, StreamSettings

Command = TypeVar("Command", bound=Callable[..., Any])

_COUNT = click.IntRange(min=1)
_POSITIVE = click.FloatRange(min=0, min_open=True)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmg]?)(?:i?b)?", re.IGNORECASE)
_SCALES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_RANGE = re.compile(r"(\d+)-(\d+)")
_COLUMNS_MAX = 100_000
_NEEDS = {
    "instances": "model",
    "protocol": "endpoint",
    "endpoint_model": "endpoint",
    "in_flight": "endpoint",
    "timeout_s": "endpoint",
    "retry_s": "endpoint",
    "poll_s": "watch",
    "sequence": "model",
    "sequence_end": "sequence",
    "sequences_live_max": "sequence",
}
"""Options that would be passed over in silence without another."""


def parse_bytes(_: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """``16MiB``, ``64k``, ``1000``: units are powers of 1024."""
    if value is None:
        return None
    match = _SIZE.fullmatch(value.strip())
    size = int(float(match[1]) * _SCALES[match[2].lower()]) if match else 0
    if size < 1:
        raise click.BadParameter(f"{value!r} is no size: write 16MiB, 64k or 1000", param=parameter)
    return size


def parse_columns(_: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str | int, ...]:
    """``a,b,c``, ``0,3,5-9``."""
    if not value:
        return ()
    found: list[str | int] = []
    for part in map(str.strip, value.split(",")):
        span = _RANGE.fullmatch(part)
        if not part:
            raise click.BadParameter(f"{value!r} has an empty name in it", param=parameter)
        if span is None:
            found.append(int(part) if part.isdecimal() else part)
            continue
        low, high = int(span[1]), int(span[2])
        if not low <= high < low + _COLUMNS_MAX:
            raise click.BadParameter(
                f"{part} is no range: write the lower number first, and at most {_COLUMNS_MAX} columns",
                param=parameter,
            )
        found.extend(range(low, high + 1))
    if len({type(c) for c in found}) > 1:
        raise click.BadParameter("name all columns, or number all of them", param=parameter)
    return tuple(found)


def parse_sequence(_: click.Context, parameter: click.Parameter, value: str | None) -> str | int | None:
    """A column by its name or index, or one of the words that begin with @."""
    if value is not None and (not value or (value[0] == "@" and value not in BY_PLACE)):
        raise click.BadParameter(
            f"{value!r} is neither a column (write its index where its name begins with @) nor {' or '.join(BY_PLACE)}",
            param=parameter,
        )
    return _column(value)


def parse_delimiter(_: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    r"""One character; a tab may be written ``\t``."""
    if value is None:
        return None
    found = "\t" if value == r"\t" else value
    if len(found) != 1:
        raise click.BadParameter(f"{value!r} is not one character", param=parameter)
    return found


def parse_size_px(
    _context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    """``224x224``: height, width."""
    if value is None:
        return None
    height, _, width = value.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise click.BadParameter("write HEIGHTxWIDTH, as in 224x224", param=parameter)
    return int(height), int(width)


def options(*parts: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several decorators as one; in the help they stand in this order."""

    def decorate(command: Command) -> Command:
        for part in reversed(parts):
            command = part(command)
        return command

    return decorate


MEDIA_OPTIONS = options(
    click.option("--image-size", callback=parse_size_px, metavar="HxW", help="Images and frames are brought to this size."),
    click.option(
        "--image-mode", default="RGB", show_default=True, type=click.Choice(["RGB", "L"]),
        help="Their channels: three, or L for one of grey.",
    ),
    click.option(
        "--image-scale", type=_POSITIVE, default=1 / 255, show_default="1/255",
        help="What their 0-255 is multiplied by for a model that takes floats.",
    ),
    click.option("--window-ms", type=_POSITIVE, help="Audio: the length of a window."),
    click.option("--hop-ms", type=_POSITIVE, help="Audio: from one window's start to the next.  [default: --window-ms]"),
    click.option("--sample-rate", "sample_rate_hz", type=_COUNT, help="Audio: resample to this rate in Hz."),
    click.option(
        "--audio-channels", default="mono", show_default=True, type=click.Choice(["mono", "keep"]),
        help="Audio: the mean of the channels, or each of them.",
    ),
    click.option("--every-frames", type=_COUNT, help="Video: every n-th frame."),
    click.option("--every-ms", type=_POSITIVE, help="Video: a frame every t ms."),
)  # fmt: skip

SOURCE_OPTIONS = options(
    click.option("--members", multiple=True, metavar="GLOB", help="Archive members to read; may be repeated."),
    click.option(
        "--format", "format_", default="auto", show_default=True,
        type=click.Choice(["auto", *get_args(FormatName)]),
        help="What objects and members are; auto goes by their names.",
    ),
    click.option(
        "--compression", default="auto", show_default=True,
        type=click.Choice(["auto", "none", "gzip", "bzip2", "zstd"]), help="How objects are compressed.",
    ),
    click.option(
        "--delimiter", callback=parse_delimiter, metavar="C",
        help=r"Of CSV cells; \t is a tab.  [default: , or tab for .tsv]",
    ),
    click.option(
        "--header", default="none", show_default=True, type=click.Choice(["none", "drop", "names"]),
        help="A CSV file's first record: a record, a header to drop, or the columns' names.",
    ),
    click.option("--columns", callback=parse_columns, metavar="A,B,…", help="Columns or fields, by name or index (0-9)."),
    click.option("--text-column", metavar="NAME", help="One column or field, as text."),
    click.option(
        "--record-bytes-max", default="16MiB", show_default=True, callback=parse_bytes,
        help="A longer record fails instead of filling the memory.",
    ),
    MEDIA_OPTIONS,
)  # fmt: skip

SEQUENCE_OPTIONS = options(
    click.option(
        "--sequence", metavar="COLUMN", callback=parse_sequence,
        help="For models with a step: the column or field that names a record's sequence; or @object, or @member of an archive: "
        "each of these is one. Unset, each record is one by itself.",
    ),
    click.option("--sequence-end", metavar="COLUMN", help="Is true, or 1, in the last record of a sequence."),
    click.option(
        "--sequences-live-max", type=_COUNT,
        help="Sequences that may be unfinished at once.  [default: the model's sequences.live_max]",
    ),
)  # fmt: skip

FLOW_OPTIONS = options(
    click.option("--batch-rows", type=_COUNT, help="Records a batch.  [default: the model's max_batch_rows]"),
    click.option("--batch-bytes", default="64MiB", show_default=True, callback=parse_bytes, help="Or this much of records."),
    click.option(
        "--batch-delay-ms", type=_POSITIVE,
        help="Or when the first record has waited so long. Unset, batches depend on the source alone.",
    ),
    click.option("--prefetch-bytes", default="32MiB", show_default=True, callback=parse_bytes, help="Read ahead at most."),
    click.option("--instances", type=_COUNT, default=1, show_default=True, help="Loaded copies of the model, a thread each."),
    click.option(
        "--protocol", default="auto", show_default=True, type=click.Choice(["auto", "oip", "torchserve"]),
        help="What the endpoint speaks; auto goes by the URL.",
    ),
    click.option("--endpoint-model", help="The model's name, when the endpoint's URL is its root."),
    click.option("--in-flight", type=_COUNT, default=16, show_default=True, help="Requests under way to an endpoint."),
    click.option("--timeout-s", type=_POSITIVE, default=60.0, show_default=True, help="For one request to an endpoint."),
    click.option(
        "--retry-s", type=click.FloatRange(min=0), default=120.0, show_default=True,
        help="How long a failing request is retried.",
    ),
)  # fmt: skip

OUTPUT_OPTIONS = options(
    click.option(
        "--output-format", default="csv", show_default=True, type=click.Choice(["csv", "jsonl", "parquet"]),
    ),
    click.option(
        "--join", default="none", show_default=True, type=click.Choice(["none", "input"]),
        help="Keep the input line beside its prediction; of media, where it comes from.",
    ),
    click.option("--output-header/--no-output-header", default=None, help="A header in CSV parts."),
    click.option("--part-bytes", default="16MiB", show_default=True, callback=parse_bytes, help="A part's size, about."),
    click.option(
        "--checkpoint-s", type=click.FloatRange(min=0), default=5.0, show_default=True,
        help="The most work that a kill can cost.",
    ),
    click.option("--resume", is_flag=True, help="Go on with the run that is there, or begin one."),
    click.option("--overwrite", is_flag=True, help="Delete the run that is there, and begin anew."),
    click.option("--watch", is_flag=True, help="Poll the source, and score what is new, until stopped."),
    click.option("--poll-s", type=_POSITIVE, default=5.0, show_default=True, help="Between two polls."),
    click.option("--json", "json_lines", is_flag=True, help="Progress and report as JSON lines on standard output."),
    click.option("--quiet", "-q", is_flag=True, help="No progress."),
    click.option("-v", "--verbose", count=True, help="Structured logs on standard error; twice for more."),
)  # fmt: skip


def stream_settings(given: Mapping[str, Any]) -> StreamSettings:
    """The settings that these options make. Raises ConfigError for bounds that cannot be."""
    return StreamSettings(
        read=ReadOptions(
            compression=given["compression"],
            format=given["format_"],
            members=given["members"],
            delimiter=given["delimiter"],
            header=given["header"],
            record_bytes_max=given["record_bytes_max"],
            size_px=given["image_size"],
            image_mode=given["image_mode"],
            window_ms=given["window_ms"],
            hop_ms=given["hop_ms"],
            sample_rate_hz=given["sample_rate_hz"],
            audio_channels=given["audio_channels"],
            every_frames=given["every_frames"],
            every_ms=given["every_ms"],
        ),
        mapping=MappingOptions(
            columns=given["columns"],
            text_column=_column(given["text_column"]),
            image_scale=given["image_scale"],
            sequence=given["sequence"],
            sequence_end=_column(given["sequence_end"]),
        ),
        flow=FlowSettings(
            batch_rows_max=given["batch_rows"],
            batch_bytes_max=given["batch_bytes"],
            batch_delay_ms=given["batch_delay_ms"],
            prefetch_bytes_max=given["prefetch_bytes"],
            sequences_live_max=given["sequences_live_max"],
        ),
        output=OutputSettings(
            format=given["output_format"],
            join=given["join"],
            header=given["output_header"],
            part_bytes_max=given["part_bytes"],
            checkpoint_s=given["checkpoint_s"],
        ),
    )


def _column(text: str | None) -> str | int | None:
    return int(text) if text and text.isdecimal() else text


def predictor_options(given: Mapping[str, Any]) -> PredictorOptions:
    """How the model, or the endpoint, is asked."""
    return PredictorOptions(
        instances=given["instances"],
        protocol=given["protocol"],
        endpoint_model=given["endpoint_model"],
        in_flight_max=given["in_flight"],
        timeout_s=given["timeout_s"],
        retry_s=given["retry_s"],
    )


def if_exists(given: Mapping[str, Any]) -> IfExists:
    """What to do about a run that is there already."""
    return "resume" if given["resume"] else "overwrite" if given["overwrite"] else "refuse"


def check_usage(context: click.Context) -> None:
    """Refuse options that contradict each other, or miss each other."""
    given, source = context.params, context.params["source"]
    # As a shell makes them of a variable that is not set; the empty path would be the whole disk.
    if not all(s.removeprefix("manifest:") for s in source):
        raise click.UsageError("SOURCE is empty")
    if not given["output"]:
        raise click.UsageError("--output is empty")
    if (given["model"] is None) == (given["endpoint"] is None):
        raise click.UsageError("give either --model or --endpoint, not both and not neither")
    if given["resume"] and given["overwrite"]:
        raise click.UsageError("--resume and --overwrite contradict each other")
    if given["columns"] and given["text_column"] is not None:
        raise click.UsageError("--columns and --text-column contradict each other")
    if given["sequence"] in BY_PLACE and given["sequence_end"] is not None:
        raise click.UsageError(f"--sequence {given['sequence']} and --sequence-end contradict each other")
    if given["every_frames"] and given["every_ms"]:
        raise click.UsageError("--every-frames and --every-ms contradict each other")
    for name, needed in _NEEDS.items():
        missing = given[needed] is None or given[needed] is False
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE and missing:
            option, wanted = (f"--{n.replace('_', '-')}" for n in (name, needed))
            raise click.UsageError(f"{option} has no meaning without {wanted}")


def log_format_option(default: str) -> Callable[[Command], Command]:
    """How a server's logs are written."""
    return click.option(
        "--log-format",
        type=click.Choice(["json", "text"]),
        default=default,
        show_default=True,
        help="How logs are written to standard error.",
    )
