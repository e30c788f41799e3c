"""Encoded submissions, which the API's own reader must understand."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.jobs.client.messages import (
    INLINE_BYTES_MAX,
    UNSET,
    encode_submit_request,
    list_query,
    make_submit_request,
    media_type_of,
)
from headrace.jobs.submission import SubmissionHeaders, SubmissionLimits, read_document, read_raw

LIMITS = SubmissionLimits()
options = st.fixed_dictionaries(
    {},
    optional={
        "queue": st.sampled_from(["q", "night"]),
        "priority": st.integers(0, 9),
        "delay_s": st.floats(0, 1000).map(lambda s: round(s, 3)),
        "tags": st.dictionaries(st.sampled_from("ab"), st.text("x= &é", max_size=4), max_size=2),
        "options": st.dictionaries(
            st.text("ab\"'&", min_size=1, max_size=3),
            st.integers(-(1 << 63), (1 << 63) - 1) | st.text(max_size=3),
            max_size=2,
        ),
        "notify": st.lists(st.just({"kind": "webhook"}), max_size=1),
        "key": st.text("a/é", min_size=1, max_size=3),
        "output_uri": st.just("s3://b/x y"),
    },
)


@given(options, st.booleans())
def test_document_and_query_make_the_same_job(fields, is_bytes):
    request = make_submit_request(
        "m",
        b"[1]" if is_bytes else [1],
        {**fields, "content_type": "application/json", "idempotency_key": "k"},
    )
    encoded = encode_submit_request(request)
    headers = SubmissionHeaders(encoded.headers["content-type"], encoded.headers["idempotency-key"])
    if is_bytes:
        read = read_raw(encoded.content, encoded.params, headers, LIMITS)
    else:
        read = read_document(encoded.content, headers, LIMITS)
    plain = read_document(
        orjson.dumps({"model": "m", "input": [1], **fields}), SubmissionHeaders("", "k"), LIMITS
    )
    assert (read.job, read.payload) == (plain.job, plain.payload)


@for_each("source", [b"[1]", [1]])
def test_numbers_outside_of_json_are_refused(source):
    with pytest.raises(ConfigError, match="64-bit"):
        encode_submit_request(make_submit_request("m", source, {"options": {"n": 1 << 70}}))


def test_every_kind_of_payload_is_accepted(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b"{}")
    assert (
        make_submit_request("m", tmp_path / "x.jsonl", {}).fields["content_type"] == "application/jsonlines"
    )
    assert make_submit_request("m", "1,2", {"content_type": "text/csv"}).source == b"1,2"
    assert (
        encode_submit_request(make_submit_request("m", "text", {})).content
        == b'{"model":"m","content_type":"application/json","input":"text"}'
    )
    assert make_submit_request("m", ["x" * INLINE_BYTES_MAX], {}).source is not None
    assert make_submit_request("m", UNSET, {"upload": "u", "content_type": "a/b"}).upload == "u"
    with pytest.raises(ConfigError, match="neither bytes"):
        make_submit_request("m", object(), {})
    with pytest.raises(ConfigError, match="not none"):
        make_submit_request("m", UNSET, {})


def test_bare_payload_needs_no_model():
    encoded = encode_submit_request(make_submit_request("", b"x", {"kind": "transform"}))
    assert read_raw(encoded.content, encoded.params, SubmissionHeaders(), LIMITS).job.kind == "transform"


def test_file_name_implies_the_media_type():
    assert media_type_of("a.CSV") == "text/csv"
    assert media_type_of("a.png") == "image/png"
    assert media_type_of("a") == "application/octet-stream"


def test_filters_become_a_query():
    query = list_query(
        {
            "queue": "q",
            "states": ["failed", "expired"],
            "tags": {"a": "b=c"},
            "model": "",
            "created_from_ms": 0,
        }
    )
    assert query == (
        ("queue", "q"),
        ("state", "failed"),
        ("state", "expired"),
        ("tag", "a=b=c"),
        ("created_from_ms", "0"),
    )
