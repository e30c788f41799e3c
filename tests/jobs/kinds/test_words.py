"""A job's options as settings: the words of a spec file, each in one place only."""

import pytest

from headrace.core.errors import ConfigError
from headrace.jobs.job import NewJob
from headrace.jobs.kinds.words import check_words, stream_settings, transform_settings


def test_the_jobs_own_words_are_taken_unless_the_options_say_them_too():
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


@pytest.mark.parametrize("word", ["source", "output", "model", "job_name", "instances", "max_concurrent"])
def test_what_is_said_beside_the_options_is_not_said_in_them(word):
    with pytest.raises(ConfigError, match=f"'{word}' is said beside"):
        transform_settings(NewJob(options={word: "x"}))


@pytest.mark.parametrize("make", [transform_settings, stream_settings])
def test_an_unknown_word_is_named(make):
    with pytest.raises(ConfigError, match="splot"):
        make(NewJob(options={"splot": 1}))


def test_a_stream_has_bounds_of_its_parts():
    settings = stream_settings(
        NewJob(options={"part_rows_max": 10, "part_bytes_max": 1 << 20, "batch_rows": 5})
    )
    assert (settings.output.part_rows_max, settings.output.part_bytes_max) == (10, 1 << 20)
    assert settings.output.format == "csv"
    with pytest.raises(ConfigError, match="part_rows_max"):
        transform_settings(NewJob(options={"part_rows_max": 10}))


@pytest.mark.parametrize("value", ["10", 1.5, True, None])
def test_a_bound_is_a_whole_number(value):
    with pytest.raises(ConfigError, match="part_rows_max must be a whole number"):
        stream_settings(NewJob(options={"part_rows_max": value}))


def test_a_stream_writes_what_it_can():
    assert stream_settings(NewJob(accept="application/jsonlines")).output.format == "jsonl"
    with pytest.raises(ConfigError, match="a stream writes"):
        stream_settings(NewJob(accept="application/json"))


@pytest.mark.parametrize("make", [transform_settings, stream_settings])
@pytest.mark.parametrize(
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
def test_a_manifest_is_refused_since_it_could_name_anything(make, options):
    with pytest.raises(ConfigError, match="never a manifest"):
        make(NewJob(options=options))


@pytest.mark.parametrize(
    ("spec", "said"),
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
def test_what_a_job_would_fail_by_is_refused_before_it_is_queued(spec, said):
    with pytest.raises(ConfigError, match=said):
        check_words(spec)


@pytest.mark.parametrize(
    "spec",
    [
        NewJob(content_type="image/x-unknown"),
        NewJob(options={"join": "input", "header": "names"}),
        NewJob(kind="stream", output_uri="s3://b/o/", options={"part_rows_max": 5}),
        NewJob(kind="transform", output_uri="s3://b/o/"),
    ],
    ids=lambda spec: spec.kind,
)
def test_what_its_kind_may_do_is_queued(spec):
    check_words(spec)
