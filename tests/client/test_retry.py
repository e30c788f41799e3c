"""The kinds of responses."""

from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.client.retry import HttpResponse, ResponseKind, classify_response, describe_refusal
from headrace.protocols.oip_documents import encode_error


@for_each(
    ("statuses", "expected"),
    [
        ((200, 201, 204), ResponseKind.SUCCESS),
        ((408, 425, 429, 502, 503, 504), ResponseKind.RETRY),
        ((400, 413, 422, 424, 500), ResponseKind.ROWS_REFUSED),
        ((301, 302, 401, 403, 404, 405, 410, 415, 501, 505, 599), ResponseKind.REQUEST_REFUSED),
        ((507,), ResponseKind.RETRY_BRIEFLY),
    ],
)
def test_status_determines_the_response_kind(statuses, expected):
    assert {classify_response(HttpResponse(s)) for s in statuses} == {expected}


@given(st.integers(100, 999))
def test_only_2xx_is_a_success(status):
    assert (classify_response(HttpResponse(status)) is ResponseKind.SUCCESS) == (200 <= status < 300)


@for_each(
    ("status", "advice"),
    [(401, "HEADRACE_ENDPOINT_TOKEN"), (403, "do not allow"), (404, "model's name"), (302, "http://there")],
)
def test_refusal_message_has_advice(status, advice):
    message = describe_refusal(
        HttpResponse(status, headers={"location": "http://there"}), "the server's words"
    )
    assert message.startswith(f"HTTP {status}: the server's words")
    assert advice in message


@for_each(
    ("status", "error_kind", "expected"),
    [
        (409, "sequence_lost", ResponseKind.ROWS_REFUSED),
        (410, "sequence_gone", ResponseKind.ROWS_REFUSED),
        (429, "sequence_full", ResponseKind.RETRY),
        (503, "too_many_sequences", ResponseKind.RETRY),
        (410, "other", ResponseKind.REQUEST_REFUSED),
    ],
)
def test_only_transient_sequence_errors_are_retried(status, error_kind, expected):
    response = HttpResponse(status, encode_error("sequence 's': it ended", error_kind))
    assert classify_response(response) is expected


def test_ended_sequence_message_has_no_url_advice():
    response = HttpResponse(410, encode_error("sequence 's': it ended", "sequence_gone"))
    assert describe_refusal(response, "it ended") == "HTTP 410: it ended"
