"""Spec files as settings: SageMaker's defaults, the ``headrace`` table, and contradictions."""

import copy
import json
import textwrap
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace.runs.spec as module
from cases import for_each
from headrace.core.errors import ConfigError
from headrace.runs.document import EXTENSION_FIELDS
from headrace.runs.failure_policy import FailurePolicy
from headrace.runs.settings import MIB, FlowSettings, TransformSettings
from headrace.runs.spec import TransformSpec, read_spec

REQUEST: dict[str, Any] = {
    "TransformJobName": "churn-1",
    "ModelName": "churn.onnx",
    "MaxConcurrentTransforms": 4,
    "ModelClientConfig": {"InvocationsTimeoutInSeconds": 30, "InvocationsMaxRetries": 0},
    "MaxPayloadInMB": 20,
    "BatchStrategy": "MultiRecord",
    "TransformInput": {
        "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://in/day"}},
        "ContentType": "text/csv",
        "CompressionType": "Gzip",
        "SplitType": "Line",
    },
    "TransformOutput": {"S3OutputPath": "s3://out", "Accept": "text/csv", "AssembleWith": "Line"},
    "TransformResources": {"InstanceType": "ml.m5.large", "InstanceCount": 2},
    "DataProcessing": {"InputFilter": "$[1:]", "OutputFilter": "$[0,-1]", "JoinSource": "Input"},
}


def spec(document: Any, *, strict: bool = False) -> TransformSpec:
    return read_spec(json.dumps(document), "a.json", strict=strict)


def extension_spec(**values: Any) -> TransformSpec:
    return spec({"headrace": values})


def assert_refused(document: Any, why: str, *, strict: bool = False) -> None:
    with pytest.raises(ConfigError, match=rf"^a\.json: .*{why}"):
        spec(document, strict=strict)


def test_empty_spec_has_defaults():
    assert spec({}) == TransformSpec()
    assert spec({}).settings == TransformSettings()
    assert read_spec("", "a.toml") == TransformSpec()


def test_complete_request_makes_settings():
    found = spec(REQUEST)
    settings = found.settings
    assert (found.source, found.output, found.model, found.job_name) == (
        "s3://in/day",
        "s3://out",
        "churn.onnx",
        "churn-1",
    )
    assert (found.instances, found.in_flight_max, found.timeout_s, found.retries, found.strict) == (
        2,
        4,
        30.0,
        0,
        False,
    )
    assert found.ignored_fields == ("TransformResources.InstanceType",)
    assert settings.data_type == "prefix"
    read = settings.read
    assert (read.format, read.archive, read.compression, read.record_bytes_max) == (
        "csv",
        "auto",
        "gzip",
        20 * MIB,
    )
    assert (settings.mapping.input_filter, settings.mapping.slice_end) == ("$[1:]", "exclusive")
    assert (settings.flow.batch_rows_max, settings.flow.batch_bytes_max) == (None, 20 * MIB)
    output = settings.output
    assert (output.format, output.assemble, output.join) == ("csv", "line", "input")
    assert (output.output_filter, output.slice_end) == ("$[0,-1]", "exclusive")
    assert settings.failures == FailurePolicy("record", failed_share_max=1)


def test_example_in_the_module_is_valid():
    assert module.__doc__ is not None
    found = read_spec(textwrap.dedent(module.__doc__.split("::\n", 1)[1]), "a.toml")
    assert (found.model, found.settings.read.header) == ("churn.onnx", "drop")
    assert found.settings.failures.failed_share_max == 0.01


def test_toml_and_json_are_equivalent():
    toml = """
        MaxPayloadInMB = 1
        [TransformInput]
        SplitType = "Line"
        DataSource.S3DataSource.S3Uri = "in/"
        [headrace]
        columns = ["a", "b"]
        """
    document = {
        "MaxPayloadInMB": 1,
        "TransformInput": {"SplitType": "Line", "DataSource": {"S3DataSource": {"S3Uri": "in/"}}},
        "headrace": {"columns": ["a", "b"]},
    }
    assert read_spec(textwrap.dedent(toml), "a.toml") == spec(document)


def test_sagemaker_fields_imply_sagemaker_defaults():
    found = spec({"TransformJobName": "a"})
    assert (found.timeout_s, found.retries, found.in_flight_max, found.instances) == (600.0, 3, None, None)
    settings = found.settings
    assert (settings.read.record_bytes_max, settings.flow.batch_bytes_max) == (6 * MIB, 6 * MIB)
    assert settings.flow.batch_rows_max is None
    # Absent tables leave headrace's defaults.
    assert (settings.read.format, settings.read.compression, settings.output.assemble) == (
        "auto",
        "auto",
        "line",
    )


def test_sagemaker_tables_imply_their_defaults():
    read = spec({"TransformInput": {"ContentType": "text/csv"}}).settings.read
    assert (read.format, read.archive, read.compression) == ("whole", "none", "none")
    output = spec({"TransformOutput": {"Accept": "application/json"}}).settings.output
    assert (output.format, output.assemble, output.join, output.output_filter) == (
        "json",
        "none",
        "none",
        "$",
    )


def test_own_content_type_selects_the_split():
    read = spec({"TransformInput": {}, "headrace": {"content_type": "csv"}}).settings.read
    assert read.format == "csv"


@for_each(
    ("values", "record_bytes", "batch_bytes"),
    [
        ({"MaxPayloadInMB": 100}, 100 * MIB, 100 * MIB),
        ({"MaxPayloadInMB": 0}, 100 * MIB, FlowSettings().batch_bytes_max),
        ({"MaxPayloadInMB": 1, "headrace": {"batch_bytes_max": 5}}, MIB, 5),
        ({"MaxPayloadInMB": 1, "headrace": {"record_bytes_max": 5}}, 5, MIB),
    ],
)
def test_payload_limits_records_and_batches(values, record_bytes, batch_bytes):
    settings = spec(values).settings
    assert (settings.read.record_bytes_max, settings.flow.batch_bytes_max) == (record_bytes, batch_bytes)


def test_single_record_is_a_batch():
    document = {"BatchStrategy": "SingleRecord", "TransformInput": {"SplitType": "Line"}}
    assert spec(document).settings.flow.batch_rows_max == 1
    assert spec({**document, "headrace": {"batch_rows_max": 8}}).settings.flow.batch_rows_max == 8


def test_sagemaker_fields_imply_whole_records():
    assert spec({"ModelName": "m"}).settings.mapping.whole_records
    assert not spec({"ModelName": "m", "headrace": {"whole_records": False}}).settings.mapping.whole_records
    assert extension_spec(whole_records=True).settings.mapping.whole_records


def test_zero_concurrent_transforms_is_unset():
    assert spec({"MaxConcurrentTransforms": 0}).in_flight_max is None


def test_manifest_is_the_source():
    source = {"S3DataType": "ManifestFile", "S3Uri": "s3://in/list.json"}
    found = spec({"TransformInput": {"DataSource": {"S3DataSource": source}}})
    assert (found.settings.data_type, found.source) == ("manifest", "s3://in/list.json")


def test_headrace_table_takes_precedence():
    values = {
        "model": "m.py:M",
        "source": "in/",
        "output": "out/",
        "job_name": "mine",
        "instances": 3,
        "in_flight_max": 8,
        "timeout_s": 0.5,
        "retries": 9,
        "data_type": "auto",
        "content_type": "jsonl",
        "split": "jsonl",
        "compression": "zstd",
        "input_filter": "$.a",
        "output_filter": "$.b",
        "slice_end": "inclusive",
        "join": "none",
        "accept": "jsonl",
        "assemble": "none",
        "batch_rows_max": 2,
    }
    found = spec({**REQUEST, "headrace": values})
    settings = found.settings
    assert (found.model, found.source, found.output, found.job_name) == ("m.py:M", "in/", "out/", "mine")
    assert (found.instances, found.in_flight_max, found.timeout_s, found.retries) == (3, 8, 0.5, 9)
    assert (settings.data_type, settings.read.format, settings.read.compression) == ("auto", "jsonl", "zstd")
    assert (settings.mapping.input_filter, settings.mapping.slice_end) == ("$.a", "inclusive")
    output = settings.output
    assert (output.format, output.assemble, output.join) == ("jsonl", "none", "none")
    assert (output.output_filter, output.slice_end) == ("$.b", "inclusive")
    assert settings.flow.batch_rows_max == 2


def test_headrace_table_sets_additional_options():
    found = extension_spec(
        members=["*.csv"],
        delimiter=";",
        header="names",
        record_bytes_max=100,
        image_size=[2, 3],
        image_mode="L",
        image_scale=2,
        window_ms=1,
        hop_ms=2,
        sample_rate_hz=3,
        audio_channels="keep",
        every_frames=4,
        columns=["a"],
        output_header=True,
        on_error="job",
        max_failed=7,
        batch_bytes=5,
        prefetch_bytes=6,
        task_bytes=8,
        task_objects=9,
        checkpoint_s=1.5,
    )
    settings, read = found.settings, found.settings.read
    assert (read.members, read.delimiter, read.header, read.record_bytes_max) == (
        ("*.csv",),
        ";",
        "names",
        100,
    )
    assert (read.size_px, read.image_mode, settings.mapping.image_scale) == ((2, 3), "L", 2.0)
    assert (read.window_ms, read.hop_ms, read.sample_rate_hz, read.audio_channels) == (1.0, 2.0, 3, "keep")
    assert (read.every_frames, extension_spec(every_ms=40).settings.read.every_ms) == (4, 40.0)
    assert (settings.mapping.columns, extension_spec(text_column="t").settings.mapping.text_column) == (
        ("a",),
        "t",
    )
    assert settings.output.header is True
    assert settings.failures == FailurePolicy("job", 7, None)
    assert (settings.flow.batch_bytes_max, settings.flow.prefetch_bytes_max) == (5, 6)
    tasks = settings.tasks
    assert (tasks.task_bytes, tasks.task_objects_max, settings.output.checkpoint_s) == (8, 9, 1.5)
    assert (found.timeout_s, found.retries) == (None, None)


def test_strict_is_set_by_file_or_argument():
    for found in (
        extension_spec(strict=True),
        spec({}, strict=True),
        extension_spec(strict=True, on_error="object"),
    ):
        assert found.strict
        assert found.settings.failures.on_error == "object"
    assert not extension_spec(strict=False).strict
    assert spec({"headrace": {"strict": False}}, strict=True).strict


@for_each("on_error", ["record", "job"])
def test_strict_refuses_other_failure_policies(on_error):
    assert_refused(
        {"headrace": {"on_error": on_error}}, f'on_error "{on_error}" contradicts strict', strict=True
    )


def test_rejection_names_the_file():
    assert_refused(
        {"MaxConcurrentTransforms": 2, "MaxPayloadInMB": 51},
        "MaxConcurrentTransforms x MaxPayloadInMB is 2 x 51",
    )
    spec(
        {
            "MaxConcurrentTransforms": 2,
            "MaxPayloadInMB": 51,
            "headrace": {"record_bytes_max": 1, "batch_bytes_max": 1},
        }
    )
    assert_refused({"BatchStrategy": "MultiRecord"}, "BatchStrategy MultiRecord without")
    spec({"BatchStrategy": "MultiRecord", "headrace": {"split": "csv"}})
    assert_refused(
        {"DataProcessing": {"JoinSource": "Input"}}, r"DataProcessing without TransformInput\.ContentType"
    )


@for_each(
    ("document", "why"),
    [
        ({"headrace": {"columns": ["a"], "text_column": "b"}}, "contradict each other"),
        ({"headrace": {"every_ms": 1, "every_frames": 1}}, "contradict each other"),
        ({"headrace": {"members": ["*"], "split": "none"}}, 'set headrace.split = "tar"'),
        (
            {"TransformInput": {"ContentType": "text/csv"}, "headrace": {"header": "drop"}},
            "header applies to CSV .* format is whole",
        ),
        ({"headrace": {"split": "jsonl", "delimiter": ";"}}, "delimiter applies to CSV .* format is jsonl"),
        ({"headrace": {"split": "jsonl", "quote": ""}}, "quote applies to CSV .* format is jsonl"),
        ({"headrace": {"split": "tfrecord", "comment": "#"}}, "comment applies to CSV, JSON Lines and text"),
        ({"headrace": {"split": "recordio", "encoding": "ascii"}}, "encoding applies to CSV, JSON Lines"),
        ({"headrace": {"split": "line", "content_type": "image"}}, "image has no lines"),
        ({"headrace": {"accept": "parquet", "output_filter": "$[0]"}}, "the format is parquet"),
        ({"headrace": {"input_filter": "$.."}}, "not supported"),
        ({"headrace": {"output_filter": "a"}}, "starts with"),
        *(
            (
                {"headrace": {"input_filter": "$.a", "content_type": kind}},
                f"needs CSV or JSON .* format is {kind}",
            )
            for kind in ("whole", "recordio", "tfrecord", "image", "audio", "video")
        ),
        ({"headrace": {"input_filter": "$.a", "split": "line"}}, "needs CSV or JSON"),
        ({"Headrace": {}}, "did you mean 'headrace'"),
        ({"headrace": []}, "headrace must be a table"),
        ({"TransformJobname": "a"}, "there is no field 'TransformJobname'; did you mean 'TransformJobName'"),
    ],
)
def test_contradictory_fields_are_refused(document, why):
    assert_refused(document, why)


@for_each("path", ["$.id", "$['a','b']", "$[0].a", "$.*.a"])
@for_each("field", ["InputFilter", "OutputFilter"])
def test_csv_filter_by_name_is_refused(field, path):
    document = copy.deepcopy(REQUEST)
    document["DataProcessing"] = {field: path}
    assert_refused(document, rf"DataProcessing\.{field}: ")


@for_each("path", ["$", "$[0]", "$[0,-1]", "$[1:]", "$[*]", "$[:2,4]"])
def test_csv_filter_by_index_is_accepted(path):
    document = copy.deepcopy(REQUEST)
    document["DataProcessing"] = {"InputFilter": path, "OutputFilter": path}
    assert spec(document).settings.mapping.input_filter == path


def test_header_permits_filters_by_name():
    document = {
        "content_type": "csv",
        "accept": "csv",
        "join": "input",
        "input_filter": "$['a']",
        "output_filter": "$['b']",
    }
    document["header"] = "none"
    assert_refused({"headrace": document}, "headrace.input_filter: ")
    assert extension_spec(**document | {"header": "names"}).settings.output.output_filter == "$['b']"
    del document["input_filter"]
    assert_refused({"headrace": document}, "headrace.output_filter: ")
    # Predictions always have names.
    assert extension_spec(**{**document, "join": "none"}).settings.output.output_filter == "$['b']"


def test_json_filters_use_names():
    document = copy.deepcopy(REQUEST)
    document["TransformInput"]["ContentType"] = document["TransformOutput"]["Accept"] = (
        "application/jsonlines"
    )
    document["DataProcessing"] = {
        "InputFilter": "$.features",
        "JoinSource": "Input",
        "OutputFilter": "$['id','SageMakerOutput']",
    }
    found = spec(document).settings
    assert (found.read.format, found.output.format, found.mapping.input_filter) == (
        "jsonl",
        "jsonl",
        "$.features",
    )


# Arbitrary documents, and small changes of a complete request, which get further.

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(0, 100)
    | st.floats()
    | st.sampled_from(
        [
            "None",
            "Line",
            "Gzip",
            "$",
            "$[0]",
            "$.a",
            "text/csv",
            "application/json",
            "csv",
            "none",
            "s3://b/k",
        ]
    )
    | st.text(st.characters(), max_size=5)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
EXTENSIONS = st.dictionaries(
    st.sampled_from(EXTENSION_FIELDS),
    VALUES
    | st.sampled_from(
        ["csv", "json", "parquet", "input", "object", "names", "drop", "tar", "inclusive", "1%"]
    ),
    max_size=5,
)


@st.composite
def near_requests(draw: st.DrawFn) -> dict[str, Any]:
    document = copy.deepcopy(REQUEST)
    for _ in range(draw(st.integers(0, 4))):
        inner = document
        while True:
            key = draw(st.sampled_from(sorted(inner)))
            if not isinstance(inner[key], dict) or not inner[key] or draw(st.booleans()):
                break
            inner = inner[key]
        if draw(st.booleans()) and len(inner) > 1:
            del inner[key]
        else:
            inner[key] = draw(VALUES)
    if draw(st.booleans()):
        document["headrace"] = draw(EXTENSIONS)
    return document


def spec_or_message(document: Any, *, strict: bool) -> TransformSpec | str:
    try:
        return spec(document, strict=strict)
    except ConfigError as error:
        return str(error)


@given(near_requests() | st.dictionaries(st.text(max_size=5), VALUES, max_size=3) | VALUES, st.booleans())
def test_any_document_is_a_spec_or_refused(document, strict):
    found = spec_or_message(document, strict=strict)
    if isinstance(found, str):
        assert found.startswith("a.json: ")
        found.encode()
    else:
        assert found.strict or not strict
        assert json.dumps(found.settings.identity())


@given(EXTENSIONS)
def test_any_headrace_table_is_a_spec_or_refused(values):
    with suppress(ConfigError):
        assert isinstance(spec({"headrace": values}), TransformSpec)


@given(st.text(), st.sampled_from(["a.toml", "a.json"]) | st.text(max_size=8))
def test_any_text_is_a_spec_or_refused(text, name):
    with suppress(ConfigError):
        assert isinstance(read_spec(text, name), TransformSpec)


@for_each("split", ["None", "Line"])
def test_inference_requests_have_responses(split):
    data = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://in/day"}}
    settings = spec(
        {"TransformInput": {"DataSource": data, "ContentType": "v2", "SplitType": split}}
    ).settings
    assert (settings.read.format, settings.output.format) == ("v2", "v2")
    assert_refused({"headrace": {"content_type": "v2", "input_filter": "$.a"}}, "headrace.input_filter")
    assert_refused({"headrace": {"content_type": "v2", "header": "names"}}, "header applies to CSV")
    assert_refused({"headrace": {"accept": "v2"}}, "not read as requests")
