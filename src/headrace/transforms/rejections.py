"""What the vendor's documents refuse of fields that cannot stand together, refused before anything runs.

Judged are the vendor's words alone: where the file's ``headrace`` table says a thing instead, the vendor has no rule
for it, and the settings' own checks hold. Some rules can only be held when running, and are: that no record is larger
than MaxPayloadInMB, that a filter's columns and fields are there in every record, that a JSON record is what a filter
takes it for. That the model exists, and that no job of the name does, is found out when model and output are opened.
"""

import re
from collections.abc import Set as AbstractSet
from typing import Final

from headrace.core.errors import ConfigError
from headrace.transforms.media_types import kind_of
from headrace.transforms.vendor import PAYLOAD_MB, PAYLOAD_MB_MAX, VendorJob

_KINDS: Final = ("csv", "json", "jsonl")
_TYPES: Final = "text/csv, application/json or application/jsonlines"
_CONTENT: Final = "TransformInput.ContentType"
_SPLIT: Final = "TransformInput.SplitType"
_ACCEPT: Final = "TransformOutput.Accept"
_ASSEMBLE: Final = "TransformOutput.AssembleWith"
_WORDS: Final = {"none": "None", "line": "Line", "recordio": "RecordIO", "tfrecord": "TFRecord"}

# EC2's names say it: a d among the letters behind the generation, or one of the families that always have them.
_LOCAL_STORAGE: Final = re.compile(r"ml\.([a-z]+\d+[a-z]*d[a-z]*|g5|g6e?|gr6|p5|trn1n?)\.", re.IGNORECASE)


def reject(job: VendorJob, elsewhere: AbstractSet[str]) -> None:
    """ConfigError for the first documented rule that a job breaks.

    `elsewhere` names what the file says outside the vendor's words, and what is therefore not judged: any of
    ``content_type``, ``split``, ``accept``, ``assemble``, ``payload``.
    """
    if "payload" not in elsewhere:
        _reject_payload(job)
    if "split" not in elsewhere:
        _reject_strategy(job)
    _reject_volume_key(job)
    if job.processes:
        _reject_types(job, elsewhere)
        _reject_delimiters(job, elsewhere)
    if job.join == "input":
        _reject_join(job, elsewhere)


def _reject_payload(job: VendorJob) -> None:
    payload_mb = PAYLOAD_MB if job.payload_mb is None else job.payload_mb
    product_mb = (job.max_concurrent or 0) * payload_mb
    if product_mb > PAYLOAD_MB_MAX:
        default = " (the default)" if job.payload_mb is None else ""
        raise ConfigError(
            f"MaxConcurrentTransforms x MaxPayloadInMB is {job.max_concurrent} x {payload_mb}{default} = {product_mb}, "
            f"and at most {PAYLOAD_MB_MAX} is allowed: lower one of them"
        )


def _reject_strategy(job: VendorJob) -> None:
    """SingleRecord is true of whole objects, and published requests have it; MultiRecord cannot be done with them."""
    if job.single_record is False and job.split in {None, "none"}:
        raise ConfigError(
            f"BatchStrategy MultiRecord without {_SPLIT}: objects that are not split are never put together; set "
            "SplitType to Line, RecordIO or TFRecord, or leave BatchStrategy out"
        )


def _reject_volume_key(job: VendorJob) -> None:
    if job.volume_key is not None and job.instance_type and _LOCAL_STORAGE.match(job.instance_type):
        raise ConfigError(
            f"TransformResources.VolumeKmsKeyId with InstanceType {job.instance_type}: the vendor refuses a key for "
            "instances that have local storage; leave VolumeKmsKeyId out (here it has no meaning)"
        )


def _reject_types(job: VendorJob, elsewhere: AbstractSet[str]) -> None:
    for word, field, value in (("content_type", _CONTENT, job.content_type), ("accept", _ACCEPT, job.accept)):
        if word in elsewhere:
            continue
        if value is None:
            raise ConfigError(f"DataProcessing without {field}: set it to {_TYPES}")
        if kind_of(value) not in _KINDS:
            raise ConfigError(
                f"DataProcessing with {field} {value}: filters and joins are of {_TYPES}; choose one of them, or leave "
                "DataProcessing out"
            )


def _reject_delimiters(job: VendorJob, elsewhere: AbstractSet[str]) -> None:
    """CSV is of lines, on either side."""
    for type_word, type_field, value, word, field, delimiter in (
        ("content_type", _CONTENT, job.content_type, "split", _SPLIT, job.split),
        ("accept", _ACCEPT, job.accept, "assemble", _ASSEMBLE, job.assemble),
    ):
        if {type_word, word} & elsewhere or value is None:
            continue
        if kind_of(value) == "csv" and delimiter != "line":
            raise ConfigError(
                f"DataProcessing with {type_field} {value} and {field} {_said(delimiter)}: CSV needs {field} Line"
            )


def _reject_join(job: VendorJob, elsewhere: AbstractSet[str]) -> None:
    judged = not {"content_type", "accept"} & elsewhere
    if judged and job.content_type and job.accept and kind_of(job.content_type) != kind_of(job.accept):
        raise ConfigError(
            f"DataProcessing.JoinSource Input with {_CONTENT} {job.content_type} and {_ACCEPT} {job.accept}: a "
            "prediction joins a record of its own type; make them equal"
        )
    split, assemble = job.split or "none", job.assemble or "none"
    if not {"split", "assemble"} & elsewhere and split != assemble:
        raise ConfigError(
            f"DataProcessing.JoinSource Input with {_SPLIT} {_said(job.split)} and {_ASSEMBLE} {_said(job.assemble)}: "
            "make them equal"
        )


def _said(word: str | None) -> str:
    return "None (the default)" if word is None else _WORDS[word]
