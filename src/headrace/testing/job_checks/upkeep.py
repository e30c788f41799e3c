"""What maintaining promises: what is lost comes back, once; what is over ends; nothing that lives is touched."""

from collections.abc import Callable

from headrace.jobs.cause import Cause
from headrace.jobs.job import Failed, HistoryEvent, Job
from headrace.jobs.ledger import QueueSettings, Upkeep
from headrace.jobs.state import JobState
from headrace.testing.expect import equal, true
from headrace.testing.job_checks.bench import LEASE_MS, OOPS, THREADS, LedgerBench, at_once, ids

_STORM_JOBS = 40


def check_lost_leases(bench: LedgerBench) -> None:
    """A job whose worker is silent is pending again when its lease has run out: its attempt and a crash are counted."""
    job = bench.running()
    bench.beat(job, cursor={"chunk": 2})
    now_ms = bench.later(LEASE_MS + 1)
    equal(bench.ledger.maintain(100), Upkeep(returned=1), "what one round did with one lease that ran out")
    after = bench.now(job)
    equal(after.state, JobState.PENDING, "the state of a job whose worker is lost")
    equal((after.attempt, after.lease, after.crashes), (1, 1, 1), "its attempt, lease and crashes")
    equal(
        (after.cursor, after.lease_until_ms, after.ended_at_ms),
        ({"chunk": 2}, None, None),
        "its cursor and times",
    )
    equal(after.failure and after.failure.cause, Cause.WORKER_LOST, "why its last attempt failed")
    true(after.due_at_ms > now_ms, "a job whose worker is lost is due again without a delay")
    (entry,) = bench.ledger.history(job.id)
    equal((entry.event, entry.at_ms), (HistoryEvent.LEASE_LOST, now_ms), "its history")
    equal(
        (entry.attempt, entry.lease, entry.worker),
        (1, 1, "w"),
        "the attempt, lease and worker in its history",
    )
    bench.until_due(job)
    again = bench.claim_one(worker="w-2")
    equal((again.id, again.attempt, again.lease), (job.id, 2, 2), "the attempt after that")


def check_delay_after_lost_leases_grows(bench: LedgerBench) -> None:
    """The more attempts were lost, the longer the next one waits."""
    job, delays = bench.submit(attempts_max=9), list[int]()
    for _ in range(6):
        bench.until_due(job)
        lost = bench.lose(bench.claim_one())
        delays.append(lost.due_at_ms - bench.clock.now_ms())
    true(delays[0] < delays[-1], f"the delays of six attempts do not grow: {delays} ms")


def check_last_lost_lease(bench: LedgerBench) -> None:
    """A job that loses its worker with every attempt has an end: `worker_lost`, or `poison` where it was alone at last."""
    job = bench.submit(attempts_max=3)
    for attempt in (1, 2, 3):
        bench.until_due(job)
        running = bench.claim_one()
        equal(running.attempt, attempt, "the attempt's number")
        now_ms = bench.later(LEASE_MS + 1)
        wanted = Upkeep(failed=1) if attempt == 3 else Upkeep(returned=1)
        equal(bench.ledger.maintain(100), wanted, f"what one round did after attempt {attempt} of 3")
    after = bench.now(job)
    equal((after.state, after.ended_at_ms), (JobState.FAILED, now_ms), "the state, and when it ended")
    equal(after.failure and after.failure.cause, Cause.POISON, "why it failed")
    once = bench.submit(attempts_max=1)
    bench.claim_one()
    bench.later(LEASE_MS + 1)
    bench.ledger.maintain(100)
    failure = bench.now(once).failure
    equal(failure and failure.cause, Cause.WORKER_LOST, "why a job failed that had one attempt")
    true(bool(after.failure and after.failure.message), "the failure says nothing")
    equal((after.attempt, after.crashes), (3, 3), "attempts and crashes")
    equal(bench.events(job), [HistoryEvent.LEASE_LOST] * 3, "its history")
    bench.later(10 * LEASE_MS)
    equal(bench.claim(5), (), "what is given out after the last attempt")


def check_lost_lease_of_cancelled_jobs(bench: LedgerBench) -> None:
    """A job that was cancelled while it ran, and whose worker died before it stopped, is cancelled, not tried again."""
    job = bench.running()
    bench.ledger.cancel(job.id)
    now_ms = bench.later(LEASE_MS + 1)
    equal(bench.ledger.maintain(100), Upkeep(cancelled=1), "what one round did with it")
    after = bench.now(job)
    equal((after.state, after.ended_at_ms), (JobState.CANCELLED, now_ms), "the state, and when it ended")
    equal(after.crashes, 1, "its crashes")


def check_live_leases_are_left_alone(bench: LedgerBench) -> None:
    """Nothing is taken back before its lease has run out, nothing that waits or has ended is touched."""
    jobs = [bench.running(), bench.ended(JobState.COMPLETED), bench.ended(JobState.FAILED), bench.submit()]
    before = [bench.now(job) for job in jobs]
    bench.later(LEASE_MS - 1)
    equal(bench.ledger.maintain(100), Upkeep(), "what there is to do while all is well")
    equal([bench.now(job) for job in jobs], before, "the jobs after that")


def check_expiring(bench: LedgerBench) -> None:
    """Jobs whose time is over before they run have expired, in paused queues too; running ones are their worker's."""
    bench.ledger.set_queue(QueueSettings("paused", paused=True))
    running = bench.running(time_to_live_s=1.0, deadline_s=1.0)
    waits = bench.submit(time_to_live_s=3.0)
    over = [
        bench.submit(time_to_live_s=1.0),
        bench.submit(deadline_s=1.0),
        bench.submit(queue="paused", deadline_s=1.0),
    ]
    over.append(bench.submit(time_to_live_s=1.0, delay_ms=9_000))
    equal(bench.ledger.maintain(100), Upkeep(), "what there is to do before their time is over")
    now_ms = bench.later(1_001)
    equal(bench.ledger.maintain(100).expired, 4, "the jobs that one round expired")
    for job in over:
        after = bench.now(job)
        equal((after.state, after.ended_at_ms), (JobState.EXPIRED, now_ms), "the state, and when it ended")
        equal((after.attempt, after.crashes), (0, 0), "its attempts and crashes")
    states = [bench.state(job) for job in (running, waits)]
    equal(states, [JobState.RUNNING, JobState.PENDING], "the states of jobs that were not to expire")
    equal(bench.ledger.maintain(100), Upkeep(), "what there is to do after that")


def check_waking(bench: LedgerBench) -> None:
    """A pending job that became due is woken, once; one that is claimed, or ends, before it is woken needs no waking."""
    bench.submit()
    slept, claimed, cancelled = (
        bench.submit(delay_ms=ms, priority=p) for ms, p in ((100, 5), (90, 0), (100, 5))
    )
    equal(bench.ledger.maintain(100), Upkeep(), "what there is to do while they sleep")
    bench.later(100)
    equal(ids(bench.claim(1)), [claimed.id], "what is given out when they are due")
    bench.ledger.cancel(cancelled.id)
    # A claim may have woken what it looked past, too.
    woken = bench.ledger.maintain(100)
    true(woken in (Upkeep(), Upkeep(woken=1)), f"what one round did when one of them still waits: {woken}")
    equal(bench.ledger.maintain(100), Upkeep(), "what the next round did")
    equal(bench.state(slept), JobState.PENDING, "the state of a job that was woken")


def check_maintaining_twice(bench: LedgerBench) -> None:
    """A round right after another finds nothing to do, and changes nothing."""
    jobs = [bench.running(), bench.running(attempts_max=1), bench.running()]
    jobs.append(bench.submit(time_to_live_s=1.0))
    bench.ledger.cancel(jobs[2].id)
    bench.later(LEASE_MS + 1)
    equal(
        bench.ledger.maintain(100), Upkeep(returned=1, failed=1, cancelled=1, expired=1), "what one round did"
    )
    before = [bench.now(job) for job in jobs]
    equal(bench.ledger.maintain(100), Upkeep(), "what the next round did")
    equal([bench.now(job) for job in jobs], before, "the jobs after it")


def check_maintaining_in_parts(bench: LedgerBench) -> None:
    """No round does more than `limit` of each; several do all."""
    jobs = bench.submit_many(5)
    bench.claim(5)
    over = bench.submit_many(3, time_to_live_s=1.0)
    bench.later(LEASE_MS + 1)
    rounds = [bench.ledger.maintain(2) for _ in range(3)]
    equal([done.returned for done in rounds], [2, 2, 1], "leases taken back by rounds of 2, of 5")
    equal([done.expired for done in rounds], [2, 1, 0], "jobs expired by rounds of 2, of 3")
    equal({bench.state(job) for job in jobs}, {JobState.PENDING}, "the states of jobs whose leases ran out")
    equal({bench.state(job) for job in over}, {JobState.EXPIRED}, "the states of jobs whose time was over")


def check_maintenance_storm(bench: LedgerBench) -> None:
    """Many workers that maintain at once: each lease is taken back once, each job expires once."""
    lost = bench.submit_many(_STORM_JOBS)
    bench.claim(_STORM_JOBS)
    bench.submit_many(_STORM_JOBS, time_to_live_s=1.0)
    bench.later(LEASE_MS + 1)
    ledgers = (bench.ledger, bench.another())
    rounds = at_once((lambda n=n: _rounds(ledgers[n % 2].maintain)) for n in range(THREADS))
    rest = bench.upkeep()
    returned = sum(done.returned for every in rounds for done in every) + rest.returned
    expired = sum(done.expired for every in rounds for done in every) + rest.expired
    equal(
        (returned, expired),
        (_STORM_JOBS, _STORM_JOBS),
        "leases taken back and jobs expired, by all rounds together",
    )
    now = bench.ledger.get_many(ids(lost)).values()
    equal({(job.state, job.attempt, job.crashes) for job in now}, {(JobState.PENDING, 1, 1)}, "the jobs then")
    histories = [bench.events(job) for job in lost]
    equal(histories, [[HistoryEvent.LEASE_LOST]] * _STORM_JOBS, "their histories")


def _rounds(maintain: Callable[[int], Upkeep]) -> list[Upkeep]:
    return [maintain(7) for _ in range(5)]


def check_beats_against_maintenance(bench: LedgerBench) -> None:
    """A beat and a round that race for a lease that ran out: either the worker keeps it, or it is told that it lost it."""
    jobs = bench.submit_many(THREADS)
    held = bench.claim(THREADS)
    bench.later(LEASE_MS + 1)
    other = bench.another()
    replies = at_once(
        [
            *((lambda job=job: bool(bench.beat(job).lost)) for job in held),
            lambda: bool(other.maintain(100)),
        ]
    )
    lost = dict(zip(ids(held), replies, strict=False))
    for job in jobs:
        wanted = JobState.PENDING if lost[job.id] else JobState.RUNNING
        equal(bench.state(job), wanted, f"the state of a job whose worker was told lost={lost[job.id]}")


def check_lonely_after_lost_leases(bench: LedgerBench) -> None:
    """Two lost workers make a job one that is given out by itself, as two crashes do."""
    job = bench.submit(attempts_max=9)
    for _ in range(2):
        bench.until_due(job)
        bench.lose(bench.claim_one())
    bench.until_due(job)
    bench.submit()
    answers = [ids(bench.claim(5)) for _ in range(2)]
    true([job.id] in answers, f"a job that lost two workers came with others, or not at all: {answers}")


def check_failing_after_a_lost_lease(bench: LedgerBench) -> None:
    """Lost and failed attempts count together."""
    job = bench.running(attempts_max=2)
    bench.lose(job)
    bench.until_due(job)
    last: Job = bench.claim_one()
    bench.settle(last, Failed(OOPS, retry_ms=0))
    after = bench.now(job)
    equal(
        (after.state, after.failure),
        (JobState.FAILED, OOPS),
        "the state and failure after a lost and a failed attempt",
    )
    equal(bench.events(job), [HistoryEvent.LEASE_LOST, HistoryEvent.ATTEMPT_FAILED], "its history")


UPKEEP_CHECKS = (
    check_lost_leases,
    check_delay_after_lost_leases_grows,
    check_last_lost_lease,
    check_lost_lease_of_cancelled_jobs,
    check_live_leases_are_left_alone,
    check_expiring,
    check_waking,
    check_maintaining_twice,
    check_maintaining_in_parts,
    check_maintenance_storm,
    check_beats_against_maintenance,
    check_lonely_after_lost_leases,
    check_failing_after_a_lost_lease,
)
