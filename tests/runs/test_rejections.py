"""Combinations of fields that SageMaker's documentation forbids, rule by rule."""

from typing import Any

import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.runs.document import SpecTable
from headrace.runs.sagemaker import FIELDS, read_job, reject


def check(document: dict[str, Any], *overridden: str) -> None:
    reject(read_job(SpecTable.from_value("a.json", "", document, FIELDS)), frozenset(overridden))


def request(
    content: str | None = "text/csv",
    accept: str | None = "text/csv",
    split: str | None = "Line",
    assemble: str | None = "Line",
    **processing: str,
) -> dict[str, Any]:
    """Return a request; None leaves a field out."""
    return {
        "TransformInput": {"ContentType": content, "SplitType": split},
        "TransformOutput": {"Accept": accept, "AssembleWith": assemble},
        "DataProcessing": processing,
    }


@for_each(
    ("concurrent", "payload"), [(None, 100), (1, 100), (100, 1), (16, 6), (16, None), (0, 100), (1000, 0)]
)
def test_concurrent_payloads_within_the_limit(concurrent, payload):
    check({"MaxConcurrentTransforms": concurrent, "MaxPayloadInMB": payload})


@for_each(
    ("concurrent", "payload", "why"),
    [
        (2, 51, "2 x 51 = 102; the limit is 100: lower one of them"),
        (101, 1, "101 x 1 = 101"),
        (17, None, r"17 x 6 \(the default\) = 102"),
    ],
)
def test_concurrent_payloads_above_the_limit_are_refused(concurrent, payload, why):
    document = {"MaxConcurrentTransforms": concurrent, "MaxPayloadInMB": payload}
    with pytest.raises(ConfigError, match=f"MaxConcurrentTransforms x MaxPayloadInMB is {why}"):
        check(document)
    check(document, "payload")


@for_each("given", [{}, {"TransformInput": {}}, {"TransformInput": {"SplitType": "None"}}])
def test_multi_record_needs_a_split(given):
    with pytest.raises(
        ConfigError, match=r"BatchStrategy MultiRecord without TransformInput\.SplitType: .*set SplitType"
    ):
        check({"BatchStrategy": "MultiRecord", **given})
    check({"BatchStrategy": "MultiRecord", **given}, "split")
    check({"BatchStrategy": "SingleRecord", **given})


@for_each("split", ["Line", "RecordIO", "TFRecord"])
def test_multi_record_with_a_split_is_accepted(split):
    check({"BatchStrategy": "MultiRecord", "TransformInput": {"SplitType": split}})


@for_each(
    "kind",
    [
        "ml.g4dn.xlarge",
        "ml.m5d.large",
        "ml.p3dn.24xlarge",
        "ml.p4d.24xlarge",
        "ml.g5.xlarge",
        "ml.trn1.2xlarge",
    ],
)
def test_volume_key_with_local_storage_is_refused(kind):
    resources = {"InstanceType": kind, "InstanceCount": 1, "VolumeKmsKeyId": "k"}
    with pytest.raises(
        ConfigError, match=f"VolumeKmsKeyId with InstanceType {kind}: .*remove VolumeKmsKeyId"
    ):
        check({"TransformResources": resources})
    del resources["VolumeKmsKeyId"]
    check({"TransformResources": resources})


@for_each("kind", ["ml.m5.large", "ml.m4.xlarge", "ml.c5.xlarge", "ml.p3.2xlarge", "ml.inf2.xlarge"])
def test_volume_key_without_local_storage_is_accepted(kind):
    check({"TransformResources": {"InstanceType": kind, "VolumeKmsKeyId": "k"}})


@for_each(
    ("document", "overridden", "why"),
    [
        (
            request(content=None, JoinSource="Input"),
            "content_type",
            r"without TransformInput\.ContentType: set it to",
        ),
        (request(accept=None, InputFilter="$[0]"), "accept", r"without TransformOutput\.Accept: set it to"),
        (
            request(content="image/png", OutputFilter="$[0]"),
            "content_type",
            r"ContentType image/png: filters and joins need",
        ),
        (
            request(accept="application/x-parquet", InputFilter="$[0]"),
            "accept",
            r"Accept application/x-parquet: filters",
        ),
        (request(accept="text/plain", InputFilter="$[0]"), "accept", r"Accept text/plain: filters"),
        (
            request(split=None, InputFilter="$[0]"),
            "split",
            r"SplitType None \(the default\): CSV needs .*SplitType Line",
        ),
        (request(split="RecordIO", InputFilter="$[0]"), "split", "SplitType RecordIO: CSV needs"),
        (
            request(assemble="None", InputFilter="$[0]"),
            "assemble",
            r"AssembleWith None: CSV needs .*AssembleWith Line",
        ),
        (
            request(accept="application/json", JoinSource="Input"),
            "accept",
            r"ContentType text/csv and .*Accept application/json: .*make them equal",
        ),
        (
            request("application/json", "application/jsonlines", JoinSource="Input"),
            "accept",
            "make them equal",
        ),
        (
            request("application/jsonlines", "application/jsonlines", assemble=None, JoinSource="Input"),
            "assemble",
            r"SplitType Line and .*AssembleWith None \(the default\): make them equal",
        ),
        (
            request("application/json", "application/json", split=None, JoinSource="Input"),
            "split",
            "make them equal",
        ),
    ],
)
def test_invalid_data_processing_is_refused(document, overridden, why):
    with pytest.raises(ConfigError, match=f"^DataProcessing.*{why}"):
        check(document)
    check(document, overridden)  # overridden in the headrace table, the rule does not apply


@for_each(
    "document",
    [
        request(InputFilter="$[1:]", OutputFilter="$[0,-1]", JoinSource="Input"),
        request("application/json", "application/json", None, None, JoinSource="Input"),
        request("application/json", "application/json", JoinSource="Input"),
        request("application/jsonlines", "application/jsonlines", InputFilter="$.a", JoinSource="Input"),
        request("application/jsonlines", "application/json", assemble=None, OutputFilter="$.a"),
        request("text/csv; charset=utf-8", "TEXT/CSV", JoinSource="Input"),
        request("image/png", None, None, None, InputFilter="$", JoinSource="None"),
    ],
)
def test_valid_data_processing_is_accepted(document):
    check(document)


@for_each("word", ["content_type", "split"])
def test_overridden_type_or_delimiter_skips_the_csv_rule(word):
    check(request(split=None, InputFilter="$[0]"), word)


def test_overridden_types_do_not_skip_the_delimiter_rule():
    document = request("application/json", "application/json", assemble=None, JoinSource="Input")
    with pytest.raises(ConfigError, match="SplitType Line and"):
        check(document, "content_type", "accept")
