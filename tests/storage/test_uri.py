"""Parsing, checking and joining URIs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.storage.uri import absolute, join, name, object_location, parent, parse, prefix_location


@for_each(
    ("uri", "scheme", "bucket", "key"),
    [
        ("s3://b/a/k.csv", "s3", "b", "a/k.csv"),
        ("S3://b/a%20b?x#y", "s3", "b", "a%20b?x#y"),
        ("s3://b", "s3", "b", ""),
        ("gs://my_bucket.example/k", "gs", "my_bucket.example", "k"),
        ("az://$web/k", "az", "$web", "k"),
        ("memory:///k", "memory", "", "k"),
        ("file:///a/b c", "file", "", "/a/b c"),
        ("file://localhost/a", "file", "", "/a"),
        ("data/in.csv", "file", "", "data/in.csv"),
        ("./a:b", "file", "", "./a:b"),
        ("gopher:x", "file", "", "gopher:x"),
        ("/abs", "file", "", "/abs"),
        ("https://h:8443/a/b%20c?sig=%2F&x=1", "https", "h:8443", "a/b%20c?sig=%2F&x=1"),
        ("http://[::1]/x", "http", "::1", "x"),
    ],
)
def test_parse_returns_scheme_bucket_and_key(uri, scheme, bucket, key):
    location = parse(uri)
    assert (location.uri, location.scheme, location.bucket, location.key) == (uri, scheme, bucket, key)


@for_each(
    ("uri", "message"),
    [
        (
            "ftp://h/x",
            "unknown scheme ftp://: use s3://, gs://, az://, http://, https://, file://, memory://",
        ),
        ("s3:/b/k", "one slash after the scheme"),
        ("s3://", "the bucket is missing"),
        ("s3:///k", "the bucket is missing"),
        ("s3://user:secret@b/k", "is not a valid bucket name"),
        ("s3://b/a\nb", "control character"),
        ("file://other-host/x", "file:///absolute/path"),
        ("file://relative", "file:///absolute/path"),
        ("a\0b", "NUL"),
        ("in/\udcff.csv", "'in/.udcff.csv': the name is not UTF-8"),
        ("http://", "not a valid URL"),
        ("http://h:port/", "not a valid URL"),
        ("http://h/a b", "percent-encoded"),
        ("http://h\\evil/x", "percent-encoded"),
        ("http://h/\xfc", "percent-encoded"),
        ("http://h\r\nX: y/", "control character"),
    ],
)
def test_parse_rejects_invalid_uris_with_advice(uri, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        parse(uri)


def test_url_credentials_are_rejected_and_not_repeated():
    with pytest.raises(ConfigError) as raised:
        parse("https://me:secret@host/x")
    assert "secret" not in str(raised.value)


@for_each("key", ["", "a//b", "../a", "a/..", "./a", "a/.", "/a", "a/", "x" * 1025, "é" * 513])
def test_unsupported_object_keys_are_rejected(key):
    with pytest.raises(ConfigError):
        object_location(f"s3://b/{key}")


@for_each("key", ["a", "a..b", "...", ".hidden", "a b", "a%2Fb", "x" * 1024])
def test_other_object_keys_are_accepted(key):
    assert object_location(f"s3://b/{key}").key == key


def test_prefix_may_end_anywhere_without_empty_segments():
    for good in ("s3://b", "s3://b/", "s3://b/a/", "s3://b/a/.", "s3://b/a/nu"):
        assert prefix_location(good).uri == good
    for bad in ("s3://b//", "s3://b/a//b", "s3://b/../a", "s3://b/./a"):
        with pytest.raises(ConfigError, match="segment"):
            prefix_location(bad)


@for_each(
    ("prefix", "below", "whole"),
    [
        ("s3://b", "x", "s3://b/x"),
        ("s3://b/", "x", "s3://b/x"),
        ("s3://b/out", "/x/y", "s3://b/out/x/y"),
        ("", "x", "x"),
        ("/", "x", "/x"),
        ("file:///", "x", "file:///x"),
        ("out/", "x", "out/x"),
    ],
)
def test_join(prefix, below, whole):
    assert join(prefix, below) == whole


def test_join_rejects_a_url_with_a_query():
    with pytest.raises(ConfigError, match="query"):
        join("https://h/x?sig=1", "y")


@for_each(
    ("uri", "expected"),
    [
        ("s3://b/a/k", "s3://b/a/"),
        ("s3://b/a/", "s3://b/"),
        ("s3://b/k", "s3://b/"),
        ("s3://b", "s3://b/"),
        ("s3://b/", "s3://b/"),
        ("k", ""),
        ("a/k", "a/"),
        ("/k", "/"),
        ("/", "/"),
        ("file:///k", "file:///"),
        ("https://h/a/k?x=/y/", "https://h/a/"),
    ],
)
def test_parent(uri, expected):
    assert parent(uri) == expected


def test_name():
    assert [name(u) for u in ("s3://b/a/k.csv", "s3://b/a/", "k", "https://h/a/k?x=/y")] == [
        "k.csv",
        "",
        "k",
        "k",
    ]


_segment = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cc", "Cs"]), min_size=1
).filter(lambda s: s not in {".", ".."})


@given(st.lists(_segment, min_size=1, max_size=4), _segment)
def test_parent_and_name_invert_join(folders, last):
    prefix = "s3://b/" + "/".join(folders) + "/"
    joined = join(prefix, last)
    assert (parent(joined), name(joined)) == (prefix, last)


def test_absolute_changes_plain_paths_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute("a/b") == f"{tmp_path}/a/b"
    assert absolute("./out/") == f"{tmp_path}/out/"
    assert absolute("/x/") == "/x/"
    assert absolute("s3://b/./k") == "s3://b/./k"
