"""Options of ``headrace stream`` and ``headrace transform``, and the settings and specs made from them.

Options of a transform correspond to keys of the spec file's ``headrace`` table and override them.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import click
from click.core import ParameterSource

from headrace.app.models import PredictorOptions
from headrace.cli.options import (
    combined_options,
    option,
    option_name,
    setting_options,
    settings_from,
)
from headrace.core.errors import ConfigError
from headrace.formats.read import ReadOptions
from headrace.runs.document import EXTENSION_FIELDS, SpecKeys, parse_max_failed, read_document
from headrace.runs.settings import (
    BY_PLACE,
    SETTINGS_GROUPS,
    STREAM_SETTINGS,
    FailurePolicy,
    FlowSettings,
    MappingOptions,
    OutputSettings,
    StreamSettings,
    TaskSettings,
    TransformSettings,
)
from headrace.runs.spec import EXTENSION_TABLE, TransformSpec, spec_of

SPEC_BYTES_MAX: Final = 4 << 20
_COMMAND_LINE: Final = "the command line"
_FILES_ONLY: Final = frozenset({"whole_records", "task_objects", "part_rows_max"})
"""Keys of specs and of jobs without an option."""
_SPEC_ONLY: Final = frozenset({"model", "source", "output", "job_name", "instances", "retries"})
"""Keys of specs for which commands have arguments or options of their own."""
_TRANSFORM_WORDS: Final = frozenset({"content_type", "split", "accept", "strict"})
"""SageMaker's words for the format of objects and outputs, and for the failure policy."""

STREAM_OPTIONS = setting_options(
    *SETTINGS_GROUPS,
    PredictorOptions,
    SpecKeys,
    without=_FILES_ONLY | _SPEC_ONLY - {"instances"} | _TRANSFORM_WORDS | {"assemble"},
    refused_choices={"output_format": {"json"}},  # a stream writes one record per line
)

TRANSFORM_OPTIONS = combined_options(
    setting_options(
        TransformSettings,
        SpecKeys,
        *SETTINGS_GROUPS,
        without=_FILES_ONLY
        | _SPEC_ONLY
        | STREAM_SETTINGS
        | {"format", "output_format", "in_flight_max", "timeout_s"},
    ),
    option(
        "--strategy",
        type=click.Choice(["multi", "single"]),
        help="Records per model call: many (multi) or one (single).  [default: multi]",
    ),
    setting_options(PredictorOptions, without={"instances"}),
)

_REQUIRED_OPTIONS: Final = {
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
"""Options of a stream that have no effect without another option."""


def stream_settings(params: Mapping[str, Any]) -> StreamSettings:
    """Return the stream settings of the options. Raise ConfigError for invalid limits."""
    rows, share = parse_max_failed(params["max_failed"])
    return StreamSettings(
        read=settings_from(ReadOptions, params),
        mapping=settings_from(MappingOptions, params),
        flow=settings_from(FlowSettings, params),
        output=settings_from(OutputSettings, params),
        failures=settings_from(FailurePolicy, params, failed_rows_max=rows, failed_share_max=share),
        tasks=settings_from(TaskSettings, params),
    )


def check_usage(context: click.Context) -> None:
    """Raise UsageError for options of a stream that exclude or require each other."""
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
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE and params[required] is None:
            raise click.UsageError(f"{option_name(name)} requires {option_name(required)}")


_SPEC_KEY: Final = re.compile(rf"\b{EXTENSION_TABLE}\.({'|'.join(EXTENSION_FIELDS)})\b")


def with_option_names(message: str) -> str:
    """Return an error message about a spec with option names in place of spec keys."""
    text = message.removeprefix(f"{_COMMAND_LINE}: ")
    return _SPEC_KEY.sub(lambda key: option_name(key[1]), text)


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
    keys = [key for key in EXTENSION_FIELDS if key not in _SPEC_ONLY]
    given = {key: params[key] for key in keys if params.get(key) not in (None, ())}
    if params["strategy"] == "single":
        given["batch_rows_max"] = 1
    lists = {key: [*cast("tuple[Any, ...]", v)] for key, v in given.items() if isinstance(v, tuple)}
    return {**given, **lists}


def transform_predictor_options(params: Mapping[str, Any], spec: TransformSpec) -> PredictorOptions:
    """Return the predictor options of a transform, for the model or endpoint."""
    options = settings_from(PredictorOptions, params)
    return replace(
        options,
        in_flight_max=spec.in_flight_max or options.in_flight_max,
        timeout_s=spec.timeout_s or options.timeout_s,
        retry_s=0.0 if spec.retries == 0 else options.retry_s,
    )
