"""Content types, splits and compressions to how objects are read; accepts to what is written."""

from contextlib import suppress
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.formats.read import FormatName, ReadOptions
from headrace.transforms.media_types import COMPRESSIONS, SPLITS, Kind, accept_of, kind_of, read_options
from headrace.transforms.settings import Accept


@pytest.mark.parametrize(
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
def test_kinds(content_type, kind):
    assert kind_of(content_type) == kind


@pytest.mark.parametrize(
    "content_type", ["", ";", "cvs", "text/", "/csv", "text/csv, application/json", "a b/c"]
)
def test_no_content_type(content_type):
    with pytest.raises(ConfigError, match="neither a MIME type"):
        kind_of(content_type)


def test_the_nearest_content_type_is_told():
    with pytest.raises(ConfigError, match=r"did you mean jsonl\?"):
        kind_of("josnl")


@pytest.mark.parametrize(
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
        (None, "tar", ("auto", "tar")),
        ("text/csv", "tar", ("csv", "tar")),
    ],
)
def test_how_objects_are_read(content_type, split, layers):
    options = read_options(content_type, split, None)
    assert (options.format, options.archive) == layers
    assert options.compression == "auto"


@pytest.mark.skipif("parquet" not in get_args(FormatName), reason="there is no Parquet to read yet")
@pytest.mark.parametrize(("content_type", "split"), [("application/x-parquet", None), (None, "parquet")])
def test_parquet_is_read(content_type, split):
    assert read_options(content_type, split).format == "parquet"


@pytest.mark.parametrize(
    "content_type", ["image/png", "audio/wav", "video", "parquet", "recordio", "tfrecord"]
)
def test_what_has_no_lines_is_not_split_at_them(content_type):
    with pytest.raises(ConfigError, match=f"{content_type} has no lines to split at"):
        read_options(content_type, "line")


@pytest.mark.parametrize("compression", ["None", "Gzip", "bzip2", "zstd", "auto"])
def test_compressions(compression):
    assert read_options(None, None, compression).compression == compression.lower()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ((None, "lines", None), r"split 'lines': choose one of none, line.*did you mean line\?"),
        ((None, None, "gz"), r"compression 'gz': choose one of auto, none, gzip"),
        (("", None, None), "content type ''"),
    ],
)
def test_unknown_words(given, why):
    with pytest.raises(ConfigError, match=why):
        read_options(*given)


@given(
    st.none() | st.sampled_from([*get_args(Kind), "text/csv", "image/png", "x/y"]) | st.text(max_size=12),
    st.none() | st.sampled_from(SPLITS) | st.text(max_size=6),
    st.none() | st.sampled_from(COMPRESSIONS) | st.text(max_size=6),
)
def test_anything_is_read_somehow_or_refused(content_type, split, compression):
    with suppress(ConfigError):
        assert isinstance(read_options(content_type, split, compression), ReadOptions)


@pytest.mark.parametrize(
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
        *((word, word) for word in get_args(Accept)),
    ],
)
def test_accepts(accept, written):
    assert accept_of(accept) == written


@pytest.mark.parametrize(
    "accept", ["", "application/x-recordio-protobuf", "text/csv, application/json", "image/png"]
)
def test_what_is_not_written(accept):
    with pytest.raises(ConfigError, match="is not written here: choose one of"):
        accept_of(accept)
