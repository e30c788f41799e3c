"""The vendor's words: the fields of a CreateTransformJob request, their types and their bounds.

Read here is what one field by itself can be; which of them cannot stand together is `headrace.transforms.rejections`.
"""

import re
from dataclasses import dataclass
from typing import Any, Final, cast

from headrace.formats.json_path import compile_path
from headrace.storage.uri import parse
from headrace.transforms.document import Table, shown
from headrace.transforms.media_types import accept_of, kind_of
from headrace.transforms.settings import Assemble, DataType, Join

FIELDS: Final = (
    "TransformJobName", "ModelName", "MaxConcurrentTransforms", "ModelClientConfig", "MaxPayloadInMB", "BatchStrategy",
    "Environment", "TransformInput", "TransformOutput", "DataCaptureConfig", "TransformResources", "DataProcessing",
    "Tags", "ExperimentConfig",
)  # fmt: skip
"""What stands at the top of a request."""

FILTER_CHARACTERS_MAX: Final = 63
PAYLOAD_MB_MAX: Final = 100
PAYLOAD_MB: Final = 6
"""What a request is told to hold at most when it does not say."""
TIMEOUT_S: Final = 600.0
RETRIES: Final = 3
_NAME: Final = re.compile("[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_NAME_CHARACTERS_MAX: Final = 63
_ENVIRONMENT_ENTRIES_MAX: Final = 16

_DATA_TYPES: Final[dict[str, DataType]] = {"S3Prefix": "prefix", "ManifestFile": "manifest"}
_REFUSED_TYPES: Final = {
    "AugmentedManifestFile": "is not for batch transform, as the vendor has it too: write a ManifestFile of the objects",
    "Converse": "is named by the vendor and described nowhere: use S3Prefix or ManifestFile",
}
_SPLITS: Final = {"None": "none", "Line": "line", "RecordIO": "recordio", "TFRecord": "tfrecord"}
_ASSEMBLES: Final[dict[str, Assemble]] = {"None": "none", "Line": "line"}
_JOINS: Final[dict[str, Join]] = {"None": "none", "Input": "input"}


@dataclass(frozen=True, slots=True)
class VendorJob:
    """A request, as far as it means something here. None is what it does not say, whatever the vendor's default.

    `given` says whether the file has any of the vendor's words, `input_given` whether it has a TransformInput,
    `output_given` a TransformOutput. Splits, compressions and the like are in headrace's words; content types and
    accepts as written. `passed_over` are dotted names of fields that were checked and mean nothing here.
    """

    given: bool
    input_given: bool
    output_given: bool
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
    passed_over: tuple[str, ...]

    @property
    def processes(self) -> bool:
        """Whether DataProcessing asks for anything but that predictions are written as they come."""
        return self.join == "input" or any(
            f not in {None, "$"} for f in (self.input_filter, self.output_filter)
        )


def read_job(document: Table) -> VendorJob:
    """The job that a document's vendor's words describe; other words of it are not looked at.

    ConfigError for a field that is not known, is of a wrong type, or beyond the vendor's bounds.
    """
    client = document.table("ModelClientConfig", ("InvocationsTimeoutInSeconds", "InvocationsMaxRetries"))
    given = document.table("TransformInput", ("DataSource", "ContentType", "CompressionType", "SplitType"))
    source = given.table("DataSource", ("S3DataSource",)).table("S3DataSource", ("S3DataType", "S3Uri"))
    output = document.table("TransformOutput", ("S3OutputPath", "Accept", "AssembleWith", "KmsKeyId"))
    processing = document.table("DataProcessing", ("InputFilter", "OutputFilter", "JoinSource"))
    resources = document.table(
        "TransformResources", ("InstanceType", "InstanceCount", "VolumeKmsKeyId", "TransformAmiVersion")
    )
    timeout_s = client.whole("InvocationsTimeoutInSeconds", 1, 3600)
    return VendorJob(
        given=any(map(document.has, FIELDS)),
        input_given=document.has("TransformInput"),
        output_given=document.has("TransformOutput"),
        job_name=_job_name(document),
        model=_model(document),
        max_concurrent=document.whole("MaxConcurrentTransforms", 0),
        payload_mb=document.whole("MaxPayloadInMB", 0, PAYLOAD_MB_MAX),
        single_record=document.word("BatchStrategy", {"MultiRecord": False, "SingleRecord": True}),
        timeout_s=None if timeout_s is None else float(timeout_s),
        retries=client.whole("InvocationsMaxRetries", 0, 3),
        data_type=_data_type(source),
        source=source.checked("S3Uri", parse),
        content_type=given.checked("ContentType", kind_of),
        compression=given.word("CompressionType", {"None": "none", "Gzip": "gzip"}),
        split=given.word("SplitType", _SPLITS),
        output=output.checked("S3OutputPath", parse),
        accept=output.checked("Accept", accept_of),
        assemble=output.word("AssembleWith", _ASSEMBLES),
        input_filter=processing.checked("InputFilter", compile_path, characters_max=FILTER_CHARACTERS_MAX),
        output_filter=processing.checked("OutputFilter", compile_path, characters_max=FILTER_CHARACTERS_MAX),
        join=processing.word("JoinSource", _JOINS),
        instances=resources.whole("InstanceCount", 1, 100),
        instance_type=resources.text("InstanceType"),
        volume_key=resources.text("VolumeKmsKeyId"),
        passed_over=_passed_over(document, output, resources),
    )


def _job_name(document: Table) -> str | None:
    name = document.text("TransformJobName", characters_max=_NAME_CHARACTERS_MAX)
    if name is not None and not _NAME.fullmatch(name):
        raise document.wrong(
            "TransformJobName",
            f"{shown(name)} cannot be a job's name: letters, digits and hyphens, beginning and ending with a letter or digit",
        )
    return name


def _model(document: Table) -> str | None:
    name = document.text("ModelName")
    if name is not None and len(name) > _NAME_CHARACTERS_MAX:
        raise document.wrong(
            "ModelName",
            f"has {len(name)} characters, and at most {_NAME_CHARACTERS_MAX} are allowed: say a longer path as headrace.model",
        )
    return name


def _data_type(source: Table) -> DataType | None:
    name = source.values.get("S3DataType")
    if isinstance(name, str) and name in _REFUSED_TYPES:
        raise source.wrong("S3DataType", f"{name} {_REFUSED_TYPES[name]}")
    return source.word("S3DataType", _DATA_TYPES)


def _passed_over(document: Table, output: Table, resources: Table) -> tuple[str, ...]:
    """Names of what has no meaning here, its shape checked."""
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
        raise capture.wrong("DestinationS3Uri", "must be there")
    for table, key in ((output, "KmsKeyId"), (resources, "TransformAmiVersion")):
        table.text(key)
    top = ("Environment", "Tags", "ExperimentConfig", "DataCaptureConfig")
    below = ("InstanceType", "VolumeKmsKeyId", "TransformAmiVersion")
    return (
        *(key for key in top if document.has(key)),
        *(output.name(key) for key in ("KmsKeyId",) if output.has(key)),
        *(resources.name(key) for key in below if resources.has(key)),
    )


def _check_environment(document: Table) -> None:
    entries: Any = document.values.get("Environment", {})
    if not isinstance(entries, dict):
        raise document.wrong("Environment", f"must be a table of texts, not {shown(entries)}")
    names = Table(document.file, "Environment", cast("dict[str, Any]", entries))
    if len(names.values) > _ENVIRONMENT_ENTRIES_MAX:
        raise document.wrong(
            "Environment",
            f"has {len(names.values)} entries, and at most {_ENVIRONMENT_ENTRIES_MAX} are allowed",
        )
    for name, value in names.values.items():
        if not isinstance(value, str):
            raise names.wrong(shown(name), f"must be text, not {shown(value)}")


def _check_tags(document: Table) -> None:
    for number, tag in enumerate(document.listed("Tags") or ()):
        table = Table.of(document.file, f"Tags[{number}]", tag, ("Key", "Value"))
        if table.text("Key") is None or not isinstance(table.values.get("Value"), str):
            raise table.wrong("", "must have a Key and a Value, both of them texts")


def _check_texts(document: Table, key: str, names: tuple[str, ...], others: tuple[str, ...] = ()) -> Table:
    table = document.table(key, (*names, *others))
    for name in names:
        table.text(name)
    return table
