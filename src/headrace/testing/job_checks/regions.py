"""What regions promise: a worker's own first, others' only where it has nothing else and may, and nobody's for everybody."""

from headrace.jobs.job import Failed, Job, Released
from headrace.jobs.ledger import ClaimRequest, QueueSettings, Turn
from headrace.testing.expect import equal, true
from headrace.testing.job_checks.bench import LEASE_MS, OOPS, THREADS, LedgerBench, at_once, ids

_EAST, _WEST = "eu-east", "eu-west"
_RACE_JOBS = 60


def _turn(
    bench: LedgerBench,
    room: int,
    region: str,
    *,
    others: bool = False,
    queues: tuple[str, ...] = ("default",),
) -> Turn:
    return bench.ledger.turn([], ClaimRequest("w", queues, room, LEASE_MS, region, other_regions=others))


def check_region_is_kept(bench: LedgerBench) -> None:
    """A job keeps its region for good; it tells where the worker of its last claim is, as far as that has said so."""
    job = bench.submit(region=_EAST)
    equal((job.spec.region, job.worker_region), (_EAST, ""), "a new job's region, and its worker's")
    (claimed,) = _turn(bench, 1, _WEST, others=True).claimed
    for seen in (claimed, bench.now(job)):
        equal(
            (seen.spec.region, seen.worker_region), (_EAST, _WEST), "a claimed job's region, and its worker's"
        )
    bench.settle(claimed, Failed(OOPS, retry_ms=0))
    equal(bench.now(job).worker_region, _WEST, "where the last attempt was made")
    bench.claim_one()
    equal(bench.now(job).worker_region, "", "where a worker is that did not say")


def check_own_region_first(bench: LedgerBench) -> None:
    """A worker takes its own region's jobs and those of none, in the order of the queue, and leaves others' alone."""
    far = bench.submit(region=_WEST, priority=0)
    last = bench.submit(region=_EAST, priority=7)
    first = bench.submit(priority=3)
    middle = bench.submit(region=_EAST, priority=5)
    turn = _turn(bench, 5, _EAST)
    equal(ids(turn.claimed), [first.id, middle.id, last.id], "what a worker with a region is given")
    equal(turn.due_in_ms, None, "when the next job is due for it, where only another region's waits")
    equal(ids(bench.claim(5)), [far.id], "what is left for a worker that has no region")


def check_every_region_without_one(bench: LedgerBench) -> None:
    """A worker without a region takes all jobs in the order of the queue, wherever their data lives."""
    jobs = [bench.submit(region=region, priority=n) for n, region in enumerate((_WEST, "", _EAST))]
    equal(ids(bench.claim(5)), ids(jobs), "what a worker without a region is given")


def check_other_regions_last(bench: LedgerBench) -> None:
    """Others' jobs come only where no queue has one of its own or of none, and then in the order of the queues."""
    far = [bench.submit(region=_WEST, queue="a", priority=n) for n in (1, 0)]
    own = bench.submit(region=_EAST, queue="b", priority=9)
    far.append(bench.submit(region="us", queue="b", priority=0))
    turn = _turn(bench, 5, _EAST, others=True, queues=("a", "b"))
    equal(ids(turn.claimed), [own.id], "what is given out where one of its own waits in the last queue")
    turn = _turn(bench, 2, _EAST, others=True, queues=("a", "b"))
    equal(ids(turn.claimed), [far[1].id, far[0].id], "what is given out where none of its own waits")
    equal(_turn(bench, 5, _EAST, queues=("a", "b")).claimed, (), "others' jobs for a worker that may not")
    turn = _turn(bench, 5, _EAST, others=True, queues=("a", "b"))
    equal(ids(turn.claimed), [far[2].id], "the last of the others'")


def check_regions_that_sleep(bench: LedgerBench) -> None:
    """Of sleeping jobs those that it may take decide when a worker is told to come back, and they come when they are due."""
    far = bench.submit(region=_WEST, delay_ms=1_000)
    own = bench.submit(region=_EAST, delay_ms=3_000)
    anywhere = bench.submit(delay_ms=4_000)
    equal(_turn(bench, 1, _EAST).due_in_ms, 3_000, "how long until the next of its own")
    equal(_turn(bench, 1, _EAST, others=True).due_in_ms, 1_000, "how long until the next of all")
    bench.later(3_000)
    turn = _turn(bench, 5, _EAST)
    equal(ids(turn.claimed), [own.id], "what is given out when its own is due")
    equal(turn.due_in_ms, 1_000, "how long until the one without a region")
    bench.later(1_000)
    equal(ids(_turn(bench, 5, _EAST, others=True).claimed), [anywhere.id], "what is due, without a region")
    equal(ids(_turn(bench, 5, _EAST, others=True).claimed), [far.id], "what is due elsewhere")


def check_regions_in_paused_queues(bench: LedgerBench) -> None:
    """A paused queue gives out nothing for any region, and nothing of it is to come."""
    bench.submit(region=_EAST)
    bench.submit(region=_WEST)
    bench.ledger.set_queue(QueueSettings("default", paused=True))
    for others in (False, True):
        turn = _turn(bench, 5, _EAST, others=others)
        equal((turn.claimed, turn.due_in_ms), ((), None), "what a paused queue gives out")


def check_lonely_jobs_of_regions(bench: LedgerBench) -> None:
    """A job that must be alone is so for a worker with a region, and none of another region's keeps it waiting."""
    lonely: list[Job] = []
    for region in (_WEST, _EAST):
        lonely.append(bench.submit(region=region, attempts_max=9, priority=4))
        for _ in range(2):
            (job,) = _turn(bench, 1, region).claimed
            bench.settle(job, Failed(OOPS, retry_ms=0, crashed=True))
    own = bench.submit(region=_EAST, priority=1)
    other = bench.submit(region=_EAST, queue="b")
    answers = [ids(_turn(bench, 5, _EAST, queues=("default", "b")).claimed) for _ in range(4)]
    equal(
        answers,
        [[own.id], [lonely[1].id], [other.id], []],
        "what a worker with a region is given, turn by turn",
    )


def check_released_jobs_keep_their_region(bench: LedgerBench) -> None:
    """A job that is given back goes to its own region's workers again."""
    job = bench.submit(region=_WEST)
    (claimed,) = _turn(bench, 1, _EAST, others=True).claimed
    bench.settle(claimed, Released())
    equal(_turn(bench, 1, _EAST).claimed, (), "what is given out elsewhere")
    equal(ids(_turn(bench, 1, _WEST).claimed), [job.id], "what is given out in its region")


def check_counts_by_region(bench: LedgerBench) -> None:
    """Counts tell how many jobs of each region are due in a queue; sleeping, running and other queues' are not among them."""
    bench.submit_many(2, region=_EAST)
    bench.submit(region=_WEST, delay_ms=10)
    bench.submit(region="us", delay_ms=60_000)
    bench.submit(region=_WEST, queue="other")
    bench.submit(priority=9)
    bench.later(10)
    counts = bench.ledger.counts("default")
    equal((counts.due, dict(counts.due_by_region)), (4, {_EAST: 2, _WEST: 1}), "due jobs, and by region")
    bench.upkeep()
    equal(len(_turn(bench, 1, _EAST).claimed), 1, "jobs given out")
    equal(dict(bench.ledger.counts("default").due_by_region), {_EAST: 1, _WEST: 1}, "due jobs by region then")


def check_region_race(bench: LedgerBench) -> None:
    """Workers of two regions and of none at once: every job is given out once, and those that may not take no others'."""
    for region in (_EAST, _WEST, ""):
        bench.submit_many(_RACE_JOBS // 3, region=region)
    ledgers = (bench.ledger, bench.another())
    regions = (_EAST, _WEST, "")

    def work(number: int) -> list[tuple[str, str, str]]:
        got: list[tuple[str, str, str]] = []
        region = regions[number % 3]
        claim = ClaimRequest(f"w-{number}", ("default",), 1 + number % 4, LEASE_MS, region)
        while claimed := ledgers[number % 2].turn([], claim).claimed:
            got.extend((job.id, job.spec.region, region) for job in claimed)
        return got

    shares = at_once((lambda number=number: work(number)) for number in range(THREADS))
    given = [one for share in shares for one in share]
    wrong = [one for one in given if one[2] and one[1] not in ("", one[2])]
    true(not wrong, f"jobs of another region were given out: {wrong}")
    total = [one[0] for one in given] + ids(bench.claim(_RACE_JOBS))
    equal((len(total), len(set(total))), (_RACE_JOBS, _RACE_JOBS), "jobs given out, and different ones")


REGION_CHECKS = (
    check_region_is_kept,
    check_own_region_first,
    check_every_region_without_one,
    check_other_regions_last,
    check_regions_that_sleep,
    check_regions_in_paused_queues,
    check_lonely_jobs_of_regions,
    check_released_jobs_keep_their_region,
    check_counts_by_region,
    check_region_race,
)
