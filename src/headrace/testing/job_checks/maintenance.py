"""Checks of maintenance and recovery: lost jobs return once, overdue jobs end, workers find their jobs."""

from collections.abc import Callable
from typing import Any

from headrace.jobs.history import HistoryEvent
from headrace.jobs.job import Failed, Job, JobProgress, Settlement
from headrace.jobs.ledger import MaintenanceCounts, QueueSettings
from headrace.jobs.state import Cause, JobState
from headrace.testing.expect import equal, true
from headrace.testing.job_checks.bench import (
    LEASE_MS,
    OOPS,
    THREADS,
    LedgerBench,
    done,
    ids,
    run_concurrently,
)

_RACE_JOBS = 40


def check_lost_leases(bench: LedgerBench) -> None:
    """Check that a job with an expired lease is pending again.

    Its attempt and a crash are counted.
    """
    job = bench.submit_running()
    bench.heartbeat(job, cursor={"chunk": 2})
    now_ms = bench.advance(LEASE_MS + 1)
    equal(
        bench.ledger.maintain(100),
        MaintenanceCounts(returned=1),
        "the counts with one expired lease",
    )
    after = bench.reload(job)
    equal(after.state, JobState.PENDING, "the state of a job with a lost lease")
    equal((after.attempt, after.lease, after.crashes), (1, 1, 1), "its attempt, lease and crashes")
    equal(
        (after.cursor, after.lease_until_ms, after.ended_at_ms),
        ({"chunk": 2}, None, None),
        "its cursor and times",
    )
    equal(after.failure and after.failure.cause, Cause.WORKER_LOST, "the cause of its last failure")
    true(after.due_at_ms > now_ms, "a job with a lost lease is due again without a delay")
    (entry,) = bench.ledger.history(job.id)
    equal((entry.event, entry.at_ms), (HistoryEvent.LEASE_LOST, now_ms), "its history")
    equal(
        (entry.attempt, entry.lease, entry.worker),
        (1, 1, "w"),
        "the attempt, lease and worker in its history",
    )
    bench.advance_until_due(job)
    again = bench.claim_one(worker="w-2")
    equal((again.id, again.attempt, again.lease), (job.id, 2, 2), "the next attempt")


def check_delay_after_lost_leases_grows(bench: LedgerBench) -> None:
    """Check that the delay of the next attempt grows with the number of lost attempts."""
    job, delays = bench.submit(attempts_max=9), list[int]()
    for _ in range(6):
        bench.advance_until_due(job)
        lost = bench.expire_lease(bench.claim_one())
        delays.append(lost.due_at_ms - bench.clock.now_ms())
    true(delays[0] < delays[-1], f"the delays of six attempts do not grow: {delays} ms")


def check_last_attempt_lost(bench: LedgerBench) -> None:
    """Check that a job fails when it loses its last attempt.

    The cause is `worker_lost`, or `poison` if the job ran alone.
    """
    job = bench.submit(attempts_max=3)
    for attempt in (1, 2, 3):
        bench.advance_until_due(job)
        running = bench.claim_one()
        equal(running.attempt, attempt, "the attempt's number")
        now_ms = bench.advance(LEASE_MS + 1)
        wanted = MaintenanceCounts(failed=1) if attempt == 3 else MaintenanceCounts(returned=1)
        equal(bench.ledger.maintain(100), wanted, f"the counts of maintenance after attempt {attempt} of 3")
    after = bench.reload(job)
    equal((after.state, after.ended_at_ms), (JobState.FAILED, now_ms), "the state and end time")
    equal(after.failure and after.failure.cause, Cause.POISON, "the cause of its failure")
    once = bench.submit(attempts_max=1)
    bench.claim_one()
    bench.advance(LEASE_MS + 1)
    bench.ledger.maintain(100)
    failure = bench.reload(once).failure
    equal(failure and failure.cause, Cause.WORKER_LOST, "the cause of failure of a job with one attempt")
    true(bool(after.failure and after.failure.message), "the failure has no message")
    equal((after.attempt, after.crashes), (3, 3), "attempts and crashes")
    equal(bench.events(job), [HistoryEvent.LEASE_LOST] * 3, "its history")
    bench.advance(10 * LEASE_MS)
    equal(bench.claim(5), (), "the claimed jobs after the last attempt")


def check_lost_lease_of_cancelled_jobs(bench: LedgerBench) -> None:
    """Check that a job to be cancelled whose lease expires is cancelled, not retried."""
    job = bench.submit_running()
    bench.ledger.cancel(job.id)
    now_ms = bench.advance(LEASE_MS + 1)
    equal(bench.ledger.maintain(100), MaintenanceCounts(cancelled=1), "the counts of maintenance")
    after = bench.reload(job)
    equal((after.state, after.ended_at_ms), (JobState.CANCELLED, now_ms), "the state and end time")
    equal(after.crashes, 1, "its crashes")


def check_valid_leases_are_kept(bench: LedgerBench) -> None:
    """Check that maintenance takes back no valid lease and changes no pending or ended job."""
    jobs = [
        bench.submit_running(),
        bench.submit_ended(JobState.COMPLETED),
        bench.submit_ended(JobState.FAILED),
        bench.submit(),
    ]
    before = [bench.reload(job) for job in jobs]
    bench.advance(LEASE_MS - 1)
    equal(bench.ledger.maintain(100), MaintenanceCounts(), "maintenance without anything to do")
    equal([bench.reload(job) for job in jobs], before, "the jobs afterwards")


def check_expiry(bench: LedgerBench) -> None:
    """Check that pending jobs past their time to live or deadline expire, in paused queues too.

    Running jobs do not.
    """
    bench.ledger.set_queue(QueueSettings("paused", paused=True))
    running = bench.submit_running(time_to_live_s=1.0, deadline_s=1.0)
    waits = bench.submit(time_to_live_s=3.0)
    over = [
        bench.submit(time_to_live_s=1.0),
        bench.submit(deadline_s=1.0),
        bench.submit(queue="paused", deadline_s=1.0),
    ]
    over.append(bench.submit(time_to_live_s=1.0, delay_ms=9_000))
    equal(bench.ledger.maintain(100), MaintenanceCounts(), "maintenance before the jobs expire")
    now_ms = bench.advance(1_001)
    equal(bench.ledger.maintain(100).expired, 4, "the jobs expired by one round")
    for job in over:
        after = bench.reload(job)
        equal((after.state, after.ended_at_ms), (JobState.EXPIRED, now_ms), "the state and end time")
        equal((after.attempt, after.crashes), (0, 0), "its attempts and crashes")
    states = [bench.state(job) for job in (running, waits)]
    equal(states, [JobState.RUNNING, JobState.PENDING], "the states of the other jobs")
    equal(bench.ledger.maintain(100), MaintenanceCounts(), "maintenance afterwards")


def check_waking(bench: LedgerBench) -> None:
    """Check that a pending job is woken once when it becomes due.

    A job that is claimed or has ended before is not woken.
    """
    bench.submit()
    slept, claimed, cancelled = (
        bench.submit(delay_ms=ms, priority=p) for ms, p in ((100, 5), (90, 0), (100, 5))
    )
    equal(bench.ledger.maintain(100), MaintenanceCounts(), "maintenance before the jobs are due")
    bench.advance(100)
    equal(ids(bench.claim(1)), [claimed.id], "the claimed jobs at the due time")
    bench.ledger.cancel(cancelled.id)
    # A claim may also wake due jobs that it does not return.
    woken = bench.ledger.maintain(100)
    true(
        woken in (MaintenanceCounts(), MaintenanceCounts(woken=1)),
        f"the counts of maintenance with one pending job: {woken}",
    )
    equal(bench.ledger.maintain(100), MaintenanceCounts(), "the counts of the next maintenance")
    equal(bench.state(slept), JobState.PENDING, "the state of the woken job")


def check_repeated_maintenance(bench: LedgerBench) -> None:
    """Check that a second round of maintenance finds nothing to do and changes nothing."""
    jobs = [bench.submit_running(), bench.submit_running(attempts_max=1), bench.submit_running()]
    jobs.append(bench.submit(time_to_live_s=1.0))
    bench.ledger.cancel(jobs[2].id)
    bench.advance(LEASE_MS + 1)
    equal(
        bench.ledger.maintain(100),
        MaintenanceCounts(returned=1, failed=1, cancelled=1, expired=1),
        "the counts of maintenance",
    )
    before = [bench.reload(job) for job in jobs]
    equal(bench.ledger.maintain(100), MaintenanceCounts(), "the counts of the next maintenance")
    equal([bench.reload(job) for job in jobs], before, "the jobs afterwards")


def check_maintenance_limit(bench: LedgerBench) -> None:
    """Check that one round changes at most `limit` jobs of each sort.

    Several rounds change all.
    """
    jobs = bench.submit_many(5)
    bench.claim(5)
    over = bench.submit_many(3, time_to_live_s=1.0)
    bench.advance(LEASE_MS + 1)
    rounds = [bench.ledger.maintain(2) for _ in range(3)]
    equal([done.returned for done in rounds], [2, 2, 1], "leases taken back by rounds of 2, of 5")
    equal([done.expired for done in rounds], [2, 1, 0], "jobs expired by rounds of 2, of 3")
    equal({bench.state(job) for job in jobs}, {JobState.PENDING}, "the states of jobs with expired leases")
    equal({bench.state(job) for job in over}, {JobState.EXPIRED}, "the states of overdue jobs")


def check_concurrent_maintenance(bench: LedgerBench) -> None:
    """Check that concurrent maintenance takes back each lease once and expires each job once."""
    lost = bench.submit_many(_RACE_JOBS)
    bench.claim(_RACE_JOBS)
    bench.submit_many(_RACE_JOBS, time_to_live_s=1.0)
    bench.advance(LEASE_MS + 1)
    ledgers = (bench.ledger, bench.start_ledger())
    rounds = run_concurrently((lambda n=n: _rounds(ledgers[n % 2].maintain)) for n in range(THREADS))
    rest = bench.maintain()
    returned = sum(done.returned for every in rounds for done in every) + rest.returned
    expired = sum(done.expired for every in rounds for done in every) + rest.expired
    equal(
        (returned, expired),
        (_RACE_JOBS, _RACE_JOBS),
        "leases taken back and jobs expired, by all rounds together",
    )
    now = bench.ledger.get_many(ids(lost)).values()
    equal(
        {(job.state, job.attempt, job.crashes) for job in now},
        {(JobState.PENDING, 1, 1)},
        "the jobs afterwards",
    )
    histories = [bench.events(job) for job in lost]
    equal(histories, [[HistoryEvent.LEASE_LOST]] * _RACE_JOBS, "their histories")


def _rounds(maintain: Callable[[int], MaintenanceCounts]) -> list[MaintenanceCounts]:
    return [maintain(7) for _ in range(5)]


def check_heartbeat_and_maintenance_race(bench: LedgerBench) -> None:
    """Check that a heartbeat in a race with maintenance keeps an expired lease or reports its loss."""
    jobs = bench.submit_many(THREADS)
    held = bench.claim(THREADS)
    bench.advance(LEASE_MS + 1)
    other = bench.start_ledger()
    replies = run_concurrently(
        [
            *((lambda job=job: bool(bench.heartbeat(job).lost)) for job in held),
            lambda: bool(other.maintain(100)),
        ]
    )
    lost = dict(zip(ids(held), replies, strict=False))
    for job in jobs:
        wanted = JobState.PENDING if lost[job.id] else JobState.RUNNING
        equal(bench.state(job), wanted, f"the state of a job with a heartbeat reply of lost={lost[job.id]}")


def check_lost_leases_make_job_run_alone(bench: LedgerBench) -> None:
    """Check that a job runs alone after two lost leases, as after two crashes."""
    job = bench.submit(attempts_max=9)
    for _ in range(2):
        bench.advance_until_due(job)
        bench.expire_lease(bench.claim_one())
    bench.advance_until_due(job)
    bench.submit()
    claims = [ids(bench.claim(5)) for _ in range(2)]
    true([job.id] in claims, f"a job with two lost leases was claimed with others, or not at all: {claims}")


def check_failure_after_lost_lease(bench: LedgerBench) -> None:
    """Check that lost and failed attempts count together."""
    job = bench.submit_running(attempts_max=2)
    bench.expire_lease(job)
    bench.advance_until_due(job)
    last: Job = bench.claim_one()
    bench.settle(last, Failed(OOPS, retry_ms=0))
    after = bench.reload(job)
    equal(
        (after.state, after.failure),
        (JobState.FAILED, OOPS),
        "the state and failure after a lost and a failed attempt",
    )
    equal(bench.events(job), [HistoryEvent.LEASE_LOST, HistoryEvent.ATTEMPT_FAILED], "its history")


def check_list_running(bench: LedgerBench) -> None:
    """Check that `list_running` returns exactly the jobs under the worker's leases."""
    own, ended, others = (_submit_and_claim(bench, worker) for worker in ("w", "w", "w-2"))
    bench.settle(ended, done("memory://box/1"))
    bench.submit()
    equal(ids(bench.ledger.list_running("w")), [own.id], "the jobs under the worker's leases")
    equal(ids(bench.ledger.list_running("w-2")), [others.id], "the jobs under another worker's leases")
    equal(bench.ledger.list_running("w-3"), [], "the jobs of a worker without leases")


def _submit_and_claim(bench: LedgerBench, worker: str = "w", **spec: Any) -> Job:
    """Submit a job and claim it for `worker`. No other job may be due."""
    bench.submit(**spec)
    return bench.claim_one(worker=worker)


def check_uncounted_retries(bench: LedgerBench) -> None:
    """Check that an uncounted failure is retried without limit and is never the last attempt."""
    job = bench.submit(attempts_max=2)
    for lease in range(1, 6):
        running = bench.claim_one()
        equal((running.attempt, running.lease), (1, lease), "attempt and lease")
        true(bench.settle(running, Failed(OOPS, 1_000, counted=False)), "a failure was refused")
        after = bench.reload(job)
        equal((after.state, after.attempt, after.failure), (JobState.PENDING, 0, OOPS), "the job afterwards")
        bench.advance_until_due(job)


def check_settlement_records_progress(bench: LedgerBench) -> None:
    """Check that a settlement with progress records it.

    Without progress the last heartbeat's stays.
    """
    with_progress, without_progress = bench.submit_running(), bench.submit_running(queue="other")
    reported = JobProgress(7, 7, "records", "2 records failed")
    bench.heartbeat(without_progress, progress=JobProgress(1, 7))
    result = done("memory://box/1")
    reply = bench.ledger.settle_and_claim(
        [
            Settlement(with_progress.id, with_progress.lease, result, reported),
            Settlement(without_progress.id, without_progress.lease, result),
        ]
    )
    equal(reply.accepted, (True, True), "the accepted settlements")
    equal(bench.reload(with_progress).progress, reported, "the progress of the settlement")
    equal(bench.reload(without_progress).progress, JobProgress(1, 7), "the progress of the last heartbeat")
