"""Checks of claiming: the order of jobs, jobs that are held back, and exclusive claims."""

from dataclasses import replace
from itertools import chain
from typing import Final

from headrace.jobs.job import Failed, Job, NewJob, Released, Settlement
from headrace.jobs.ledger import ClaimRequest, JobLedger, QueueSettings
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

_RACE_JOBS: Final = 120


def check_claimed_job_runs_under_lease(bench: LedgerBench) -> None:
    """Check that a claimed job runs under lease 1, as attempt 1 of its worker.

    No other worker receives it until the lease ends.
    """
    job = bench.submit()
    now_ms = bench.advance(7)
    (claimed,) = bench.claim(3, worker="w-1")
    for seen in (claimed, bench.reload(job)):
        equal((seen.id, seen.state), (job.id, JobState.RUNNING), "the claimed job")
        equal((seen.attempt, seen.lease, seen.worker), (1, 1, "w-1"), "its attempt, lease and worker")
        equal(
            (seen.started_at_ms, seen.lease_until_ms),
            (now_ms, now_ms + LEASE_MS),
            "its start and lease's end",
        )
        equal((seen.created_at_ms, seen.ended_at_ms), (job.created_at_ms, None), "its other times")
    equal(bench.claim(3, worker="w-2"), (), "the claim of another worker")


def check_claim_order(bench: LedgerBench) -> None:
    """Check that jobs are claimed by priority, then due time, then id.

    The order of submission does not matter.
    """
    rows = ((0, 90, "9"), (4, 10, "7"), (4, 20, "1"), (4, 20, "2"), (4, 20, "8"), (9, 0, "0"))
    specs = [
        NewJob(id=f"01a3185c-5000-7849-aacf-f0401441a1c{digit}", priority=priority, delay_ms=delay_ms)
        for priority, delay_ms, digit in rows
    ]
    bench.ledger.submit([specs[n] for n in (4, 1, 5, 3, 0, 2)])
    bench.advance(100)
    claims = bench.claim(2) + bench.claim(3) + bench.claim(3)
    equal(ids(claims), [spec.id for spec in specs], "the order of claimed jobs")


def check_retried_job_queues_by_new_due_time(bench: LedgerBench) -> None:
    """Check that a retried job is ordered by its new due time, behind jobs that were due before."""
    first = bench.submit_running()
    bench.settle(first, Failed(OOPS, retry_ms=50))
    second = bench.submit(delay_ms=40)
    bench.advance(60)
    equal(ids(bench.claim(2)), [second.id, first.id], "the order of a new and a retried job")


def check_queue_order(bench: LedgerBench) -> None:
    """Check that queues are read in the order of the request, before any priority.

    Other queues are not touched.
    """
    last, first, other = (
        bench.submit(queue=name, priority=priority) for name, priority in (("a", 0), ("b", 9), ("c", 0))
    )
    equal(ids(bench.claim(1, queues=["b", "a"])), [first.id], "the claimed job, for queues b and a")
    equal(ids(bench.claim(5, queues=["b", "a"])), [last.id], "the remaining jobs of queues b and a")
    equal(bench.state(other), JobState.PENDING, "the state of a job in a queue outside the request")
    equal(bench.claim(5, queues=["unknown"]), (), "the jobs of an unknown queue")


def check_claim_limit(bench: LedgerBench) -> None:
    """Check that a claim returns at most `jobs_max` jobs, and all due jobs if there are fewer."""
    bench.submit_many(7)
    sizes = [len(bench.claim(jobs_max)) for jobs_max in (0, 1, 4, 4, 4)]
    equal(
        sizes,
        [0, 1, 4, 2, 0],
        "the number of claimed jobs, of seven, with limits 0, 1, 4, 4, 4",
    )


def check_delayed_job_is_claimed_when_due(bench: LedgerBench) -> None:
    """Check that a job is claimed exactly from its due time on, without maintenance.

    The reply has the time until it is due.
    """
    job = bench.submit(delay_ms=5_000)
    bench.submit(delay_ms=9_000)
    bench.submit(delay_ms=10, queue="other")
    claim = ClaimRequest("w", ("default",), 1, LEASE_MS)
    equal(bench.ledger.settle_and_claim([], claim).due_in_ms, 5_000, "due_in_ms of the next job")
    bench.advance(4_999)
    reply = bench.ledger.settle_and_claim([], claim)
    equal((reply.claimed, reply.due_in_ms), ((), 1), "the reply a millisecond before a job is due")
    bench.advance(1)
    reply = bench.ledger.settle_and_claim([], claim)
    equal(ids(reply.claimed), [job.id], "the claimed jobs at the due time")
    equal(reply.due_in_ms, None, "due_in_ms of a reply at the limit of jobs")


def check_no_due_time_without_pending_jobs(bench: LedgerBench) -> None:
    """Check that the reply has no due time if no job is pending.

    Running and ended jobs do not count.
    """
    bench.submit_running()
    bench.submit_ended(JobState.COMPLETED)
    reply = bench.ledger.settle_and_claim([], ClaimRequest("w", ("default",), 1, LEASE_MS))
    equal((reply.claimed, reply.due_in_ms), ((), None), "the reply without pending jobs")
    equal(bench.ledger.settle_and_claim([]).claimed, (), "the claimed jobs without a claim request")


def check_time_to_live(bench: LedgerBench) -> None:
    """Check that no job is begun after its time to live, even before maintenance.

    A job that was begun in time is claimed again.
    """
    begun, late = (bench.submit(time_to_live_s=2.0, priority=priority) for priority in (1, 2))
    bench.advance(1_999)
    equal(ids(bench.claim(1)), [begun.id], "the claimed jobs within its time to live")
    bench.settle(bench.reload(begun), Failed(OOPS, retry_ms=10))
    bench.advance(3_000)
    reply = bench.ledger.settle_and_claim([], ClaimRequest("w", ("default",), 5, LEASE_MS))
    equal(
        ids(reply.claimed),
        [begun.id],
        "the claimed jobs after two times to live, one begun in time",
    )
    bench.maintain()
    equal(bench.state(late), JobState.EXPIRED, "the state of a job not begun in time")
    equal(bench.state(begun), JobState.RUNNING, "the state of a job begun in time")


def check_deadline_of_pending_jobs(bench: LedgerBench) -> None:
    """Check that no job is claimed after its deadline, begun or not."""
    new, begun = bench.submit(deadline_s=2.0), bench.submit(deadline_s=2.0, priority=0)
    bench.settle(bench.claim_one(), Failed(OOPS, retry_ms=10))
    bench.advance(2_001)
    equal(bench.claim(5), (), "the claimed jobs after its deadline")
    bench.maintain()
    equal([bench.state(new), bench.state(begun)], [JobState.EXPIRED] * 2, "the states after the deadline")


def check_claim_without_models(bench: LedgerBench) -> None:
    """Check that a claim leaves the jobs of the models that it names to others, due now or later."""
    for model in ("a", "a@1", "aa", "b"):
        bench.submit(model=model)
    bench.submit(model="a", delay_ms=60_000)
    claim = ClaimRequest("w-1", ("default",), 3, LEASE_MS, without_models=frozenset({"a", "b"}))
    reply = bench.ledger.settle_and_claim([], claim)
    equal({job.spec.model for job in reply.claimed}, {"a@1", "aa"}, "the claimed models")
    equal(reply.due_in_ms, None, "the due time of jobs that the claim leaves")
    reply = bench.ledger.settle_and_claim([], replace(claim, without_models=frozenset()))
    equal({job.spec.model for job in reply.claimed}, {"a", "b"}, "the models that were left")
    true(bool(reply.due_in_ms), "the due time of the last job")
    bench.submit(model="a", region="east")
    near = replace(claim, region="east", other_regions=True)
    equal(bench.ledger.settle_and_claim([], near).claimed, (), "the jobs of a claim for a region")


def check_paused_queue(bench: LedgerBench) -> None:
    """Check that a paused queue accepts jobs, lets running ones finish and returns none.

    A resumed queue continues.
    """
    running = bench.submit_running(queue="q")
    bench.submit(queue="q")
    bench.ledger.set_queue(QueueSettings("q", paused=True))
    bench.submit(queue="q")
    other = bench.submit(queue="other")
    equal(ids(bench.claim(5, queues=["q", "other"])), [other.id], "the claimed jobs while q is paused")
    true(bench.settle(running, done()), "the completion of a job of a paused queue was refused")
    bench.ledger.set_queue(QueueSettings("q"))
    equal(len(bench.claim(5, queues=["q"])), 2, "the number of claimed jobs after q was resumed")


def check_crashing_job_runs_alone(bench: LedgerBench) -> None:
    """Check that a job with two crashes is the only one of a reply.

    It is neither lost nor starved.
    """
    poison = bench.submit(attempts_max=9)
    for _ in range(2):
        true(not bench.reload(poison).alone, "a job must run alone before its second crash")
        bench.settle(bench.claim_one(), Failed(OOPS, retry_ms=0, crashed=True))
    equal(
        (bench.reload(poison).crashes, bench.reload(poison).alone),
        (2, True),
        "crashes, and alone",
    )
    before, behind = bench.submit(priority=0), bench.submit(priority=9)
    claims = [ids(bench.claim(5)) for _ in range(3)]
    true([poison.id] in claims, f"a job that must run alone was claimed with others, or not at all: {claims}")
    equal(sorted(chain(*claims)), sorted([before.id, poison.id, behind.id]), "all claimed jobs")
    equal(claims[0][0], before.id, "the first claimed job")


def check_crashing_job_runs_alone_across_queues(bench: LedgerBench) -> None:
    """Check that a job with two crashes is claimed alone from any queue of the request."""
    poison = bench.submit(queue="b", attempts_max=9)
    for _ in range(2):
        bench.settle(bench.claim_one(queues=["b"]), Failed(OOPS, retry_ms=0, crashed=True))
    bench.submit(queue="a")
    bench.submit(queue="c")
    claims = [ids(bench.claim(5, queues=["a", "b", "c"])) for _ in range(3)]
    true([poison.id] in claims, f"a job that must run alone was claimed with others, or not at all: {claims}")
    equal(sum(map(len, claims)), 3, "the number of claimed jobs")


def check_claim_race(bench: LedgerBench) -> None:
    """Check that concurrent workers on two ledgers claim every job exactly once, under one lease."""
    bench.submit_many(_RACE_JOBS)
    ledgers = (bench.ledger, bench.start_ledger())

    def work(number: int) -> list[Job]:
        taken: list[Job] = []
        claim = ClaimRequest(f"w-{number}", ("default",), 1 + number % 4, LEASE_MS)
        while claimed := ledgers[number % 2].settle_and_claim([], claim).claimed:
            taken.extend(claimed)
        return taken

    shares = run_concurrently((lambda number=number: work(number)) for number in range(THREADS))
    claims = [job for share in shares for job in share]
    # A worker may stop while other workers hold the rest for a moment: claim what is left now.
    claims += bench.claim(_RACE_JOBS)
    equal(
        (len(claims), len(set(ids(claims)))),
        (_RACE_JOBS, _RACE_JOBS),
        "the numbers of claims and of different jobs",
    )
    equal({job.lease for job in claims}, {1}, "the leases")
    now = bench.ledger.get_many(ids(claims))
    equal([now[job.id].worker for job in claims], [job.worker for job in claims], "the workers of the jobs")


def check_settle_and_claim_race(bench: LedgerBench) -> None:
    """Check that concurrent `settle_and_claim` calls complete every job exactly once."""
    bench.submit_many(_RACE_JOBS)
    ledgers = (bench.ledger, bench.start_ledger())
    counts = run_concurrently(
        (lambda number=number: _run_all_jobs(ledgers[number % 2], f"w-{number}")) for number in range(THREADS)
    )
    total = sum(counts) + _run_all_jobs(bench.ledger, "last")
    equal(total, _RACE_JOBS, "the number of accepted completions")
    equal(bench.ledger.counts("default").backlog, 0, "the remaining backlog")
    equal(bench.ledger.maintain(100).total, 0, "the remaining maintenance")


def _run_all_jobs(ledger: JobLedger, worker: str) -> int:
    reply = ledger.settle_and_claim([], ClaimRequest(worker, ("default",), 3, LEASE_MS))
    total = 0
    while reply.claimed:
        settlements = [Settlement(job.id, job.lease, done()) for job in reply.claimed]
        reply = ledger.settle_and_claim(settlements, ClaimRequest(worker, ("default",), 3, LEASE_MS))
        total += sum(reply.accepted)
    return total


def check_released_job_waits_for_its_delay(bench: LedgerBench) -> None:
    """Check that a job released with a delay is claimed once the delay is over, not before."""
    job = bench.submit_running()
    true(bench.settle(job, Released(delay_ms=300)), "a release was refused")
    bench.advance(299)
    equal(bench.claim(5), (), "the claimed jobs before a released job is due again")
    bench.advance(1)
    equal(ids(bench.claim(5)), [job.id], "the claimed jobs when a released job is due again")
