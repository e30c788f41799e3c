"""The fields of the ``headrace`` table: valid and invalid values."""

from contextlib import suppress
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.runs.document import (
    EXTENSION_FIELDS,
    SpecExtension,
    SpecKeys,
    SpecTable,
    parse_max_failed,
    read_extension,
)
from headrace.runs.spec import spec_of

VALUES: dict[str, tuple[Any, Any]] = {
    "model": ("m.onnx", "m.onnx"),
    "model_options": ({"intra_op_threads": 2}, {"intra_op_threads": 2}),
    "source": ("data/", "data/"),
    "output": ("s3://out", "s3://out"),
    "job_name": ("nightly", "nightly"),
    "instances": (2, 2),
    "in_flight_max": (16, 16),
    "timeout_s": (1, 1.0),
    "retries": (10, 10),
    "strict": (True, True),
    "data_type": ("manifest", "manifest"),
    "schema": ("strict", "strict"),
    "content_type": ("Text/CSV", "Text/CSV"),
    "split": ("tar", "tar"),
    "compression": ("zstd", "zstd"),
    "members": (["*.csv"], ("*.csv",)),
    "header": ("names", "names"),
    "delimiter": ("\t", "\t"),
    "quote": ("", ""),
    "escape": ("\\", "\\"),
    "null_words": (["NA", ""], ("NA", "")),
    "decimal": (",", ","),
    "comment": ("//", "//"),
    "skip_rows": (2, 2),
    "encoding": ("latin-1", "latin-1"),
    "record_bytes_max": ("1MiB", 1 << 20),
    "image_size": ([224, 112], (224, 112)),
    "image_mode": ("L", "L"),
    "image_scale": (1, 1.0),
    "window_ms": (0.5, 0.5),
    "hop_ms": (10, 10.0),
    "sample_rate_hz": (16000, 16000),
    "audio_channels": ("keep", "keep"),
    "every_frames": (5, 5),
    "every_ms": (40, 40.0),
    "columns": ([0, 3], (0, 3)),
    "text_column": (0, 0),
    "whole_records": (True, True),
    "input_filter": ("$[0]", "$[0]"),
    "output_filter": ("$.a", "$.a"),
    "slice_end": ("inclusive", "inclusive"),
    "join": ("input", "input"),
    "keep": (["a", "b"], ("a", "b")),
    "partition_by": (["a", "b"], ("a", "b")),
    "drop": (["c"], ("c",)),
    "rename": (["a=z"], ("a=z",)),
    "accept": ("application/x-parquet", "parquet"),
    "assemble": ("none", "none"),
    "output_header": (False, False),
    "on_error": ("job", "job"),
    "max_failed": ("1%", (None, 0.01)),
    "limit": (100, 100),
    "sample": ("1%", 0.01),
    "sample_seed": (7, 7),
    "batch_rows_max": (64, 64),
    "batch_bytes_max": (1000, 1000),
    "prefetch_bytes_max": ("8m", 8 << 20),
    "task_bytes": ("1g", 1 << 30),
    "task_objects": (5, 5),
    "checkpoint_s": (0, 0.0),
}


def read_values(**values: Any) -> SpecExtension:
    return read_extension(SpecTable.from_value("a.toml", "headrace", values, EXTENSION_FIELDS))


def test_every_field_is_read():
    assert VALUES.keys() == set(EXTENSION_FIELDS)
    found = read_values(**{name: given for name, (given, _) in VALUES.items()})
    read = {**asdict(found.keys), **found.run}
    assert read == {n: v for n, (_, v) in VALUES.items()}


def test_empty_table_sets_nothing():
    found = read_values()
    assert (found.keys, found.run) == (SpecKeys(), {})
    assert not found.set_fields("split", "accept")
    assert read_values(split="csv", strict=False).set_fields("split", "strict", "accept") == {
        "split",
        "strict",
    }


@for_each(
    ("name", "value", "why"),
    [
        ("source", "ftp://x", "unknown scheme"),
        ("model_options", ["a"], "must be a table"),
        ("instances", 0, "a whole number of 1 or more"),
        ("in_flight_max", 0, "a whole number of 1 or more"),
        ("timeout_s", 0, "must be a number"),
        ("strict", "yes", "true or false"),
        ("data_type", "S3Prefix", "must be one of auto, prefix, manifest"),
        ("content_type", "cvs", r"did you mean csv\?"),
        ("split", "Line", r"did you mean 'line'\?"),
        ("compression", "gz", "must be one of auto, none, gzip"),
        ("members", "*.csv", "must be a list of texts"),
        ("header", True, "must be one of auto, none, drop, names"),
        ("delimiter", "::", "must be one character"),
        ("delimiter", '"', "must be one character"),
        ("delimiter", "\n", "must be one character"),
        ("quote", "''", "must be one ASCII character"),
        ("escape", "", "must be one ASCII character"),
        ("null_words", "NA", "must be a list of texts"),
        ("decimal", ";", r"must be one of \., ,"),
        ("comment", "a\n", "must be text without line ends"),
        ("skip_rows", -1, "a whole number of 0 or more"),
        ("encoding", "latin1-x", "must be a text encoding known to Python"),
        ("encoding", "base64", "must be a text encoding known to Python"),
        ("record_bytes_max", "0", "a size in bytes of 1 or more"),
        ("image_size", [224], r"must be \[height, width\]"),
        ("image_size", [0, 1], r"must be \[height, width\]"),
        ("image_size", [True, 1], r"must be \[height, width\]"),
        ("image_size", [1 << 17, 1], r"must be \[height, width\]"),
        ("image_mode", "RGBA", "must be one of RGB, L"),
        ("columns", ["a", 1], "a list of names, or one of numbers"),
        ("columns", [-1], "a list of names, or one of numbers"),
        ("columns", [True], "a list of names, or one of numbers"),
        ("text_column", -1, "a whole number of 0 or more"),
        ("text_column", 1.5, "must be a non-empty text"),
        ("slice_end", "closed", "must be one of exclusive, inclusive"),
        ("accept", "xml", "cannot be written"),
        ("on_error", "stop", "must be one of record, object, job"),
        ("max_failed", "some", "neither a count"),
        ("max_failed", -1, "neither a count"),
        ("max_failed", 0.01, "must be a count of failed records"),
        ("checkpoint_s", -1, "must be a number of 0 or more"),
    ],
)
def test_invalid_values_name_file_and_field(name, value, why):
    with pytest.raises(ConfigError, match=rf"^a\.toml: headrace.*{name}.*{why}"):
        read_values(**{name: value})


def test_unknown_field_suggests_the_most_similar():
    with pytest.raises(
        ConfigError, match=r"^a\.toml: headrace: there is no field 'max_fail'; did you mean 'max_failed'\?$"
    ):
        read_values(max_fail="1")


@for_each(
    ("text", "found"),
    [
        ("0", (0, None)),
        (" 100 ", (100, None)),
        ("0%", (None, 0.0)),
        ("0.5%", (None, 0.005)),
        ("100 %", (None, 1.0)),
    ],
)
def test_max_failed_is_a_count_or_a_share(text, found):
    assert parse_max_failed(text) == found


@for_each("text", ["", "-1", "1.5", "101%", "%", "1%%", "1e2", "٣", "9" * 16, "1/2"])
def test_invalid_max_failed_is_refused(text):
    with pytest.raises(
        ConfigError, match="neither a count of failed records such as 100, nor a share such as 1%"
    ):
        parse_max_failed(text)


@given(st.text())
def test_any_max_failed_is_parsed_or_refused(text):
    with suppress(ConfigError):
        rows, share = parse_max_failed(text)
        assert (rows is None) != (share is None)


@given(
    st.dictionaries(
        st.sampled_from(EXTENSION_FIELDS),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=5)
        | st.lists(st.integers(), max_size=3),
    )
)
def test_any_values_are_read_or_refused(values):
    with suppress(ConfigError):
        assert isinstance(read_values(**values), SpecExtension)


def test_old_fields_are_renamed_with_a_warning(caplog):
    old = {"batch_rows": 3, "batch_bytes": 4, "prefetch_bytes": 5, "max_concurrent": 6, "task_bytes": 7}
    found = spec_of({"headrace": {**old, "batch_bytes_max": 8}}, "s.json")
    flow = found.settings.flow
    assert (flow.batch_rows_max, flow.batch_bytes_max, flow.prefetch_bytes_max) == (3, 8, 5)
    assert (found.in_flight_max, found.settings.tasks.task_bytes) == (6, 7)
    assert caplog.messages == [
        f"headrace.{name} is deprecated: use headrace.{new}"
        for name, new in (
            ("batch_rows", "batch_rows_max"),
            ("batch_bytes", "batch_bytes_max"),
            ("prefetch_bytes", "prefetch_bytes_max"),
            ("max_concurrent", "in_flight_max"),
        )
    ]
