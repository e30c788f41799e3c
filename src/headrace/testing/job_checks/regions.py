"""Checks of regions: a worker's own region first, other regions last and only on request."""

from headrace.jobs.job import Failed, Job, Released
from headrace.jobs.ledger import ClaimRequest, QueueSettings, SettleAndClaimReply
from headrace.testing.expect import equal, true
from headrace.testing.job_checks.bench import LEASE_MS, OOPS, THREADS, LedgerBench, ids, run_concurrently

_EAST, _WEST = "eu-east", "eu-west"
_RACE_JOBS = 60


def _claim(
    bench: LedgerBench,
    jobs_max: int,
    region: str,
    *,
    others: bool = False,
    queues: tuple[str, ...] = ("default",),
) -> SettleAndClaimReply:
    return bench.ledger.settle_and_claim(
        [], ClaimRequest("w", queues, jobs_max, LEASE_MS, region, other_regions=others)
    )


def check_region_is_kept(bench: LedgerBench) -> None:
    """Check that a job keeps its region for good.

    It records the region of the worker of its last claim.
    """
    job = bench.submit(region=_EAST)
    equal((job.spec.region, job.worker_region), (_EAST, ""), "a new job's region, and its worker's")
    (claimed,) = _claim(bench, 1, _WEST, others=True).claimed
    for seen in (claimed, bench.reload(job)):
        equal(
            (seen.spec.region, seen.worker_region), (_EAST, _WEST), "a claimed job's region, and its worker's"
        )
    bench.settle(claimed, Failed(OOPS, retry_ms=0))
    equal(bench.reload(job).worker_region, _WEST, "the region of the last attempt")
    bench.claim_one()
    equal(bench.reload(job).worker_region, "", "the region of a worker without one")


def check_own_region_first(bench: LedgerBench) -> None:
    """Check that a worker receives only jobs of its region and jobs without one.

    They are claimed in the order of the queue.
    """
    remote = bench.submit(region=_WEST, priority=0)
    last = bench.submit(region=_EAST, priority=7)
    first = bench.submit(priority=3)
    middle = bench.submit(region=_EAST, priority=5)
    reply = _claim(bench, 5, _EAST)
    equal(ids(reply.claimed), [first.id, middle.id, last.id], "the claimed jobs of a worker with a region")
    equal(reply.due_in_ms, None, "due_in_ms with only another region's job pending")
    equal(ids(bench.claim(5)), [remote.id], "the remaining jobs for a worker without a region")


def check_worker_without_region(bench: LedgerBench) -> None:
    """Check that a worker without a region receives all jobs, in the order of the queue."""
    jobs = [bench.submit(region=region, priority=n) for n, region in enumerate((_WEST, "", _EAST))]
    equal(ids(bench.claim(5)), ids(jobs), "the claimed jobs of a worker without a region")


def check_other_regions_last(bench: LedgerBench) -> None:
    """Check that jobs of other regions are claimed only if no queue has another job.

    They are claimed in the order of the queues.
    """
    remote = [bench.submit(region=_WEST, queue="a", priority=n) for n in (1, 0)]
    own = bench.submit(region=_EAST, queue="b", priority=9)
    remote.append(bench.submit(region="us", queue="b", priority=0))
    reply = _claim(bench, 5, _EAST, others=True, queues=("a", "b"))
    equal(ids(reply.claimed), [own.id], "the claimed jobs, with one of its own region in the last queue")
    reply = _claim(bench, 2, _EAST, others=True, queues=("a", "b"))
    equal(ids(reply.claimed), [remote[1].id, remote[0].id], "the claimed jobs, with none of its own region")
    equal(
        _claim(bench, 5, _EAST, queues=("a", "b")).claimed, (), "other regions' jobs without `other_regions`"
    )
    reply = _claim(bench, 5, _EAST, others=True, queues=("a", "b"))
    equal(ids(reply.claimed), [remote[2].id], "the last job of another region")


def check_due_time_by_region(bench: LedgerBench) -> None:
    """Check that the time until the next job is due counts only jobs that the worker may claim."""
    remote = bench.submit(region=_WEST, delay_ms=1_000)
    own = bench.submit(region=_EAST, delay_ms=3_000)
    anywhere = bench.submit(delay_ms=4_000)
    equal(_claim(bench, 1, _EAST).due_in_ms, 3_000, "due_in_ms of its own region")
    equal(_claim(bench, 1, _EAST, others=True).due_in_ms, 1_000, "due_in_ms of all regions")
    bench.advance(3_000)
    reply = _claim(bench, 5, _EAST)
    equal(ids(reply.claimed), [own.id], "the claimed jobs at the due time of its own")
    equal(reply.due_in_ms, 1_000, "due_in_ms of the job without a region")
    bench.advance(1_000)
    equal(
        ids(_claim(bench, 5, _EAST, others=True).claimed), [anywhere.id], "the claimed job without a region"
    )
    equal(ids(_claim(bench, 5, _EAST, others=True).claimed), [remote.id], "the claimed job of another region")


def check_regions_in_paused_queues(bench: LedgerBench) -> None:
    """Check that a paused queue returns no job and no due time for any region."""
    bench.submit(region=_EAST)
    bench.submit(region=_WEST)
    bench.ledger.set_queue(QueueSettings("default", paused=True))
    for others in (False, True):
        reply = _claim(bench, 5, _EAST, others=others)
        equal((reply.claimed, reply.due_in_ms), ((), None), "the reply of a paused queue")


def check_crashing_job_runs_alone_in_region(bench: LedgerBench) -> None:
    """Check that a job that must run alone does so in its region.

    Jobs of other regions do not delay it.
    """
    lonely: list[Job] = []
    for region in (_WEST, _EAST):
        lonely.append(bench.submit(region=region, attempts_max=9, priority=4))
        for _ in range(2):
            (job,) = _claim(bench, 1, region).claimed
            bench.settle(job, Failed(OOPS, retry_ms=0, crashed=True))
    own = bench.submit(region=_EAST, priority=1)
    other = bench.submit(region=_EAST, queue="b")
    claims = [ids(_claim(bench, 5, _EAST, queues=("default", "b")).claimed) for _ in range(4)]
    equal(
        claims,
        [[own.id], [lonely[1].id], [other.id], []],
        "the claims of a worker with a region, in order",
    )


def check_released_jobs_keep_their_region(bench: LedgerBench) -> None:
    """Check that a released job is claimed again by workers of its own region."""
    job = bench.submit(region=_WEST)
    (claimed,) = _claim(bench, 1, _EAST, others=True).claimed
    bench.settle(claimed, Released())
    equal(_claim(bench, 1, _EAST).claimed, (), "the claimed jobs of another region's worker")
    equal(ids(_claim(bench, 1, _WEST).claimed), [job.id], "the claimed jobs of its region's worker")


def check_counts_by_region(bench: LedgerBench) -> None:
    """Check that counts have the due jobs of each region of a queue.

    Delayed and running jobs and other queues do not count.
    """
    bench.submit_many(2, region=_EAST)
    bench.submit(region=_WEST, delay_ms=10)
    bench.submit(region="us", delay_ms=60_000)
    bench.submit(region=_WEST, queue="other")
    bench.submit(priority=9)
    bench.advance(10)
    counts = bench.ledger.counts("default")
    equal((counts.due, dict(counts.due_by_region)), (4, {_EAST: 2, _WEST: 1}), "due jobs, and by region")
    bench.maintain()
    equal(len(_claim(bench, 1, _EAST).claimed), 1, "the number of claimed jobs")
    equal(
        dict(bench.ledger.counts("default").due_by_region),
        {_EAST: 1, _WEST: 1},
        "due jobs by region afterwards",
    )


def check_region_race(bench: LedgerBench) -> None:
    """Check that concurrent workers with and without a region claim every job exactly once.

    No worker receives a job of a region that it may not take.
    """
    for region in (_EAST, _WEST, ""):
        bench.submit_many(_RACE_JOBS // 3, region=region)
    ledgers = (bench.ledger, bench.start_ledger())
    regions = (_EAST, _WEST, "")

    def work(number: int) -> list[tuple[str, str, str]]:
        taken: list[tuple[str, str, str]] = []
        region = regions[number % 3]
        claim = ClaimRequest(f"w-{number}", ("default",), 1 + number % 4, LEASE_MS, region)
        while claimed := ledgers[number % 2].settle_and_claim([], claim).claimed:
            taken.extend((job.id, job.spec.region, region) for job in claimed)
        return taken

    shares = run_concurrently((lambda number=number: work(number)) for number in range(THREADS))
    claims = [one for share in shares for one in share]
    wrong = [one for one in claims if one[2] and one[1] not in ("", one[2])]
    true(not wrong, f"jobs of another region were claimed: {wrong}")
    total = [one[0] for one in claims] + ids(bench.claim(_RACE_JOBS))
    equal(
        (len(total), len(set(total))), (_RACE_JOBS, _RACE_JOBS), "the numbers of claims and of different jobs"
    )
