import json

import pytest

from cases import for_each
from headrace.core.errors import DataError
from headrace.runs.notice import notice_objects

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
