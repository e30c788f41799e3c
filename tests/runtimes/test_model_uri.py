"""Names of models that are fetched: their parts, and the names of cache entries."""

from pathlib import PurePosixPath

import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.runtimes.load import candidate_names
from headrace.runtimes.model_uri import ModelUri, local_path, member_path, parse_model_uri, version_of
from headrace.storage.contract import ObjectInfo


@for_each(
    ("spec", "expected"),
    [
        ("s3://b/m/churn.onnx", ModelUri("s3://b/m/churn.onnx", "object", "churn.onnx")),
        ("gs://b/churn.py:Churn", ModelUri("gs://b/churn.py", "object", "churn.py", "Churn")),
        ("az://b/m/bert/", ModelUri("az://b/m/bert/", "prefix", "bert")),
        ("s3://b", ModelUri("s3://b/", "prefix", "b")),
        ("s3://b/m/churn.tar.gz", ModelUri("s3://b/m/churn.tar.gz", "archive", "churn")),
        ("https://h/churn.tgz?sign=a", ModelUri("https://h/churn.tgz?sign=a", "archive", "churn")),
        (
            "https://h/a/churn.onnx?v=1&x=/",
            ModelUri("https://h/a/churn.onnx?v=1&x=/", "object", "churn.onnx"),
        ),
        ("/models/churn.v2.tar", ModelUri("/models/churn.v2.tar", "archive", "churn.v2")),
        ("file:///models/churn.tar", ModelUri("/models/churn.tar", "archive", "churn")),
    ],
)
def test_parts_of_a_model_uri(spec, expected):
    assert parse_model_uri(spec) == expected


@for_each("spec", ["churn.onnx", "m/", "a.b:C", "churn.py:Churn", "file:///m/churn.onnx", "file:///m/"])
def test_local_models_are_not_fetched(spec):
    assert parse_model_uri(spec) is None


def test_file_uri_is_a_path():
    assert local_path("file:///m/churn.onnx") == "/m/churn.onnx"
    assert local_path("m/churn.py:Churn") == "m/churn.py:Churn"


@for_each(
    ("spec", "why"),
    [
        ("https://host/models/", "an HTTP server cannot list a folder; name a file or archive"),
        ("ftp://host/m.onnx", "unknown scheme"),
        ("s3:///m.onnx", "the bucket is missing"),
        ("https://host/..", "cannot be the name of a file"),
        (f"s3://b/{'n' * 256}", "cannot be the name of a file"),
    ],
)
def test_invalid_uris_are_refused(spec, why):
    with pytest.raises(ConfigError, match=why):
        parse_model_uri(spec)


def test_local_spec_keeps_the_class(tmp_path):
    model = parse_model_uri("s3://b/churn.py:Churn")
    assert model.local_spec(tmp_path / "churn.py") == f"{tmp_path}/churn.py:Churn"
    assert parse_model_uri("s3://b/m/").local_spec(tmp_path / "m") == f"{tmp_path}/m"


def test_folders_of_different_models_differ():
    specs = ["s3://b/m.onnx", "s3://b/m/m.onnx", "gs://b/m.onnx", "s3://b/m.onnx/"]
    assert len({parse_model_uri(spec).folder_name for spec in specs}) == len(specs)


def test_version_changes_with_names_and_etags():
    one, two = ObjectInfo("s3://b/m/a", 1, "1"), ObjectInfo("s3://b/m/b", 1, "2")
    versions = [
        version_of(objects)
        for objects in (
            [one],
            [two],
            [one, two],
            [ObjectInfo("s3://b/m/a", 1, "2"), two],
            [ObjectInfo("s3://b/m/a", 2, "1"), two],
        )
    ]
    assert len(set(versions)) == len(versions)
    assert version_of([two, one]) == version_of([one, two])
    assert version_of([one, ObjectInfo("s3://b/m/b", 1)]) == ""


@for_each(
    ("name", "expected"),
    [("a", "a"), ("./a//b", "a/b"), ("a/./b", "a/b"), ("..a/b..", "..a/b.."), ("a\\b", "a\\b")],
)
def test_member_path_is_below_the_folder(name, expected):
    assert member_path(name) == PurePosixPath(expected)


@for_each(
    "name",
    ["", ".", "..", "../a", "a/../../b", "a/..", "/a", "//a", "a\0b", "\udcff", "n" * 256, "a/" + "é" * 128],
)
def test_member_outside_the_folder_is_refused(name):
    with pytest.raises(ConfigError, match="is not the path of a file below the model's folder"):
        member_path(name)


@for_each(
    ("names", "expected"),
    [
        ({"m.onnx", "m.onnx.data", "README.md"}, ["m.onnx"]),
        ({"MLmodel", "model.pkl"}, ["."]),
        ({"weights.safetensors", "config.json", "tokenizer.json"}, ["."]),
        ({"net.py", "weights.safetensors"}, ["net.py"]),
        ({"model.joblib"}, ["model.joblib"]),
        ({"a.onnx", "b.onnx"}, ["a.onnx", "b.onnx"]),
        ({"readme.txt"}, []),
    ],
)
def test_main_file_of_a_folder(names, expected):
    assert candidate_names(names) == expected
