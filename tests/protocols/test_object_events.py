"""Event notices of every store, in every wrapping."""

import copy
import json
from urllib.parse import quote, quote_plus

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import DataError, LimitError
from headrace.protocols.object_events import NOTICE_BYTES_MAX, RECORDS_MAX, ObjectEvent, object_events

KEY = "day 1/ä+b%.csv"
EVENT = ObjectEvent("in", KEY, 1024, "d41d8", "v1", "0055AED6", "ObjectCreated:Put")


def _record(source: str, key: str, name: str = "ObjectCreated:Put", **described) -> dict:
    described = {
        "key": key,
        "size": 1024,
        "eTag": "d41d8",
        "versionId": "v1",
        "sequencer": "0055AED6",
        **described,
    }
    return {
        "eventVersion": "2.1",
        "eventSource": source,
        "eventName": name,
        "s3": {"bucket": {"name": "in"}, "object": described},
    }


AWS = {"Records": [_record("aws:s3", quote_plus(KEY, safe="/"))]}
MINIO = {
    "EventName": "s3:ObjectCreated:Put",
    "Key": f"in/{KEY}",
    "Records": [_record("minio:s3", quote_plus(KEY), "s3:ObjectCreated:Put")],
}
CEPH = {"Records": [_record("ceph:s3", KEY)]}
BRIDGED = {
    "version": "0",
    "detail-type": "Object Created",
    "source": "aws.s3",
    "detail": {
        "bucket": {"name": "in"},
        "object": {
            "key": KEY,
            "size": 1024,
            "etag": "d41d8",
            "version-id": "v1",
            "sequencer": "0055AED6",
        },
        "reason": "PutObject",
    },
}


def _wrappings(notice: dict) -> list:
    text = json.dumps(notice)
    return [
        notice,
        text,
        text.encode(),
        {"Type": "Notification", "Message": text},
        {"Body": text},
        {"Records": [{"body": text, "messageId": "1"}]},
        {"Records": [{"Sns": {"Message": text}, "EventSource": "aws:sns"}]},
        {"Records": [{"body": json.dumps({"Message": text})}]},
        json.dumps({"Message": text}),
    ]


@pytest.mark.parametrize("number", range(9))
@pytest.mark.parametrize("notice", [AWS, MINIO, CEPH], ids=["aws", "minio", "ceph"])
def test_every_store_in_every_wrapping_says_the_same(notice, number):
    assert object_events(_wrappings(notice)[number]) == [EVENT]


@pytest.mark.parametrize("number", range(9))
def test_eventbridge_does_not_encode_keys(number):
    (event,) = object_events(_wrappings(BRIDGED)[number])
    assert (event.key, event.version_id, event.sequencer, event.etag) == (KEY, "v1", "0055AED6", "d41d8")


def test_a_plain_key_that_looks_encoded_is_taken_as_it_stands():
    notice = {"Records": [_record("ceph:s3", "a%20b+c")]}
    assert object_events(notice)[0].key == "a%20b+c"


@pytest.mark.parametrize("source", ["aws:s3", "minio:s3", None])
def test_others_encode(source):
    record = _record(source, "a%20b+c%2B")
    if source is None:
        del record["eventSource"]
    assert object_events({"Records": [record]})[0].uri == "s3://in/a b c+"


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_key_comes_back(key):
    for source, written in (
        ("aws:s3", quote_plus(key)),
        ("aws:s3", quote(key, safe="/")),
        ("ceph:s3", key),
    ):
        assert object_events(json.dumps({"Records": [_record(source, written)]}))[0].key == key


def test_no_version_is_written_in_several_ways():
    for value in (None, "", "null"):
        assert object_events({"Records": [_record("aws:s3", "k", versionId=value)]})[0].version_id == ""


def test_an_event_that_stands_there_twice_is_told_once_and_another_of_the_same_key_is_not_it():
    later = _record("aws:s3", "k", sequencer="0055AED7")
    notice = {"Records": [_record("aws:s3", "k"), later, _record("aws:s3", "k")]}
    assert [event.sequencer for event in object_events(notice)] == ["0055AED6", "0055AED7"]


@pytest.mark.parametrize(
    "notice",
    [
        {"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "in"},
        {"Records": [_record("aws:s3", "k", "ObjectRemoved:Delete")]},
        {"Records": [_record("ceph:s3", "k", "s3:ObjectRemoved:DeleteMarkerCreated")]},
        {"Records": [_record("aws:s3", "k", "ObjectRestore:Completed")]},
        {**BRIDGED, "detail-type": "Object Deleted"},
        {"Records": []},
    ],
)
def test_what_creates_nothing_names_nothing(notice):
    assert object_events(notice) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"key": ""}, "names no object"),
        ({"key": 3}, "names no object"),
        ({"size": "1"}, "names no object"),
        ({"size": -1}, "names no object"),
        ({"size": True}, "names no object"),
        ({"key": "%FF"}, "not UTF-8"),
        ({"eTag": 3}, "not a text"),
        ({"versionId": ["v"]}, "not a text"),
    ],
)
def test_what_is_wrong_is_said(change, says):
    with pytest.raises(DataError, match=says):
        object_events({"Records": [_record("aws:s3", **{"key": "k", **change})]})


def test_a_bucket_with_a_slash_could_name_another_place():
    record = _record("aws:s3", "k")
    record["s3"]["bucket"]["name"] = "in/other"
    with pytest.raises(DataError):
        object_events({"Records": [record]})


def test_a_message_of_a_long_text_is_shown_in_short():
    with pytest.raises(DataError) as found:
        object_events({"Records": [_record("aws:s3", "k", size="x" * 100_000)]})
    assert len(str(found.value)) < 400


def test_what_is_too_much_is_refused():
    with pytest.raises(LimitError):
        object_events(b" " * (NOTICE_BYTES_MAX + 1))
    many = {"Records": [_record("aws:s3", f"k{n}") for n in range(RECORDS_MAX + 1)]}
    with pytest.raises(LimitError):
        object_events(many)
    many["Records"].pop()
    assert len(object_events(many)) == RECORDS_MAX


def test_wrappings_without_end_are_refused():
    notice: object = AWS
    for _ in range(6):
        notice = {"Message": json.dumps(notice)}
    with pytest.raises(DataError):
        object_events(notice)
    with pytest.raises(DataError):
        object_events("[" * 5000)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_PLACES = [
    (),
    ("Records",),
    ("Records", 0),
    ("Records", 0, "eventName"),
    ("Records", 0, "eventSource"),
    ("Records", 0, "s3"),
    ("Records", 0, "s3", "bucket"),
    ("Records", 0, "s3", "bucket", "name"),
    ("Records", 0, "s3", "object"),
    ("Records", 0, "s3", "object", "key"),
    ("Records", 0, "s3", "object", "size"),
    ("Records", 0, "s3", "object", "sequencer"),
    ("detail",),
    ("detail", "bucket"),
    ("detail", "object"),
    ("detail-type",),
    ("Message",),
]


@given(st.sampled_from([AWS, MINIO, CEPH, BRIDGED]), st.sampled_from(_PLACES), _JSON)
def test_whatever_stands_anywhere_there_is_an_answer_or_a_clear_error(notice, place, value):
    spoilt = copy.deepcopy(notice)
    if not place:
        spoilt = value
    else:
        at = spoilt
        for step in place[:-1]:
            at = at.get(step, {}) if isinstance(at, dict) else at[step]
        at[place[-1]] = value
    try:
        events = object_events(orjson.dumps(spoilt))
    except (DataError, LimitError):
        return
    assert all(isinstance(event.key, str) and event.bucket for event in events)


@given(st.binary(max_size=200))
def test_whatever_bytes_come_there_is_an_answer_or_a_clear_error(data):
    try:
        object_events(data)
    except (DataError, LimitError):
        return
