"""Checks of manual changes: cancelling, requeuing, deleting, and the history of a job."""

from collections.abc import Callable
from typing import Final

from headrace.core.errors import JobNotFoundError, JobStateError
from headrace.jobs.history import HistoryEvent
from headrace.jobs.job import Cancelled, Failed, Job, JobProgress, NewJob, Outcome, Released
from headrace.jobs.ledger import ClaimRequest, JobLedger
from headrace.jobs.state import ENDED, JobState
from headrace.testing.expect import equal, raises, true
from headrace.testing.job_checks.bench import (
    LEASE_MS,
    OOPS,
    THREADS,
    LedgerBench,
    accepted,
    done,
    ids,
    run_concurrently,
)

_RACE_ROUNDS: Final = 12


def check_cancelling_pending_jobs(bench: LedgerBench) -> None:
    """Check that cancelling ends a pending job, due or delayed.

    A second cancellation does nothing.
    """
    for job in (bench.submit(), bench.submit(delay_ms=5_000)):
        now_ms = bench.advance(10)
        result = bench.ledger.cancel(job.id, by="anna")
        equal((result.state, result.ended_at_ms), (JobState.CANCELLED, now_ms), "the result of cancelling")
        equal(bench.reload(job), result, "the job afterwards")
        bench.advance(10)
        equal(bench.ledger.cancel(job.id), result, "the result of a second cancellation")
        (entry,) = bench.ledger.history(job.id)
        equal((entry.event, entry.by), (HistoryEvent.CANCEL_REQUESTED, "anna"), "its history")
    bench.advance(9_000)
    equal(bench.claim(5), (), "the claimed jobs, with only cancelled jobs")


def check_cancelling_running_jobs(bench: LedgerBench) -> None:
    """Check that a cancelled job runs until its worker stops it.

    The worker learns of it by heartbeats. A second cancellation does nothing.
    """
    job = bench.submit_running()
    for _ in range(2):
        result = bench.ledger.cancel(job.id, by="anna")
        equal((result.state, result.cancel_requested), (JobState.RUNNING, True), "the result of cancelling")
    equal(bench.reload(job).lease, job.lease, "the lease of a job to be cancelled")
    equal(bench.heartbeat(job).cancel, frozenset({job.id}), "the heartbeat's cancellations")
    equal(bench.heartbeat(job).cancel, frozenset({job.id}), "the second heartbeat's cancellations")
    true(bench.settle(job, Cancelled()), "the worker's outcome was refused")
    equal(bench.state(job), JobState.CANCELLED, "the state afterwards")
    equal(bench.ledger.cancel(job.id).state, JobState.CANCELLED, "the result of a third cancellation")


def check_cancelling_ended_jobs(bench: LedgerBench) -> None:
    """Check that cancelling an unknown or otherwise ended job raises an error.

    The job is unchanged.
    """
    for state in sorted(ENDED - {JobState.CANCELLED}):
        job = bench.submit_ended(state)
        error = raises(
            JobStateError, lambda job=job: bench.ledger.cancel(job.id), f"cancelling a {state} job"
        )
        true(
            job.id in str(error) and state in str(error),
            f"the error lacks the job or its state: {error}",
        )
        equal(bench.reload(job), job, "the job after it was refused")
    raises(JobNotFoundError, lambda: bench.ledger.cancel("unknown"), "cancelling an unknown job")


def check_final_outcome_overrides_cancellation(bench: LedgerBench) -> None:
    """Check that a job to be cancelled can still complete, or fail for good.

    The first end counts.
    """
    for outcome, state in ((done(), JobState.COMPLETED), (Failed(OOPS), JobState.FAILED)):
        job = bench.submit_running()
        bench.ledger.cancel(job.id)
        true(
            bench.settle(job, outcome),
            f"{type(outcome).__name__} was refused for a job to be cancelled",
        )
        equal(bench.state(job), state, f"the state after {type(outcome).__name__}")
        raises(JobStateError, lambda job=job: bench.ledger.cancel(job.id), "cancelling an ended job")


def check_cancelled_jobs_are_not_retried(bench: LedgerBench) -> None:
    """Check that a job to be cancelled is cancelled when its attempt fails or is released."""
    outcomes: tuple[Outcome, ...] = (
        Failed(OOPS, retry_ms=0),
        Failed(OOPS, 0, crashed=True),
        Released(),
        Released({"a": 1}),
    )
    for outcome in outcomes:
        job = bench.submit_running()
        bench.ledger.cancel(job.id)
        true(
            bench.settle(job, outcome),
            f"{type(outcome).__name__} was refused for a job to be cancelled",
        )
        after = bench.reload(job)
        equal(
            (after.state, after.ended_at_ms),
            (JobState.CANCELLED, bench.clock.now_ms()),
            "the state afterwards",
        )
    equal(bench.claim(9), (), "the claimed jobs, with only cancelled jobs")


def check_cancel_and_claim_race(bench: LedgerBench) -> None:
    """Check that a job in a race of cancelling and claiming has one of two states.

    It is cancelled and not claimed, or it runs and is to be cancelled.
    """
    other = bench.start_ledger()
    for _ in range(_RACE_ROUNDS):
        job = bench.submit()
        results = run_concurrently([lambda job=job: bench.ledger.cancel(job.id), lambda: _claimed(other)])
        after, claimed = bench.reload(job), results[1]
        if claimed is None:
            equal(after.state, JobState.CANCELLED, "the state of a job that was not claimed")
            continue
        equal((after.state, after.cancel_requested), (JobState.RUNNING, True), "a claimed job")
        equal(bench.heartbeat(claimed).cancel, frozenset({job.id}), "the heartbeat's cancellations")
        true(bench.settle(claimed, Cancelled()), "its worker's outcome was refused")


def _claimed(ledger: JobLedger) -> Job | None:
    claimed = ledger.settle_and_claim([], ClaimRequest("w", ("default",), 1, LEASE_MS)).claimed
    return claimed[0] if claimed else None


def check_cancel_and_settle_race(bench: LedgerBench) -> None:
    """Check that a job in a race of cancelling and settling ends once, as the outcome says.

    The cancellation is refused or requested.
    """
    other = bench.start_ledger()
    for number in range(_RACE_ROUNDS):
        job = bench.submit_running()
        outcome, wanted = ((done(), JobState.COMPLETED), (Failed(OOPS), JobState.FAILED))[number % 2]
        results = run_concurrently(
            [
                lambda job=job, outcome=outcome: bench.settle(job, outcome),
                lambda job=job: _cancelled(other.cancel, job),
            ]
        )
        equal(results[0], True, "acceptance of a running job's outcome")
        equal(bench.state(job), wanted, "the state after an outcome and a cancellation at once")


def _cancelled(cancel: Callable[[str], Job], job: Job) -> bool:
    try:
        result = cancel(job.id)
    except JobStateError:
        return False
    equal((result.state, result.cancel_requested), (JobState.RUNNING, True), "the result of cancelling")
    return True


def check_requeue_resets_job(bench: LedgerBench) -> None:
    """Check that a requeued job is due now, with all its attempts and no trace of its end.

    Its lease number still grows.
    """
    for state in sorted(ENDED):
        job = bench.submit_ended(state, attempts_max=1, deadline_s=600.0, time_to_live_s=1.0, delay_ms=0)
        lease = job.lease
        now_ms = bench.advance(3_600_000)
        result = bench.ledger.requeue(job.id, by="anna")
        equal(bench.reload(job), result, "the job after requeuing")
        equal(
            (result.state, result.attempt, result.lease),
            (JobState.PENDING, 0, lease),
            "its state, attempts, lease",
        )
        equal((result.due_at_ms, result.ended_at_ms), (now_ms, None), "its due time and end")
        equal(
            (result.result, result.failure, result.cancel_requested),
            (None, None, False),
            "its result, failure and cancellation",
        )
        equal(
            (result.expires_at_ms, result.deadline_at_ms),
            (now_ms + 1_000, now_ms + 600_000),
            "its expiry and deadline",
        )
        last = bench.ledger.history(job.id)[-1]
        equal(
            (last.event, last.by, last.at_ms),
            (HistoryEvent.REQUEUED, "anna", now_ms),
            "the end of its history",
        )
        again = bench.claim_one()
        equal((again.id, again.attempt, again.lease), (job.id, 1, lease + 1), "the next attempt")
        if lease:
            equal(bench.settle(job, done()), False, "an outcome under an earlier lease")
        true(bench.settle(again, done()), "the outcome of the attempt after requeuing was refused")


def check_requeued_time_to_live(bench: LedgerBench) -> None:
    """Check that a requeued job expires after its new time to live, though it was begun before."""
    job = bench.submit_ended(JobState.COMPLETED, time_to_live_s=5.0)
    bench.ledger.requeue(job.id)
    bench.advance(5_001)
    equal(bench.claim(1), (), "the claimed jobs after its new time to live")
    bench.maintain()
    equal(bench.state(job), JobState.EXPIRED, "the state after its new time to live")


def check_requeue_refuses_unfinished_jobs(bench: LedgerBench) -> None:
    """Check that only ended jobs can be requeued."""
    pending, running = bench.submit(queue="other"), bench.submit_running()
    for job in (pending, running):
        before = bench.reload(job)
        raises(
            JobStateError,
            lambda job=job: bench.ledger.requeue(job.id),
            f"requeuing a {before.state.value} job",
        )
        equal((bench.reload(job), len(bench.events(job))), (before, 0), "the job after it was refused")
    raises(JobNotFoundError, lambda: bench.ledger.requeue("unknown"), "requeuing an unknown job")


def check_requeue_race(bench: LedgerBench) -> None:
    """Check that exactly one of many concurrent requeues of a job succeeds.

    The others raise JobStateError.
    """
    job = bench.submit_ended(JobState.FAILED)
    other = bench.start_ledger()
    results = run_concurrently(
        (lambda n=n: _requeued((bench.ledger, other)[n % 2].requeue, job)) for n in range(THREADS)
    )
    equal(sum(results), 1, "the number of successful requeues")
    equal(bench.events(job).count(HistoryEvent.REQUEUED), 1, "the number of requeues in its history")


def _requeued(requeue: Callable[[str], Job], job: Job) -> bool:
    try:
        requeue(job.id)
    except JobStateError:
        return False
    return True


def check_delete(bench: LedgerBench) -> None:
    """Check that deleting removes an ended job and its history.

    It refuses an unfinished job and leaves other jobs alone.
    """
    other_job = bench.submit(queue="other")
    for state in sorted(ENDED):
        job = bench.submit_ended(state)
        equal(bench.ledger.delete(job.id), job, "the result of deleting")
        raises(JobNotFoundError, lambda job=job: bench.ledger.get(job.id), "a deleted job")
        raises(JobNotFoundError, lambda job=job: bench.ledger.delete(job.id), "deleting again")
        equal(bench.ledger.get_many([job.id, other_job.id]), {other_job.id: other_job}, "the remaining jobs")
        equal(_history_left(bench, job), [], "the history of a deleted job")
    running = bench.submit_running()
    for job in (other_job, running):
        raises(
            JobStateError, lambda job=job: bench.ledger.delete(job.id), f"deleting a {bench.state(job)} job"
        )
        bench.reload(job)
    true(bench.settle(running, done()), "a job was refused completion after a refused deletion")


def _history_left(bench: LedgerBench, job: Job) -> list[HistoryEvent]:
    try:
        return bench.events(job)
    except JobNotFoundError:
        return []


def check_reused_id_has_no_history(bench: LedgerBench) -> None:
    """Check that a job under the id of a deleted job is new and inherits nothing."""
    new = NewJob(id="01a3185c-5000-7849-aacf-f0401441a1cd")
    bench.ledger.submit([new])
    bench.settle(bench.claim_one(), Failed(OOPS))
    bench.ledger.delete(new.id)
    fresh = accepted(bench.ledger.submit([new])[0])
    equal((fresh.created, fresh.job.failure, len(bench.events(fresh.job))), (True, None, 0), "the new job")


def check_history(bench: LedgerBench) -> None:
    """Check that the history lists failures, manual changes and ends that were taken back, oldest first.

    Each entry has its attempt, lease, worker and the start of its attempt.
    """
    job = bench.submit(attempts_max=2)
    equal(bench.ledger.history(job.id), [], "a new job's history")
    starts: list[int | None] = []

    def claim(worker: str) -> Job:
        bench.advance(10)
        claimed = bench.claim_one(worker=worker)
        starts.append(claimed.started_at_ms)
        return claimed

    bench.settle(claim("w-1"), Failed(OOPS, retry_ms=0))
    bench.settle(claim("w-2"), Released())
    bench.expire_lease(claim("w-3"))
    ended = bench.reload(job)
    bench.advance(10)
    bench.ledger.requeue(job.id, by="anna")
    running = claim("w-4")
    bench.heartbeat(running, progress=JobProgress(1))
    bench.ledger.cancel(job.id, by="ben")
    bench.settle(running, Cancelled())
    history = bench.ledger.history(job.id)
    by_workers = [(e.event, e.attempt, e.lease, e.worker) for e in history if not e.by]
    wanted = [
        (HistoryEvent.ATTEMPT_FAILED, 1, 1, "w-1"),
        (HistoryEvent.RELEASED, 2, 2, "w-2"),
        (HistoryEvent.LEASE_LOST, 2, 3, "w-3"),
        (HistoryEvent.FAILED, 2, 3, "w-3"),
    ]
    equal(by_workers, wanted, "the history of attempts")
    by_hand = [(e.event, e.by) for e in history if e.by]
    equal(
        by_hand,
        [(HistoryEvent.REQUEUED, "anna"), (HistoryEvent.CANCEL_REQUESTED, "ben")],
        "the history of manual changes",
    )
    equal([e.event for e in history[:4]], [event for event, *_ in wanted], "the first events of the history")
    equal(
        [e.started_at_ms for e in history],
        [*starts[:3], starts[2], starts[2], starts[3]],
        "the starts of the attempts in the history",
    )
    equal(
        (history[3].at_ms, history[3].cause),
        (ended.ended_at_ms, "worker_lost"),
        "the time and cause of the end in the history",
    )
    equal(
        (history[0].cause, history[0].message),
        ("model", OOPS.message),
        "the cause and message of a failure in the history",
    )
    times = [e.at_ms for e in history]
    equal(times, sorted(times), "the times of a history")


def check_retention(bench: LedgerBench) -> None:
    """Check that ended jobs are listed by the time of their end, oldest first.

    They are forgotten with their histories.
    """
    ended: list[Job] = []
    for state in (JobState.FAILED, JobState.COMPLETED, JobState.CANCELLED):
        ended.append(bench.submit_ended(state))
        bench.advance(1_000)
    pending, running = bench.submit(queue="other"), bench.submit_running()
    find = bench.ledger.ended_before
    equal(ids(find(bench.clock.now_ms(), limit=10)), ids(ended), "the jobs that ended before now")
    equal(ids(find(bench.clock.now_ms(), limit=2)), ids(ended[:2]), "the two oldest of them")
    last_ms = ended[2].ended_at_ms or 0
    equal(ids(find(last_ms, limit=10)), ids(ended[:2]), "the jobs that ended before the last one")
    forgotten = bench.ledger.forget([ended[0].id, ended[1].id, "unknown", pending.id, running.id])
    equal(
        forgotten, 2, "the number of forgotten jobs, of two ended, one unknown, one pending and one running"
    )
    equal(
        set(bench.ledger.get_many(ids([*ended, pending, running]))),
        {ended[2].id, pending.id, running.id},
        "the rest",
    )
    equal(_history_left(bench, ended[0]), [], "the history of a forgotten job")
    equal(bench.ledger.forget([]), 0, "the number of forgotten jobs, of none")
    true(bench.settle(running, done()), "a running job was harmed by forgetting")


def check_own_retention(bench: LedgerBench) -> None:
    """Check that a job with a retention of its own is listed once it has passed, and not before."""
    short = bench.submit_ended(JobState.COMPLETED, keep_s=60.0)
    long = bench.submit_ended(JobState.COMPLETED, keep_s=3600.0)
    plain = bench.submit_ended(JobState.COMPLETED)
    equal((short.spec.keep_s, plain.spec.keep_s), (60.0, None), "the retention of jobs")
    find = bench.ledger.ended_before
    bench.advance(59_000)
    equal(ids(find(bench.clock.now_ms(), limit=10)), [plain.id], "the old jobs before any retention is over")
    bench.advance(1_001)
    equal(ids(find(0, limit=10)), [short.id], "the job whose own retention is over")
    equal(set(ids(find(bench.clock.now_ms(), limit=10))), {short.id, plain.id}, "all old jobs")
    equal(len(find(bench.clock.now_ms(), limit=1)), 1, "the number of old jobs, limited to one")
    equal(bench.ledger.forget([long.id]), 1, "the number of forgotten jobs, of one that is kept longer")


def check_cancelling_retried_jobs(bench: LedgerBench) -> None:
    """Check that a job that waits for its next attempt is pending: cancelling ends it."""
    failed, lost = bench.submit_running(), bench.submit_running()
    bench.settle(failed, Failed(OOPS, retry_ms=99_000_000))
    bench.advance(LEASE_MS + 1)
    bench.maintain()
    for job in (failed, lost):
        equal(bench.ledger.cancel(job.id).state, JobState.CANCELLED, "the result of cancelling")
