"""What claiming promises: the order of jobs, what is held back, and that nothing is given out twice."""

from itertools import chain
from typing import Final

from headrace.jobs.job import Failed, Job, NewJob, Released, Settlement
from headrace.jobs.ledger import ClaimRequest, JobLedger, QueueSettings
from headrace.jobs.state import JobState
from headrace.testing.expect import equal, true
from headrace.testing.job_checks.bench import LEASE_MS, OOPS, THREADS, LedgerBench, at_once, done, ids

_RACE_JOBS: Final = 120


def check_claim(bench: LedgerBench) -> None:
    """A claimed job runs under lease 1, as attempt 1, in this worker's hands until the lease's end; nobody else gets it."""
    job = bench.submit()
    now_ms = bench.later(7)
    (claimed,) = bench.claim(3, worker="w-1")
    for seen in (claimed, bench.now(job)):
        equal((seen.id, seen.state), (job.id, JobState.RUNNING), "the claimed job")
        equal((seen.attempt, seen.lease, seen.worker), (1, 1, "w-1"), "its attempt, lease and worker")
        equal(
            (seen.started_at_ms, seen.lease_until_ms),
            (now_ms, now_ms + LEASE_MS),
            "its start and lease's end",
        )
        equal((seen.created_at_ms, seen.ended_at_ms), (job.created_at_ms, None), "its other times")
    equal(bench.claim(3, worker="w-2"), (), "what another worker is given")


def check_claim_order(bench: LedgerBench) -> None:
    """Jobs come by priority, then by due time, then by id; whichever was submitted first."""
    rows = ((0, 90, "9"), (4, 10, "7"), (4, 20, "1"), (4, 20, "2"), (4, 20, "8"), (9, 0, "0"))
    specs = [
        NewJob(id=f"01a3185c-5000-7849-aacf-f0401441a1c{digit}", priority=priority, delay_ms=delay_ms)
        for priority, delay_ms, digit in rows
    ]
    bench.ledger.submit([specs[n] for n in (4, 1, 5, 3, 0, 2)])
    bench.later(100)
    given = bench.claim(2) + bench.claim(3) + bench.claim(3)
    equal(ids(given), [spec.id for spec in specs], "the order in which jobs are given out")


def check_retried_jobs_queue_up_again(bench: LedgerBench) -> None:
    """What is tried again stands in line by its new due time, behind what was due before it."""
    first = bench.running()
    bench.settle(first, Failed(OOPS, retry_ms=50))
    second = bench.submit(delay_ms=40)
    bench.later(60)
    equal(ids(bench.claim(2)), [second.id, first.id], "the order of a new job and one that is tried again")


def check_queue_order(bench: LedgerBench) -> None:
    """Queues are asked in the order of the request, whatever their jobs' priorities; others are not touched."""
    last, first, other = (
        bench.submit(queue=name, priority=priority) for name, priority in (("a", 0), ("b", 9), ("c", 0))
    )
    equal(ids(bench.claim(1, queues=["b", "a"])), [first.id], "the job given out for a worker of b, then a")
    equal(ids(bench.claim(5, queues=["b", "a"])), [last.id], "what is left for a worker of b and a")
    equal(bench.state(other), JobState.PENDING, "the state of a job in a queue that was not asked")
    equal(bench.claim(5, queues=["unknown"]), (), "the jobs of an unknown queue")


def check_claims_are_bounded(bench: LedgerBench) -> None:
    """A worker gets no more than it has room for, and all that there is where there is less."""
    bench.submit_many(7)
    sizes = [len(bench.claim(jobs_max)) for jobs_max in (0, 1, 4, 4, 4)]
    equal(
        sizes,
        [0, 1, 4, 2, 0],
        "the number of jobs given out, of seven, to workers with room for 0, 1, 4, 4, 4",
    )


def check_future_jobs_sleep(bench: LedgerBench) -> None:
    """A job is given out no millisecond before it is due, then without further ado; the answer tells when that will be."""
    job = bench.submit(delay_ms=5_000)
    bench.submit(delay_ms=9_000)
    bench.submit(delay_ms=10, queue="other")
    claim = ClaimRequest("w", ("default",), 1, LEASE_MS)
    equal(bench.ledger.turn([], claim).due_in_ms, 5_000, "how long until the next job is due")
    bench.later(4_999)
    turn = bench.ledger.turn([], claim)
    equal((turn.claimed, turn.due_in_ms), ((), 1), "what is given out a millisecond before a job is due")
    bench.later(1)
    turn = bench.ledger.turn([], claim)
    equal(ids(turn.claimed), [job.id], "what is given out when a job is due")
    equal(turn.due_in_ms, None, "what a worker without room left is told of the next job")


def check_nothing_to_come(bench: LedgerBench) -> None:
    """Where no job waits, none is said to become due: running and ended ones are no work to wait for."""
    bench.running()
    bench.ended(JobState.COMPLETED)
    turn = bench.ledger.turn([], ClaimRequest("w", ("default",), 1, LEASE_MS))
    equal((turn.claimed, turn.due_in_ms), ((), None), "the answer where no job waits")
    equal(bench.ledger.turn([]).claimed, (), "what is given out to whoever does not ask")


def check_time_to_live(bench: LedgerBench) -> None:
    """A job that nobody began in its time to live is not given out, even before anybody expires it; a begun one is."""
    begun, late = (bench.submit(time_to_live_s=2.0, priority=priority) for priority in (1, 2))
    bench.later(1_999)
    equal(ids(bench.claim(1)), [begun.id], "what is given out within its time to live")
    bench.settle(bench.now(begun), Failed(OOPS, retry_ms=10))
    bench.later(3_000)
    turn = bench.ledger.turn([], ClaimRequest("w", ("default",), 5, LEASE_MS))
    equal(
        ids(turn.claimed),
        [begun.id],
        "what is given out after two jobs' time to live, one of them begun in time",
    )
    bench.upkeep()
    equal(bench.state(late), JobState.EXPIRED, "the state of a job that nobody began in time")
    equal(bench.state(begun), JobState.RUNNING, "the state of a job that was begun in time")


def check_deadline_of_pending_jobs(bench: LedgerBench) -> None:
    """After its deadline a job is not given out, whether it was begun before or not."""
    new, begun = bench.submit(deadline_s=2.0), bench.submit(deadline_s=2.0, priority=0)
    bench.settle(bench.claim_one(), Failed(OOPS, retry_ms=10))
    bench.later(2_001)
    equal(bench.claim(5), (), "what is given out after its deadline")
    bench.upkeep()
    equal([bench.state(new), bench.state(begun)], [JobState.EXPIRED] * 2, "the states after the deadline")


def check_paused_queue(bench: LedgerBench) -> None:
    """A paused queue gives out nothing, takes jobs, and lets running ones finish; resumed, it goes on where it was."""
    running = bench.running(queue="q")
    bench.submit(queue="q")
    bench.ledger.set_queue(QueueSettings("q", paused=True))
    bench.submit(queue="q")
    other = bench.submit(queue="other")
    equal(ids(bench.claim(5, queues=["q", "other"])), [other.id], "what is given out while q is paused")
    true(bench.settle(running, done()), "a job of a paused queue cannot be finished")
    bench.ledger.set_queue(QueueSettings("q"))
    equal(len(bench.claim(5, queues=["q"])), 2, "the number of jobs given out after q was resumed")


def check_lonely_jobs(bench: LedgerBench) -> None:
    """A job that has cost two processes is the only one of an answer, and is neither lost nor passed over for ever."""
    poison = bench.submit(attempts_max=9)
    for _ in range(2):
        true(not bench.now(poison).alone, "a job is alone before it has cost two processes")
        bench.settle(bench.claim_one(), Failed(OOPS, retry_ms=0, crashed=True))
    equal(
        (bench.now(poison).crashes, bench.now(poison).alone),
        (2, True),
        "crashes, and whether it must be alone",
    )
    before, behind = bench.submit(priority=0), bench.submit(priority=9)
    answers = [ids(bench.claim(5)) for _ in range(3)]
    true([poison.id] in answers, f"a job that must be alone came with others, or not at all: {answers}")
    equal(sorted(chain(*answers)), sorted([before.id, poison.id, behind.id]), "all that was given out")
    equal(answers[0][0], before.id, "the first job given out")


def check_lonely_job_across_queues(bench: LedgerBench) -> None:
    """A job that must be alone comes by itself from the last queue asked as well as from the first."""
    poison = bench.submit(queue="b", attempts_max=9)
    for _ in range(2):
        bench.settle(bench.claim_one(queues=["b"]), Failed(OOPS, retry_ms=0, crashed=True))
    bench.submit(queue="a")
    bench.submit(queue="c")
    answers = [ids(bench.claim(5, queues=["a", "b", "c"])) for _ in range(3)]
    true([poison.id] in answers, f"a job that must be alone came with others, or not at all: {answers}")
    equal(sum(map(len, answers)), 3, "the number of jobs given out")


def check_claim_race(bench: LedgerBench) -> None:
    """Many workers at once, in two processes' ledgers: every job is given out once, with one lease; none is left."""
    bench.submit_many(_RACE_JOBS)
    ledgers = (bench.ledger, bench.another())

    def work(number: int) -> list[Job]:
        got: list[Job] = []
        claim = ClaimRequest(f"w-{number}", ("default",), 1 + number % 4, LEASE_MS)
        while claimed := ledgers[number % 2].turn([], claim).claimed:
            got.extend(claimed)
        return got

    shares = at_once((lambda number=number: work(number)) for number in range(THREADS))
    given = [job for share in shares for job in share]
    # A worker may leave when the rest was in others' hands for a moment: what is left then is given out now.
    given += bench.claim(_RACE_JOBS)
    equal((len(given), len(set(ids(given)))), (_RACE_JOBS, _RACE_JOBS), "jobs given out, and different ones")
    equal({job.lease for job in given}, {1}, "the leases")
    now = bench.ledger.get_many(ids(given))
    equal([now[job.id].worker for job in given], [job.worker for job in given], "whose the jobs are")


def check_fused_turns_race(bench: LedgerBench) -> None:
    """Workers that settle and claim in one turn, all at once: each job is completed once, and all are."""
    bench.submit_many(_RACE_JOBS)
    ledgers = (bench.ledger, bench.another())
    counts = at_once(
        (lambda number=number: _work_off(ledgers[number % 2], f"w-{number}")) for number in range(THREADS)
    )
    total = sum(counts) + _work_off(bench.ledger, "last")
    equal(total, _RACE_JOBS, "the number of completions that were accepted")
    equal(bench.ledger.counts("default").backlog, 0, "what is left to do")
    equal(bench.ledger.maintain(100).total, 0, "what is left to take back")


def _work_off(ledger: JobLedger, worker: str) -> int:
    turn = ledger.turn([], ClaimRequest(worker, ("default",), 3, LEASE_MS))
    total = 0
    while turn.claimed:
        settlements = [Settlement(job.id, job.lease, done()) for job in turn.claimed]
        turn = ledger.turn(settlements, ClaimRequest(worker, ("default",), 3, LEASE_MS))
        total += sum(turn.accepted)
    return total


def check_released_jobs_keep_their_place(bench: LedgerBench) -> None:
    """A job given back for later is given out when that time has come, not before."""
    job = bench.running()
    true(bench.settle(job, Released(delay_ms=300)), "a release was refused")
    bench.later(299)
    equal(bench.claim(5), (), "what is given out before a released job is due again")
    bench.later(1)
    equal(ids(bench.claim(5)), [job.id], "what is given out when a released job is due again")


CLAIMING_CHECKS = (
    check_claim,
    check_claim_order,
    check_retried_jobs_queue_up_again,
    check_queue_order,
    check_claims_are_bounded,
    check_future_jobs_sleep,
    check_nothing_to_come,
    check_time_to_live,
    check_deadline_of_pending_jobs,
    check_paused_queue,
    check_lonely_jobs,
    check_lonely_job_across_queues,
    check_claim_race,
    check_fused_turns_race,
    check_released_jobs_keep_their_place,
)
