"""Read the fields of a SageMaker CreateTransformJob request, and reject what its documentation forbids.

Each field is checked by itself, with its type and limits; then `reject` checks combinations of fields.
"""

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final, cast

from headrace.core.errors import ConfigError
from headrace.formats.json_path import compile_path
from headrace.runs.document import SpecTable, format_value
from headrace.runs.media_types import accept_of, kind_of
from headrace.runs.output_settings import Assemble, Join
from headrace.runs.settings import DataType
from headrace.storage.uri import parse

FIELDS: Final = (
    "TransformJobName", "ModelName", "MaxConcurrentTransforms", "ModelClientConfig", "MaxPayloadInMB",
    "BatchStrategy", "Environment", "TransformInput", "TransformOutput", "DataCaptureConfig",
    "TransformResources", "DataProcessing", "Tags", "ExperimentConfig",
)  # fmt: skip
"""The top-level fields of a request."""

FILTER_CHARACTERS_MAX: Final = 63
PAYLOAD_MB_MAX: Final = 100
PAYLOAD_MB_DEFAULT: Final = 6
"""The default of MaxPayloadInMB."""
TIMEOUT_S: Final = 600.0
RETRIES: Final = 3
_NAME: Final = re.compile("[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_NAME_CHARACTERS_MAX: Final = 63
_ENVIRONMENT_ENTRIES_MAX: Final = 16

_DATA_TYPES: Final[dict[str, DataType]] = {"S3Prefix": "prefix", "ManifestFile": "manifest"}
_UNSUPPORTED_DATA_TYPES: Final = {
    "AugmentedManifestFile": "is not supported by batch transform (nor by SageMaker's): use ManifestFile",
    "Converse": "is not documented by SageMaker: use S3Prefix or ManifestFile",
}
_SPLITS: Final = {"None": "none", "Line": "line", "RecordIO": "recordio", "TFRecord": "tfrecord"}
_ASSEMBLES: Final[dict[str, Assemble]] = {"None": "none", "Line": "line"}
_JOINS: Final[dict[str, Join]] = {"None": "none", "Input": "input"}
_KINDS: Final = ("csv", "json", "jsonl")
_TYPES: Final = "text/csv, application/json or application/jsonlines"
_CONTENT_FIELD: Final = "TransformInput.ContentType"
_SPLIT_FIELD: Final = "TransformInput.SplitType"
_ACCEPT_FIELD: Final = "TransformOutput.Accept"
_ASSEMBLE_FIELD: Final = "TransformOutput.AssembleWith"
_DISPLAY_NAMES: Final = {"none": "None", "line": "Line", "recordio": "RecordIO", "tfrecord": "TFRecord"}
# EC2's naming: a "d" after the generation, or a family that always has local storage.
_LOCAL_STORAGE: Final = re.compile(r"ml\.([a-z]+\d+[a-z]*d[a-z]*|g5|g6e?|gr6|p5|trn1n?)\.", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SageMakerJob:
    """A CreateTransformJob request, as far as headrace uses it. None stands for an absent field.

    `has_fields` is True if the file has any SageMaker field; `has_input` and `has_output`, if it
    has a TransformInput or TransformOutput. Splits, compressions and the like are in headrace's
    words; content types and accepts are unchanged. `ignored_fields` are dotted names of valid
    fields without a meaning here.
    """

    has_fields: bool
    has_input: bool
    has_output: bool
    job_name: str | None
    model: str | None
    max_concurrent: int | None
    payload_mb: int | None
    single_record: bool | None
    timeout_s: float | None
    retries: int | None
    data_type: DataType | None
    source: str | None
    content_type: str | None
    compression: str | None
    split: str | None
    output: str | None
    accept: str | None
    assemble: Assemble | None
    input_filter: str | None
    output_filter: str | None
    join: Join | None
    instances: int | None
    instance_type: str | None
    volume_key: str | None
    ignored_fields: tuple[str, ...]

    @property
    def processes_data(self) -> bool:
        """True if DataProcessing filters or joins."""
        return self.join == "input" or any(
            f not in {None, "$"} for f in (self.input_filter, self.output_filter)
        )


def read_job(document: SpecTable) -> SageMakerJob:
    """Return the job that the SageMaker fields of a document describe.

    Raises ConfigError for an unknown field, a wrong type, and a value outside of SageMaker's
    limits.
    """
    client = document.table("ModelClientConfig", ("InvocationsTimeoutInSeconds", "InvocationsMaxRetries"))
    transform_input = document.table(
        "TransformInput", ("DataSource", "ContentType", "CompressionType", "SplitType")
    )
    source = transform_input.table("DataSource", ("S3DataSource",)).table(
        "S3DataSource", ("S3DataType", "S3Uri")
    )
    output = document.table("TransformOutput", ("S3OutputPath", "Accept", "AssembleWith", "KmsKeyId"))
    processing = document.table("DataProcessing", ("InputFilter", "OutputFilter", "JoinSource"))
    resources = document.table(
        "TransformResources", ("InstanceType", "InstanceCount", "VolumeKmsKeyId", "TransformAmiVersion")
    )
    timeout_s = client.integer("InvocationsTimeoutInSeconds", 1, 3600)
    return SageMakerJob(
        has_fields=any(map(document.has, FIELDS)),
        has_input=document.has("TransformInput"),
        has_output=document.has("TransformOutput"),
        job_name=_job_name(document),
        model=_model(document),
        max_concurrent=document.integer("MaxConcurrentTransforms", 0),
        payload_mb=document.integer("MaxPayloadInMB", 0, PAYLOAD_MB_MAX),
        single_record=document.choice("BatchStrategy", {"MultiRecord": False, "SingleRecord": True}),
        timeout_s=None if timeout_s is None else float(timeout_s),
        retries=client.integer("InvocationsMaxRetries", 0, 3),
        data_type=_data_type(source),
        source=source.checked_text("S3Uri", parse),
        content_type=transform_input.checked_text("ContentType", kind_of),
        compression=transform_input.choice("CompressionType", {"None": "none", "Gzip": "gzip"}),
        split=transform_input.choice("SplitType", _SPLITS),
        output=output.checked_text("S3OutputPath", parse),
        accept=output.checked_text("Accept", accept_of),
        assemble=output.choice("AssembleWith", _ASSEMBLES),
        input_filter=processing.checked_text(
            "InputFilter", compile_path, characters_max=FILTER_CHARACTERS_MAX
        ),
        output_filter=processing.checked_text(
            "OutputFilter", compile_path, characters_max=FILTER_CHARACTERS_MAX
        ),
        join=processing.choice("JoinSource", _JOINS),
        instances=resources.integer("InstanceCount", 1, 100),
        instance_type=resources.text("InstanceType"),
        volume_key=resources.text("VolumeKmsKeyId"),
        ignored_fields=_ignored_fields(document, output, resources),
    )


def _job_name(document: SpecTable) -> str | None:
    name = document.text("TransformJobName", characters_max=_NAME_CHARACTERS_MAX)
    if name is not None and not _NAME.fullmatch(name):
        raise document.error(
            "TransformJobName",
            f"{format_value(name)} is no valid job name: use letters, digits and hyphens, with a letter or "
            "digit at both ends",
        )
    return name


def _model(document: SpecTable) -> str | None:
    name = document.text("ModelName")
    if name is not None and len(name) > _NAME_CHARACTERS_MAX:
        raise document.error(
            "ModelName",
            f"has {len(name)} characters; the limit is {_NAME_CHARACTERS_MAX}: put a longer path into "
            "headrace.model",
        )
    return name


def _data_type(source: SpecTable) -> DataType | None:
    name = source.values.get("S3DataType")
    if isinstance(name, str) and name in _UNSUPPORTED_DATA_TYPES:
        raise source.error("S3DataType", f"{name} {_UNSUPPORTED_DATA_TYPES[name]}")
    return source.choice("S3DataType", _DATA_TYPES)


def _ignored_fields(document: SpecTable, output: SpecTable, resources: SpecTable) -> tuple[str, ...]:
    """Return the names of fields without a meaning here, after a check of their types."""
    _check_environment(document)
    _check_tags(document)
    _check_texts(
        document, "ExperimentConfig", ("ExperimentName", "TrialName", "TrialComponentDisplayName", "RunName")
    )
    capture = _check_texts(
        document, "DataCaptureConfig", ("DestinationS3Uri", "KmsKeyId"), ("GenerateInferenceId",)
    )
    capture.flag("GenerateInferenceId")
    if document.has("DataCaptureConfig") and not capture.has("DestinationS3Uri"):
        raise capture.error("DestinationS3Uri", "must be set")
    for table, key in ((output, "KmsKeyId"), (resources, "TransformAmiVersion")):
        table.text(key)
    top = ("Environment", "Tags", "ExperimentConfig", "DataCaptureConfig")
    below = ("InstanceType", "VolumeKmsKeyId", "TransformAmiVersion")
    return (
        *(key for key in top if document.has(key)),
        *(output.name(key) for key in ("KmsKeyId",) if output.has(key)),
        *(resources.name(key) for key in below if resources.has(key)),
    )


def _check_environment(document: SpecTable) -> None:
    entries: Any = document.values.get("Environment", {})
    if not isinstance(entries, dict):
        raise document.error("Environment", f"must be a table of texts, not {format_value(entries)}")
    names = SpecTable(document.file, "Environment", cast("dict[str, Any]", entries))
    if len(names.values) > _ENVIRONMENT_ENTRIES_MAX:
        raise document.error(
            "Environment",
            f"has {len(names.values)} entries; the limit is {_ENVIRONMENT_ENTRIES_MAX}",
        )
    for name, value in names.values.items():
        if not isinstance(value, str):
            raise names.error(format_value(name), f"must be text, not {format_value(value)}")


def _check_tags(document: SpecTable) -> None:
    for number, tag in enumerate(document.array("Tags") or ()):
        table = SpecTable.from_value(document.file, f"Tags[{number}]", tag, ("Key", "Value"))
        if table.text("Key") is None or not isinstance(table.values.get("Value"), str):
            raise table.error("", "must have a Key and a Value, both texts")


def _check_texts(
    document: SpecTable, key: str, names: tuple[str, ...], others: tuple[str, ...] = ()
) -> SpecTable:
    table = document.table(key, (*names, *others))
    for name in names:
        table.text(name)
    return table


def reject(job: SageMakerJob, overridden: AbstractSet[str]) -> None:
    """Raise ConfigError for the first documented rule that a job breaks.

    Some rules need the data and are checked during the run: no record exceeds MaxPayloadInMB, and
    records have the columns and fields of a filter. A missing model or an existing output is found
    when either is opened.

    `overridden` names values that the file sets in its ``headrace`` table; their rules are skipped.
    Any of ``content_type``, ``split``, ``accept``, ``assemble``, ``payload``.
    """
    if "payload" not in overridden:
        _reject_payload(job)
    if "split" not in overridden:
        _reject_strategy(job)
    _reject_volume_key(job)
    if job.processes_data:
        _reject_types(job, overridden)
        _reject_delimiters(job, overridden)
    if job.join == "input":
        _reject_join(job, overridden)


def _reject_payload(job: SageMakerJob) -> None:
    payload_mb = PAYLOAD_MB_DEFAULT if job.payload_mb is None else job.payload_mb
    product_mb = (job.max_concurrent or 0) * payload_mb
    if product_mb > PAYLOAD_MB_MAX:
        default = " (the default)" if job.payload_mb is None else ""
        raise ConfigError(
            f"MaxConcurrentTransforms x MaxPayloadInMB is {job.max_concurrent} x {payload_mb}{default} = "
            f"{product_mb}; the limit is {PAYLOAD_MB_MAX}: lower one of them"
        )


def _reject_strategy(job: SageMakerJob) -> None:
    """Reject MultiRecord for unsplit objects.

    (SingleRecord is accepted: published requests have it.)
    """
    if job.single_record is False and job.split in {None, "none"}:
        raise ConfigError(
            f"BatchStrategy MultiRecord without {_SPLIT_FIELD}: whole objects are not batched: set "
            "SplitType to Line, RecordIO or TFRecord, or remove BatchStrategy"
        )


def _reject_volume_key(job: SageMakerJob) -> None:
    if job.volume_key is not None and job.instance_type and _LOCAL_STORAGE.match(job.instance_type):
        raise ConfigError(
            f"TransformResources.VolumeKmsKeyId with InstanceType {job.instance_type}: SageMaker refuses a "
            "key for instances with local storage: remove VolumeKmsKeyId (it has no meaning here)"
        )


def _reject_types(job: SageMakerJob, overridden: AbstractSet[str]) -> None:
    for word, field, value in (
        ("content_type", _CONTENT_FIELD, job.content_type),
        ("accept", _ACCEPT_FIELD, job.accept),
    ):
        if word in overridden:
            continue
        if value is None:
            raise ConfigError(f"DataProcessing without {field}: set it to {_TYPES}")
        if kind_of(value) not in _KINDS:
            raise ConfigError(
                f"DataProcessing with {field} {value}: filters and joins need {_TYPES}: choose one of "
                "them, or remove DataProcessing"
            )


def _reject_delimiters(job: SageMakerJob, overridden: AbstractSet[str]) -> None:
    """Reject CSV without SplitType Line or AssembleWith Line."""
    for type_word, type_field, value, word, field, delimiter in (
        ("content_type", _CONTENT_FIELD, job.content_type, "split", _SPLIT_FIELD, job.split),
        ("accept", _ACCEPT_FIELD, job.accept, "assemble", _ASSEMBLE_FIELD, job.assemble),
    ):
        if {type_word, word} & overridden or value is None:
            continue
        if kind_of(value) == "csv" and delimiter != "line":
            raise ConfigError(
                f"DataProcessing with {type_field} {value} and {field} {_display(delimiter)}: "
                f"CSV needs {field} Line"
            )


def _reject_join(job: SageMakerJob, overridden: AbstractSet[str]) -> None:
    is_checked = not {"content_type", "accept"} & overridden
    if is_checked and job.content_type and job.accept and kind_of(job.content_type) != kind_of(job.accept):
        raise ConfigError(
            f"DataProcessing.JoinSource Input with {_CONTENT_FIELD} {job.content_type} and "
            f"{_ACCEPT_FIELD} {job.accept}: "
            "a prediction can only be joined to a record of the same type: make them equal"
        )
    split, assemble = job.split or "none", job.assemble or "none"
    if not {"split", "assemble"} & overridden and split != assemble:
        raise ConfigError(
            f"DataProcessing.JoinSource Input with {_SPLIT_FIELD} {_display(job.split)} and "
            f"{_ASSEMBLE_FIELD} {_display(job.assemble)}: make them equal"
        )


def _display(word: str | None) -> str:
    return "None (the default)" if word is None else _DISPLAY_NAMES[word]
