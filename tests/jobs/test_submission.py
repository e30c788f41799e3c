"""Submissions: parsed documents, refused fields with their messages, and digests."""

import contextlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import DataError, HeadraceError, LimitError
from headrace.jobs.job import NewJob
from headrace.jobs.submission import SubmissionHeaders, SubmissionLimits, digest_of, read_document, read_raw

LIMITS = SubmissionLimits(inline_bytes_max=1000)
KEYED = SubmissionHeaders(idempotency_key="k")


def read(document, envelope=KEYED, limits=LIMITS):
    return read_document(orjson.dumps(document), envelope, limits)


def test_complete_document_becomes_a_job():
    document = {
        "model": "churn@2",
        "kind": "transform",
        "queue": "night",
        "input_uri": "s3://in/day/",
        "content_type": "text/csv",
        "accept": "application/json",
        "output_uri": "s3://out/day/",
        "key": "day 1",
        "options": {"join": "input", "deep": [{"a": None}]},
        "priority": 0,
        "delay_s": 1.5,
        "attempts_max": 7,
        "time_limit_s": 60,
        "time_to_live_s": 3600,
        "deadline_s": 0.5,
        "tags": {"day": "höchst/1"},
        "notify": [{"kind": "webhook"}],
        "correlation_id": "c-1",
    }
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    found = read(document, SubmissionHeaders(idempotency_key="k", trace=trace))
    assert found.payload is None
    digest = found.job.body_digest
    expected = {**document, "notify": ({"kind": "webhook"},), "delay_ms": 1500}
    del expected["delay_s"]
    assert found.job == NewJob(**expected, idempotency_key="k", trace=trace, body_digest=digest)
    assert len(digest) == 64


def test_defaults_are_those_of_a_new_job():
    found = read({"model": "m", "input": {"b": 1, "a": [1.0]}}, SubmissionHeaders())
    assert found.payload == b'{"b":1,"a":[1.0]}'
    assert found.job == NewJob(model="m", content_type="application/json", owned_input=True)


@for_each(
    ("content_type", "value", "payload"),
    [
        ("text/csv", "1,2\n", b"1,2\n"),
        ("application/json; charset=utf-8", "x", b'"x"'),
        ("application/geo+json", None, b"null"),
    ],
)
def test_inline_payload_is_json_or_text_by_its_type(content_type, value, payload):
    assert read({"model": "m", "input": value, "content_type": content_type}).payload == payload


@for_each(
    ("document", "why"),
    [
        ([], "the body must be a JSON object"),
        (
            {"model": "m", "input": 1, "run_at": "9999-12-31"},
            "'run_at' is not a field of a submission; known: accept",
        ),
        ({"input": 1}, "model: is missing"),
        ({"model": "m"}, "input_uri: is missing"),
        ({"model": "m", "input": 1, "input_uri": "s3://b/k"}, "input and input_uri: only one"),
        ({"model": "m", "input": 1, "upload": "x"}, "input and upload: only one"),
        ({"model": "m", "upload": "x"}, "content_type: is missing"),
        ({"model": "m", "upload": 3, "content_type": "a/b"}, "upload: must be an id"),
        (
            {"model": "m", "input": 1, "content_type": "text/csv"},
            "input: must be a string for content_type 'text/csv'",
        ),
        ({"model": "m", "input": 1, "content_type": 5}, "content_type: must be a media type, not 5"),
        (
            {"model": "m", "input": 1, "priority": 2**31},
            "priority: must be a whole number from 0 to 9, not 2147483648",
        ),
    ],
)
def test_errors_name_the_field(document, why):
    with pytest.raises(DataError, match="^" + why.replace("(", r"\(")):
        read(document)


@for_each("body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"model":"\\ud800"}', b'{"a":1e999}'])
def test_invalid_json_is_refused(body):
    with pytest.raises(DataError, match="the body is not JSON"):
        read_document(body, SubmissionHeaders(), LIMITS)


def test_exceeded_limits_are_named():
    with pytest.raises(LimitError, match="input: 1002 bytes exceed the limit of 1000"):
        read({"model": "m", "input": "x" * 1000})
    with pytest.raises(LimitError, match="nested deeper than 64 levels"):
        read_document(b'{"model":"m","input":' + b"[" * 100 + b"]" * 100 + b"}", SubmissionHeaders(), LIMITS)


@for_each("key", ["a b", "ä", "x" * 256, "a\n"])
def test_idempotency_key_fits_a_header(key):
    with pytest.raises(DataError, match=r"^Idempotency-Key"):
        read({"model": "m", "input": 1}, SubmissionHeaders(idempotency_key=key))


def test_invalid_traceparent_is_dropped():
    assert read({"model": "m", "input": 1}, SubmissionHeaders(trace="nonsense")).job.trace == ""


# Bare payloads


def test_bare_payload_takes_its_fields_from_the_query():
    query = [
        ("model", "m"),
        ("priority", "2"),
        ("delay_s", "0.25"),
        ("tag", "a=b=c"),
        ("options", '{"x":[1]}'),
        ("key", "7"),
    ]
    found = read_raw(b"1,2", query, SubmissionHeaders(content_type="text/csv"), LIMITS)
    assert found.payload == b"1,2"
    assert found.job == NewJob(
        model="m", priority=2, delay_ms=250, tags={"a": "b=c"}, options={"x": [1]}, key="7",
        content_type="text/csv", owned_input=True,
    )  # fmt: skip


@for_each(
    ("query", "why"),
    [
        ([("priority", "high")], "priority: must be a whole number, not 'high'"),
        ([("priority", "1"), ("priority", "2")], "priority: is repeated"),
        ([("tag", "x")], "tag: must be NAME=VALUE"),
        ([("input_uri", "s3://b/k")], "input_uri: the body is the payload;"),
        ([("upload", "x")], "'upload' is not a field"),
        ([("delay_s", "NaN")], "delay_s: must be a number of seconds"),
        ([("time_limit_s", "-1")], "time_limit_s: must be seconds, more than 0"),
    ],
)
def test_query_errors_name_the_field(query, why):
    with pytest.raises(DataError, match="^" + why):
        read_raw(b"x", [("model", "m"), *query], SubmissionHeaders(), LIMITS)


def test_empty_payload_is_refused():
    with pytest.raises(DataError, match="the body is empty"):
        read_raw(b"", [("model", "m")], SubmissionHeaders(), LIMITS)


# Digests

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
documents = st.fixed_dictionaries(
    {"model": st.sampled_from(["m", "n"]), "input": json_values},
    optional={
        "priority": st.integers(0, 9),
        "delay_s": st.sampled_from([0, 0.0, 1, 1.0, 2]),
        "queue": st.sampled_from(["default", "night"]),
        "tags": st.dictionaries(st.sampled_from("abc"), st.text("xy", max_size=2), max_size=3),
        "attempts_max": st.integers(1, 5),
    },
)


@given(documents, st.randoms())
def test_digest_does_not_depend_on_the_spelling(document, random):
    """The order of fields, explicit defaults, and 1 instead of 1.0 do not change the digest."""
    names = list(document)
    random.shuffle(names)
    again = {name: document[name] for name in names}
    spelled = {
        "priority": 5,
        "queue": "default",
        "delay_s": 0,
        "attempts_max": 3,
        "tags": {},
        "kind": "infer",
    } | again
    assert read(document).job.body_digest == read(spelled).job.body_digest


@given(documents, documents)
def test_different_jobs_have_different_digests(one, other):
    first, second = read(one), read(other)
    same = (first.payload, first.job) == (second.payload, second.job)
    assert (first.job.body_digest == second.job.body_digest) == same


def test_digest_is_stable():
    """Ledgers keep digests for years: a changed digest would refuse a repeated submission."""
    job = NewJob(model="m", priority=2, tags={"a": "b"})
    assert digest_of(job, b"x") == "5052d833d9efa4f7708e16112dcb242d44b1f648ecce6695e9c6f7bbf4989d19"


def test_tenant_and_trace_are_not_in_the_digest():
    plain = NewJob(model="m")
    annotated = NewJob(
        model="m", tenant="t", trace="t", correlation_id="c", idempotency_key="k", id="i", owned_input=True
    )
    assert digest_of(plain, b"x") == digest_of(annotated, b"x") != digest_of(plain, b"y")


@given(st.binary(max_size=200) | documents.map(orjson.dumps))
def test_any_document_is_parsed_or_refused(body):
    with contextlib.suppress(HeadraceError):
        assert read_document(body, SubmissionHeaders(), LIMITS).job.model
