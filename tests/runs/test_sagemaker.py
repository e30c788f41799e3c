"""The fields of a CreateTransformJob request: valid and invalid values, ignored fields."""

import copy
from typing import Any

import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.runs.document import SpecTable
from headrace.runs.sagemaker import FIELDS, SageMakerJob, read_job

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


def job(document: Any) -> SageMakerJob:
    return read_job(SpecTable.from_value("a.json", "", document, FIELDS))


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return the complete request with one field changed."""
    document = copy.deepcopy(WHOLE)
    *tables, key = path.split(".")
    inner = document
    for name in tables:
        inner = inner[name]
    inner[key] = value
    return document


def test_complete_request_is_read():
    assert WHOLE.keys() == set(FIELDS)
    assert job(WHOLE) == SageMakerJob(
        has_fields=True,
        has_input=True,
        has_output=True,
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
        ignored_fields=(
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


def test_empty_request_is_read():
    found = job({})
    assert not any(
        (found.has_fields, found.has_input, found.has_output, found.processes_data, found.ignored_fields)
    )
    assert {getattr(found, name) for name in ("source", "split", "payload_mb", "join", "retries")} == {None}


@for_each("name", ["a", "A9", "a--b", "0" * 63, "a" + "-" * 61 + "b"])
def test_valid_job_names_are_accepted(name):
    assert job({"TransformJobName": name}).job_name == name


@for_each("name", ["-a", "a-", "a_b", "a.b", "ä", "a\n", "0" * 64, "a" + "-" * 62])
def test_invalid_job_names_are_refused(name):
    with pytest.raises(
        ConfigError, match=r"^a\.json: TransformJobName: .*(is no valid job name|the limit is 63)"
    ):
        job({"TransformJobName": name})


@for_each(
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
        ("Environment", {str(n): "" for n in range(16)}, {"has_fields": True}),
        ("Tags", [], {"has_fields": True}),
    ],
)
def test_values_at_their_limits_are_accepted(path, value, found):
    read = job(changed(path, value))
    assert {name: getattr(read, name) for name in found} == found


@for_each(
    ("path", "value", "why"),
    [
        ("ModelName", "m" * 64, "has 64 characters; the limit is 63.*headrace.model"),
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
        ("TransformResources.InstanceType", 1, "must be a non-empty text"),
        ("TransformResources.TransformAmiVersion", 1, "must be a non-empty text"),
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
            "is not supported by batch transform",
        ),
        ("TransformInput.DataSource.S3DataSource.S3DataType", "Converse", "not documented"),
        ("TransformInput.DataSource.S3DataSource.S3DataType", "S3", "must be one of S3Prefix, ManifestFile"),
        ("TransformInput.DataSource.S3DataSource.S3Uri", "ftp://x", "unknown scheme"),
        ("TransformOutput.S3OutputPath", "s3://", "the bucket is missing"),
        ("TransformOutput.S3OutputPath", "", "must be a non-empty text"),
        ("TransformOutput.Accept", "image/png", "cannot be written"),
        ("TransformOutput.AssembleWith", "RecordIO", "must be one of None, Line"),
        ("TransformOutput.KmsKeyId", 1, "must be a non-empty text"),
        ("DataProcessing.InputFilter", "$." + "a" * 62, "has 64 characters; the limit is 63"),
        ("DataProcessing.InputFilter", "a", "starts with"),
        ("DataProcessing.OutputFilter", "$..a", "not supported"),
        ("DataProcessing.JoinSource", "Output", "must be one of None, Input"),
        ("Environment", {str(n): "" for n in range(17)}, "has 17 entries; the limit is 16"),
        ("Environment", ["A"], "must be a table of texts"),
        ("Environment", {"A": 1}, "must be text, not 1"),
        ("Tags", {}, "must be a list"),
        ("ExperimentConfig.RunName", 1, "must be a non-empty text"),
        ("DataCaptureConfig.GenerateInferenceId", "yes", "true or false"),
        ("DataCaptureConfig.DestinationS3Uri", None, "must be set"),
    ],
)
def test_invalid_values_name_file_and_field(path, value, why):
    with pytest.raises(ConfigError, match=rf"^a\.json: {path.replace('.', '[.]')}.*{why}"):
        job(changed(path, value))


@for_each("tag", [{"Key": "a"}, {"Value": "a"}, {"Key": "a", "Value": 1}, 1, {"Name": "a"}])
def test_invalid_tags_are_refused(tag):
    with pytest.raises(ConfigError, match=r"Tags\[1\]"):
        job({"Tags": [{"Key": "a", "Value": "b"}, tag]})


@for_each(
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
def test_unknown_fields_are_refused(path):
    table, _, key = path.rpartition(".")
    with pytest.raises(
        ConfigError, match=rf"^a\.json: {table.replace('.', '[.]')}: there is no field '{key}'"
    ):
        job(changed(path, 1))


@for_each(
    ("processing", "processes"),
    [
        ({"InputFilter": "$", "OutputFilter": "$", "JoinSource": "None"}, False),
        ({"InputFilter": "$[0]"}, True),
        ({"OutputFilter": "$.a"}, True),
        ({"JoinSource": "Input"}, True),
    ],
)
def test_processes_data_needs_a_filter_or_join(processing, processes):
    assert job({"DataProcessing": processing}).processes_data is processes
