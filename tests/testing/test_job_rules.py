"""The reference's rules; tests/testing/test_job_ledger.py breaks each of them, and sees the suite go red."""

import pytest

from headrace.jobs.job import Cancelled, Completed, Expired, Failed, Job, NewJob, Released, ResultRef
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.state import ENDED, TRANSITIONS, JobEvent, JobState
from headrace.testing.job_checks.bench import OOPS
from headrace.testing.job_rules import claimed, fresh, lost, moved, requeued, settled

CLAIM = ClaimRequest("w", ("default",), 1, 100)


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("event", JobEvent)
def test_a_state_changes_only_as_the_table_has_it(state, event):
    job = Job("id", state, NewJob(), lease_until_ms=1)
    if (state, event) not in TRANSITIONS:
        with pytest.raises(AssertionError, match="cannot happen"):
            moved(job, event, 5)
        return
    after = moved(job, event, 5)
    assert after.state is TRANSITIONS[state, event]
    assert after.ended_at_ms == (5 if after.state.ended else None)
    assert after.lease_until_ms == (1 if after.state is JobState.RUNNING else None)


@pytest.mark.parametrize("state", sorted(ENDED))
def test_what_has_ended_is_neither_settled_nor_lost(state):
    job = Job("id", state, NewJob())
    outcomes = (Completed(ResultRef("u")), Failed(OOPS), Failed(OOPS, 0), Released(), Cancelled(), Expired())
    for outcome in outcomes:
        with pytest.raises(AssertionError):
            settled(job, outcome, 0)
    with pytest.raises(AssertionError):
        lost(job, 0, 0)


def test_a_life_from_end_to_end():
    job = fresh(NewJob(delay_ms=3, deadline_s=1.5, attempts_max=1), "id", 10)
    assert (job.due_at_ms, job.deadline_at_ms, job.spec.id) == (13, 1_510, "id")
    job = lost(claimed(job, CLAIM, 20), 200, 5)
    assert (job.state, job.ended_at_ms, job.crashes) == (JobState.FAILED, 200, 1)
    job = requeued(job, 300)
    assert (job.state, job.due_at_ms, job.deadline_at_ms, job.attempt) == (JobState.PENDING, 300, 1_800, 0)
    assert claimed(job, CLAIM, 400).lease == 2
