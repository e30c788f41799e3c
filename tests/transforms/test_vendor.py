"""The fields of a CreateTransformJob request: what each may be, and what is passed over."""

import copy
from typing import Any

import pytest

from headrace.core.errors import ConfigError
from headrace.transforms.document import Table
from headrace.transforms.vendor import FIELDS, VendorJob, read_job

WHOLE: dict[str, Any] = {
    "TransformJobName": "churn-1",
    "ModelName": "churn",
    "MaxConcurrentTransforms": 4,
    "ModelClientConfig": {"InvocationsTimeoutInSeconds": 30, "InvocationsMaxRetries": 0},
    "MaxPayloadInMB": 20,
    "BatchStrategy": "SingleRecord",
    "Environment": {"A": ""},
    "TransformInput": {
        "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://in/day"}},
        "ContentType": "text/csv",
        "CompressionType": "Gzip",
        "SplitType": "Line",
    },
    "TransformOutput": {
        "S3OutputPath": "gs://out",
        "Accept": "text/csv",
        "AssembleWith": "Line",
        "KmsKeyId": "k",
    },
    "DataCaptureConfig": {"DestinationS3Uri": "s3://c/", "KmsKeyId": "k", "GenerateInferenceId": True},
    "TransformResources": {
        "InstanceType": "ml.m5.large",
        "InstanceCount": 2,
        "VolumeKmsKeyId": "k",
        "TransformAmiVersion": "v",
    },
    "DataProcessing": {"InputFilter": "$[1:]", "OutputFilter": "$[0,-1]", "JoinSource": "Input"},
    "Tags": [{"Key": "team", "Value": ""}],
    "ExperimentConfig": {
        "ExperimentName": "e",
        "TrialName": "t",
        "TrialComponentDisplayName": "c",
        "RunName": "r",
    },
}


def job(document: Any) -> VendorJob:
    return read_job(Table.of("a.json", "", document, FIELDS))


def changed(path: str, value: Any) -> dict[str, Any]:
    """The whole request with one field changed."""
    document = copy.deepcopy(WHOLE)
    *tables, key = path.split(".")
    inner = document
    for name in tables:
        inner = inner[name]
    inner[key] = value
    return document


def test_a_whole_request():
    assert WHOLE.keys() == set(FIELDS)
    assert job(WHOLE) == VendorJob(
        given=True,
        input_given=True,
        output_given=True,
        job_name="churn-1",
        model="churn",
        max_concurrent=4,
        payload_mb=20,
        single_record=True,
        timeout_s=30.0,
        retries=0,
        data_type="prefix",
        source="s3://in/day",
        content_type="text/csv",
        compression="gzip",
        split="line",
        output="gs://out",
        accept="text/csv",
        assemble="line",
        input_filter="$[1:]",
        output_filter="$[0,-1]",
        join="input",
        instances=2,
        instance_type="ml.m5.large",
        volume_key="k",
        passed_over=(
            "Environment",
            "Tags",
            "ExperimentConfig",
            "DataCaptureConfig",
            "TransformOutput.KmsKeyId",
            "TransformResources.InstanceType",
            "TransformResources.VolumeKmsKeyId",
            "TransformResources.TransformAmiVersion",
        ),
    )


def test_nothing_said():
    found = job({})
    assert not any((found.given, found.input_given, found.output_given, found.processes, found.passed_over))
    assert {getattr(found, name) for name in ("source", "split", "payload_mb", "join", "retries")} == {None}


@pytest.mark.parametrize("name", ["a", "A9", "a--b", "0" * 63, "a" + "-" * 61 + "b"])
def test_job_names(name):
    assert job({"TransformJobName": name}).job_name == name


@pytest.mark.parametrize("name", ["-a", "a-", "a_b", "a.b", "ä", "a\n", "0" * 64, "a" + "-" * 62])
def test_no_job_names(name):
    with pytest.raises(
        ConfigError, match=r"^a\.json: TransformJobName: .*(cannot be a job's name|at most 63)"
    ):
        job({"TransformJobName": name})


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("MaxConcurrentTransforms", 0, {"max_concurrent": 0}),
        ("MaxPayloadInMB", 0, {"payload_mb": 0}),
        ("MaxPayloadInMB", 100, {"payload_mb": 100}),
        ("BatchStrategy", "MultiRecord", {"single_record": False}),
        ("ModelClientConfig.InvocationsTimeoutInSeconds", 3600, {"timeout_s": 3600.0}),
        ("ModelClientConfig.InvocationsMaxRetries", 3, {"retries": 3}),
        ("TransformInput.CompressionType", "None", {"compression": "none"}),
        ("TransformInput.SplitType", "None", {"split": "none"}),
        ("TransformInput.SplitType", "RecordIO", {"split": "recordio"}),
        ("TransformInput.SplitType", "TFRecord", {"split": "tfrecord"}),
        ("TransformInput.DataSource.S3DataSource.S3DataType", "ManifestFile", {"data_type": "manifest"}),
        ("TransformInput.DataSource.S3DataSource.S3Uri", "data/in", {"source": "data/in"}),
        ("TransformOutput.AssembleWith", "None", {"assemble": "none"}),
        ("TransformResources.InstanceCount", 100, {"instances": 100}),
        ("DataProcessing.InputFilter", "$" + "." + "a" * 61, {"input_filter": "$." + "a" * 61}),
        ("DataProcessing.JoinSource", "None", {"join": "none"}),
        ("Environment", {str(n): "" for n in range(16)}, {"given": True}),
        ("Tags", [], {"given": True}),
    ],
)
def test_values_at_their_bounds(path, value, found):
    read = job(changed(path, value))
    assert {name: getattr(read, name) for name in found} == found


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("ModelName", "m" * 64, "has 64 characters, and at most 63.*headrace.model"),
        ("MaxConcurrentTransforms", -1, "of at least 0, not -1"),
        ("MaxPayloadInMB", 101, "from 0 to 100, not 101"),
        ("MaxPayloadInMB", -1, "from 0 to 100"),
        ("MaxPayloadInMB", "6", "not '6'"),
        ("BatchStrategy", "Multi", "must be one of MultiRecord, SingleRecord, not 'Multi'"),
        ("ModelClientConfig.InvocationsTimeoutInSeconds", 0, "from 1 to 3600"),
        ("ModelClientConfig.InvocationsTimeoutInSeconds", 3601, "from 1 to 3600"),
        ("ModelClientConfig.InvocationsMaxRetries", 4, "from 0 to 3"),
        ("ModelClientConfig.InvocationsMaxRetries", -1, "from 0 to 3"),
        ("TransformResources.InstanceCount", 0, "from 1 to 100"),
        ("TransformResources.InstanceCount", 101, "from 1 to 100"),
        ("TransformResources.InstanceType", 1, "must be text"),
        ("TransformResources.TransformAmiVersion", 1, "must be text"),
        (
            "TransformInput.SplitType",
            "line",
            "must be one of None, Line, RecordIO, TFRecord, not 'line'; did you mean",
        ),
        ("TransformInput.CompressionType", "Zstd", "must be one of None, Gzip"),
        ("TransformInput.ContentType", "csvv", "neither a MIME type"),
        (
            "TransformInput.DataSource.S3DataSource.S3DataType",
            "AugmentedManifestFile",
            "is not for batch transform",
        ),
        ("TransformInput.DataSource.S3DataSource.S3DataType", "Converse", "described nowhere"),
        ("TransformInput.DataSource.S3DataSource.S3DataType", "S3", "must be one of S3Prefix, ManifestFile"),
        ("TransformInput.DataSource.S3DataSource.S3Uri", "ftp://x", "unknown scheme"),
        ("TransformOutput.S3OutputPath", "s3://", "no bucket is named"),
        ("TransformOutput.S3OutputPath", "", "not empty"),
        ("TransformOutput.Accept", "image/png", "is not written here"),
        ("TransformOutput.AssembleWith", "RecordIO", "must be one of None, Line"),
        ("TransformOutput.KmsKeyId", 1, "must be text"),
        ("DataProcessing.InputFilter", "$." + "a" * 62, "has 64 characters, and at most 63"),
        ("DataProcessing.InputFilter", "a", "starts with"),
        ("DataProcessing.OutputFilter", "$..a", "not supported"),
        ("DataProcessing.JoinSource", "Output", "must be one of None, Input"),
        ("Environment", {str(n): "" for n in range(17)}, "has 17 entries, and at most 16"),
        ("Environment", ["A"], "must be a table of texts"),
        ("Environment", {"A": 1}, "must be text, not 1"),
        ("Tags", {}, "must be a list"),
        ("ExperimentConfig.RunName", 1, "must be text"),
        ("DataCaptureConfig.GenerateInferenceId", "yes", "true or false"),
        ("DataCaptureConfig.DestinationS3Uri", None, "must be there"),
    ],
)
def test_wrong_values_name_file_and_field(path, value, why):
    with pytest.raises(ConfigError, match=rf"^a\.json: {path.replace('.', '[.]')}.*{why}"):
        job(changed(path, value))


@pytest.mark.parametrize("tag", [{"Key": "a"}, {"Value": "a"}, {"Key": "a", "Value": 1}, 1, {"Name": "a"}])
def test_wrong_tags(tag):
    with pytest.raises(ConfigError, match=r"Tags\[1\]"):
        job({"Tags": [{"Key": "a", "Value": "b"}, tag]})


@pytest.mark.parametrize(
    "path",
    [
        "TransformInput.Splittype",
        "TransformInput.DataSource.s3",
        "TransformInput.DataSource.S3DataSource.Uri",
        "TransformOutput.x",
        "TransformResources.x",
        "DataProcessing.x",
        "ModelClientConfig.x",
        "DataCaptureConfig.x",
        "ExperimentConfig.x",
    ],
)
def test_unknown_fields(path):
    table, _, key = path.rpartition(".")
    with pytest.raises(
        ConfigError, match=rf"^a\.json: {table.replace('.', '[.]')}: there is no field '{key}'"
    ):
        job(changed(path, 1))


@pytest.mark.parametrize(
    ("processing", "processes"),
    [
        ({"InputFilter": "$", "OutputFilter": "$", "JoinSource": "None"}, False),
        ({"InputFilter": "$[0]"}, True),
        ({"OutputFilter": "$.a"}, True),
        ({"JoinSource": "Input"}, True),
    ],
)
def test_what_counts_as_processing(processing, processes):
    assert job({"DataProcessing": processing}).processes is processes
