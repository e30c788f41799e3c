import json

import pytest

from cases import for_each
from headrace.core.errors import ConfigError, DataError, EmptySourceError, NotFoundError
from headrace.runs.objects import (
    literal_prefix,
    notice_objects,
    select_objects,
    select_typed_objects,
    source_covers,
)
from headrace.storage.resolve import Stores

NAMES = ("a.csv", "in/a.csv", "in/b/c.csv", "in/b/d.txt", "in2/e.csv")


@pytest.fixture
def stores() -> Stores:
    made = Stores()
    for name in NAMES:
        made.for_uri("memory://m/").put(f"memory://m/{name}", b"1\n")
    return made


def put(stores: Stores, name: str, data: bytes) -> str:
    stores.for_uri("memory://m/").put(f"memory://m/{name}", data)
    return f"manifest:memory://m/{name}"


def selected(source, stores: Stores) -> list[str]:
    return [i.uri.removeprefix("memory://m/") for i in select_objects(source, stores)]


@for_each(
    ("source", "wanted"),
    [
        ("memory://m/a.csv", ["a.csv"]),
        ("memory://m/in/", ["in/a.csv", "in/b/c.csv", "in/b/d.txt"]),
        ("memory://m/in", ["in/a.csv", "in/b/c.csv", "in/b/d.txt"]),
        ("memory://m/in*/*.csv", ["in/a.csv", "in/b/c.csv", "in2/e.csv"]),
        ("memory://m/in/?/[cd].*", ["in/b/c.csv", "in/b/d.txt"]),
        (["memory://m/in2/", "memory://m/a.csv", "memory://m/in2/e.csv"], ["in2/e.csv", "a.csv"]),
    ],
)
def test_source_selects_each_object_once_in_order(stores, source, wanted):
    assert selected(source, stores) == wanted


@for_each(
    ("manifest", "wanted"),
    [
        (b"\xef\xbb\xbfmemory://m/in2/\r\n# no\n\n  memory://m/a.csv\n", ["in2/e.csv", "a.csv"]),
        (b'  ["memory://m/a.csv"]', ["a.csv"]),
        (b'[{"prefix": "memory://m/in/"}, "b/d.txt", "a.csv"]', ["in/b/d.txt", "in/a.csv"]),
    ],
)
def test_manifest_is_lines_or_sagemakers_array(stores, manifest, wanted):
    assert selected(put(stores, "list", manifest), stores) == wanted


@for_each(
    ("manifest", "error", "why"),
    [
        (b"", EmptySourceError, "names no objects"),
        (b"# none\n", EmptySourceError, "names no objects"),
        (b"[]", EmptySourceError, "names no objects"),
        (b'["a",', ConfigError, "starts like JSON but is invalid"),
        (b'["a", 3]', ConfigError, "entry 1 is neither a string"),
        (b'["a", {"prefix": "b"}]', ConfigError, "entry 1 is neither a string"),
        (b'[{"prefix": 3}]', ConfigError, "entry 0 is neither a string"),
        (b"memory://m/a.csv\n\xff\n", ConfigError, "not UTF-8 text, from byte 17 on"),
        (b"manifest:memory://m/list\n", ConfigError, "names another manifest"),
        (b"memory://m/gone.csv\n", NotFoundError, "gone.csv"),
    ],
)
def test_invalid_manifest_error_names_it(stores, manifest, error, why):
    with pytest.raises(error, match=why):
        select_objects(put(stores, "list", manifest), stores)


@for_each(
    ("source", "error", "why"),
    [
        ("memory://m/gone.csv", NotFoundError, "gone.csv"),
        ("memory://m/gone/", EmptySourceError, "no object has this prefix"),
        ("memory://m/*.gone", EmptySourceError, "no object matches this pattern"),
        ("manifest:memory://m/gone", NotFoundError, "gone"),
        ("nope://m/x", ConfigError, "unknown scheme"),
    ],
)
def test_empty_source_error_names_it(stores, source, error, why):
    with pytest.raises(error, match=why):
        select_objects(source, stores)


def test_local_globs_and_folders_keep_the_names_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d" / "e").mkdir(parents=True)
    for name in ("a.csv", "d/b.csv", "d/e/c.csv"):
        (tmp_path / name).write_bytes(b"1\n")
    stores = Stores()
    assert [i.uri for i in select_objects("*.csv", stores)] == ["./a.csv", "./d/b.csv", "./d/e/c.csv"]
    assert [i.uri for i in select_objects("d/?.csv", stores)] == ["d/b.csv"]
    assert [i.uri for i in select_objects("d", stores)] == ["d/b.csv", "d/e/c.csv"]
    assert [i.uri for i in select_objects(f"{tmp_path}/d/*", stores)] == [
        f"{tmp_path}/d/b.csv",
        f"{tmp_path}/d/e/c.csv",
    ]


@for_each(
    ("source", "data_type", "wanted"),
    [
        ("memory://m/in", "auto", ["in/a.csv", "in/b/c.csv", "in/b/d.txt"]),
        ("memory://m/in", "prefix", ["in/a.csv", "in/b/c.csv", "in/b/d.txt", "in2/e.csv"]),
        (["memory://m/in2", "memory://m/i"], "prefix", ["in2/e.csv", "in/a.csv", "in/b/c.csv", "in/b/d.txt"]),
        ("memory://m/list", "manifest", ["in2/e.csv"]),
        ("manifest:memory://m/list", "manifest", ["in2/e.csv"]),
    ],
)
def test_data_type_decides_the_meaning_of_a_source(stores, source, data_type, wanted):
    put(stores, "list", b"memory://m/in2/e.csv\n")
    found = select_typed_objects(source, stores, data_type)
    assert [i.uri.removeprefix("memory://m/") for i in found] == wanted


def test_prefixes_without_objects_are_all_named(stores):
    with pytest.raises(EmptySourceError, match="memory://m/p, memory://m/q: no object has this prefix"):
        select_typed_objects(["memory://m/p", "memory://m/q"], stores, "prefix")


@for_each(
    ("source", "prefix"),
    [("s3://b/in/", "s3://b/in/"), ("s3://b/day-*/x", "s3://b/day-"), ("http://h/a?b=*", "http://h/a?b=*")],
)
def test_literal_prefix_ends_before_the_first_wildcard(source, prefix):
    assert literal_prefix(source) == prefix


@for_each(
    ("source", "uri", "covered"),
    [
        ("s3://b/in/", "s3://b/in/x/y.csv", True),
        ("s3://b/in/", "s3://b/in2/x.csv", False),
        ("s3://b/in", "s3://b/in/x.csv", True),
        ("s3://b/in", "s3://b/in2/x.csv", False),
        ("s3://b/in/x.csv", "s3://b/in/x.csv", True),
        ("s3://b/*.csv", "s3://b/in/x.csv", True),
        ("s3://b/*.csv", "s3://b/in/x.txt", False),
        (["s3://a/", "s3://b/"], "s3://b/x", True),
        ("manifest:s3://b/list", "s3://b/list", False),
    ],
)
def test_source_covers_the_objects_it_selects(source, uri, covered):
    assert source_covers(source, uri) is covered


def test_name_with_wildcards_is_found_if_nothing_matches(stores):
    stores.for_uri("memory://m/").put("memory://m/a[1].csv", b"1\n")
    assert selected("memory://m/a[1].csv", stores) == ["a[1].csv"]


def test_query_of_a_web_address_is_no_wildcard(http_files):
    http_files.objects["/rows.csv"] = b"1\n2\n"
    url = f"{http_files.url}/rows.csv?X-Amz-Signature=abc"
    (found,) = select_objects(url, Stores())
    assert (found.uri, found.size_bytes) == (url, 4)
    assert source_covers(url, url)


# Event notifications

AWS = {
    "Records": [
        {
            "eventVersion": "2.1",
            "eventSource": "aws:s3",
            "eventName": "ObjectCreated:Put",
            "s3": {
                "bucket": {"name": "in"},
                "object": {"key": "day+1/a%2Bb.csv", "size": 1024, "eTag": "d41d8", "sequencer": "0055AED6"},
            },
        }
    ]
}
MINIO = {"EventName": "s3:ObjectCreated:Put", "Key": "in/x.csv", **json.loads(json.dumps(AWS))}
MINIO["Records"][0]["eventName"] = "s3:ObjectCreated:CompleteMultipartUpload"


def test_keys_are_url_decoded():
    (found,) = notice_objects(AWS)
    assert (found.uri, found.size_bytes, found.etag) == ("s3://in/day 1/a+b.csv", 1024, '"d41d8"')


@for_each(
    "notice",
    [
        json.dumps(AWS),
        json.dumps(AWS).encode(),
        MINIO,
        {"Type": "Notification", "Message": json.dumps(AWS)},
        {"Records": [{"body": json.dumps(AWS), "messageId": "1"}]},
        {"Records": [{"Sns": {"Message": json.dumps(AWS)}, "EventSource": "aws:sns"}]},
        {"Records": [{"body": json.dumps({"Message": json.dumps(AWS)})}]},
    ],
)
def test_every_wrapping_yields_the_same_object(notice):
    assert [i.uri for i in notice_objects(notice)] == ["s3://in/day 1/a+b.csv"]


def test_duplicate_object_is_returned_once():
    assert len(notice_objects({"Records": AWS["Records"] * 2})) == 1


def test_removals_and_test_events_yield_nothing():
    removed = json.loads(json.dumps(AWS))
    removed["Records"][0]["eventName"] = "ObjectRemoved:Delete"
    assert notice_objects(removed) == []
    assert notice_objects({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "in"}) == []


@for_each(
    "notice",
    [
        "[]",
        "{",
        {},
        {"Records": [{"eventName": "x"}]},
        {"Records": 3},
        {"Records": [3]},
        {"Message": "{"},
        {
            "Records": [
                {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": {"key": 3}}}
            ]
        },
        {
            "Records": [
                {
                    "eventName": "ObjectCreated:Put",
                    "s3": {"bucket": {"name": "b"}, "object": {"key": "k", "size": "x"}},
                }
            ]
        },
    ],
)
def test_malformed_notification_is_refused(notice):
    with pytest.raises(DataError):
        notice_objects(notice)


def test_etag_is_quoted_like_in_listings():
    """ETags of notices are bare (AWS) or quoted (others), and must equal those of listings, or
    every read would be refused.
    """
    quoted, bare, none = (json.loads(json.dumps(AWS)) for _ in range(3))
    quoted["Records"][0]["s3"]["object"]["eTag"] = '"d41d8"'
    del none["Records"][0]["s3"]["object"]["eTag"]
    assert [notice_objects(n)[0].etag for n in (quoted, bare, none)] == ['"d41d8"', '"d41d8"', ""]


def test_endlessly_wrapped_notification_is_refused():
    notice: object = AWS
    for _ in range(9):
        notice = {"Message": json.dumps(notice)}
    with pytest.raises(DataError):
        notice_objects(notice)  # type: ignore[arg-type]
