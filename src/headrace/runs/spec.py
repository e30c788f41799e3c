"""Read the spec file of a batch transform: SageMaker's fields and headrace's own, into settings.

::

    TransformJobName = "churn-2026-01"              # fields of a CreateTransformJob request, TOML or JSON
    ModelName = "churn.onnx"
    MaxPayloadInMB = 6

    [TransformInput]
    DataSource.S3DataSource = { S3DataType = "S3Prefix", S3Uri = "s3://in/2026/01/" }
    ContentType = "text/csv"
    SplitType = "Line"

    [TransformOutput]
    S3OutputPath = "s3://out/"
    Accept = "text/csv"
    AssembleWith = "Line"

    [DataProcessing]
    InputFilter = "$[1:]"
    JoinSource = "Input"

    [headrace]                                      # options that SageMaker lacks
    header = "drop"
    max_failed = "1%"
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar, cast

from headrace.core.errors import ConfigError
from headrace.formats.json_path import JsonPath, compile_path
from headrace.formats.read_options import AUTO, V2, ReadOptions
from headrace.runs.document import (
    EXTENSION_FIELDS,
    SpecExtension,
    SpecTable,
    read_document,
    read_extension,
    rename_old_fields,
)
from headrace.runs.failure_policy import FailurePolicy
from headrace.runs.media_types import accept_of, read_options
from headrace.runs.output_settings import ROWS_OF_CELLS, OutputSettings
from headrace.runs.sagemaker import (
    FIELDS,
    PAYLOAD_MB_DEFAULT,
    PAYLOAD_MB_MAX,
    RETRIES,
    TIMEOUT_S,
    SageMakerJob,
    read_job,
    reject,
)
from headrace.runs.settings import (
    MIB,
    DataType,
    FlowSettings,
    MappingOptions,
    SubsetSettings,
    TaskSettings,
    TransformSettings,
)

T = TypeVar("T")

EXTENSION_TABLE: Final = "headrace"
_UNFILTERED: Final = (V2, "line", "whole", "recordio", "tfrecord", "image", "audio", "video")
"""Formats whose records no JSONPath can select from."""


@dataclass(frozen=True, slots=True)
class TransformSpec:
    """The contents of a spec file. None stands for an absent field, which the caller chooses.

    Attributes:
        settings: The settings of the transform.
        source: The source of objects.
        output: The destination.
        model: The MODEL argument.
        model_options: Options of the model.
        job_name: The name of the job.
        instances: Machines of the SageMaker request, or loaded copies of the ``headrace`` table.
        in_flight_max: The number of concurrent requests.
        timeout_s: The timeout of a request in seconds.
        retries: The number of retries of a request.
        strict: Behave as SageMaker does.
        ignored_fields: Dotted names of valid fields without a meaning here, to report to the user.

    `instances`, `in_flight_max`, `timeout_s` and `retries` do not change the output.
    """

    settings: TransformSettings = field(default_factory=TransformSettings)
    source: str | None = None
    output: str | None = None
    model: str | None = None
    model_options: Mapping[str, Any] | None = None
    job_name: str | None = None
    instances: int | None = None
    in_flight_max: int | None = None
    timeout_s: float | None = None
    retries: int | None = None
    strict: bool = False
    ignored_fields: tuple[str, ...] = ()


def read_spec(text: str, name: str, *, strict: bool = False) -> TransformSpec:
    """Return the spec in a TOML or JSON text. `name` is the file name, which selects the format.

    The ``headrace`` table takes precedence. An absent field has SageMaker's default if the file has
    SageMaker's table for it, else headrace's. A TransformInput without SplitType and
    CompressionType neither splits nor decompresses. A TransformOutput without AssembleWith puts
    nothing between records. With any SageMaker field, payloads are 6 MB, requests have 600 s and 3
    retries, and a text model gets records unchanged (`MappingOptions.whole_records`).

    MaxPayloadInMB limits a record and a batch; MB are 2^20 bytes. 0, with which SageMaker streams
    whole objects, limits a record to 100 MB and a batch as `FlowSettings` does, because everything
    here has a limit. `strict` acts like the field of the file.

    Raises ConfigError, with file and field, for an unknown field, a wrong type, a value outside of
    SageMaker's limits, and contradictory fields. Errors that depend on the data are found by the
    run and reported for the record: a record that is too large, or without the values of a filter.
    """
    return spec_of(read_document(text, name), name, strict=strict)


def spec_of(values: Mapping[str, Any], name: str, *, strict: bool = False) -> TransformSpec:
    """Return the spec of a document that was read; see `read_spec`. `name` is for messages."""
    if EXTENSION_TABLE in values:
        values = {**values, EXTENSION_TABLE: rename_old_fields(values[EXTENSION_TABLE])}
    document = SpecTable.from_value(name, "", values, (*FIELDS, EXTENSION_TABLE))
    job = read_job(document)
    extension = read_extension(document.table(EXTENSION_TABLE, EXTENSION_FIELDS))
    try:
        reject(job, _overridden_fields(extension))
        strictly = strict or bool(extension.keys.strict)
        settings = _settings(job, extension, strict=strictly)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    return TransformSpec(
        settings,
        source=_first_set(extension.keys.source, job.source),
        output=_first_set(extension.keys.output, job.output),
        model=_first_set(extension.keys.model, job.model),
        model_options=extension.keys.model_options,
        job_name=_first_set(extension.keys.job_name, job.job_name),
        instances=_first_set(extension.keys.instances, job.instances),
        in_flight_max=_first_set(extension.keys.in_flight_max, job.max_concurrent or None),
        timeout_s=_first_set(extension.keys.timeout_s, job.timeout_s, TIMEOUT_S if job.has_fields else None),
        retries=_first_set(extension.keys.retries, job.retries, RETRIES if job.has_fields else None),
        strict=strictly,
        ignored_fields=job.ignored_fields,
    )


def _overridden_fields(extension: SpecExtension) -> frozenset[str]:
    """Return the values that SageMaker's rules do not apply to, because the ``headrace`` table sets them."""
    sizes = extension.set_fields("record_bytes_max", "batch_bytes_max")
    words = extension.set_fields("content_type", "split", "accept", "assemble")
    return words | {"payload"} if len(sizes) == 2 else words


def _settings(job: SageMakerJob, extension: SpecExtension, *, strict: bool) -> TransformSettings:
    read = _read(job, extension)
    mapping = _mapping(job, extension)
    output = _output(job, extension)
    _check_reading(read, extension)
    _check_filters(read, mapping, output, extension)
    data_type: DataType | None = _first_set(extension.run.get("data_type"), job.data_type)
    return TransformSettings(
        data_type="auto" if data_type is None else data_type,
        schema=extension.run.get("schema", "infer"),
        read=read,
        mapping=mapping,
        flow=_flow(job, extension),
        output=output,
        failures=_failures(job, extension, strict=strict),
        subset=SubsetSettings(**extension.values_for(SubsetSettings)),
        tasks=TaskSettings(**extension.values_for(TaskSettings)),
    )


def _read(job: SageMakerJob, extension: SpecExtension) -> ReadOptions:
    keys = extension.keys
    split = _first_set(keys.split, job.split)
    if split is None and job.has_input and keys.content_type is None:
        split = "none"
    compression = _first_set(
        extension.run.get("compression"), job.compression, "none" if job.has_input else None
    )
    read = read_options(_first_set(keys.content_type, job.content_type), split, compression)
    if job.has_fields:
        # SageMaker sends the first record to the model as any other.
        read = replace(read, header="none")
    return _joined(read, extension, record_bytes_max=_payload_bytes(job, PAYLOAD_MB_MAX * MIB))


def _mapping(job: SageMakerJob, extension: SpecExtension) -> MappingOptions:
    if extension.run.get("columns") and "text_column" in extension.run:
        raise ConfigError(
            "headrace.columns and headrace.text_column contradict each other: remove one of them"
        )
    return _joined(
        MappingOptions(), extension, whole_records=job.has_fields or None, input_filter=job.input_filter
    )


def _flow(job: SageMakerJob, extension: SpecExtension) -> FlowSettings:
    return _joined(
        FlowSettings(),
        extension,
        batch_rows_max=1 if job.single_record else None,
        batch_bytes_max=_payload_bytes(job, None),
    )


def _payload_bytes(job: SageMakerJob, unbounded: int | None) -> int | None:
    """Return SageMaker's limit of a request: `unbounded` for 0, None without SageMaker fields."""
    if not job.has_fields:
        return None
    payload_mb = PAYLOAD_MB_DEFAULT if job.payload_mb is None else job.payload_mb
    return payload_mb * MIB or unbounded


def _output(job: SageMakerJob, extension: SpecExtension) -> OutputSettings:
    accept = None if job.accept is None else accept_of(job.accept)
    return _joined(
        OutputSettings(),
        extension,
        format=_first_set(extension.keys.accept, accept),
        assemble=_first_set(job.assemble, "none" if job.has_output else None),
        join=job.join,
        output_filter=job.output_filter,
    )


def _failures(job: SageMakerJob, extension: SpecExtension, *, strict: bool) -> FailurePolicy:
    """Return the failure policy. With SageMaker's fields or `strict`, failures do not stop the run."""
    on_error = extension.run.get("on_error")
    if strict and on_error not in {None, "object"}:
        raise ConfigError(
            f'headrace.on_error "{on_error}" contradicts strict, which suppresses the '
            "output of an object with a failed record: remove one of them"
        )
    rows, share = extension.keys.max_failed or (None, None)
    if job.has_fields or strict:
        on_error = "object" if strict else on_error or "record"
        share = 1.0 if extension.keys.max_failed is None else share
    return FailurePolicy(on_error, rows, share)


_CSV_WORDS: Final = ("header", "delimiter", "quote", "escape", "null_words", "decimal")
"""Keys that apply to CSV alone."""


def _check_reading(read: ReadOptions, extension: SpecExtension) -> None:
    """Raise ConfigError for options that the way of splitting would ignore."""
    for word in sorted(extension.set_fields(*_CSV_WORDS)):
        if read.format not in {AUTO, "csv"}:
            raise ConfigError(
                f"headrace.{word} applies to CSV records, but the format is {read.format}: split CSV with "
                'SplitType Line (or headrace.split = "csv")'
            )
    for word in sorted(extension.set_fields("comment", "skip_rows", "encoding")):
        if read.format not in {AUTO, "csv", "jsonl", V2, "line"} and (word, read.format) != (
            "encoding",
            "json",
        ):
            raise ConfigError(
                f"headrace.{word} applies to CSV, JSON Lines and text, but the format is {read.format}: "
                "remove it, or split into records with SplitType Line"
            )
    if read.members and read.archive == "none":
        raise ConfigError(
            'headrace.members applies to archives, but objects are not opened: set headrace.split = "tar" '
            'or "zip"'
        )
    if read.every_frames is not None and read.every_ms is not None:
        raise ConfigError(
            "headrace.every_frames and headrace.every_ms contradict each other: remove one of them"
        )


def _check_filters(
    read: ReadOptions, mapping: MappingOptions, output: OutputSettings, extension: SpecExtension
) -> None:
    """Raise ConfigError for filters that fit no record of the formats.

    Unknown formats are not checked.
    """
    where = "headrace.input_filter" if extension.run.get("input_filter") else "DataProcessing.InputFilter"
    path = compile_path(mapping.input_filter, slice_end=mapping.slice_end)
    if read.format in _UNFILTERED and not path.is_root:
        raise ConfigError(
            f"{where} {path.text} needs CSV or JSON records, but the format is {read.format}: remove the "
            "filter, or split into records with SplitType Line and ContentType text/csv or "
            "application/jsonlines"
        )
    named = read.header in ("names", "auto")
    if read.format == "csv":
        _check_columns(where, path, named=named)
    if extension.run.get("output_filter") and (output.join == "none" or read.format != "csv"):
        named = True  # predictions have names, although SageMaker's filters do not use them
    # The format auto writes CSV for CSV.
    if (read.format if output.format == "auto" else output.format) in ROWS_OF_CELLS:
        where = (
            "headrace.output_filter" if extension.run.get("output_filter") else "DataProcessing.OutputFilter"
        )
        _check_columns(where, compile_path(output.output_filter, slice_end=output.slice_end), named=named)


def _check_columns(what: str, path: JsonPath, *, named: bool) -> None:
    try:
        path.csv_columns(named=named)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from error


def _first_set(*values: T | None) -> T | None:
    """Return the first value that is not None."""
    return next((value for value in values if value is not None), None)


def _joined(settings: T, extension: SpecExtension, **job: Any) -> T:
    """Return the settings with those values of the job that are not None, then those of the table."""
    own = extension.values_for(type(settings))
    values = {name: value for name, value in job.items() if value is not None} | own
    return replace(cast("Any", settings), **values)
