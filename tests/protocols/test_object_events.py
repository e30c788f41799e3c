"""Event notices of every store in every envelope."""

import copy
import json
from urllib.parse import quote, quote_plus

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
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


def _envelopes(notice: dict) -> list:
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


@for_each("number", range(9))
@pytest.mark.parametrize("notice", [AWS, MINIO, CEPH], ids=["aws", "minio", "ceph"])
def test_every_store_and_envelope_gives_the_same_event(notice, number):
    assert object_events(_envelopes(notice)[number]) == [EVENT]


@for_each("number", range(9))
def test_eventbridge_does_not_encode_keys(number):
    (event,) = object_events(_envelopes(BRIDGED)[number])
    assert (event.key, event.version_id, event.sequencer, event.etag) == (KEY, "v1", "0055AED6", "d41d8")


def test_plain_keys_are_not_decoded():
    notice = {"Records": [_record("ceph:s3", "a%20b+c")]}
    assert object_events(notice)[0].key == "a%20b+c"


@for_each("source", ["aws:s3", "minio:s3", None])
def test_encoded_keys_are_decoded(source):
    record = _record(source, "a%20b+c%2B")
    if source is None:
        del record["eventSource"]
    assert object_events({"Records": [record]})[0].uri == "s3://in/a b c+"


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_key_round_trips(key):
    for source, written in (
        ("aws:s3", quote_plus(key)),
        ("aws:s3", quote(key, safe="/")),
        ("ceph:s3", key),
    ):
        assert object_events(json.dumps({"Records": [_record(source, written)]}))[0].key == key


def test_missing_version_has_several_forms():
    for value in (None, "", "null"):
        assert object_events({"Records": [_record("aws:s3", "k", versionId=value)]})[0].version_id == ""


def test_equal_events_are_returned_once():
    later = _record("aws:s3", "k", sequencer="0055AED7")
    notice = {"Records": [_record("aws:s3", "k"), later, _record("aws:s3", "k")]}
    assert [event.sequencer for event in object_events(notice)] == ["0055AED6", "0055AED7"]


@for_each(
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
def test_other_event_types_name_no_object(notice):
    assert object_events(notice) == []


@for_each(
    ("change", "message"),
    [
        ({"key": ""}, "names no object"),
        ({"key": 3}, "names no object"),
        ({"size": "1"}, "names no object"),
        ({"size": -1}, "names no object"),
        ({"size": True}, "names no object"),
        ({"key": "%FF"}, "not UTF-8"),
        ({"eTag": 3}, "not a string"),
        ({"versionId": ["v"]}, "not a string"),
    ],
)
def test_malformed_notice_names_the_defect(change, message):
    with pytest.raises(DataError, match=message):
        object_events({"Records": [_record("aws:s3", **{"key": "k", **change})]})


def test_bucket_with_slash_is_refused():
    record = _record("aws:s3", "k")
    record["s3"]["bucket"]["name"] = "in/other"
    with pytest.raises(DataError):
        object_events({"Records": [record]})


def test_long_values_are_cut_in_messages():
    with pytest.raises(DataError) as found:
        object_events({"Records": [_record("aws:s3", "k", size="x" * 100_000)]})
    assert len(str(found.value)) < 400


def test_notice_size_and_records_are_bounded():
    with pytest.raises(LimitError):
        object_events(b" " * (NOTICE_BYTES_MAX + 1))
    many = {"Records": [_record("aws:s3", f"k{n}") for n in range(RECORDS_MAX + 1)]}
    with pytest.raises(LimitError):
        object_events(many)
    many["Records"].pop()
    assert len(object_events(many)) == RECORDS_MAX


def test_deep_envelopes_are_refused():
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
def test_any_document_parses_or_raises_data_error(notice, place, value):
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
def test_any_bytes_parse_or_raise_data_error(data):
    try:
        object_events(data)
    except (DataError, LimitError):
        return
