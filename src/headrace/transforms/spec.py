"""A batch transform's spec file: the vendor's words, headrace's own, and the settings that they make.

::

    TransformJobName = "churn-2026-01"              # the fields of a CreateTransformJob request, in TOML or JSON
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

    [headrace]                                      # what the vendor has no words for
    header = "drop"
    max_failed = "1%"
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar, cast

from headrace.core.errors import ConfigError
from headrace.formats.json_path import JsonPath, compile_path
from headrace.formats.read import AUTO, ReadOptions
from headrace.pipeline.settings import MIB, FlowSettings, MappingOptions
from headrace.transforms.document import Table, read_document
from headrace.transforms.media_types import accept_of, read_options
from headrace.transforms.own_words import WORDS, OwnWords, read_own_words
from headrace.transforms.rejections import reject
from headrace.transforms.settings import (
    DataType,
    FailurePolicy,
    TaskSettings,
    TransformOutput,
    TransformSettings,
)
from headrace.transforms.vendor import (
    FIELDS,
    PAYLOAD_MB,
    PAYLOAD_MB_MAX,
    RETRIES,
    TIMEOUT_S,
    VendorJob,
    read_job,
)

T = TypeVar("T")

OWN_TABLE: Final = "headrace"
_UNFILTERED: Final = ("line", "whole", "recordio", "tfrecord", "image", "audio", "video")
"""Formats whose records no path selects from."""


@dataclass(frozen=True, slots=True)
class TransformSpec:
    """What a spec file says; None is what it does not say, and is for whoever runs it to choose.

    `model` is the model as a file, folder or class. `instances` is how many machines the vendor was asked for, or how
    many loaded copies the ``headrace`` table asks for; `max_concurrent` the requests under way at once. `timeout_s` and
    `retries` are for one request. None of these four changes what is written. `strict` asks for what the vendor does.
    `passed_over` are dotted names of fields that were understood and mean nothing here: tell the user.
    """

    settings: TransformSettings = field(default_factory=TransformSettings)
    source: str | None = None
    output: str | None = None
    model: str | None = None
    job_name: str | None = None
    instances: int | None = None
    max_concurrent: int | None = None
    timeout_s: float | None = None
    retries: int | None = None
    strict: bool = False
    passed_over: tuple[str, ...] = ()


def read_spec(text: str, name: str, *, strict: bool = False) -> TransformSpec:
    """The spec in a TOML or JSON text; `name` is its file's (it ends in ``.toml`` or ``.json``), for messages.

    What the ``headrace`` table says counts where both say it. What a file leaves out has the vendor's default where
    the file has the vendor's table for it, and headrace's where it has not: a TransformInput without a SplitType and a
    CompressionType neither splits nor decompresses, a TransformOutput without an AssembleWith puts nothing between
    records, and any of the vendor's words means payloads of 6 MB, 600 s, 3 retries, and that a model of text is given
    records as they stand (`MappingOptions.whole_records`).

    MaxPayloadInMB bounds a record and a batch of them; MB are 2^20 bytes. 0, where the vendor streams whole objects,
    bounds a record by 100 MB and a batch by `FlowSettings`, as nothing here is without a bound. `strict` is as if the
    file said it.

    Raises ConfigError, with the file and the fields, for a field that is not known, of a wrong type or beyond the
    vendor's bounds, and for fields that cannot stand together. What only a run can find out (a record larger than its
    bound, a filter that asks for what a record does not have) is the run's to say, of the record that it is true of.
    """
    return spec_of(read_document(text, name), name, strict=strict)


def spec_of(values: Mapping[str, Any], name: str, *, strict: bool = False) -> TransformSpec:
    """`read_spec` of what was read already; `name` is for messages."""
    document = Table.of(name, "", values, (*FIELDS, OWN_TABLE))
    job = read_job(document)
    own = read_own_words(document.table(OWN_TABLE, WORDS))
    try:
        reject(job, _elsewhere(own))
        strictly = strict or bool(own.strict)
        settings = _settings(job, own, strict=strictly)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    return TransformSpec(
        settings,
        source=_first(own.source, job.source),
        output=_first(own.output, job.output),
        model=_first(own.model, job.model),
        job_name=_first(own.job_name, job.job_name),
        instances=_first(own.instances, job.instances),
        max_concurrent=_first(own.max_concurrent, job.max_concurrent or None),
        timeout_s=_first(own.timeout_s, job.timeout_s, TIMEOUT_S if job.given else None),
        retries=_first(own.retries, job.retries, RETRIES if job.given else None),
        strict=strictly,
        passed_over=job.passed_over,
    )


def _elsewhere(own: OwnWords) -> frozenset[str]:
    """What the vendor's rules do not judge, because the file says it in headrace's words."""
    sizes = ("payload",) if own.record_bytes_max is not None and own.batch_bytes is not None else ()
    return own.said("content_type", "split", "accept", "assemble").union(sizes)


def _settings(job: VendorJob, own: OwnWords, *, strict: bool) -> TransformSettings:
    read = _read(job, own)
    mapping = _mapping(job, own)
    output = _output(job, own)
    _check_reading(read, own)
    _check_filters(read, mapping, output, own)
    data_type: DataType | None = _first(own.data_type, job.data_type)
    return TransformSettings(
        data_type="auto" if data_type is None else data_type,
        read=read,
        mapping=mapping,
        flow=_flow(job, own),
        output=output,
        failures=_failures(own, strict=strict),
        tasks=_with(
            TaskSettings(),
            task_bytes=own.task_bytes,
            task_objects_max=own.task_objects,
            checkpoint_s=own.checkpoint_s,
        ),
    )


def _read(job: VendorJob, own: OwnWords) -> ReadOptions:
    split = _first(own.split, job.split)
    if split is None and job.input_given and own.content_type is None:
        split = "none"
    compression = _first(own.compression, job.compression, "none" if job.input_given else None)
    read = read_options(_first(own.content_type, job.content_type), split, compression)
    return _with(
        read,
        record_bytes_max=_first(own.record_bytes_max, _payload_bytes(job, PAYLOAD_MB_MAX * MIB)),
        members=own.members,
        header=own.header,
        delimiter=own.delimiter,
        size_px=own.image_size,
        image_mode=own.image_mode,
        window_ms=own.window_ms,
        hop_ms=own.hop_ms,
        sample_rate_hz=own.sample_rate_hz,
        audio_channels=own.audio_channels,
        every_frames=own.every_frames,
        every_ms=own.every_ms,
    )


def _mapping(job: VendorJob, own: OwnWords) -> MappingOptions:
    if own.columns and own.text_column is not None:
        raise ConfigError(
            "headrace.columns and headrace.text_column contradict each other: leave one of them out"
        )
    return _with(
        MappingOptions(),
        columns=own.columns,
        text_column=own.text_column,
        image_scale=own.image_scale,
        whole_records=_first(own.whole_records, job.given or None),
        input_filter=_first(own.input_filter, job.input_filter),
        slice_end=own.slice_end,
    )


def _flow(job: VendorJob, own: OwnWords) -> FlowSettings:
    return _with(
        FlowSettings(),
        batch_rows_max=_first(own.batch_rows, 1 if job.single_record else None),
        batch_bytes_max=_first(own.batch_bytes, _payload_bytes(job, None)),
        prefetch_bytes_max=own.prefetch_bytes,
    )


def _payload_bytes(job: VendorJob, unbounded: int | None) -> int | None:
    """The vendor's bound of a request; `unbounded` where it says 0, None where there are none of its words."""
    if not job.given:
        return None
    payload_mb = PAYLOAD_MB if job.payload_mb is None else job.payload_mb
    return payload_mb * MIB or unbounded


def _output(job: VendorJob, own: OwnWords) -> TransformOutput:
    return _with(
        TransformOutput(),
        accept=_first(own.accept, None if job.accept is None else accept_of(job.accept)),
        assemble=_first(own.assemble, job.assemble, "none" if job.output_given else None),
        join=_first(own.join, job.join),
        output_filter=_first(own.output_filter, job.output_filter),
        slice_end=own.slice_end,
        header=own.output_header,
    )


def _failures(own: OwnWords, *, strict: bool) -> FailurePolicy:
    if strict and own.on_error not in {None, "object"}:
        raise ConfigError(
            f'headrace.on_error "{own.on_error}" contradicts strict, where an object with a failed record gets no '
            "output: leave one of them out"
        )
    rows, share = own.max_failed
    return FailurePolicy("object" if strict else own.on_error or "record", rows, share)


def _check_reading(read: ReadOptions, own: OwnWords) -> None:
    """Refuse what would be passed over in silence, because of how objects are split."""
    for word in sorted(own.said("header", "delimiter")):
        if read.format not in {AUTO, "csv"}:
            raise ConfigError(
                f"headrace.{word} is of CSV records, and what is read is {read.format}: split CSV with SplitType Line "
                '(or headrace.split = "csv")'
            )
    if own.members and read.archive == "none":
        raise ConfigError(
            'headrace.members are of archives, and objects are not looked into: say headrace.split = "tar"'
        )
    if own.every_frames is not None and own.every_ms is not None:
        raise ConfigError(
            "headrace.every_frames and headrace.every_ms contradict each other: leave one of them out"
        )


def _check_filters(
    read: ReadOptions, mapping: MappingOptions, output: TransformOutput, own: OwnWords
) -> None:
    """Refuse filters that no record of the formats could take; of formats told by names a run finds out."""
    where = "headrace.input_filter" if own.input_filter else "DataProcessing.InputFilter"
    path = compile_path(mapping.input_filter, slice_end=mapping.slice_end)
    if read.format in _UNFILTERED and not path.is_root:
        raise ConfigError(
            f"{where} {path.text} selects of CSV or JSON records, and what is read is {read.format}: leave the filter "
            "out, or split into records with SplitType Line and a ContentType of text/csv or application/jsonlines"
        )
    named = read.header == "names"
    if read.format == "csv":
        _check_columns(where, path, named=named)
    if own.output_filter and (output.join == "none" or read.format != "csv"):
        named = True  # what is predicted has names; the vendor's words still do not use them
    if output.accept == "csv" or (output.accept == "auto" and read.format == "csv"):
        where = "headrace.output_filter" if own.output_filter else "DataProcessing.OutputFilter"
        _check_columns(where, compile_path(output.output_filter, slice_end=output.slice_end), named=named)


def _check_columns(what: str, path: JsonPath, *, named: bool) -> None:
    try:
        path.csv_columns(named=named)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from error


def _first(*values: T | None) -> T | None:
    """The first that is said."""
    return next((value for value in values if value is not None), None)


def _with(options: T, **said: Any) -> T:
    """The options with what is said, and their own defaults for what is not."""
    return replace(cast("Any", options), **{name: value for name, value in said.items() if value is not None})
