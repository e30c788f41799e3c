import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.jobs.cause import Cause
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
from headrace.jobs.ledgers.transitions import after_ms, change, lost, lost_delay_ms, requeued, settled
from headrace.jobs.state import JobEvent, JobState, after

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
def test_whatever_an_attempt_comes_to_is_a_step_of_the_table(job, outcome):
    made = settled(job, Settlement(job.id, job.lease, outcome))
    assert made.then.state is after(job.state, made.event)
    assert made.then.lease == job.lease
    assert (made.due_in_ms is not None) == (made.then.state is JobState.PENDING)
    assert made.due_in_ms is None or made.due_in_ms >= 0
    if job.cancel_requested:
        assert made.then.state is not JobState.PENDING


@given(running)
def test_a_lost_lease_counts_a_crash_and_ends_at_last(job):
    made = lost(job)
    assert made.then.crashes == job.crashes + 1
    if job.cancel_requested:
        assert made.then.state is JobState.CANCELLED
    elif job.attempt >= job.spec.attempts_max:
        cause = Cause.POISON if job.alone else Cause.WORKER_LOST
        assert (made.then.state, made.then.failure.cause) == (JobState.FAILED, cause)
    else:
        assert (made.then.state, made.due_in_ms) == (JobState.PENDING, lost_delay_ms(job))


def test_the_delay_of_a_lost_job_grows_up_to_a_minute():
    delays = [lost_delay_ms(Job("a", JobState.RUNNING, NewJob(), attempt=n)) for n in (1, 2, 3, 7, 99)]
    assert delays == [1_000, 2_000, 4_000, 60_000, 60_000]


def test_what_the_table_does_not_have_is_a_defect():
    with pytest.raises(AssertionError, match="cannot happen"):
        change(Job("a", JobState.COMPLETED, NewJob()), JobEvent.CANCEL)


def test_requeuing_keeps_lease_crashes_and_cursor():
    job = Job("a", JobState.FAILED, NewJob(), attempt=3, lease=4, crashes=2, cursor={"n": 1}, failure=FAILURE)
    made = requeued(job, "ann")
    assert (made.then.attempt, made.then.lease, made.then.crashes, made.then.cursor) == (0, 4, 2, {"n": 1})
    assert (made.then.failure, made.due_in_ms, made.anew, made.note.by) == (None, 0, True, "ann")


def test_spans_are_rounded_to_milliseconds():
    assert [after_ms(s) for s in (None, 0.0, 1.2345)] == [None, 0, 1234]
