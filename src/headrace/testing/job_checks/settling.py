"""What settling, beating and publishing promise: outcomes become states, and stale leases write nothing."""

from dataclasses import replace
from typing import Final

from headrace.jobs.job import (
    Cancelled,
    Completed,
    Expired,
    Failed,
    HistoryEvent,
    Job,
    NewJob,
    Outcome,
    Progress,
    Released,
    ResultRef,
    Settlement,
)
from headrace.jobs.ledger import Beat, ClaimRequest
from headrace.jobs.state import JobState
from headrace.testing.expect import equal, true
from headrace.testing.job_checks.bench import LEASE_MS, OOPS, THREADS, LedgerBench, at_once, done, ids

_NOBODY: Final[frozenset[str]] = frozenset()
_OUTCOMES: Final[tuple[Outcome, ...]] = (
    done("memory://box/stale"),
    Failed(OOPS),
    Failed(OOPS, retry_ms=0, crashed=True),
    Released({"stale": True}),
    Cancelled(),
    Expired(),
)


def check_completing(bench: LedgerBench) -> None:
    """A completed job has ended, with its result and when; it is not given out again, and no failure is left on it."""
    job = bench.running()
    bench.settle(job, Failed(OOPS, retry_ms=0))
    job = bench.claim_one()
    now_ms = bench.later(1_234)
    result = ResultRef("memory://box/out/1.out", 2**40, "application/json")
    true(bench.settle(job, Completed(result)), "the completion of a running job was refused")
    after = bench.now(job)
    equal((after.state, after.ended_at_ms), (JobState.COMPLETED, now_ms), "the state and when it ended")
    equal(
        (after.result, after.failure), (result, None), "its result, and what is left of a failure before it"
    )
    equal(
        (after.attempt, after.lease, after.lease_until_ms), (2, 2, None), "its attempt, lease and lease's end"
    )
    bench.later(10 * LEASE_MS)
    equal(bench.upkeep().total, 0, "what there is to take back of a completed job")
    equal(bench.claim(5), (), "what is given out of a completed job")


def check_publishing(bench: LedgerBench) -> None:
    """Where a completed job's result was published is noted for the lease that completed it, and for no other."""
    job = bench.running()
    publish = bench.ledger.published
    equal(publish(job.id, job.lease, "memory://x"), False, "publishing the result of what still runs")
    bench.settle(job, done("memory://box/1"))
    equal(publish(job.id, job.lease - 1, "memory://x"), False, "publishing for another lease")
    equal(publish("unknown", 1, "memory://x"), False, "publishing for an unknown job")
    equal(bench.now(job).result, done("memory://box/1").result, "the result after refused publishing")
    for _ in range(2):
        equal(
            publish(job.id, job.lease, "memory://box/K.out"),
            True,
            "publishing for the lease that completed it",
        )
    wanted = replace(done("memory://box/1").result, published_uri="memory://box/K.out")
    equal(bench.now(job).result, wanted, "the published result")
    bench.ledger.requeue(job.id)
    equal(publish(job.id, job.lease, "memory://x"), False, "publishing after the job was put back")
    failed = bench.ended(JobState.FAILED, queue="other")
    equal(publish(failed.id, failed.lease, "memory://x"), False, "publishing the result of a failed job")


def check_retrying(bench: LedgerBench) -> None:
    """A failed attempt that may be repeated is pending with its failure, due later; it counts, and the lease grows."""
    job = bench.running()
    now_ms = bench.later(100)
    bench.beat(job, cursor={"chunk": 3})
    true(bench.settle(job, Failed(OOPS, retry_ms=2_500)), "the failure of a running job was refused")
    after = bench.now(job)
    equal((after.state, after.due_at_ms), (JobState.PENDING, now_ms + 2_500), "the state, and when it is due")
    equal(
        (after.failure, after.ended_at_ms, after.lease_until_ms), (OOPS, None, None), "its failure and times"
    )
    equal((after.attempt, after.lease, after.crashes), (1, 1, 0), "its attempt, lease and crashes")
    bench.later(2_500)
    again = bench.claim_one(worker="w-2")
    equal((again.id, again.attempt, again.lease, again.worker), (job.id, 2, 2, "w-2"), "the second attempt")
    equal(again.cursor, {"chunk": 3}, "where the second attempt goes on")
    equal(again.started_at_ms, bench.clock.now_ms(), "when the second attempt was begun")


def check_failing_for_good(bench: LedgerBench) -> None:
    """A failure that another attempt would not cure ends the job, with attempts left, and says why."""
    job = bench.running()
    now_ms = bench.later(5)
    failure = replace(OOPS, uri="memory://box/K.error", message="línea 3: 日本")
    true(bench.settle(job, Failed(failure)), "the failure of a running job was refused")
    after = bench.now(job)
    equal((after.state, after.ended_at_ms), (JobState.FAILED, now_ms), "the state, and when it ended")
    equal((after.failure, after.result), (failure, None), "the failure and the result of a failed job")
    equal(
        (after.crashes, bench.events(job)), (0, [HistoryEvent.ATTEMPT_FAILED]), "its crashes and its history"
    )


def check_last_attempt(bench: LedgerBench) -> None:
    """The last attempt's failure ends the job, though it asked for another; no job is tried more often than it may be."""
    job = bench.submit(attempts_max=3)
    for attempt in (1, 2, 3):
        equal(bench.state(job), JobState.PENDING, f"the state before attempt {attempt} of 3")
        running = bench.claim_one()
        equal(running.attempt, attempt, "the attempt's number")
        true(bench.settle(running, Failed(OOPS, retry_ms=0)), "the failure of a running job was refused")
    equal(
        (bench.state(job), bench.now(job).failure),
        (JobState.FAILED, OOPS),
        "the state after three attempts of three",
    )
    equal(bench.claim(5), (), "what is given out after the last attempt")
    once = bench.running(attempts_max=1)
    bench.settle(once, Failed(OOPS, retry_ms=0))
    equal(bench.state(once), JobState.FAILED, "the state of a job of one attempt that failed")


def check_crashes_count(bench: LedgerBench) -> None:
    """A failure that took the model's process with it is counted as a crash, also where it ends the job."""
    job = bench.running(attempts_max=2)
    bench.settle(job, Failed(OOPS, retry_ms=0, crashed=True))
    equal(bench.now(job).crashes, 1, "the crashes after one")
    bench.settle(bench.claim_one(), Failed(OOPS, retry_ms=0))
    equal(
        (bench.state(job), bench.now(job).crashes),
        (JobState.FAILED, 1),
        "the state and crashes after a plain failure",
    )
    other = bench.running()
    bench.settle(other, Failed(OOPS, crashed=True))
    equal(bench.now(other).crashes, 1, "the crashes of a job that ended by one")


def check_releasing(bench: LedgerBench) -> None:
    """A job that is given back has lost no attempt, keeps its cursor, and is no failure; it can be for ever."""
    job = bench.submit(attempts_max=1)
    for lease in range(1, 5):
        running = bench.claim_one()
        equal((running.attempt, running.lease), (1, lease), "attempt and lease after as many releases")
        true(bench.settle(running, Released({"chunk": lease})), "the release of a running job was refused")
        after = bench.now(job)
        equal((after.state, after.attempt), (JobState.PENDING, 0), "state and attempts of a released job")
        equal((after.lease, after.crashes, after.failure), (lease, 0, None), "its lease, crashes and failure")
        equal(after.cursor, {"chunk": lease}, "its cursor")
        equal(after.due_at_ms, bench.clock.now_ms(), "when it is due")
    equal(bench.events(job), [HistoryEvent.RELEASED] * 4, "its history")
    running = bench.claim_one()
    equal(running.cursor, {"chunk": 4}, "where the next attempt goes on")
    bench.beat(running, cursor={"chunk": 9})
    bench.settle(running, Released())
    equal(bench.now(job).cursor, {"chunk": 9}, "the cursor after a release that says nothing of it")


def check_releasing_keeps_the_last_failure(bench: LedgerBench) -> None:
    """Released after an attempt that failed, a job still tells why that one did, and has used that one attempt."""
    job = bench.running()
    bench.settle(job, Failed(OOPS, retry_ms=0))
    bench.settle(bench.claim_one(), Released())
    equal(
        (bench.now(job).attempt, bench.now(job).failure),
        (1, OOPS),
        "attempts and failure after failing, and releasing",
    )


def check_ending_by_cancel_and_deadline(bench: LedgerBench) -> None:
    """What was stopped for a cancellation is cancelled; what was stopped for its deadline has expired."""
    stopped, overdue = bench.running(), bench.running(deadline_s=1.0)
    bench.ledger.cancel(stopped.id)
    now_ms = bench.later(1_001)
    true(bench.settle(stopped, Cancelled()) and bench.settle(overdue, Expired()), "an ending was refused")
    for job, state in ((stopped, JobState.CANCELLED), (overdue, JobState.EXPIRED)):
        after = bench.now(job)
        equal((after.state, after.ended_at_ms, after.result), (state, now_ms, None), "how and when it ended")


def check_settling_many(bench: LedgerBench) -> None:
    """Each settlement of a turn is answered at its place: of two for one lease the first counts, unknown ones do not."""
    bench.submit_many(3)
    one, two, three = bench.claim(3)
    turn = bench.ledger.turn(
        [
            Settlement("unknown", 1, done()),
            Settlement(two.id, two.lease, Failed(OOPS)),
            Settlement(one.id, one.lease, done()),
            Settlement(two.id, two.lease, done()),
            Settlement(three.id, three.lease + 1, done()),
        ]
    )
    equal(turn.accepted, (False, True, True, False, False), "which settlements counted")
    states = [bench.state(job) for job in (one, two, three)]
    equal(states, [JobState.COMPLETED, JobState.FAILED, JobState.RUNNING], "the states then")


def check_settling_and_claiming(bench: LedgerBench) -> None:
    """Settlements come before the claim of the same turn: what goes back at once can be given out in it."""
    job, other = bench.running(), bench.submit(priority=9)
    settlement = Settlement(job.id, job.lease, Failed(OOPS, retry_ms=0))
    turn = bench.ledger.turn([settlement], ClaimRequest("w-2", ("default",), 5, LEASE_MS))
    equal(
        (turn.accepted, ids(turn.claimed)), ((True,), [job.id, other.id]), "what was settled, and given out"
    )
    equal((turn.claimed[0].attempt, turn.claimed[0].lease), (2, 2), "the attempt and lease of what came back")
    again = bench.ledger.turn([settlement])
    equal(again.accepted, (False,), "the same settlement, after its answer was lost")


def check_beating(bench: LedgerBench) -> None:
    """A beat prolongs the lease from now on, and writes what the attempt tells; what it does not tell stays."""
    job = bench.running()
    bench.later(LEASE_MS - 1)
    progress, cursor = Progress(3, 10, "records", "warm"), {"chunk": 3, "etag": "ünï"}
    reply = bench.beat(job, progress=progress, cursor=cursor)
    equal((reply.lost, reply.cancel, reply.expired), (_NOBODY,) * 3, "the answer to a beat of a good lease")
    bench.later(LEASE_MS - 1)
    equal(bench.upkeep().total, 0, "what there is to take back while its worker beats")
    bench.beat(job)
    after = bench.now(job)
    equal(
        (after.progress, after.cursor),
        (progress, cursor),
        "progress and cursor after a beat that tells nothing",
    )
    equal(after.lease_until_ms, bench.clock.now_ms() + LEASE_MS, "the lease's end")
    bench.beat(job, progress=Progress(4))
    equal((bench.now(job).progress, bench.now(job).cursor), (Progress(4), cursor), "progress and cursor then")
    equal((bench.now(job).lease, bench.now(job).attempt), (1, 1), "lease and attempt after beating")


def check_beating_tells(bench: LedgerBench) -> None:
    """A beat's answer names the leases that are lost, to be cancelled, and over their deadline: each, and no others."""
    good, cancel, ended = (bench.running() for _ in range(3))
    overdue = bench.running(deadline_s=1.0)
    bench.ledger.cancel(cancel.id)
    bench.settle(ended, done())
    bench.later(1_001)
    beats = [Beat(job.id, job.lease) for job in (good, cancel, overdue, ended)] + [Beat("unknown", 1)]
    reply = bench.ledger.beat("w", beats, LEASE_MS)
    equal(reply.lost, frozenset({ended.id, "unknown"}), "the leases that are lost")
    equal(reply.cancel, frozenset({cancel.id}), "the jobs to be cancelled")
    equal(reply.expired, frozenset({overdue.id}), "the jobs over their deadline")
    until_ms = bench.clock.now_ms() + LEASE_MS
    equal(
        {bench.now(job).lease_until_ms for job in (good, cancel, overdue)},
        {until_ms},
        "the ends of their leases",
    )


def check_stale_leases(bench: LedgerBench) -> None:
    """A worker whose job was given to another writes nothing: no beat, no outcome of any kind, no published result."""
    for outcome in _OUTCOMES:
        zombie = bench.running(attempts_max=9)
        bench.lose(zombie)
        bench.until_due(zombie)
        owner = bench.claim_one(worker="w-2")
        equal(
            (owner.id, owner.lease), (zombie.id, zombie.lease + 1), "the job and lease of the second worker"
        )
        bench.beat(owner, progress=Progress(1), cursor={"mine": True})
        before, history = bench.now(owner), bench.ledger.history(owner.id)
        bench.later(1_000)
        equal(
            bench.beat(zombie, progress=Progress(9), cursor={"stale": True}).lost,
            {zombie.id},
            "what a zombie is told",
        )
        equal(bench.settle(zombie, outcome), False, f"a zombie's {type(outcome).__name__}")
        equal(
            bench.ledger.published(zombie.id, zombie.lease, "memory://x"),
            False,
            "a zombie's published result",
        )
        equal(bench.now(owner), before, f"the job after a zombie's {type(outcome).__name__}")
        equal(bench.ledger.history(owner.id), history, "its history")
        true(
            bench.settle(owner, done("memory://box/mine")),
            "the owner's completion was refused after a zombie's",
        )
        equal(
            bench.settle(zombie, outcome), False, f"a zombie's {type(outcome).__name__} after the job's end"
        )
        result = bench.now(owner).result
        equal(result and result.uri, "memory://box/mine", "the result after a zombie's outcome")


def check_leases_of_jobs_that_do_not_run(bench: LedgerBench) -> None:
    """The last lease writes nothing either once its job does not run: taken back, released, failed, ended."""
    prepared: list[Job] = []
    for outcome in (Failed(OOPS, retry_ms=99_000_000), Released(delay_ms=99_000_000), done(), Cancelled()):
        job = bench.running()
        bench.settle(job, outcome)
        prepared.append(job)
    lost = bench.running()
    bench.lose(lost)
    for job in (*prepared, lost):
        before = bench.now(job)
        for outcome in _OUTCOMES:
            equal(
                bench.settle(job, outcome), False, f"{type(outcome).__name__} for a {before.state.value} job"
            )
        equal(
            bench.beat(job, cursor={"stale": True}).lost,
            {job.id},
            "what is told to a beat for what does not run",
        )
        equal(bench.now(job), before, "the job after that")


def check_late_but_not_taken(bench: LedgerBench) -> None:
    """A lease that ran out is still the job's until somebody takes it back: its worker may beat, and may finish."""
    beats, ends = bench.running(), bench.running()
    bench.later(3 * LEASE_MS)
    equal(bench.beat(beats).lost, _NOBODY, "what is lost of a late lease that nobody took back")
    true(bench.settle(ends, done()), "a late completion was refused though nobody took the job back")
    equal(bench.upkeep().total, 0, "what there is to take back then")


def check_settling_race(bench: LedgerBench) -> None:
    """Of many settlements of one lease at once exactly one is accepted, and it is the one that stands."""
    ledgers = (bench.ledger, bench.another())
    for _ in range(5):
        job = bench.running()
        settlements = [Settlement(job.id, job.lease, done(f"memory://box/{n}")) for n in range(THREADS)]
        answers = at_once(
            (lambda n=n, s=s: ledgers[n % 2].turn([s]).accepted[0]) for n, s in enumerate(settlements)
        )
        equal(sum(answers), 1, "the number of accepted settlements of one lease")
        result = bench.now(job).result
        equal(result and result.uri, f"memory://box/{answers.index(True)}", "the result that stands")


def check_leases_only_grow(bench: LedgerBench) -> None:
    """Over failures, releases, losses and requeuing, each claim's lease is greater than all before it."""
    job, leases = bench.submit(attempts_max=99), list[int]()
    for outcome in (Failed(OOPS, retry_ms=0), Released(), None, done(), Failed(OOPS), Cancelled()):
        bench.until_due(job)
        claimed = bench.claim_one()
        leases.append(claimed.lease)
        if outcome is None:
            bench.lose(claimed)
        else:
            bench.settle(claimed, outcome)
        if bench.state(job).ended:
            bench.ledger.requeue(job.id)
    equal(leases, sorted(set(leases)), "the leases, in the order of claims")


def check_submitted_jobs_do_not_share(bench: LedgerBench) -> None:
    """What one job's attempt tells is not seen on another."""
    bench.ledger.submit([NewJob(model="a"), NewJob(model="b")])
    one, two = bench.claim(2)
    bench.beat(one, progress=Progress(1), cursor={"a": 1})
    bench.settle(one, Failed(OOPS))
    other = bench.now(two)
    equal((other.progress, other.cursor, other.failure), (None, None, None), "what is told of the other job")
    equal(bench.events(two), [], "the other job's history")


SETTLING_CHECKS = (
    check_completing,
    check_publishing,
    check_retrying,
    check_failing_for_good,
    check_last_attempt,
    check_crashes_count,
    check_releasing,
    check_releasing_keeps_the_last_failure,
    check_ending_by_cancel_and_deadline,
    check_settling_many,
    check_settling_and_claiming,
    check_beating,
    check_beating_tells,
    check_stale_leases,
    check_leases_of_jobs_that_do_not_run,
    check_late_but_not_taken,
    check_settling_race,
    check_leases_only_grow,
    check_submitted_jobs_do_not_share,
)
