"""Checks of jobs that come after others: blocking, unblocking, failing, and requeues."""

import itertools
from dataclasses import replace

from headrace.core.errors import (
    JobNotFoundError,
    JobStateError,
    QueueClosedError,
    QueueFullError,
    QueueInUseError,
)
from headrace.jobs.actions import JobAction, SkipReason
from headrace.jobs.history import HistoryEvent
from headrace.jobs.job import Failed, Job, NewJob, Settlement
from headrace.jobs.ledger import JobFilter, QueueSettings
from headrace.jobs.state import ENDED, Cause, JobState
from headrace.testing.expect import equal, raises, true
from headrace.testing.job_checks.bench import (
    OOPS,
    THREADS,
    LedgerBench,
    accepted,
    done,
    drain_wakeups,
    expect_wakeup,
    ids,
    run_concurrently,
)

_FIRST_ID = "01a3185c-5000-7849-aacf-f0401441a1c0"
_SECOND_ID = "01a3185c-5000-7849-aacf-f0401441a1c1"
_THIRD_ID = "01a3185c-5000-7849-aacf-f0401441a1c2"
_CHAIN = 600
"""The length of a chain that exceeds the limit of Python's recursion, and of one statement."""


def check_job_begins_after_another(bench: LedgerBench) -> None:
    """Check that a job is blocked until the one that it comes after has completed, then due."""
    first = bench.submit()
    job = bench.submit(after=(first.id,))
    equal((job.state, job.spec.after), (JobState.BLOCKED, (first.id,)), "the submitted job")
    equal(ids(bench.ledger.find(JobFilter(states=frozenset({JobState.BLOCKED}))).jobs), [job.id], "a list")
    running = bench.claim_one()
    equal((running.id, bench.claim()), (first.id, ()), "the claims before the first job has completed")
    wakeup = bench.ledger.wakeup(["default"])
    drain_wakeups(wakeup)
    now_ms = bench.advance(5_000)
    bench.settle(running, done())
    expect_wakeup(wakeup, "an unblocked job")
    wakeup.close()
    after = bench.reload(job)
    equal((after.state, after.due_at_ms), (JobState.PENDING, now_ms), "the job afterwards")
    equal(bench.events(job), [HistoryEvent.UNBLOCKED], "its history")
    equal(bench.claim_one().id, job.id, "the next claimed job")


def check_job_begins_after_all_others(bench: LedgerBench) -> None:
    """Check that a job is blocked until the last of several jobs has completed."""
    jobs = bench.submit_many(3)
    job = bench.submit(after=tuple(ids(jobs)))
    for number, running in enumerate(bench.claim(3)):
        equal((number, bench.state(job)), (number, JobState.BLOCKED), "the completed jobs, the job's state")
        bench.settle(running, done())
    equal(bench.state(job), JobState.PENDING, "the state after the last end")


def check_job_begins_after_publication(bench: LedgerBench) -> None:
    """Check that a job is blocked until the result of the one that it comes after is published."""
    first = bench.submit_running(output_uri="memory://out/", key="K")
    job = bench.submit(after=(first.id,))
    bench.settle(first, done())
    equal(bench.state(job), JobState.BLOCKED, "the state before the publication")
    bench.ledger.mark_published(first.id, first.lease, "memory://out/K.out")
    equal(bench.state(job), JobState.PENDING, "the state after the publication")


def check_delay_after_unblocking(bench: LedgerBench) -> None:
    """Check that the delay of a blocked job begins when it is unblocked."""
    first = bench.submit_running()
    job = bench.submit(after=(first.id,), delay_ms=5_000)
    bench.advance(6_000)
    equal((bench.maintain().woken, bench.claim()), (0, ()), "the woken and claimed jobs while it is blocked")
    bench.settle(first, done())
    equal(bench.claim(), (), "the claimed jobs before the delay")
    bench.advance(5_000)
    equal(bench.claim_one().id, job.id, "the claimed job after the delay")


def check_completed_prerequisite(bench: LedgerBench) -> None:
    """Check that a job after completed ones is pending at once, and waits for the others alone."""
    first = bench.submit_ended(JobState.COMPLETED)
    equal(bench.submit(after=(first.id,)).state, JobState.PENDING, "the state of a job after a completed one")
    bench.claim_one()
    second = bench.submit_running()
    job = bench.submit(after=(first.id, second.id))
    bench.ledger.delete(first.id)
    equal(bench.state(job), JobState.BLOCKED, "the state after a completed and a running job")
    bench.settle(second, done())
    equal(bench.state(job), JobState.PENDING, "the state after both have completed")


def check_refused_prerequisites(bench: LedgerBench) -> None:
    """Check that a job after an unknown one, another tenant's, or one that did not complete is refused.

    Nothing about another tenant's job is revealed.
    """
    other = bench.submit(tenant="b")
    for job_id in ("unknown", other.id):
        (reply,) = bench.ledger.submit([NewJob(model="m", tenant="a", after=(job_id,))])
        true(isinstance(reply, JobNotFoundError), f"a job after one that its tenant does not have: {reply!r}")
        equal(getattr(reply, "job_id", ""), job_id, "the job of the error")
    bench.ledger.cancel(other.id)
    for state in sorted(ENDED - {JobState.COMPLETED}):
        ended = bench.submit_ended(state)
        replies = bench.ledger.submit([NewJob(model="m", after=(ended.id,)), NewJob(model="m")])
        true(isinstance(replies[0], JobStateError), f"a job after a {state.value} one: {replies[0]!r}")
        equal(getattr(replies[0], "job_id", ""), ended.id, "the job of the error")
        bench.ledger.cancel(accepted(replies[1]).job.id)
    counts = bench.ledger.counts("default")
    equal((counts.due, counts.later, counts.blocked), (0, 0, 0), "the unfinished jobs")


def check_known_job_with_ended_prerequisite(bench: LedgerBench) -> None:
    """Check that a repeated submission returns its job, whatever became of its prerequisites."""
    first = bench.submit()
    new = NewJob(model="m", idempotency_key="key", body_digest="d", after=(first.id,))
    job = accepted(bench.ledger.submit([new])[0]).job
    bench.ledger.cancel(first.id)
    bench.ledger.delete(first.id)
    again = accepted(bench.ledger.submit([new])[0])
    equal((again.job.id, again.created), (job.id, False), "the repeated submission")


def check_failed_prerequisite(bench: LedgerBench) -> None:
    """Check that jobs fail, one after another, if one that they come after ends without completing."""
    for state in sorted(ENDED - {JobState.COMPLETED}):
        first = bench.submit(output_uri="memory://out/", time_to_live_s=1.0)
        second = bench.submit(after=(first.id,))
        third = bench.submit(after=(second.id,))
        _end(bench, first, state)
        equal(bench.state(first), state, "the prepared state")
        for job, before in ((second, first), (third, second)):
            after = bench.reload(job)
            why = f"a job after a {bench.state(before).value} one"
            equal((after.state, after.ended_at_ms), (JobState.FAILED, bench.clock.now_ms()), why)
            equal(after.failure and after.failure.cause, Cause.PREREQUISITE, "the cause of its failure")
            true(before.id in (after.failure.message if after.failure else ""), "its message names no job")
            equal(after.attempt, 0, "its attempts")
    equal(bench.claim(), (), "the claimed jobs")


def check_first_failure_ends_the_wait(bench: LedgerBench) -> None:
    """Check that a job fails with the first one that does not complete, and stays failed."""
    first, second = bench.submit_many(2)
    running = {job.id: job for job in bench.claim(2)}
    job = bench.submit(after=(first.id, second.id))
    bench.settle(running[second.id], Failed(OOPS))
    equal(bench.state(job), JobState.FAILED, "the state after one of two jobs has failed")
    bench.settle(running[first.id], done())
    equal(bench.state(job), JobState.FAILED, "the state after the other one has completed")
    bench.ledger.delete(job.id)


def check_retried_prerequisite(bench: LedgerBench) -> None:
    """Check that an attempt that is retried, released or lost changes nothing for a blocked job."""
    first = bench.submit_running()
    job = bench.submit(after=(first.id,))
    bench.settle(first, Failed(OOPS, retry_ms=0))
    bench.expire_lease(bench.claim_one())
    bench.advance_until_due(first)
    equal(bench.state(job), JobState.BLOCKED, "the state after two lost attempts")
    bench.settle(bench.claim_one(), done())
    equal(bench.state(job), JobState.PENDING, "the state after the third attempt")


def check_long_chain(bench: LedgerBench) -> None:
    """Check that the end of a job changes any number of jobs that come after it."""
    first = bench.submit_running()
    many = bench.submit_many(_CHAIN, after=(first.id,))
    bench.settle(first, done())
    states = {job.state for job in bench.ledger.get_many(ids(many)).values()}
    equal(states, {JobState.PENDING}, "the states of many jobs after a completed one")
    bench.ledger.apply_action(JobAction.CANCEL, ids(many))
    chain = [NewJob(model="m", id=f"{_FIRST_ID[:-4]}{number:04x}") for number in range(_CHAIN)]
    linked = [replace(new, after=(before.id,)) for before, new in itertools.pairwise(chain)]
    jobs = [accepted(reply).job for reply in bench.ledger.submit([chain[0], *linked])]
    equal([job.state for job in jobs[:2]], [JobState.PENDING, JobState.BLOCKED], "the first states")
    bench.ledger.cancel(jobs[0].id)
    states = {job.state for job in bench.ledger.get_many(ids(jobs[1:])).values()}
    equal(states, {JobState.FAILED}, "the states of a chain after a cancelled job")


def check_order_in_one_call(bench: LedgerBench) -> None:
    """Check that a job may come after an earlier one of the same call, but not after a later one."""
    first = NewJob(model="m", id=_FIRST_ID, tenant="a")
    second = NewJob(model="m", id=_SECOND_ID, tenant="a", after=(_FIRST_ID,))
    early, one, two, foreign = bench.ledger.submit(
        [replace(second, id=_THIRD_ID), first, second, NewJob(model="m", tenant="b", after=(_FIRST_ID,))]
    )
    for reply in (early, foreign):
        true(isinstance(reply, JobNotFoundError), f"a job that may not come after another: {reply!r}")
    states = [accepted(reply).job.state for reply in (one, two)]
    equal(states, [JobState.PENDING, JobState.BLOCKED], "the states of the jobs of one call")
    again = [accepted(reply) for reply in bench.ledger.submit([first, second])]
    equal([(each.job.id, each.created) for each in again], [(_FIRST_ID, False), (_SECOND_ID, False)], "again")
    bench.settle(bench.claim_one(), done())
    equal(bench.claim_one().id, _SECOND_ID, "the second claimed job")


def check_known_job_in_one_call(bench: LedgerBench) -> None:
    """Check that a job after an earlier one of the call comes after the job that its key stands for."""
    known = bench.submit(idempotency_key="key", body_digest="d")
    again = NewJob(model="m", id=_FIRST_ID, idempotency_key="key", body_digest="d")
    replies = bench.ledger.submit([again, NewJob(model="m", after=(_FIRST_ID,))])
    job = accepted(replies[1]).job
    equal((job.state, job.spec.after), (JobState.BLOCKED, (known.id,)), "the job after the known one")
    bench.settle(bench.claim_one(), done())
    equal(bench.state(job), JobState.PENDING, "its state after the known one has completed")


def check_refused_job_in_one_call(bench: LedgerBench) -> None:
    """Check that jobs after a refused one of the same call are refused too, and leave nothing behind."""
    bench.ledger.set_queue(QueueSettings("full", pending_max=0))
    chain = [
        NewJob(model="m", id=_FIRST_ID, queue="full"),
        NewJob(model="m", id=_SECOND_ID, after=(_FIRST_ID,)),
        NewJob(model="m", id=_THIRD_ID, after=(_SECOND_ID,)),
        NewJob(model="m"),
    ]
    full, second, third, other = bench.ledger.submit(chain)
    true(isinstance(full, QueueFullError), f"the job in the full queue: {full!r}")
    for reply in (second, third):
        true(isinstance(reply, JobNotFoundError), f"a job after a refused one: {reply!r}")
    equal(ids(bench.ledger.find(JobFilter()).jobs), [accepted(other).job.id], "the jobs in the ledger")


def check_queue_of_blocked_jobs(bench: LedgerBench) -> None:
    """Check that a blocked job takes no place in its queue, counts there, and keeps the queue in use."""
    first = bench.submit(queue="other", tenant="a")
    bench.ledger.set_queue(QueueSettings("q", pending_max=0))
    job = bench.submit(queue="q", tenant="a", after=(first.id,))
    counts = bench.ledger.counts("q")
    equal((counts.blocked, counts.due, counts.later, counts.backlog), (1, 0, 0, 0), "the counts of the queue")
    equal(bench.ledger.counts("q", tenant="a").blocked, 1, "the tenant's blocked jobs of the queue")
    equal(bench.ledger.tenant_counts("a")["q"].blocked, 1, "the tenant's blocked jobs")
    equal(bench.ledger.tenant_counts("b"), {}, "the counts of another tenant")
    equal(bench.ledger.count_pending("a", limit=9), 2, "the tenant's waiting jobs")
    equal(bench.ledger.count_pending("a", limit=1), 1, "the same, up to a limit")
    raises(QueueInUseError, lambda: bench.ledger.delete_queue("q"), "deleting the queue of a blocked job")
    bench.ledger.set_queue(QueueSettings("q", draining=True))
    (reply,) = bench.ledger.submit([NewJob(model="m", queue="q", tenant="a", after=(first.id,))])
    true(isinstance(reply, QueueClosedError), f"a blocked job for a draining queue: {reply!r}")
    bench.settle(bench.claim_one(queues=["other"]), done())
    counts = bench.ledger.counts("q")
    equal((counts.blocked, counts.due), (0, 1), "the counts after it was unblocked")
    equal(bench.state(job), JobState.PENDING, "its state")


def check_limit_of_a_queue_with_blocked_jobs(bench: LedgerBench) -> None:
    """Check that blocked jobs leave the places of a limited queue to pending ones, in one call too."""
    first = bench.submit(queue="other")
    blocked, pending = NewJob(model="m", queue="q", after=(first.id,)), NewJob(model="m", queue="q")
    bench.ledger.set_queue(QueueSettings("q", pending_max=1))
    replies = bench.ledger.submit([blocked, pending, blocked])
    states = [accepted(reply).job.state for reply in replies]
    equal(states, [JobState.BLOCKED, JobState.PENDING, JobState.BLOCKED], "the states of the submitted jobs")
    bench.ledger.set_queue(QueueSettings("q", pending_max=0))
    full, behind = bench.ledger.submit([pending, blocked])
    true(isinstance(full, QueueFullError), f"a job for the full queue: {full!r}")
    equal(accepted(behind).job.state, JobState.BLOCKED, "a blocked job for a queue above its limit")


def check_expiry_of_blocked_jobs(bench: LedgerBench) -> None:
    """Check that a blocked job expires by its time to live and its deadline, from its submission on."""
    first = bench.submit()
    late = [
        bench.submit(after=(first.id,), **limit) for limit in ({"time_to_live_s": 2.0}, {"deadline_s": 2.0})
    ]
    behind = bench.submit(after=(late[0].id,))
    bench.advance(1_000)
    equal(bench.maintain().expired, 0, "the expired jobs before their time")
    bench.advance(1_001)
    equal(bench.maintain().expired, 2, "the expired jobs")
    equal([bench.state(job) for job in late], [JobState.EXPIRED] * 2, "their states")
    equal(bench.state(behind), JobState.FAILED, "the state of a job after an expired one")
    unblocked = bench.submit(after=(first.id,), deadline_s=2.0)
    bench.advance(1_500)
    bench.settle(bench.claim_one(), done())
    equal([bench.state(job) for job in late], [JobState.EXPIRED] * 2, "their states after the first job")
    bench.advance(501)
    bench.maintain()
    equal(bench.state(unblocked), JobState.EXPIRED, "the state of an unblocked job after its deadline")


def check_cancelling_blocked_jobs(bench: LedgerBench) -> None:
    """Check that a cancelled blocked job ends at once, also together with the one that it comes after."""
    first = bench.submit_running()
    job, other = bench.submit_many(2, after=(first.id,))
    equal(bench.ledger.cancel(job.id).state, JobState.CANCELLED, "the cancelled job")
    raises(JobStateError, lambda: bench.ledger.delete(other.id), "deleting a blocked job")
    bench.settle(first, done())
    equal(bench.state(job), JobState.CANCELLED, "its state after the first job has completed")
    bench.ledger.delete(job.id)
    second = bench.submit()
    third = bench.submit(after=(second.id,))
    reply = bench.ledger.apply_action(JobAction.CANCEL, ids([second, third]))
    equal(
        [each.state for each in reply.changed], [JobState.CANCELLED] * 2, "jobs that are cancelled together"
    )


def check_requeue_after_others(bench: LedgerBench) -> None:
    """Check that a requeued job waits for unfinished jobs again, and is refused after failed ones."""
    first = bench.submit()
    second = bench.submit(after=(first.id,))
    third = bench.submit(after=(second.id,))
    bench.ledger.cancel(first.id)
    error = raises(
        JobStateError, lambda: bench.ledger.requeue(third.id), "requeuing a job after a failed one"
    )
    equal(getattr(error, "job_id", ""), second.id, "the job of the error")
    equal(bench.state(third), JobState.FAILED, "the state of the refused job")
    bench.ledger.requeue(first.id)
    equal(bench.ledger.requeue(second.id).state, JobState.BLOCKED, "the requeued second job")
    equal(bench.ledger.requeue(third.id).state, JobState.BLOCKED, "the requeued third job")
    for job in (first, second, third):
        claimed = bench.claim_one()
        equal((claimed.id, bench.claim()), (job.id, ()), "the only claimed job")
        bench.settle(claimed, done())
    equal(bench.ledger.requeue(third.id).state, JobState.PENDING, "a job requeued after completed ones")
    bench.settle(bench.claim_one(), done())
    bench.ledger.delete(second.id)
    equal(bench.ledger.requeue(third.id).state, JobState.PENDING, "a job requeued after a deleted one")


def check_action_on_jobs_after_others(bench: LedgerBench) -> None:
    """Check that jobs are retried together with those that they come after, in any order.

    One whose prerequisite is not among them is skipped.
    """
    jobs = [bench.submit()]
    jobs += [bench.submit(after=(jobs[0].id,))]
    jobs += [bench.submit(after=(jobs[1].id,))]
    bench.ledger.cancel(jobs[0].id)
    reply = bench.ledger.apply_action(JobAction.RETRY, ids(jobs[:0:-1]))
    equal(
        (reply.changed, dict(reply.skipped)), ((), {SkipReason.PREREQUISITE: 2}), "retries without the first"
    )
    reply = bench.ledger.apply_action(JobAction.RETRY, ids(jobs[::-1]))
    equal(ids(reply.changed), ids(jobs[::-1]), "the retried jobs")
    states = [bench.state(job) for job in jobs]
    equal(states, [JobState.PENDING, JobState.BLOCKED, JobState.BLOCKED], "their states")
    for job in jobs:
        claimed = bench.claim_one()
        equal(claimed.id, job.id, "the claimed job")
        bench.settle(claimed, done())


def check_race_of_the_last_ends(bench: LedgerBench) -> None:
    """Check that a job is unblocked once, if all jobs that it comes after end at the same moment."""
    ledgers = [bench.start_ledger() for _ in range(THREADS)]
    for number in range(5):
        jobs = bench.submit_many(THREADS)
        job = bench.submit(queue="q", after=tuple(ids(jobs)))
        ends = [Settlement(running.id, running.lease, done()) for running in bench.claim(THREADS)]
        run_concurrently(
            [
                lambda ledger=ledger, end=end: ledger.settle_and_claim([end])
                for ledger, end in zip(ledgers, ends, strict=True)
            ]
        )
        equal((number, bench.state(job)), (number, JobState.PENDING), "the round, and the state of the job")
        equal(bench.events(job), [HistoryEvent.UNBLOCKED], "its history")


def check_race_of_submission_and_end(bench: LedgerBench) -> None:
    """Check that no job stays blocked if it is submitted while the one that it comes after ends."""
    other = bench.start_ledger()
    for number in range(10):
        first = bench.submit_running()
        new = NewJob(model="m", queue="q", after=(first.id,))
        run_concurrently(
            [
                lambda new=new: accepted(other.submit([new])[0]).created,
                lambda first=first: bench.settle(first, done()),
            ]
        )
        (job,) = bench.ledger.find(JobFilter(queue="q"), limit=1).jobs
        state = bench.state(job)
        equal((number, state), (number, JobState.PENDING), "the round, and the state of the job")


def _end(bench: LedgerBench, job: Job, state: JobState) -> None:
    """Bring a pending job with an output to an ended state."""
    if state is JobState.CANCELLED:
        bench.ledger.cancel(job.id)
    elif state is JobState.EXPIRED:
        bench.advance(1_001)
        bench.maintain()
    else:
        running = bench.claim_one()
        bench.settle(running, Failed(OOPS) if state is JobState.FAILED else done())
        if state is JobState.PUBLISH_FAILED:
            bench.ledger.mark_publish_failed(running.id, running.lease, OOPS, final=True)
