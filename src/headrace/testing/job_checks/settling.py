"""Checks of settling, heartbeats and publication. Stale leases write nothing."""

from dataclasses import replace
from typing import Final

from headrace.jobs.history import HistoryEvent
from headrace.jobs.job import (
    Cancelled,
    Completed,
    Expired,
    Failed,
    Job,
    JobProgress,
    NewJob,
    Outcome,
    Released,
    ResultRef,
    Settlement,
)
from headrace.jobs.ledger import ClaimRequest, Heartbeat
from headrace.jobs.state import JobState
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

_NO_JOBS: Final[frozenset[str]] = frozenset()
_OUTCOMES: Final[tuple[Outcome, ...]] = (
    done("memory://box/stale"),
    Failed(OOPS),
    Failed(OOPS, retry_ms=0, crashed=True),
    Released({"stale": True}),
    Cancelled(),
    Expired(),
)


def check_completing(bench: LedgerBench) -> None:
    """Check that a completed job has its result and the time of its end.

    It has no failure and is not claimed again.
    """
    job = bench.submit_running()
    bench.settle(job, Failed(OOPS, retry_ms=0))
    job = bench.claim_one()
    now_ms = bench.advance(1_234)
    result = ResultRef("memory://box/out/1.out", 2**40, "application/json")
    true(bench.settle(job, Completed(result)), "the completion of a running job was refused")
    after = bench.reload(job)
    equal((after.state, after.ended_at_ms), (JobState.COMPLETED, now_ms), "the state and end time")
    equal((after.result, after.failure), (result, None), "its result and failure")
    equal(
        (after.attempt, after.lease, after.lease_until_ms), (2, 2, None), "its attempt, lease and lease's end"
    )
    bench.advance(10 * LEASE_MS)
    equal(bench.maintain().total, 0, "maintenance of a completed job")
    equal(bench.claim(5), (), "the claimed jobs, with only a completed job")


def check_retrying(bench: LedgerBench) -> None:
    """Check that a failed attempt with a retry leaves the job pending and due later.

    The attempt counts, and the lease grows.
    """
    job = bench.submit_running()
    now_ms = bench.advance(100)
    bench.heartbeat(job, cursor={"chunk": 3})
    true(bench.settle(job, Failed(OOPS, retry_ms=2_500)), "the failure of a running job was refused")
    after = bench.reload(job)
    equal((after.state, after.due_at_ms), (JobState.PENDING, now_ms + 2_500), "the state and due time")
    equal(
        (after.failure, after.ended_at_ms, after.lease_until_ms), (OOPS, None, None), "its failure and times"
    )
    equal((after.attempt, after.lease, after.crashes), (1, 1, 0), "its attempt, lease and crashes")
    bench.advance(2_500)
    again = bench.claim_one(worker="w-2")
    equal((again.id, again.attempt, again.lease, again.worker), (job.id, 2, 2, "w-2"), "the second attempt")
    equal(again.cursor, {"chunk": 3}, "the cursor of the second attempt")
    equal(again.started_at_ms, bench.clock.now_ms(), "the start of the second attempt")


def check_permanent_failure(bench: LedgerBench) -> None:
    """Check that a failure without a retry ends the job, with attempts left, and is recorded."""
    job = bench.submit_running()
    now_ms = bench.advance(5)
    failure = replace(OOPS, uri="memory://box/K.error", message="línea 3: 日本")
    true(bench.settle(job, Failed(failure)), "the failure of a running job was refused")
    after = bench.reload(job)
    equal((after.state, after.ended_at_ms), (JobState.FAILED, now_ms), "the state and end time")
    equal((after.failure, after.result), (failure, None), "the failure and the result of a failed job")
    equal(
        (after.crashes, bench.events(job)), (0, [HistoryEvent.ATTEMPT_FAILED]), "its crashes and its history"
    )


def check_last_attempt(bench: LedgerBench) -> None:
    """Check that a failure of the last attempt ends the job, even with a retry.

    No job exceeds its attempts.
    """
    job = bench.submit(attempts_max=3)
    for attempt in (1, 2, 3):
        equal(bench.state(job), JobState.PENDING, f"the state before attempt {attempt} of 3")
        running = bench.claim_one()
        equal(running.attempt, attempt, "the attempt's number")
        true(bench.settle(running, Failed(OOPS, retry_ms=0)), "the failure of a running job was refused")
    equal(
        (bench.state(job), bench.reload(job).failure),
        (JobState.FAILED, OOPS),
        "the state after three attempts of three",
    )
    equal(bench.claim(5), (), "the claimed jobs after the last attempt")
    once = bench.submit_running(attempts_max=1)
    bench.settle(once, Failed(OOPS, retry_ms=0))
    equal(bench.state(once), JobState.FAILED, "the state of a failed job with one attempt")


def check_crash_count(bench: LedgerBench) -> None:
    """Check that a crash of the model's process is counted, also if it ends the job."""
    job = bench.submit_running(attempts_max=2)
    bench.settle(job, Failed(OOPS, retry_ms=0, crashed=True))
    equal(bench.reload(job).crashes, 1, "the crashes after one")
    bench.settle(bench.claim_one(), Failed(OOPS, retry_ms=0))
    equal(
        (bench.state(job), bench.reload(job).crashes),
        (JobState.FAILED, 1),
        "the state and crashes after a plain failure",
    )
    other = bench.submit_running()
    bench.settle(other, Failed(OOPS, crashed=True))
    equal(bench.reload(other).crashes, 1, "the crashes of a job ended by a crash")


def check_releasing(bench: LedgerBench) -> None:
    """Check that a released job loses no attempt, keeps its cursor and has no failure.

    The number of releases is not limited.
    """
    job = bench.submit(attempts_max=1)
    for lease in range(1, 5):
        running = bench.claim_one()
        equal((running.attempt, running.lease), (1, lease), "attempt and lease after as many releases")
        true(bench.settle(running, Released({"chunk": lease})), "the release of a running job was refused")
        after = bench.reload(job)
        equal((after.state, after.attempt), (JobState.PENDING, 0), "state and attempts of a released job")
        equal((after.lease, after.crashes, after.failure), (lease, 0, None), "its lease, crashes and failure")
        equal(after.cursor, {"chunk": lease}, "its cursor")
        equal(after.due_at_ms, bench.clock.now_ms(), "its due time")
    equal(bench.events(job), [HistoryEvent.RELEASED] * 4, "its history")
    running = bench.claim_one()
    equal(running.cursor, {"chunk": 4}, "the cursor of the next attempt")
    bench.heartbeat(running, cursor={"chunk": 9})
    bench.settle(running, Released())
    equal(bench.reload(job).cursor, {"chunk": 9}, "the cursor after a release without one")


def check_releasing_keeps_the_last_failure(bench: LedgerBench) -> None:
    """Check that a release keeps the failure and the count of the attempt before."""
    job = bench.submit_running()
    bench.settle(job, Failed(OOPS, retry_ms=0))
    bench.settle(bench.claim_one(), Released())
    equal(
        (bench.reload(job).attempt, bench.reload(job).failure),
        (1, OOPS),
        "attempts and failure after failing, and releasing",
    )


def check_cancelled_and_expired_outcomes(bench: LedgerBench) -> None:
    """Check that an attempt stopped by a cancellation or a deadline ends the job accordingly."""
    stopped, overdue = bench.submit_running(), bench.submit_running(deadline_s=1.0)
    bench.ledger.cancel(stopped.id)
    now_ms = bench.advance(1_001)
    true(bench.settle(stopped, Cancelled()) and bench.settle(overdue, Expired()), "an ending was refused")
    for job, state in ((stopped, JobState.CANCELLED), (overdue, JobState.EXPIRED)):
        after = bench.reload(job)
        equal(
            (after.state, after.ended_at_ms, after.result),
            (state, now_ms, None),
            "the state, end time and result",
        )


def check_settlements_are_answered_in_order(bench: LedgerBench) -> None:
    """Check that each settlement of a call is answered at its index.

    The first of two for one lease counts.
    """
    bench.submit_many(3)
    one, two, three = bench.claim(3)
    reply = bench.ledger.settle_and_claim(
        [
            Settlement("unknown", 1, done()),
            Settlement(two.id, two.lease, Failed(OOPS)),
            Settlement(one.id, one.lease, done()),
            Settlement(two.id, two.lease, done()),
            Settlement(three.id, three.lease + 1, done()),
        ]
    )
    equal(reply.accepted, (False, True, True, False, False), "the accepted settlements")
    states = [bench.state(job) for job in (one, two, three)]
    equal(states, [JobState.COMPLETED, JobState.FAILED, JobState.RUNNING], "the states afterwards")


def check_settlements_precede_claim(bench: LedgerBench) -> None:
    """Check that settlements precede the claim of the same call.

    A job that is retried at once can be claimed in it.
    """
    job, other = bench.submit_running(), bench.submit(priority=9)
    settlement = Settlement(job.id, job.lease, Failed(OOPS, retry_ms=0))
    reply = bench.ledger.settle_and_claim([settlement], ClaimRequest("w-2", ("default",), 5, LEASE_MS))
    equal(
        (reply.accepted, ids(reply.claimed)),
        ((True,), [job.id, other.id]),
        "the accepted settlements and claimed jobs",
    )
    equal(
        (reply.claimed[0].attempt, reply.claimed[0].lease), (2, 2), "the attempt and lease of the retried job"
    )
    again = bench.ledger.settle_and_claim([settlement])
    equal(again.accepted, (False,), "the same settlement, repeated")


def check_heartbeat(bench: LedgerBench) -> None:
    """Check that a heartbeat extends the lease from now on and records progress and cursor.

    Omitted values stay.
    """
    job = bench.submit_running()
    bench.advance(LEASE_MS - 1)
    progress, cursor = JobProgress(3, 10, "records", "warm"), {"chunk": 3, "etag": "ünï"}
    reply = bench.heartbeat(job, progress=progress, cursor=cursor)
    equal(
        (reply.lost, reply.cancel, reply.expired),
        (_NO_JOBS,) * 3,
        "the reply to a heartbeat of a valid lease",
    )
    bench.advance(LEASE_MS - 1)
    equal(bench.maintain().total, 0, "maintenance while the worker sends heartbeats")
    bench.heartbeat(job)
    after = bench.reload(job)
    equal(
        (after.progress, after.cursor),
        (progress, cursor),
        "progress and cursor after an empty heartbeat",
    )
    equal(after.lease_until_ms, bench.clock.now_ms() + LEASE_MS, "the lease's end")
    bench.heartbeat(job, progress=JobProgress(4))
    equal(
        (bench.reload(job).progress, bench.reload(job).cursor),
        (JobProgress(4), cursor),
        "progress and cursor afterwards",
    )
    equal((bench.reload(job).lease, bench.reload(job).attempt), (1, 1), "lease and attempt after heartbeats")


def check_heartbeat_reply(bench: LedgerBench) -> None:
    """Check that the reply names exactly the lost, cancelled and overdue leases."""
    good, cancel, ended = (bench.submit_running() for _ in range(3))
    overdue = bench.submit_running(deadline_s=1.0)
    bench.ledger.cancel(cancel.id)
    bench.settle(ended, done())
    bench.advance(1_001)
    heartbeats = [Heartbeat(job.id, job.lease) for job in (good, cancel, overdue, ended)] + [
        Heartbeat("unknown", 1)
    ]
    reply = bench.ledger.heartbeat("w", heartbeats, LEASE_MS)
    equal(reply.lost, frozenset({ended.id, "unknown"}), "the lost leases")
    equal(reply.cancel, frozenset({cancel.id}), "the jobs to be cancelled")
    equal(reply.expired, frozenset({overdue.id}), "the jobs over their deadline")
    until_ms = bench.clock.now_ms() + LEASE_MS
    equal(
        {bench.reload(job).lease_until_ms for job in (good, cancel, overdue)},
        {until_ms},
        "the ends of their leases",
    )


def check_stale_leases(bench: LedgerBench) -> None:
    """Check that a worker writes nothing after another worker claimed its job.

    Its heartbeats, outcomes and published results are refused.
    """
    for outcome in _OUTCOMES:
        stale = bench.submit_running(attempts_max=9)
        bench.expire_lease(stale)
        bench.advance_until_due(stale)
        owner = bench.claim_one(worker="w-2")
        equal((owner.id, owner.lease), (stale.id, stale.lease + 1), "the job and lease of the second worker")
        bench.heartbeat(owner, progress=JobProgress(1), cursor={"mine": True})
        before, history = bench.reload(owner), bench.ledger.history(owner.id)
        bench.advance(1_000)
        equal(
            bench.heartbeat(stale, progress=JobProgress(9), cursor={"stale": True}).lost,
            {stale.id},
            "the lost leases of a stale worker",
        )
        equal(bench.settle(stale, outcome), False, f"a stale worker's {type(outcome).__name__}")
        equal(
            bench.ledger.mark_published(stale.id, stale.lease, "memory://x"),
            False,
            "publishing by a stale worker",
        )
        equal(bench.reload(owner), before, f"the job after a stale worker's {type(outcome).__name__}")
        equal(bench.ledger.history(owner.id), history, "its history")
        true(
            bench.settle(owner, done("memory://box/mine")),
            "the owner's completion was refused after a stale worker's outcome",
        )
        equal(
            bench.settle(stale, outcome),
            False,
            f"a stale worker's {type(outcome).__name__} after the job's end",
        )
        result = bench.reload(owner).result
        equal(result and result.uri, "memory://box/mine", "the result after a stale worker's outcome")


def check_leases_of_stopped_jobs(bench: LedgerBench) -> None:
    """Check that the last lease writes nothing once its job does not run.

    The job was lost, released, has failed or ended.
    """
    prepared: list[Job] = []
    for outcome in (Failed(OOPS, retry_ms=99_000_000), Released(delay_ms=99_000_000), done(), Cancelled()):
        job = bench.submit_running()
        bench.settle(job, outcome)
        prepared.append(job)
    lost = bench.submit_running()
    bench.expire_lease(lost)
    for job in (*prepared, lost):
        before = bench.reload(job)
        for outcome in _OUTCOMES:
            equal(
                bench.settle(job, outcome), False, f"{type(outcome).__name__} for a {before.state.value} job"
            )
        equal(
            bench.heartbeat(job, cursor={"stale": True}).lost,
            {job.id},
            "the lost leases of a heartbeat for a job that does not run",
        )
        equal(bench.reload(job), before, "the job afterwards")


def check_expired_lease_is_valid_until_maintenance(bench: LedgerBench) -> None:
    """Check that an expired lease is valid until maintenance takes it back.

    Its worker may send heartbeats and finish.
    """
    heartbeats, ends = bench.submit_running(), bench.submit_running()
    bench.advance(3 * LEASE_MS)
    equal(bench.heartbeat(heartbeats).lost, _NO_JOBS, "the lost leases before maintenance")
    true(bench.settle(ends, done()), "a late completion was refused before maintenance")
    equal(bench.maintain().total, 0, "maintenance afterwards")


def check_settling_race(bench: LedgerBench) -> None:
    """Check that exactly one of many concurrent settlements of a lease is accepted and stored."""
    ledgers = (bench.ledger, bench.start_ledger())
    for _ in range(5):
        job = bench.submit_running()
        settlements = [Settlement(job.id, job.lease, done(f"memory://box/{n}")) for n in range(THREADS)]
        accepted = run_concurrently(
            (lambda n=n, s=s: ledgers[n % 2].settle_and_claim([s]).accepted[0])
            for n, s in enumerate(settlements)
        )
        equal(sum(accepted), 1, "the number of accepted settlements of one lease")
        result = bench.reload(job).result
        equal(result and result.uri, f"memory://box/{accepted.index(True)}", "the stored result")


def check_leases_only_grow(bench: LedgerBench) -> None:
    """Check that each claim's lease is greater than all before.

    Failures, releases, lost leases and requeues do not reset it.
    """
    job, leases = bench.submit(attempts_max=99), list[int]()
    for outcome in (Failed(OOPS, retry_ms=0), Released(), None, done(), Failed(OOPS), Cancelled()):
        bench.advance_until_due(job)
        claimed = bench.claim_one()
        leases.append(claimed.lease)
        if outcome is None:
            bench.expire_lease(claimed)
        else:
            bench.settle(claimed, outcome)
        if bench.state(job).ended:
            bench.ledger.requeue(job.id)
    equal(leases, sorted(set(leases)), "the leases, in the order of claims")


def check_attempts_do_not_share_records(bench: LedgerBench) -> None:
    """Check that the progress, cursor and failure of one job do not appear on another."""
    bench.ledger.submit([NewJob(model="a"), NewJob(model="b")])
    one, two = bench.claim(2)
    bench.heartbeat(one, progress=JobProgress(1), cursor={"a": 1})
    bench.settle(one, Failed(OOPS))
    other = bench.reload(two)
    equal((other.progress, other.cursor, other.failure), (None, None, None), "the records of the other job")
    equal(bench.events(two), [], "the other job's history")
