import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.jobs.job import (
    Cancelled,
    Completed,
    Expired,
    Failed,
    Job,
    JobFailure,
    NewJob,
    Released,
    ResultRef,
    Settlement,
)
from headrace.jobs.ledgers.job_actions import requeue_change
from headrace.jobs.ledgers.rows import after_ms, change
from headrace.jobs.ledgers.work import lost_lease_change, settlement_change
from headrace.jobs.state import TRANSITIONS, WORKER_LOST_RULE, Cause, JobEvent, JobState

FAILURE = JobFailure(Cause.MODEL, "no")
running = st.builds(
    Job,
    st.just("a"),
    st.just(JobState.RUNNING),
    st.builds(NewJob, attempts_max=st.integers(1, 3)),
    attempt=st.integers(1, 3),
    lease=st.integers(1, 9),
    crashes=st.integers(0, 3),
    cancel_requested=st.booleans(),
)
outcomes = st.sampled_from(
    [
        Completed(ResultRef("memory://a")),
        Failed(FAILURE),
        Failed(FAILURE, 0, crashed=True),
        Failed(FAILURE, 1000),
        Released({"n": 1}),
        Released(delay_ms=-5),
        Cancelled(),
        Expired(),
    ]
)


@given(running, outcomes)
def test_every_outcome_is_a_permitted_transition(job, outcome):
    changed = settlement_change(job, Settlement(job.id, job.lease, outcome))
    assert changed.then.state is TRANSITIONS[job.state, changed.event]
    assert changed.then.lease == job.lease
    assert (changed.due_in_ms is not None) == (changed.then.state is JobState.PENDING)
    assert changed.due_in_ms is None or changed.due_in_ms >= 0
    if job.cancel_requested:
        assert changed.then.state is not JobState.PENDING


@given(running)
def test_lost_lease_counts_a_crash_and_finally_fails(job):
    changed = lost_lease_change(job)
    assert changed.then.crashes == job.crashes + 1
    if job.cancel_requested:
        assert changed.then.state is JobState.CANCELLED
    elif job.attempt >= job.spec.attempts_max:
        cause = Cause.POISON if job.alone else Cause.WORKER_LOST
        assert (changed.then.state, changed.then.failure.cause) == (JobState.FAILED, cause)
    else:
        assert (changed.then.state, changed.due_in_ms) == (
            JobState.PENDING,
            WORKER_LOST_RULE.delay_ms(job.attempt),
        )


def test_retry_delay_of_a_lost_job_grows_to_a_minute():
    jobs = [Job("a", JobState.RUNNING, NewJob(attempts_max=100), attempt=n) for n in (1, 2, 3, 7, 99)]
    delays = [lost_lease_change(job).due_in_ms for job in jobs]
    assert delays == [1_000, 2_000, 4_000, 60_000, 60_000]


def test_forbidden_transition_is_an_assertion_error():
    with pytest.raises(AssertionError, match="is impossible"):
        change(Job("a", JobState.COMPLETED, NewJob()), JobEvent.CANCEL)


def test_requeue_keeps_lease_crashes_and_cursor():
    job = Job("a", JobState.FAILED, NewJob(), attempt=3, lease=4, crashes=2, cursor={"n": 1}, failure=FAILURE)
    changed = requeue_change(job, "ann")
    assert (changed.then.attempt, changed.then.lease, changed.then.crashes, changed.then.cursor) == (
        0,
        4,
        2,
        {"n": 1},
    )
    assert (changed.then.failure, changed.due_in_ms, changed.restart_times, changed.note.by) == (
        None,
        0,
        True,
        "ann",
    )


def test_spans_are_rounded_to_milliseconds():
    assert [after_ms(s) for s in (None, 0.0, 1.2345)] == [None, 0, 1234]
