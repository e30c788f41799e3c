"""What an answer means, and when to ask again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.retry import HttpAnswer, Verdict, explain, judge
from headrace.protocols.oip_json import encode_error


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        ((200, 201, 204), Verdict.ANSWERED),
        ((408, 425, 429, 502, 503, 504), Verdict.RETRY),
        ((400, 413, 422, 424, 500), Verdict.REFUSED),
        ((301, 302, 401, 403, 404, 405, 410, 415, 501, 505, 599), Verdict.REFUSED_WHOLE),
        ((507,), Verdict.RETRY_BRIEFLY),
    ],
)
def test_a_status_has_its_verdict(statuses, verdict):
    assert {judge(HttpAnswer(s)) for s in statuses} == {verdict}


@settings(deadline=None)
@given(st.integers(100, 999))
def test_every_status_has_a_verdict_and_only_2xx_is_an_answer(status):
    assert (judge(HttpAnswer(status)) is Verdict.ANSWERED) == (200 <= status < 300)


@pytest.mark.parametrize(
    ("status", "advice"),
    [(401, "HEADRACE_ENDPOINT_TOKEN"), (403, "do not allow"), (404, "model's name"), (302, "http://there")],
)
def test_a_refusal_says_what_to_do(status, advice):
    said = explain(HttpAnswer(status, headers={"location": "http://there"}), "the server's words")
    assert said.startswith(f"HTTP {status}: the server's words")
    assert advice in said


@pytest.mark.parametrize(
    ("status", "kind", "verdict"),
    [
        (409, "sequence_lost", Verdict.REFUSED),
        (410, "sequence_gone", Verdict.REFUSED),
        (429, "sequence_full", Verdict.RETRY),
        (503, "too_many_sequences", Verdict.RETRY),
        (410, "other", Verdict.REFUSED_WHOLE),
    ],
)
def test_what_is_wrong_with_a_sequence_is_asked_again_only_where_it_may_pass(status, kind, verdict):
    answer = HttpAnswer(status, encode_error("sequence 's': it ended", kind))
    assert judge(answer) is verdict


def test_a_sequence_that_has_ended_is_no_wrong_url():
    answer = HttpAnswer(410, encode_error("sequence 's': it ended", "sequence_gone"))
    assert explain(answer, "it ended") == "HTTP 410: it ended"
