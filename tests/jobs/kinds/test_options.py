"""Settings from a job's options, in the names of a spec file."""

import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.jobs.job import NewJob
from headrace.jobs.kinds.runners import check_options, stream_settings, transform_settings


def test_options_override_fields_of_the_job():
    spec = NewJob(content_type="text/csv", accept="application/jsonlines")
    settings = transform_settings(spec)
    assert settings == transform_settings(
        NewJob(options={"content_type": "text/csv", "accept": "application/jsonlines"})
    )
    over = NewJob(content_type="text/csv", options={"content_type": "application/jsonlines"})
    assert transform_settings(over) == transform_settings(
        NewJob(options={"content_type": "application/jsonlines"})
    )
    assert transform_settings(over) != transform_settings(NewJob(content_type="text/csv"))


@for_each("name", ["source", "output", "model", "job_name", "instances", "max_concurrent", "in_flight_max"])
def test_fields_of_the_job_are_refused_as_options(name):
    with pytest.raises(ConfigError, match=f"'{name}' is a field of the job"):
        transform_settings(NewJob(options={name: "x"}))


@for_each("make", [transform_settings, stream_settings])
def test_unknown_option_is_named(make):
    with pytest.raises(ConfigError, match="splot"):
        make(NewJob(options={"splot": 1}))


def test_stream_options_limit_parts():
    settings = stream_settings(
        NewJob(options={"part_rows_max": 10, "part_bytes_max": 1 << 20, "batch_rows_max": 5})
    )
    assert (settings.output.part_rows_max, settings.output.part_bytes_max) == (10, 1 << 20)
    assert settings.output.format == "auto"
    with pytest.raises(ConfigError, match="part_rows_max"):
        transform_settings(NewJob(options={"part_rows_max": 10}))


@for_each("value", ["10", 1.5, True, None])
def test_part_limit_must_be_a_whole_number(value):
    with pytest.raises(ConfigError, match="part_rows_max must be a whole number"):
        stream_settings(NewJob(options={"part_rows_max": value}))


def test_stream_refuses_unsupported_formats():
    assert stream_settings(NewJob(accept="application/jsonlines")).output.format == "jsonl"
    with pytest.raises(ConfigError, match="a stream writes one record per line, not json"):
        stream_settings(NewJob(accept="application/json"))


@for_each("make", [transform_settings, stream_settings])
@for_each(
    "options",
    [
        {"data_type": "manifest"},
        {
            "TransformInput": {
                "DataSource": {"S3DataSource": {"S3DataType": "ManifestFile", "S3Uri": "s3://b/m"}}
            }
        },
    ],
)
def test_manifest_is_refused(make, options):
    with pytest.raises(ConfigError, match="never a manifest"):
        make(NewJob(options=options))


@for_each("make", [transform_settings, stream_settings])
@for_each("schema", ["/etc/passwd", "s3://other/schema.json"])
def test_schema_file_is_refused(make, schema):
    with pytest.raises(ConfigError, match="the schema of a job is infer or strict, never a file"):
        make(NewJob(options={"schema": schema}))


@for_each("make", [transform_settings, stream_settings])
def test_schema_and_subset_are_options_of_jobs(make):
    settings = make(NewJob(options={"schema": "strict", "limit": 5, "sample": "10%", "sample_seed": 3}))
    assert settings.schema == "strict"
    assert (settings.subset.limit, settings.subset.sample, settings.subset.sample_seed) == (5, 0.1, 3)


@for_each(
    ("spec", "message"),
    [
        (NewJob(options={"joyn": "input"}), "^options: .*no field 'joyn'; did you mean 'join'"),
        (NewJob(kind="transform", output_uri="s3://b/o/", options={"join": 3}), "^options: .*join"),
        (
            NewJob(kind="stream", output_uri="s3://b/o/", options={"part_rows_max": "many"}),
            "^options: part_rows_max",
        ),
        (NewJob(kind="transform"), "^output_uri: a transform needs one"),
        (NewJob(kind="stream"), "^output_uri: a stream needs one"),
    ],
)
def test_invalid_options_are_refused_at_submission(spec, message):
    with pytest.raises(ConfigError, match=message):
        check_options(spec)


@for_each(
    "spec",
    [
        NewJob(content_type="image/x-unknown"),
        NewJob(options={"join": "input", "header": "names"}),
        NewJob(kind="stream", output_uri="s3://b/o/", options={"part_rows_max": 5}),
        NewJob(kind="transform", output_uri="s3://b/o/"),
    ],
)
def test_valid_options_are_accepted_at_submission(spec):
    check_options(spec)
