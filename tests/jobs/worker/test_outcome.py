"""Outcomes of attempts that raise: causes, retries, and messages without internal details."""

from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core import errors as e
from headrace.jobs.job import Cancelled, Expired, Failed, NewJob, Released
from headrace.jobs.kinds import MESSAGE_CHARS_MAX, AttemptStoppedError, StopReason, outcome_of_error
from headrace.jobs.state import Cause
from jobs.support import attempt_at


def outcome_for(error, *, attempt=1, attempts_max=3, hide="", share=1.0, **spec):
    at = attempt_at(NewJob(attempts_max=attempts_max, **spec), attempt=attempt)
    return outcome_of_error(at, error, share=share, hide=hide)


@for_each(
    ("reason", "outcome"),
    [
        (StopReason.LOST, None),
        (StopReason.CANCELLED, Cancelled()),
        (StopReason.EXPIRED, Expired()),
        (StopReason.DRAIN, Released({"at": 7})),
    ],
)
@for_each("error", [AttemptStoppedError(StopReason.DRAIN), ValueError("it fell over its end")])
def test_stop_reason_determines_the_outcome(reason, outcome, error):
    at = attempt_at(NewJob())
    at.cursor = {"at": 7}
    at.stop(reason)
    assert outcome_of_error(at, error, share=0.5) == outcome


def test_exceeded_time_limit_is_a_counted_failure():
    at = attempt_at(NewJob(time_limit_s=1.5))
    at.stop(StopReason.TIME_LIMIT)
    failed = outcome_of_error(at, AttemptStoppedError(StopReason.TIME_LIMIT), share=1.0)
    assert isinstance(failed, Failed)
    assert (failed.failure.cause, failed.counted, failed.crashed) == (Cause.TIMEOUT, True, False)
    assert failed.retry_ms == 10_000
    assert "1.5 s" in failed.failure.message


@for_each(
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
def test_error_determines_the_retry(error, cause, retry_ms, counted, crashed):
    failed = outcome_for(error)
    assert isinstance(failed, Failed)
    assert failed.failure.cause is cause
    assert failed.failure.error == type(error).__name__
    assert (failed.retry_ms, failed.counted, failed.crashed) == (retry_ms, counted, crashed)


def test_last_attempt_fails_for_good_and_counts_its_crash():
    failed = outcome_for(e.InstanceLostError("m", "died", cause="crash"), attempt=3)
    assert (failed.retry_ms, failed.crashed) == (None, True)


def test_uncounted_failure_is_retried_after_the_last_attempt():
    failed = outcome_for(e.UnavailableError("s3://b/k", "away"), attempt=3)
    assert (failed.retry_ms, failed.counted) == (60_000, False)


def test_cancelled_request_does_not_cancel_the_job():
    """Regression: a cancelled request failed the job for good, as if the job was cancelled."""
    failed = outcome_for(e.CancelledRequestError("the client has disconnected"))
    assert isinstance(failed, Failed)
    assert (failed.failure.cause, failed.retry_ms) == (Cause.DEFECT, 10_000)


def test_retry_after_sets_the_delay():
    assert outcome_for(e.OverloadedError("m", retry_after_s=77.0)).retry_ms == 77_000


def test_failures_of_one_cause_in_a_row_are_counted():
    job, error, seen = NewJob(), e.ModelNotFoundError("m", "this worker has no such model"), []
    at = attempt_at(job, attempt=1)
    for _ in range(10):
        failed = outcome_of_error(at, error, share=1.0)
        seen.append((failed.failure.times, failed.retry_ms is None))
        at = attempt_at(job, attempt=1, failure=failed.failure)
    assert seen == [*((times, False) for times in range(1, 10)), (10, True)]
    assert failed.failure.message.endswith("attempts failed 10 times in a row (no_model)")
    assert outcome_of_error(at, e.UnavailableError("s3://in", "no"), share=1.0).failure.times == 1


def test_internal_store_is_not_named():
    failed = outcome_for(e.StorageError("s3://ours/attempts/a/1/x", "no"), hide="s3://ours/")
    assert failed.failure.message == "store:attempts/a/1/x: no"


def test_internal_error_shows_no_details():
    assert "secret" not in outcome_for(RuntimeError("secret")).failure.message


@for_each(
    ("error", "message"),
    [
        (
            e.UnavailableError("s3://in/k", "reading still fails after 3 attempts", "http://10.0.0.5:9000"),
            "s3://in/k: reading still fails after 3 attempts",
        ),
        (
            e.ConfigError("s3://in/k: the settings are invalid", "http://10.0.0.5:9000"),
            "s3://in/k: the settings",
        ),
        (e.JobLedgerUnavailableError("at postgresql://ledger@10.0.0.5"), "the job ledger does not respond"),
        # The client chose this address, and needs the reason.
        (e.UnavailableError("https://h.example/k", "reading still fails", "HTTP 503"), "HTTP 503"),
    ],
)
def test_addresses_of_stores_and_ledgers_are_for_the_log_only(error, message, caplog):
    """Regression: the error of a store named its endpoint."""
    shown = outcome_for(error).failure.message
    assert message in shown
    assert "10.0.0.5" not in shown
    assert "10.0.0.5" in str(error) or "h.example" in shown


@given(text=st.text(max_size=MESSAGE_CHARS_MAX * 2), hide=st.sampled_from(["", "s3://ours/"]))
def test_messages_have_a_limit(text, hide):
    message = outcome_for(e.DataError(text), hide=hide).failure.message
    assert len(message) <= MESSAGE_CHARS_MAX
    if len(text) <= MESSAGE_CHARS_MAX and not hide:
        assert message == str(e.DataError(text))
