"""Jobs that come after others, in SQL: the decisions, the rows, and the statements of an end."""

import pytest

from cases import for_each
from headrace.core.errors import JobNotFoundError, JobStateError
from headrace.jobs.actions import JobAction
from headrace.jobs.job import Completed, Failed, Job, JobFailure, NewJob, ResultRef, Settlement
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.ledgers import dependencies
from headrace.jobs.ledgers.database import sa
from headrace.jobs.ledgers.dependencies import dependent_change, unfinished, unfinished_again
from headrace.jobs.state import Cause, JobEvent, JobState
from headrace.testing import ManualWallClock
from jobs.ledger_fixtures import LEDGERS, SQL_LEDGERS

DONE = Completed(ResultRef("memory://box/out"))
FAILED = Failed(JobFailure(Cause.MODEL, "it raised"))


def job(job_id, state=JobState.PENDING, *, tenant="", after=()):
    return Job(job_id, state, NewJob(id=job_id, tenant=tenant, after=after))


def known(*jobs):
    return {each.id: each for each in jobs}


@for_each("state", JobState)
def test_new_job_waits_for_unfinished_jobs_alone(state):
    new = NewJob(after=("a",))
    if state.ended and state is not JobState.COMPLETED:
        with pytest.raises(JobStateError, match=f"job a is {state.value}: it will not complete"):
            unfinished(new, known(job("a", state)), {})
    else:
        waits = () if state is JobState.COMPLETED else ("a",)
        assert unfinished(new, known(job("a", state)), {}) == waits


def test_new_job_comes_after_jobs_of_its_tenant_alone():
    new = NewJob(after=("a", "b"), tenant="t")
    own, other = job("a", tenant="t"), job("b", tenant="u")
    assert unfinished(new, known(own), {"b": NewJob(tenant="t")}) == ("a", "b")
    for args in ((known(own, other), {}), (known(own), {"b": other.spec}), (known(own), {})):
        with pytest.raises(JobNotFoundError, match="no job b: "):
            unfinished(new, *args)


def test_requeued_job_waits_for_what_is_unfinished_again():
    ended = JobState.FAILED
    b = job("b", ended, after=("a", "gone", "other", "done"))
    others = (job("other", ended, tenant="u"), job("done", JobState.COMPLETED))
    assert unfinished_again([b], known(job("a", JobState.RUNNING), *others)) == ({"b": ("a",)}, {})
    waits, refused = unfinished_again([b], known(job("a", ended), *others))
    assert (waits, refused["b"].job_id) == ({}, "a")
    assert unfinished_again([b], known(job("a", ended), *others), ["a"]) == ({"b": ("a",)}, {})


def test_jobs_are_requeued_together_in_any_order():
    a = job("a", JobState.FAILED)
    b, c = job("b", JobState.FAILED, after=("a",)), job("c", JobState.FAILED, after=("b",))
    for jobs in ([a, b, c], [c, b, a]):
        waits, refused = unfinished_again(jobs, known(a, b))
        assert (waits, refused) == ({"a": (), "b": ("a",), "c": ("b",)}, {})
    waits, refused = unfinished_again([c, b], known(a, b))
    assert (waits, {key: error.job_id for key, error in refused.items()}) == ({}, {"b": "a", "c": "b"})


def test_completed_job_that_is_refused_still_counts_as_completed():
    a, b = job("a", JobState.FAILED), job("b", JobState.COMPLETED, after=("a",))
    c = job("c", JobState.COMPLETED, after=("b",))
    waits, refused = unfinished_again([b, c], known(a, b))
    assert (waits, set(refused)) == ({"c": ()}, {"b"})


def test_change_of_a_dependent_job():
    blocked = job("c", JobState.BLOCKED, after=("a", "b"))
    completed, failed = job("a", JobState.COMPLETED), job("b", JobState.PUBLISH_FAILED)
    assert dependent_change(blocked, [completed], waits=True) is None
    change = dependent_change(blocked, [completed], waits=False)
    assert (change.event, change.due_in_ms) == (JobEvent.UNBLOCK, 0)
    for waits in (True, False):
        change = dependent_change(blocked, [completed, failed], waits=waits)
        assert (change.event, change.then.failure.cause) == (JobEvent.FAIL, Cause.PREREQUISITE)
        assert change.then.failure.message == (
            "job b of `after` is publish_failed: retry it first, then this job"
        )


@pytest.fixture(params=SQL_LEDGERS)
def ledger(request):
    ledger = LEDGERS[request.param](ManualWallClock(), request.getfixturevalue)()
    ledger.start()
    yield ledger
    ledger.stop()


def submit(ledger, *after, **spec):
    (reply,) = ledger.submit([NewJob(model="m", after=tuple(each.id for each in after), **spec)])
    return reply.job


def end(ledger, outcome):
    (running,) = ledger.settle_and_claim([], ClaimRequest("w", ("default",), 1, 60_000)).claimed
    ledger.settle_and_claim([Settlement(running.id, running.lease, outcome)])


def rows(ledger):
    read = sa.text("SELECT job_id, after_id FROM headrace_dependency ORDER BY job_id, after_id")
    return [tuple(row) for row in ledger._database.run(lambda t: t.connection.execute(read).all())]


def test_blocked_job_has_a_row_for_each_unfinished_prerequisite(ledger):
    first, second, third = (submit(ledger) for _ in range(3))
    end(ledger, DONE)
    job = submit(ledger, first, second, third)
    left = sorted(
        each.id
        for each in ledger.get_many([first.id, second.id, third.id]).values()
        if each.state is JobState.PENDING
    )
    assert rows(ledger) == [(job.id, each) for each in left]
    flags = {
        each.id: each.has_dependents for each in ledger.get_many([first.id, second.id, third.id]).values()
    }
    assert sorted(key for key, value in flags.items() if value) == left
    end(ledger, DONE)
    assert len(rows(ledger)) == 1
    end(ledger, DONE)
    assert rows(ledger) == []


@for_each("outcome", [DONE, FAILED, None])
def test_no_end_leaves_a_row_behind(outcome, ledger):
    first, other = submit(ledger), submit(ledger, queue="other")
    second = submit(ledger, first, other)
    submit(ledger, second, other)
    if outcome is None:
        ledger.apply_action(JobAction.CANCEL, [second.id])
    else:
        end(ledger, outcome)
        ledger.cancel(other.id)
    assert rows(ledger) == []
    ledger.delete(second.id)
    for each in ledger.get_many([first.id, other.id]).values():
        if not each.state.ended:
            ledger.cancel(each.id)


def test_end_of_a_job_without_dependents_reads_no_dependencies(ledger, statements):
    for _ in range(2):
        submit(ledger)
        end(ledger, DONE)
    assert statements
    assert not any("headrace_dependency" in statement for statement in statements)
    second = submit(ledger, submit(ledger))
    end(ledger, DONE)
    assert any("headrace_dependency" in statement for statement in statements)
    assert ledger.get(second.id).state is JobState.PENDING


def test_pages_of_dependents_divide_the_prerequisites_of_a_job(ledger, monkeypatch):
    """Check that a job changes once, even if its prerequisites are in different statements."""
    monkeypatch.setattr(dependencies, "_STATEMENT_ROWS", 3)
    for outcome, state in ((DONE, JobState.PENDING), (FAILED, JobState.FAILED)):
        queue = f"q-{state.value}"
        first = [submit(ledger, queue=queue) for _ in range(4)]
        jobs = [submit(ledger, *first) for _ in range(5)]
        claim = ClaimRequest("w", (queue,), 4, 60_000)
        running = ledger.settle_and_claim([], claim).claimed
        ledger.settle_and_claim([Settlement(each.id, each.lease, outcome) for each in running])
        found = ledger.get_many([each.id for each in jobs]).values()
        assert [each.state for each in found] == [state] * 5
        assert rows(ledger) == []


def test_batch_repeated_under_its_keys_makes_the_missing_jobs(ledger):
    def batch(tries):
        ids = [f"01a3185c-5000-7849-aacf-f040144{tries}{n:04}" for n in range(6)]
        return [
            NewJob(model="m", id=ids[n], idempotency_key=f"k{n}", after=tuple(ids[max(0, n - 1) : n]))
            for n in range(6)
        ]

    first = ledger.submit([new for n, new in enumerate(batch(1)) if n in (0, 2) and not new.after])
    again = ledger.submit(batch(2))
    assert [reply.created for reply in again] == [False, *[True] * 5]
    jobs = [reply.job for reply in again]
    assert jobs[0].id == first[0].job.id
    assert [each.spec.after for each in jobs[1:]] == [(before.id,) for before in jobs[:-1]]
    assert [each.state for each in jobs] == [JobState.PENDING, *[JobState.BLOCKED] * 5]
    assert len(rows(ledger)) == 5
