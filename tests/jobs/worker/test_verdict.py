"""What an attempt that raised comes to: a table of causes, and no inside of ours in what is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import errors as e
from headrace.jobs.attempt import AttemptStoppedError, StopReason
from headrace.jobs.cause import Cause
from headrace.jobs.job import Cancelled, Expired, Failed, NewJob, Released
from headrace.jobs.worker.verdict import MESSAGE_CHARS_MAX, verdict
from jobs.support import attempt_at


def judged(error, *, attempt=1, attempts_max=3, hide="", share=1.0, **spec):
    at = attempt_at(NewJob(attempts_max=attempts_max, **spec), attempt=attempt)
    return verdict(at, error, share=share, hide=hide)


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        (StopReason.LOST, None),
        (StopReason.CANCELLED, Cancelled()),
        (StopReason.EXPIRED, Expired()),
        (StopReason.DRAIN, Released({"at": 7})),
    ],
)
@pytest.mark.parametrize("error", [AttemptStoppedError(StopReason.DRAIN), ValueError("it fell over its end")])
def test_what_was_stopped_comes_to_what_it_was_stopped_for_whatever_it_raised(reason, outcome, error):
    at = attempt_at(NewJob())
    at.cursor = {"at": 7}
    at.stop(reason)
    assert verdict(at, error, share=0.5) == outcome


def test_what_is_over_its_time_limit_has_failed_and_counts():
    at = attempt_at(NewJob(time_limit_s=1.5))
    at.stop(StopReason.TIME_LIMIT)
    failed = verdict(at, AttemptStoppedError(StopReason.TIME_LIMIT), share=1.0)
    assert isinstance(failed, Failed)
    assert (failed.failure.cause, failed.counted, failed.crashed) == (Cause.TIMEOUT, True, False)
    assert failed.retry_ms == 10_000
    assert "1.5 s" in failed.failure.message


@pytest.mark.parametrize(
    ("error", "cause", "retry_ms", "counted", "crashed"),
    [
        (e.DataError("row 3"), Cause.INPUT, None, True, False),
        (e.PredictError("m", "no"), Cause.MODEL, 10_000, True, False),
        (e.InstanceLostError("m", "died", cause="crash"), Cause.CRASH, 5_000, True, True),
        (e.InstanceLostError("m", "died", cause="oom"), Cause.OOM, 5_000, True, True),
        (e.InstanceLostError("m", "died", cause="timeout"), Cause.TIMEOUT, 10_000, True, False),
        (e.StorageError("s3://b/k", "no"), Cause.STORAGE, 10_000, True, False),
        (e.UnavailableError("s3://b/k", "away"), Cause.UNAVAILABLE, 60_000, False, False),
        (e.StoppedError("leaving"), Cause.DRAINED, 0, False, False),
        (ZeroDivisionError("secret"), Cause.DEFECT, 10_000, True, False),
        (SystemExit(3), Cause.DEFECT, 10_000, True, False),
    ],
)
def test_what_it_raised_says_whether_and_when_it_is_tried_again(error, cause, retry_ms, counted, crashed):
    failed = judged(error)
    assert isinstance(failed, Failed)
    assert failed.failure.cause is cause
    assert failed.failure.error == type(error).__name__
    assert (failed.retry_ms, failed.counted, failed.crashed) == (retry_ms, counted, crashed)


def test_the_last_attempt_has_failed_for_good_and_still_counts_its_crash():
    failed = judged(e.InstanceLostError("m", "died", cause="crash"), attempt=3)
    assert (failed.retry_ms, failed.crashed) == (None, True)


def test_what_is_nobodys_fault_is_tried_again_also_after_the_last_attempt():
    failed = judged(e.UnavailableError("s3://b/k", "away"), attempt=3)
    assert (failed.retry_ms, failed.counted) == (60_000, False)


def test_a_request_that_somebody_else_cancelled_did_not_cancel_the_job():
    """Regression: nobody had cancelled the job, and it failed for good as if somebody had."""
    failed = judged(e.CancelledRequestError("whoever asked has gone"))
    assert isinstance(failed, Failed)
    assert (failed.failure.cause, failed.retry_ms) == (Cause.DEFECT, 10_000)


def test_a_server_says_when_it_may_be_asked_again():
    assert judged(e.OverloadedError("m", retry_after_s=77.0)).retry_ms == 77_000


def test_our_own_store_is_not_named():
    failed = judged(e.StorageError("s3://ours/attempts/a/1/x", "no"), hide="s3://ours/")
    assert failed.failure.message == "store:attempts/a/1/x: no"


def test_a_defect_of_ours_shows_nothing_of_its_inside():
    assert "secret" not in judged(RuntimeError("secret")).failure.message


@given(text=st.text(max_size=MESSAGE_CHARS_MAX * 2), hide=st.sampled_from(["", "s3://ours/"]))
def test_messages_have_a_bound(text, hide):
    message = judged(e.DataError(text), hide=hide).failure.message
    assert len(message) <= MESSAGE_CHARS_MAX
    if len(text) <= MESSAGE_CHARS_MAX and not hide:
        assert message == str(e.DataError(text))
