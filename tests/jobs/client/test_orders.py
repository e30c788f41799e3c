"""What callers give, as it is said to the API: and that the API's own reader understands it."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.jobs.client.orders import (
    INLINE_BYTES_MAX,
    NOTHING,
    document_of,
    media_type_of,
    order_of,
    query_of,
)
from headrace.jobs.intake import Envelope, read_document, read_raw
from headrace.jobs.intake_fields import IntakeLimits

LIMITS = IntakeLimits()
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
def test_both_ways_of_saying_it_make_the_same_job(given, is_bytes):
    order = order_of(
        "m",
        b"[1]" if is_bytes else [1],
        {**given, "content_type": "application/json", "idempotency_key": "k"},
    )
    said = document_of(order)
    envelope = Envelope(said.headers["content-type"], said.headers["idempotency-key"])
    if is_bytes:
        read = read_raw(said.content, said.params, envelope, LIMITS)
    else:
        read = read_document(said.content, envelope, LIMITS)
    plain = read_document(orjson.dumps({"model": "m", "input": [1], **given}), Envelope("", "k"), LIMITS)
    assert (read.job, read.payload) == (plain.job, plain.payload)


@pytest.mark.parametrize("source", [b"[1]", [1]])
def test_numbers_that_json_has_not_got_are_refused(source):
    with pytest.raises(ConfigError, match="64-bit"):
        document_of(order_of("m", source, {"options": {"n": 1 << 70}}))


def test_payloads_of_every_kind(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b"{}")
    assert order_of("m", tmp_path / "x.jsonl", {}).fields["content_type"] == "application/jsonlines"
    assert order_of("m", "1,2", {"content_type": "text/csv"}).source == b"1,2"
    assert (
        document_of(order_of("m", "text", {})).content
        == b'{"model":"m","content_type":"application/json","input":"text"}'
    )
    assert order_of("m", ["x" * INLINE_BYTES_MAX], {}).source is not None
    assert order_of("m", NOTHING, {"upload": "u", "content_type": "a/b"}).upload == "u"
    with pytest.raises(ConfigError, match="neither bytes"):
        order_of("m", object(), {})
    with pytest.raises(ConfigError, match="not none"):
        order_of("m", NOTHING, {})


def test_a_bare_payload_without_a_model_is_still_one():
    said = document_of(order_of("", b"x", {"kind": "transform"}))
    assert read_raw(said.content, said.params, Envelope(), LIMITS).job.kind == "transform"


def test_a_name_tells_a_type():
    assert media_type_of("a.CSV") == "text/csv"
    assert media_type_of("a.png") == "image/png"
    assert media_type_of("a") == "application/octet-stream"


def test_filters_are_a_query():
    wanted = query_of(
        {
            "queue": "q",
            "states": ["failed", "expired"],
            "tags": {"a": "b=c"},
            "model": "",
            "created_from_ms": 0,
        }
    )
    assert wanted == (
        ("queue", "q"),
        ("state", "failed"),
        ("state", "expired"),
        ("tag", "a=b=c"),
        ("created_from_ms", "0"),
    )
