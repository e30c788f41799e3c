"""Reject combinations of fields that SageMaker's documentation forbids, before anything runs.

Only SageMaker's own fields are checked. Where the file's ``headrace`` table sets a value, SageMaker
has no rule, and the checks of the settings apply. Some rules need the data and are checked during
the run: no record exceeds MaxPayloadInMB, and records have the columns and fields of a filter. A
missing model or an existing output is found when either is opened.
"""

import re
from collections.abc import Set as AbstractSet
from typing import Final

from headrace.core.errors import ConfigError
from headrace.runs.media_types import kind_of
from headrace.runs.sagemaker import PAYLOAD_MB_DEFAULT, PAYLOAD_MB_MAX, SageMakerJob

_KINDS: Final = ("csv", "json", "jsonl")
_TYPES: Final = "text/csv, application/json or application/jsonlines"
_CONTENT: Final = "TransformInput.ContentType"
_SPLIT: Final = "TransformInput.SplitType"
_ACCEPT: Final = "TransformOutput.Accept"
_ASSEMBLE: Final = "TransformOutput.AssembleWith"
_DISPLAY_NAMES: Final = {"none": "None", "line": "Line", "recordio": "RecordIO", "tfrecord": "TFRecord"}

# EC2's naming: a "d" after the generation, or a family that always has local storage.
_LOCAL_STORAGE: Final = re.compile(r"ml\.([a-z]+\d+[a-z]*d[a-z]*|g5|g6e?|gr6|p5|trn1n?)\.", re.IGNORECASE)


def reject(job: SageMakerJob, overridden: AbstractSet[str]) -> None:
    """Raise ConfigError for the first documented rule that a job breaks.

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
            f"BatchStrategy MultiRecord without {_SPLIT}: whole objects are not batched: set "
            "SplitType to Line, RecordIO or TFRecord, or remove BatchStrategy"
        )


def _reject_volume_key(job: SageMakerJob) -> None:
    if job.volume_key is not None and job.instance_type and _LOCAL_STORAGE.match(job.instance_type):
        raise ConfigError(
            f"TransformResources.VolumeKmsKeyId with InstanceType {job.instance_type}: SageMaker refuses a "
            "key for instances with local storage: remove VolumeKmsKeyId (it has no meaning here)"
        )


def _reject_types(job: SageMakerJob, overridden: AbstractSet[str]) -> None:
    for word, field, value in (("content_type", _CONTENT, job.content_type), ("accept", _ACCEPT, job.accept)):
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
        ("content_type", _CONTENT, job.content_type, "split", _SPLIT, job.split),
        ("accept", _ACCEPT, job.accept, "assemble", _ASSEMBLE, job.assemble),
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
            f"DataProcessing.JoinSource Input with {_CONTENT} {job.content_type} and {_ACCEPT} {job.accept}: "
            "a prediction can only be joined to a record of the same type: make them equal"
        )
    split, assemble = job.split or "none", job.assemble or "none"
    if not {"split", "assemble"} & overridden and split != assemble:
        raise ConfigError(
            f"DataProcessing.JoinSource Input with {_SPLIT} {_display(job.split)} and "
            f"{_ASSEMBLE} {_display(job.assemble)}: make them equal"
        )


def _display(word: str | None) -> str:
    return "None (the default)" if word is None else _DISPLAY_NAMES[word]
