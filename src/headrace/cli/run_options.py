"""Options of ``headrace stream`` and ``headrace transform``, and the settings and workers they select.

Options of a transform correspond to keys of the spec file's ``headrace`` table and override them.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import click
from click.core import ParameterSource

from headrace.app.models import PredictorOptions
from headrace.app.runners import AnyWorkers, DataRegions, Workers
from headrace.cli.options import (
    ParsedType,
    combined_options,
    given_values,
    keep_explicit,
    option,
    option_name,
    setting_options,
    settings_from,
)
from headrace.core.errors import ConfigError
from headrace.core.settings import declared_settings
from headrace.formats.read_options import ReadOptions
from headrace.runners.engines import BeamWorkers, RayWorkers
from headrace.runs.document import EXTENSION_FIELDS, SpecKeys, parse_max_failed, read_document
from headrace.runs.failure_policy import FailurePolicy
from headrace.runs.output_settings import OutputSettings
from headrace.runs.settings import (
    BY_PLACE,
    SETTINGS_GROUPS,
    STREAM_SETTINGS,
    FlowSettings,
    MappingOptions,
    StreamSettings,
    SubsetSettings,
    TaskSettings,
    TransformSettings,
    parse_share,
)
from headrace.runs.spec import EXTENSION_TABLE, TransformSpec, spec_of
from headrace.storage.regions import RegionRules, require_region

SPEC_BYTES_MAX: Final = 4 << 20
_COMMAND_LINE: Final = "the command line"
_FILES_ONLY: Final = frozenset({"whole_records", "task_objects", "part_rows_max"})
"""Keys of specs and of jobs without an option."""
_SPEC_ONLY: Final = frozenset(
    {"model", "model_options", "source", "output", "job_name", "instances", "retries"}
)
"""Keys of specs for which commands have arguments or options of their own."""
_TRANSFORM_WORDS: Final = frozenset({"content_type", "split", "accept", "strict"})
"""SageMaker's words for the format of objects and outputs, and for the failure policy."""

_RANGE: Final = re.compile(r"(\d+)-(\d+)", re.ASCII)
_COLUMNS_MAX: Final = 100_000


def _parse_columns(text: str) -> tuple[str | int, ...]:
    """Return the columns of ``a,b,c`` or ``0,3,5-9``."""
    found: list[str | int] = []
    for part in map(str.strip, text.split(",")) if text else ():
        span = _RANGE.fullmatch(part)
        if not part:
            raise ValueError(f"{text!r} contains an empty column name")
        if span is None:
            found.append(_name_or_index(part))
            continue
        low, high = int(span[1]), int(span[2])
        if not low <= high < low + _COLUMNS_MAX:
            raise ValueError(
                f"{part} is not a range: write the lower index first, and at most {_COLUMNS_MAX} columns"
            )
        found.extend(range(low, high + 1))
    if len({type(c) for c in found}) > 1:
        raise ValueError("name all columns, or give the indices of all columns")
    return tuple(found)


def _parse_names(text: str) -> tuple[str, ...]:
    """Return the names of ``a,b,c``."""
    return tuple(map(str.strip, text.split(","))) if text else ()


def _name_or_index(text: str) -> str | int:
    """Return the name or the index of a column."""
    return int(text) if text.isascii() and text.isdecimal() else text


def _parse_sequence(text: str) -> str | int:
    """Return a column name or index, or one of the words with ``@``."""
    if text[:1] in ("", "@") and text not in BY_PLACE:
        raise ValueError(
            f"{text!r} is neither a column nor {' or '.join(BY_PLACE)}: "
            "for a column whose name begins with @, give its index"
        )
    return _name_or_index(text)


def _parse_delimiter(text: str) -> str:
    r"""Return a single character; ``\t`` is a tab."""
    found = "\t" if text == r"\t" else text
    if len(found) != 1:
        raise ValueError(f"{text!r} is not a single character")
    return found


def _parse_size_px(text: str) -> tuple[int, int]:
    """Return height and width of ``224x224``."""
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise ValueError(f"{text!r} is not a size: write HEIGHTxWIDTH, as in 224x224")
    return int(height), int(width)


_TYPES: Final = {
    "columns": ParsedType("columns", _parse_columns),
    "keep": ParsedType("names", _parse_names),
    "drop": ParsedType("names", _parse_names),
    "rename": ParsedType("names", _parse_names),
    "partition_by": ParsedType("names", _parse_names),
    "text_column": ParsedType("column", _name_or_index),
    "sequence": ParsedType("column", _parse_sequence),
    "sequence_end": ParsedType("column", _name_or_index),
    "delimiter": ParsedType("character", _parse_delimiter),
    "image_size": ParsedType("size", _parse_size_px),
    "sample": ParsedType("share", parse_share),
}
"""The types of settings that have a form of their own on the command line, by name."""

STREAM_OPTIONS = setting_options(
    *SETTINGS_GROUPS,
    PredictorOptions,
    SpecKeys,
    StreamSettings,
    types=_TYPES,
    without=_FILES_ONLY | _SPEC_ONLY - {"instances"} | _TRANSFORM_WORDS | {"assemble", "data_type"},
    refused_choices={"output_format": {"json"}},  # a stream writes one record per line
)

TRANSFORM_OPTIONS = combined_options(
    setting_options(
        TransformSettings,
        SpecKeys,
        *SETTINGS_GROUPS,
        types=_TYPES,
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

INSPECT_OPTIONS = setting_options(
    ReadOptions, MappingOptions, StreamSettings, types=_TYPES, without=_FILES_ONLY | STREAM_SETTINGS
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
    return settings_from(
        StreamSettings,
        params,
        read=settings_from(ReadOptions, params),
        mapping=settings_from(MappingOptions, params),
        flow=settings_from(FlowSettings, params),
        output=settings_from(OutputSettings, params),
        failures=settings_from(FailurePolicy, params, failed_rows_max=rows, failed_share_max=share),
        subset=settings_from(SubsetSettings, params),
        tasks=settings_from(TaskSettings, params),
    )


def inspect_settings(params: Mapping[str, Any]) -> StreamSettings:
    """Return the settings of the options that say how records are read."""
    return settings_from(
        StreamSettings,
        params,
        read=settings_from(ReadOptions, params),
        mapping=settings_from(MappingOptions, params),
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


def with_spec_values(
    options: PredictorOptions, spec: TransformSpec, *, use_spec_model: bool = False
) -> PredictorOptions:
    """Return the options of a transform's model or endpoint, with the values of the spec.

    The spec's options of its own model apply with `use_spec_model`. Those of the command line replace
    them, each by its name.
    """
    model_options = {**(spec.model_options or {}), **(options.model_options or {})}
    return replace(
        options,
        model_options=model_options if use_spec_model and model_options else options.model_options,
        in_flight_max=spec.in_flight_max or options.in_flight_max,
        timeout_s=spec.timeout_s or options.timeout_s,
        retry_s=0.0 if spec.retries == 0 else options.retry_s,
    )


_COUNT = click.IntRange(min=1)

RUNNER_OPTIONS = combined_options(
    option(
        "--runner",
        type=click.Choice(["local", "ray", "beam"]),
        default="local",
        show_default=True,
        help="Runner of the tasks: this machine, Ray, or an Apache Beam runner; see docs/clusters.md.",
    ),
    option(
        "--workers",
        type=_COUNT,
        help="Number of workers; on Ray, their limit.  [default: 1; on Ray, the capacity of the cluster]",
    ),
    option(
        "--isolation",
        type=click.Choice(["thread", "process"]),
        help="Isolation of workers: threads that share reading and writing, or separate processes.  "
        "[default: thread; process for more than one worker]",
    ),
    setting_options(RayWorkers),
    option(
        "--beam-options",
        multiple=True,
        metavar="'…'",
        help="Beam pipeline options, as in '--runner=FlinkRunner --parallelism=8'. Repeatable.  "
        "[default: DirectRunner with --workers processes]",
    ),
    option(
        "--data-region",
        multiple=True,
        metavar="PREFIX=REGION",
        help="Region of the objects below a prefix, as in s3://logs-eu/=eu-west-1. Repeatable.  "
        "[default: the region of the S3 bucket]",
    ),
    setting_options(DataRegions),
)

_OPTIONS_BY_RUNNER: Final[Mapping[str, tuple[str, ...]]] = {
    "local": ("isolation",),
    "ray": tuple(each.name for each in declared_settings(RayWorkers) if not each.setting.python_only),
    "beam": ("beam_options",),
}


def workers_from(params: dict[str, Any], instances: int | None = None) -> AnyWorkers:
    """Return the workers that the options select. Raise UsageError for options of another runner.

    `instances` is their number if the options do not set it.
    """
    runner = params["runner"]
    for other, names in _OPTIONS_BY_RUNNER.items():
        if other == runner:
            continue
        if set_options := keep_explicit(params, names):
            raise click.UsageError(
                f"{option_name(set_options[0])} requires --runner {other}; the runner is {runner}"
            )
    count = params["workers"] or instances
    try:
        if runner == "ray":
            return RayWorkers(workers_max=count, **given_values(RayWorkers, params))
        if runner == "beam":
            flags = tuple(flag for text in params["beam_options"] for flag in shlex.split(text))
            return BeamWorkers(flags, direct_workers=count or 1)
    except (ConfigError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    isolation = params["isolation"] or ("process" if (params["workers"] or 1) > 1 else "thread")
    return Workers(count or 1, isolation)


_WORKER_OPTIONS: Final = ("isolation", "region", "data_region", "other_regions", "task_bytes")
"""Options that have no effect on a stream without workers."""


def stream_workers_from(params: dict[str, Any]) -> AnyWorkers | None:
    """Return the workers of a stream, or None for one that reads its source in order.

    Raise UsageError for options that need workers, or exclude them.
    """
    if params["runner"] == "local" and params["workers"] is None:
        if set_options := keep_explicit(params, _WORKER_OPTIONS):
            raise click.UsageError(
                f"{option_name(set_options[0])} requires --workers: a stream without workers has no tasks"
            )
        workers_from(params)  # refuse options of other runners
        return None
    for name in keep_explicit(params, _SEQUENTIAL_OPTIONS):
        why = _SEQUENTIAL_OPTIONS[name]
        raise click.UsageError(f"{option_name(name)} and --workers cannot be combined: {why}")
    return workers_from(params)


_SEQUENTIAL_OPTIONS: Final[Mapping[str, str]] = {
    "sequence": "workers run tasks in any order, and a sequence needs its records in order",
    "batch_delay_ms": "batches of tasks close by size, so that a repeated task writes the same bytes",
    "instances": "each worker has one instance",
    "part_bytes_max": "each task writes one part; set its size with --task-bytes",
}


def regions_from(params: Mapping[str, Any]) -> DataRegions:
    """Return the regions of data and workers. Raise UsageError for an invalid region."""
    try:
        rules = RegionRules.parse(params["data_region"])
        if params["region"] is not None:
            require_region(params["region"])
        regions = settings_from(DataRegions, params, rules=rules)
        if params["runner"] != "ray":
            regions.locality.require_region()
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    return regions
