"""Content types, splits, compressions and accept types."""

from contextlib import suppress
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.formats.read_options import ReadOptions
from headrace.runs.media_types import COMPRESSIONS, SPLITS, Kind, accept_of, kind_of, read_options
from headrace.runs.output_settings import OutputFormat


@for_each(
    ("content_type", "kind"),
    [
        ("text/csv", "csv"),
        ("Text/CSV; charset=utf-8", "csv"),
        (" application/json ", "json"),
        ("application/jsonlines", "jsonl"),
        ("application/x-ndjson", "jsonl"),
        ("application/x-recordio-protobuf", "recordio"),
        ("application/x-tfrecord", "tfrecord"),
        ("application/x-parquet", "parquet"),
        ("text/plain", "text"),
        ("line", "text"),
        ("application/octet-stream", "whole"),
        ("application/x-npy", "whole"),
        ("image/png", "image"),
        ("application/x-image", "image"),
        ("audio/wav", "audio"),
        ("video/mp4", "video"),
        *((kind, kind) for kind in get_args(Kind)),
    ],
)
def test_content_types_map_to_kinds(content_type, kind):
    assert kind_of(content_type) == kind


@for_each("content_type", ["", ";", "cvs", "text/", "/csv", "text/csv, application/json", "a b/c"])
def test_invalid_content_types_are_refused(content_type):
    with pytest.raises(ConfigError, match="neither a MIME type"):
        kind_of(content_type)


def test_invalid_content_type_suggests_the_most_similar():
    with pytest.raises(ConfigError, match=r"did you mean jsonl\?"):
        kind_of("josnl")


@for_each(
    ("content_type", "split", "layers"),
    [
        (None, None, ("auto", "auto")),
        ("text/csv", None, ("csv", "auto")),
        ("text/plain", None, ("line", "auto")),
        ("application/json", None, ("json", "auto")),
        ("application/x-npy", None, ("whole", "auto")),
        ("image/png", None, ("image", "auto")),
        (None, "none", ("whole", "none")),
        ("text/csv", "none", ("whole", "none")),
        ("application/jsonlines", "none", ("whole", "none")),
        ("application/json", "none", ("json", "none")),
        ("image/jpeg", "none", ("image", "none")),
        ("audio/wav", "none", ("whole", "none")),
        ("application/x-recordio-protobuf", "none", ("whole", "none")),
        (None, "line", ("line", "auto")),
        ("text/csv", "Line", ("csv", "auto")),
        ("application/json", "line", ("jsonl", "auto")),
        ("application/jsonlines", "line", ("jsonl", "auto")),
        ("text/plain", "line", ("line", "auto")),
        ("application/x-npy", "line", ("line", "auto")),
        ("application/x-recordio-protobuf", "RecordIO", ("recordio", "auto")),
        ("text/csv", "recordio", ("recordio", "auto")),
        (None, "TFRecord", ("tfrecord", "auto")),
        (None, "csv", ("csv", "auto")),
        ("application/json", "jsonl", ("jsonl", "auto")),
        ("v2", None, ("v2", "auto")),
        ("v2", "line", ("v2", "auto")),
        ("v2", "none", ("v2", "none")),
        ("application/json", "v2", ("v2", "auto")),
        (None, "tar", ("auto", "tar")),
        ("text/csv", "tar", ("csv", "tar")),
        ("text/csv", "zip", ("csv", "zip")),
    ],
)
def test_content_type_and_split_select_the_format(content_type, split, layers):
    options = read_options(content_type, split, None)
    assert (options.format, options.archive) == layers
    assert options.compression == "auto"


@for_each(("content_type", "split"), [("application/x-parquet", None), (None, "parquet")])
def test_parquet_is_selected_by_type_or_split(content_type, split):
    assert read_options(content_type, split).format == "parquet"


@for_each("content_type", ["image/png", "audio/wav", "video", "parquet", "recordio", "tfrecord"])
def test_content_without_lines_refuses_split_line(content_type):
    with pytest.raises(ConfigError, match=f"{content_type} has no lines to split at"):
        read_options(content_type, "line")


@for_each("compression", ["None", "Gzip", "bzip2", "zstd", "auto"])
def test_compression_is_case_insensitive(compression):
    assert read_options(None, None, compression).compression == compression.lower()


@for_each(
    ("given", "why"),
    [
        ((None, "lines", None), r"split 'lines': choose one of none, line.*did you mean line\?"),
        ((None, None, "gz"), r"compression 'gz': choose one of auto, none, gzip"),
        (("", None, None), "content type ''"),
    ],
)
def test_unknown_words_are_refused(given, why):
    with pytest.raises(ConfigError, match=why):
        read_options(*given)


@given(
    st.none() | st.sampled_from([*get_args(Kind), "text/csv", "image/png", "x/y"]) | st.text(max_size=12),
    st.none() | st.sampled_from(SPLITS) | st.text(max_size=6),
    st.none() | st.sampled_from(COMPRESSIONS) | st.text(max_size=6),
)
def test_any_options_are_mapped_or_refused(content_type, split, compression):
    with suppress(ConfigError):
        assert isinstance(read_options(content_type, split, compression), ReadOptions)


@for_each(
    ("accept", "written"),
    [
        ("text/csv", "csv"),
        ("application/json; charset=utf-8", "json"),
        ("application/jsonlines", "jsonl"),
        ("Application/X-Parquet", "parquet"),
        ("application/vnd.apache.arrow.file", "arrow"),
        ("text/plain", "text"),
        ("application/octet-stream", "text"),
        ("*/*", "auto"),
        *((word, word) for word in get_args(OutputFormat)),
    ],
)
def test_accept_types_map_to_formats(accept, written):
    assert accept_of(accept) == written


@for_each("accept", ["", "application/x-recordio-protobuf", "text/csv, application/json", "image/png"])
def test_unsupported_accept_types_are_refused(accept):
    with pytest.raises(ConfigError, match="cannot be written: choose one of"):
        accept_of(accept)
