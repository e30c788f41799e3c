"""Checks of the counters: each event of a job is counted once, with its duration, and for ever."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from headrace.core.errors import HeadraceError
from headrace.jobs.counters import (
    ARRIVALS,
    ENDS,
    GROUPS_MAX,
    OTHER,
    RELEASED,
    CountedEvent,
    JobCount,
    JobGroup,
    histogram_of,
)
from headrace.jobs.job import Cancelled, Expired, Failed, JobFailure, NewJob, Released, Settlement
from headrace.jobs.ledger import ClaimRequest, JobFilter, QueueSettings
from headrace.jobs.state import Cause, JobState
from headrace.testing.expect import equal, true
from headrace.testing.job_checks.bench import (
    LEASE_MS,
    OOPS,
    THREADS,
    LedgerBench,
    done,
    run_concurrently,
)

_RACE_JOBS = 48


def check_counted_ends(bench: LedgerBench) -> None:
    """Check that the end of a job is counted once by its state, with the cause of a failure."""
    for state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED):
        bench.submit_ended(state)
    oom = JobFailure(Cause.OOM, "the memory was exhausted")
    for outcome in (Failed(oom), Cancelled(), Expired(), Failed(OOPS, retry_ms=None)):
        bench.settle(bench.submit_running(), outcome)
    equal(
        _jobs_by_cause(bench.ledger.counters(), ENDS),
        {
            ("completed", ""): 1,
            ("failed", "model"): 2,
            ("failed", "oom"): 1,
            ("cancelled", ""): 2,
            ("expired", ""): 2,
        },
        "the counted ends",
    )
    _expect_balance(bench, "jobs that ended")


def check_counted_attempts(bench: LedgerBench) -> None:
    """Check that each start and each end of an attempt is counted, a retry with its cause."""
    job = bench.submit(attempts_max=9)
    for outcome in (Failed(OOPS, retry_ms=0), Released(), Failed(OOPS, retry_ms=0, counted=False)):
        bench.settle(bench.claim_one(), outcome)
    bench.claim_one()
    bench.expire_lease(job)
    bench.advance_until_due(job)
    stale = bench.claim_one()
    bench.settle(stale, done())
    bench.settle(stale, done())
    counts = bench.ledger.counters()
    equal(
        _jobs_by_cause(counts, [CountedEvent.RETRIED]),
        {("retried", "model"): 2, ("retried", RELEASED): 1, ("retried", "worker_lost"): 1},
        "the counted retries",
    )
    equal(_jobs(counts, CountedEvent.STARTED), 5, "the counted starts")
    equal(_jobs(counts, CountedEvent.FINISHED), 1, "the counted last attempts")
    _expect_balance(bench, "an attempt that was settled twice")


def check_counted_durations(bench: LedgerBench) -> None:
    """Check that waits count from the due time to the claim, and run times from there to the end."""
    bench.submit(delay_ms=2_000)
    bench.advance(2_700)
    job = bench.claim_one()
    bench.advance(60_000)
    bench.settle(job, Failed(OOPS, retry_ms=1_000))
    bench.advance(1_025)
    job = bench.claim_one()
    bench.advance(86_400_001)
    bench.settle(job, done())
    bench.submit()
    bench.advance(900)
    job = bench.claim_one()
    bench.advance(59_000)
    bench.settle(job, done())
    counts = bench.ledger.counters()
    waits = histogram_of(count for count in counts if count.event is CountedEvent.STARTED)
    equal(waits.total, 1.625, "the sum of waits of 0.7, 0.025 and 0.9 s")
    equal(waits.counts, (1, 0, 0, 2, *(0,) * 9), "their buckets")
    ended = (CountedEvent.RETRIED, CountedEvent.FINISHED)
    runs = histogram_of(count for count in counts if count.event in ended)
    equal(runs.total, 86_519.001, "the sum of run times of 60 s, of a day and a millisecond, and of 59 s")
    equal(runs.counts, (*(0,) * 6, 2, *(0,) * 5, 1), "their buckets")


def check_counted_publications(bench: LedgerBench) -> None:
    """Check that a published job ends with its publication, and its attempt before that."""
    failed = bench.submit_ended(JobState.PUBLISH_FAILED)
    equal(bench.ledger.republish(failed.id).state, JobState.PUBLISHING, "the state of a republished job")
    job = bench.submit_running(output_uri="memory://out/")
    bench.settle(job, done())
    for each in (failed, job, job):
        bench.ledger.mark_published(each.id, each.lease, "memory://out/x.out")
    unpublished = bench.submit_ended(JobState.FAILED, output_uri="memory://out/")
    bench.ledger.mark_published(unpublished.id, unpublished.lease, "memory://out/y.error")
    counts = bench.ledger.counters()
    equal(
        _jobs_by_cause(counts, ENDS),
        {("completed", ""): 2, ("publish_failed", "model"): 1, ("failed", "model"): 1},
        "the counted ends",
    )
    equal(_jobs(counts, CountedEvent.REPUBLISHED), 1, "the counted repetitions of a publication")
    equal(_jobs(counts, CountedEvent.FINISHED), 3, "the counted last attempts")
    _expect_balance(bench, "publications")


def check_counted_arrivals(bench: LedgerBench) -> None:
    """Check that a job is counted once when it is created, again with each requeue, and not if refused."""
    new = NewJob(model="m", idempotency_key="key", body_digest="d")
    for each in ([new, new], [new]):
        bench.ledger.submit(each)
    bench.ledger.set_queue(QueueSettings("closed", draining=True))
    output = NewJob(model="m", output_uri="memory://out/", key="k", body_digest="d")
    bench.ledger.submit([NewJob(queue="closed"), output, output])
    job = bench.submit_ended(JobState.CANCELLED)
    bench.ledger.requeue(job.id)
    try:
        bench.ledger.requeue(job.id)
    except HeadraceError:
        counts = bench.ledger.counters()
    else:
        raise AssertionError("a pending job was requeued")
    equal(_jobs(counts, CountedEvent.SUBMITTED), 3, "the counted submissions")
    equal(_jobs(counts, CountedEvent.REQUEUED), 1, "the counted requeues")
    _expect_balance(bench, "refused submissions")


def check_counted_groups(bench: LedgerBench) -> None:
    """Check that jobs are counted by queue, model and tenant, in all ledgers and after their deletion."""
    groups = [
        JobGroup("a", "m", "t"),
        JobGroup("a", "m", "u"),
        JobGroup("a", "m@2", "t"),
        JobGroup("b", "m", "t"),
    ]
    other = bench.start_ledger()
    for number, group in enumerate(groups, 1):
        other.submit([NewJob(**group._asdict())] * number)
    wanted = {group: number for number, group in enumerate(groups, 1)}
    equal(_jobs_by_group(bench.ledger.counters()), wanted, "the submissions of each group")
    for job in bench.claim(4, queues=["b"]):
        bench.settle(job, done())
        bench.ledger.delete(job.id)
    bench.ledger.delete_queue("b")
    bench.ledger.stop()
    again = bench.start_ledger()
    equal(_jobs_by_group(again.counters()), wanted, "the submissions after a deletion and a restart")
    equal(_jobs(again.counters(), CountedEvent.COMPLETED), 4, "the counted ends of deleted jobs")


def check_limit_of_counted_groups(bench: LedgerBench) -> None:
    """Check that the number of groups is limited, also across restarts, and no job is left out."""
    names = [f"x-{number}" for number in range(GROUPS_MAX // 2)]
    many = [NewJob("m", tenant=name) for name in names]
    for news in (many, [replace(new, tenant=f"{new.tenant}-y") for new in many], [NewJob(n) for n in names]):
        ledger = bench.start_ledger()
        ledger.submit(news)
        ledger.stop()
    found = _jobs_by_group(bench.ledger.counters())
    equal(sum(found.values()), 3 * len(names), "the counted submissions of many groups")
    true(len(found) <= GROUPS_MAX + 1, f"{len(found)} groups are counted, the limit is {GROUPS_MAX}")
    true(JobGroup("default", "m", OTHER) in found, "no group has all further tenants")
    true(JobGroup(OTHER, OTHER, OTHER) in found, "no group has all further models")


def check_counting_race(bench: LedgerBench) -> None:
    """Check that concurrent workers count every event exactly once."""
    bench.submit_many(_RACE_JOBS)
    ledgers = [bench.ledger, bench.start_ledger()]

    def work(number: int) -> None:
        ledger = ledgers[number % 2]
        request = ClaimRequest(f"w-{number}", ("default",), 1, LEASE_MS)
        held = ledger.settle_and_claim([], request).claimed
        while held:
            outcomes = [Failed(OOPS, retry_ms=0) if job.attempt == 1 else done() for job in held]
            settlements = [Settlement(job.id, job.lease, o) for job, o in zip(held, outcomes, strict=True)]
            held = ledger.settle_and_claim(settlements, request).claimed

    run_concurrently([lambda n=n: work(n) for n in range(THREADS)])
    for job in bench.claim(_RACE_JOBS):
        bench.settle(job, done())
    counts = bench.ledger.counters()
    for event, wanted in (
        (CountedEvent.SUBMITTED, _RACE_JOBS),
        (CountedEvent.STARTED, 2 * _RACE_JOBS),
        (CountedEvent.RETRIED, _RACE_JOBS),
        (CountedEvent.COMPLETED, _RACE_JOBS),
    ):
        equal(_jobs(counts, event), wanted, f"the number of {event.value} jobs")


def _jobs(counts: Sequence[JobCount], *events: CountedEvent) -> int:
    return sum(count.jobs for count in counts if count.event in events)


def _jobs_by_cause(counts: Sequence[JobCount], events: Sequence[CountedEvent]) -> dict[tuple[str, str], int]:
    found: Counter[tuple[str, str]] = Counter()
    for count in counts:
        if count.event in events:
            found[count.event.value, count.cause] += count.jobs
    return dict(found)


def _jobs_by_group(counts: Sequence[JobCount]) -> dict[JobGroup, int]:
    found: Counter[JobGroup] = Counter()
    for count in counts:
        if count.event is CountedEvent.SUBMITTED:
            found[count.group] += count.jobs
    return dict(found)


def _expect_balance(bench: LedgerBench, after: str) -> None:
    """Check the two equations of `headrace.jobs.counters`."""
    counts = bench.ledger.counters()
    jobs = bench.ledger.find(JobFilter(), limit=1_000).jobs
    unfinished = sum(not job.state.ended for job in jobs)
    equal(_jobs(counts, *ARRIVALS), unfinished + _jobs(counts, *ENDS), f"the counted arrivals after {after}")
    running = sum(job.state is JobState.RUNNING for job in jobs)
    ended = _jobs(counts, CountedEvent.RETRIED, CountedEvent.FINISHED)
    equal(_jobs(counts, CountedEvent.STARTED), running + ended, f"the counted starts after {after}")
