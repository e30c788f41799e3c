"""Options of ``headrace transform``, and the spec made from them and a spec file.

Options correspond to keys of the spec file's ``headrace`` table and override them.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

import click

from headrace.app.predictors import PredictorOptions
from headrace.cli.options import (
    MEDIA_OPTIONS,
    OLD_FLOW_NAMES,
    combined_options,
    parse_bytes,
    parse_columns,
    parse_delimiter,
)
from headrace.cli.renamed import old_option_name
from headrace.core.errors import ConfigError
from headrace.formats.json_path_grammar import SliceEnd
from headrace.runs.document import read_document
from headrace.runs.media_types import COMPRESSIONS, SPLITS
from headrace.runs.settings import Assemble, DataType, Join, OnError, OutputFormat
from headrace.runs.spec import EXTENSION_TABLE, TransformSpec, spec_of

_COUNT = click.IntRange(min=1)
_POSITIVE = click.FloatRange(min=0, min_open=True)
SPEC_BYTES_MAX: Final = 4 << 20

FILTER_OPTIONS = combined_options(
    click.option(
        "--input-filter",
        metavar="PATH",
        help="JSONPath of the part of a record for the model, as in '$[1:]'.  [default: $]",
    ),
    click.option(
        "--output-filter",
        metavar="PATH",
        help="JSONPath of the part of a (joined) record to write, as in '$[0,-1]'.  [default: $]",
    ),
    click.option(
        "--slice-end",
        type=click.Choice(get_args(SliceEnd)),
        help="End of JSONPath slices: $[1:4] without (exclusive) or with (inclusive) column 4.  "
        "[default: exclusive]",
    ),
)

LIMIT_OPTIONS = combined_options(
    click.option(
        "--on-error",
        type=click.Choice(get_args(OnError)),
        help="Scope of a failed record: it alone (record), its object's output (object), or the run (job).  "
        "[default: record]",
    ),
    click.option(
        "--max-failed",
        metavar="N|P%",
        help="Limit of failed records, as a count or a share such as 1%; above it the run stops.",
    ),
)

TASK_BYTES_OPTION = combined_options(
    click.option(
        "--task-bytes",
        callback=parse_bytes,
        metavar="SIZE",
        help="Size of a worker's task; larger text objects are split.  [default: 64MiB]",
    ),
)

INPUT_OPTIONS = combined_options(
    click.option(
        "--data-type",
        type=click.Choice(get_args(DataType)),
        help="Meaning of SOURCE; auto chooses by its form, prefix is a string prefix.  [default: auto]",
    ),
    click.option(
        "--content-type",
        metavar="TYPE",
        help="Content type of objects: text/csv, application/json, …, or csv, json, jsonl, text, image, "
        "audio, video.  [default: by file name]",
    ),
    click.option(
        "--split",
        type=click.Choice(SPLITS),
        help="Splitting of objects into records; none makes one record.  [default: by content type or name]",
    ),
    click.option(
        "--compression", type=click.Choice(COMPRESSIONS), help="Compression of objects.  [default: by name]"
    ),
    click.option("--members", multiple=True, metavar="GLOB", help="Archive members to read. Repeatable."),
    click.option(
        "--header",
        type=click.Choice(["none", "drop", "names"]),
        help="First record of a CSV file: data (none), a header to skip (drop), or column names (names).  "
        "[default: none]",
    ),
    click.option(
        "--delimiter",
        callback=parse_delimiter,
        metavar="C",
        help=r"Delimiter of CSV cells; \t is a tab.  [default: , or tab for .tsv]",
    ),
    click.option(
        "--columns",
        callback=parse_columns,
        metavar="A,B,…",
        help="Columns or fields of the filtered record for the model, by name or by index (0-9).",
    ),
    click.option(
        "--text-column", metavar="NAME", help="Column or field of the filtered record for the model, as text."
    ),
    click.option(
        "--record-bytes-max",
        callback=parse_bytes,
        metavar="SIZE",
        help="Size limit of a record; longer records fail.  [default: 16MiB]",
    ),
    MEDIA_OPTIONS,
)

OUTPUT_OPTIONS = combined_options(
    FILTER_OPTIONS,
    click.option(
        "--accept",
        type=click.Choice(get_args(OutputFormat)),
        help="Format of the outputs; auto is jsonl for JSON records, else csv.  [default: auto]",
    ),
    click.option(
        "--assemble",
        type=click.Choice(get_args(Assemble)),
        help="Separator after each JSON or text record: a newline (line) or nothing (none).  [default: line]",
    ),
    click.option(
        "--join",
        type=click.Choice(get_args(Join)),
        help="Data beside a prediction: none, or the input record.  [default: none]",
    ),
    click.option(
        "--output-header/--no-output-header",
        default=None,
        help="Write a header line in CSV outputs.  [default: with --header names]",
    ),
)

FAILURE_OPTIONS = combined_options(
    LIMIT_OPTIONS,
    click.option(
        "--strict",
        is_flag=True,
        default=None,
        help="Write no output for an object with a failed record, as SageMaker does.",
    ),
)

WORK_OPTIONS = combined_options(
    OLD_FLOW_NAMES,
    old_option_name("--max-concurrent", "--in-flight-max"),
    click.option(
        "--strategy",
        type=click.Choice(["multi", "single"]),
        help="Records per model call: many (multi) or one (single).  [default: multi]",
    ),
    click.option(
        "--batch-rows-max", type=_COUNT, help="Batch size in records.  [default: the model's max_batch_rows]"
    ),
    click.option(
        "--batch-bytes-max",
        callback=parse_bytes,
        metavar="SIZE",
        help="Batch size in bytes.  [default: 64MiB]",
    ),
    click.option(
        "--prefetch-bytes-max",
        callback=parse_bytes,
        metavar="SIZE",
        help="Size of the read-ahead.  [default: 32MiB]",
    ),
    TASK_BYTES_OPTION,
    click.option(
        "--checkpoint-s",
        type=click.FloatRange(min=0),
        help="Checkpoint interval in seconds: the most work that a kill can lose.  [default: 5]",
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
        "--in-flight-max", type=_COUNT, help="Limit of concurrent requests to the endpoint.  [default: 16]"
    ),
    click.option(
        "--timeout-s", type=_POSITIVE, help="Timeout of a request to the endpoint in seconds.  [default: 60]"
    ),
    click.option(
        "--retry-s",
        type=click.FloatRange(min=0),
        default=120.0,
        show_default=True,
        help="Seconds for which a failed request to the endpoint or a store is retried.",
    ),
)

_SPEC_KEYS: Final = [
    "data_type",
    "content_type",
    "split",
    "compression",
    "members",
    "header",
    "delimiter",
    "input_filter",
    "columns",
    "text_column",
    "record_bytes_max",
    "image_mode",
    "image_scale",
    "window_ms",
    "hop_ms",
    "sample_rate_hz",
    "audio_channels",
    "every_frames",
    "every_ms",
    "accept",
    "assemble",
    "join",
    "output_filter",
    "slice_end",
    "output_header",
    "on_error",
    "max_failed",
    "strict",
    "batch_rows_max",
    "batch_bytes_max",
    "prefetch_bytes_max",
    "task_bytes",
    "checkpoint_s",
    "in_flight_max",
    "timeout_s",
]


_COMMAND_LINE: Final = "the command line"
_SPEC_KEY: Final = re.compile(rf"\b{EXTENSION_TABLE}\.({'|'.join([*_SPEC_KEYS, 'image_size'])})\b")


def with_option_names(message: str) -> str:
    """Return an error message about a spec with option names in place of spec keys."""
    text = message.removeprefix(f"{_COMMAND_LINE}: ")
    return _SPEC_KEY.sub(lambda key: "--" + key[1].replace("_", "-"), text)


def spec_from(params: Mapping[str, Any], spec_file: str | None) -> TransformSpec:
    """Return the spec of the options and the spec file; options take precedence.

    Raises ConfigError for an invalid spec.
    """
    name = spec_file or _COMMAND_LINE
    document: dict[str, Any] = {} if spec_file is None else _read(spec_file)
    extension = document.get(EXTENSION_TABLE, {})
    if isinstance(extension, dict):
        document[EXTENSION_TABLE] = {"whole_records": True, **extension, **_spec_values(params)}
    return spec_of(document, name)


def _read(spec_file: str) -> dict[str, Any]:
    path = Path(spec_file)
    try:
        if path.stat().st_size > SPEC_BYTES_MAX:
            raise ConfigError(f"{spec_file}: the spec is larger than {SPEC_BYTES_MAX >> 20} MiB")
        text = path.read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"{spec_file}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{spec_file}: invalid UTF-8 at byte {error.start}") from error
    return read_document(text, spec_file)


def _spec_values(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the command line as spec values."""
    values = {key: params[key] for key in _SPEC_KEYS if params[key] not in (None, ())}
    values |= {key: list(params[key]) for key in ("members", "columns") if params[key]}
    if params["image_size"]:
        values["image_size"] = list(params["image_size"])
    text = values.get("text_column")
    if isinstance(text, str) and text.isdecimal():
        values["text_column"] = int(text)
    if params["strategy"] == "single":
        values["batch_rows_max"] = 1
    return values


def predictor_options_from(params: Mapping[str, Any], spec: TransformSpec) -> PredictorOptions:
    """Return the predictor options for the model or endpoint."""
    default = PredictorOptions()
    return PredictorOptions(
        protocol=params["protocol"],
        endpoint_model=params["endpoint_model"],
        in_flight_max=spec.in_flight_max or default.in_flight_max,
        timeout_s=spec.timeout_s or default.timeout_s,
        retry_s=0.0 if spec.retries == 0 else params["retry_s"],
    )
