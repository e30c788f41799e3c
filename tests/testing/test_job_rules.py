"""The reference rules of jobs. tests/testing/test_job_ledger.py breaks each of them."""

import itertools

import pytest

from cases import for_each
from headrace.jobs.job import Cancelled, Completed, Expired, Failed, Job, NewJob, Released, ResultRef
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.state import ENDED, TRANSITIONS, JobEvent, JobState
from headrace.testing.job_checks.bench import OOPS
from headrace.testing.job_rules import apply_event, claim_job, create_job, lose_lease, requeue_job, settle_job

CLAIM = ClaimRequest("w", ("default",), 1, 100)


@for_each(("state", "event"), list(itertools.product(JobState, JobEvent)))
def test_states_change_by_the_transition_table_only(state, event):
    job = Job("id", state, NewJob(), lease_until_ms=1)
    if (state, event) not in TRANSITIONS:
        with pytest.raises(AssertionError, match="is impossible"):
            apply_event(job, event, 5)
        return
    after = apply_event(job, event, 5)
    assert after.state is TRANSITIONS[state, event]
    assert after.ended_at_ms == (5 if after.state.ended else None)
    assert after.lease_until_ms == (1 if after.state is JobState.RUNNING else None)


@for_each("state", sorted(ENDED))
def test_ended_job_is_neither_settled_nor_lost(state):
    job = Job("id", state, NewJob())
    outcomes = (Completed(ResultRef("u")), Failed(OOPS), Failed(OOPS, 0), Released(), Cancelled(), Expired())
    for outcome in outcomes:
        with pytest.raises(AssertionError):
            settle_job(job, outcome, 0)
    with pytest.raises(AssertionError):
        lose_lease(job, 0, 0)


def test_job_is_submitted_claimed_lost_and_requeued():
    job = create_job(NewJob(delay_ms=3, deadline_s=1.5, attempts_max=1), "id", 10)
    assert (job.due_at_ms, job.deadline_at_ms, job.spec.id) == (13, 1_510, "id")
    job = lose_lease(claim_job(job, CLAIM, 20), 200, 5)
    assert (job.state, job.ended_at_ms, job.crashes) == (JobState.FAILED, 200, 1)
    job = requeue_job(job, 300)
    assert (job.state, job.due_at_ms, job.deadline_at_ms, job.attempt) == (JobState.PENDING, 300, 1_800, 0)
    assert claim_job(job, CLAIM, 400).lease == 2
