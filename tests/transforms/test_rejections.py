"""What the vendor's documents refuse of fields that cannot stand together, rule by rule."""

from typing import Any

import pytest

from headrace.core.errors import ConfigError
from headrace.transforms.document import Table
from headrace.transforms.rejections import reject
from headrace.transforms.vendor import FIELDS, read_job


def judge(document: dict[str, Any], *elsewhere: str) -> None:
    reject(read_job(Table.of("a.json", "", document, FIELDS)), frozenset(elsewhere))


def request(
    content: str | None = "text/csv",
    accept: str | None = "text/csv",
    split: str | None = "Line",
    assemble: str | None = "Line",
    **processing: str,
) -> dict[str, Any]:
    """A request; None is what it does not say."""
    return {
        "TransformInput": {"ContentType": content, "SplitType": split},
        "TransformOutput": {"Accept": accept, "AssembleWith": assemble},
        "DataProcessing": processing,
    }


@pytest.mark.parametrize(
    ("concurrent", "payload"), [(None, 100), (1, 100), (100, 1), (16, 6), (16, None), (0, 100), (1000, 0)]
)
def test_payloads_under_way_that_fit(concurrent, payload):
    judge({"MaxConcurrentTransforms": concurrent, "MaxPayloadInMB": payload})


@pytest.mark.parametrize(
    ("concurrent", "payload", "why"),
    [
        (2, 51, "2 x 51 = 102, and at most 100 is allowed: lower one of them"),
        (101, 1, "101 x 1 = 101"),
        (17, None, r"17 x 6 \(the default\) = 102"),
    ],
)
def test_payloads_under_way_that_do_not_fit(concurrent, payload, why):
    document = {"MaxConcurrentTransforms": concurrent, "MaxPayloadInMB": payload}
    with pytest.raises(ConfigError, match=f"MaxConcurrentTransforms x MaxPayloadInMB is {why}"):
        judge(document)
    judge(document, "payload")


@pytest.mark.parametrize("given", [{}, {"TransformInput": {}}, {"TransformInput": {"SplitType": "None"}}])
def test_a_strategy_without_a_split(given):
    with pytest.raises(
        ConfigError, match=r"BatchStrategy MultiRecord without TransformInput\.SplitType: .*set SplitType"
    ):
        judge({"BatchStrategy": "MultiRecord", **given})
    judge({"BatchStrategy": "MultiRecord", **given}, "split")
    judge({"BatchStrategy": "SingleRecord", **given})


@pytest.mark.parametrize("split", ["Line", "RecordIO", "TFRecord"])
def test_a_strategy_with_a_split(split):
    judge({"BatchStrategy": "MultiRecord", "TransformInput": {"SplitType": split}})


@pytest.mark.parametrize(
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
def test_a_volume_key_with_local_storage(kind):
    resources = {"InstanceType": kind, "InstanceCount": 1, "VolumeKmsKeyId": "k"}
    with pytest.raises(
        ConfigError, match=f"VolumeKmsKeyId with InstanceType {kind}: .*leave VolumeKmsKeyId out"
    ):
        judge({"TransformResources": resources})
    del resources["VolumeKmsKeyId"]
    judge({"TransformResources": resources})


@pytest.mark.parametrize(
    "kind", ["ml.m5.large", "ml.m4.xlarge", "ml.c5.xlarge", "ml.p3.2xlarge", "ml.inf2.xlarge"]
)
def test_a_volume_key_without_local_storage(kind):
    judge({"TransformResources": {"InstanceType": kind, "VolumeKmsKeyId": "k"}})


@pytest.mark.parametrize(
    ("document", "unjudged", "why"),
    [
        (request(content=None, JoinSource="Input"), "content_type", r"without TransformInput\.ContentType: set it to"),
        (request(accept=None, InputFilter="$[0]"), "accept", r"without TransformOutput\.Accept: set it to"),
        (request(content="image/png", OutputFilter="$[0]"), "content_type", r"ContentType image/png: filters and joins are of"),
        (request(accept="application/x-parquet", InputFilter="$[0]"), "accept", r"Accept application/x-parquet: filters"),
        (request(accept="text/plain", InputFilter="$[0]"), "accept", r"Accept text/plain: filters"),
        (request(split=None, InputFilter="$[0]"), "split", r"SplitType None \(the default\): CSV needs .*SplitType Line"),
        (request(split="RecordIO", InputFilter="$[0]"), "split", "SplitType RecordIO: CSV needs"),
        (request(assemble="None", InputFilter="$[0]"), "assemble", r"AssembleWith None: CSV needs .*AssembleWith Line"),
        (request(accept="application/json", JoinSource="Input"), "accept", r"ContentType text/csv and .*Accept application/json: .*make them equal"),
        (request("application/json", "application/jsonlines", JoinSource="Input"), "accept", "make them equal"),
        (
            request("application/jsonlines", "application/jsonlines", assemble=None, JoinSource="Input"),
            "assemble",
            r"SplitType Line and .*AssembleWith None \(the default\): make them equal",
        ),
        (request("application/json", "application/json", split=None, JoinSource="Input"), "split", "make them equal"),
    ],
)  # fmt: skip
def test_processing_that_cannot_be(document, unjudged, why):
    with pytest.raises(ConfigError, match=f"^DataProcessing.*{why}"):
        judge(document)
    judge(document, unjudged)  # said in headrace's words instead, it is not the vendor's to refuse


@pytest.mark.parametrize(
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
def test_processing_that_can_be(document):
    judge(document)


@pytest.mark.parametrize("word", ["content_type", "split"])
def test_csv_is_judged_by_type_and_delimiter_only_together(word):
    judge(request(split=None, InputFilter="$[0]"), word)


def test_types_are_no_reason_not_to_judge_delimiters():
    document = request("application/json", "application/json", assemble=None, JoinSource="Input")
    with pytest.raises(ConfigError, match="SplitType Line and"):
        judge(document, "content_type", "accept")
