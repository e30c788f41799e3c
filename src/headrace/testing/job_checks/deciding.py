"""What deciding by hand promises: cancelling, requeuing, deleting, and a history that tells of it."""

from collections.abc import Callable
from typing import Final

from headrace.core.errors import JobNotFoundError, JobStateError
from headrace.jobs.job import Cancelled, Failed, HistoryEvent, Job, NewJob, Outcome, Progress, Released
from headrace.jobs.ledger import ClaimRequest, JobLedger
from headrace.jobs.state import ENDED, JobState
from headrace.testing.expect import equal, raises, true
from headrace.testing.job_checks.bench import (
    LEASE_MS,
    OOPS,
    THREADS,
    LedgerBench,
    accepted,
    at_once,
    done,
    ids,
)

_RACE_ROUNDS: Final = 12


def check_cancelling_pending_jobs(bench: LedgerBench) -> None:
    """A pending job that is cancelled has ended, due or asleep, and is not given out; again does nothing."""
    for job in (bench.submit(), bench.submit(delay_ms=5_000)):
        now_ms = bench.later(10)
        answer = bench.ledger.cancel(job.id, by="anna")
        equal((answer.state, answer.ended_at_ms), (JobState.CANCELLED, now_ms), "the answer to cancelling")
        equal(bench.now(job), answer, "the job then")
        bench.later(10)
        equal(bench.ledger.cancel(job.id), answer, "the answer to cancelling again")
        (entry,) = bench.ledger.history(job.id)
        equal((entry.event, entry.by), (HistoryEvent.CANCEL_REQUESTED, "anna"), "its history")
    bench.later(9_000)
    equal(bench.claim(5), (), "what is given out of cancelled jobs")


def check_cancelling_running_jobs(bench: LedgerBench) -> None:
    """A running job goes on running until its worker, which is told by its beats, has stopped it; again does nothing."""
    job = bench.running()
    for _ in range(2):
        answer = bench.ledger.cancel(job.id, by="anna")
        equal((answer.state, answer.cancel_requested), (JobState.RUNNING, True), "the answer to cancelling")
    equal(bench.now(job).lease, job.lease, "the lease of a job that is to be cancelled")
    equal(bench.beat(job).cancel, frozenset({job.id}), "what its worker is told")
    equal(bench.beat(job).cancel, frozenset({job.id}), "what its worker is told again")
    true(bench.settle(job, Cancelled()), "the worker's answer was refused")
    equal(bench.state(job), JobState.CANCELLED, "the state then")
    equal(bench.ledger.cancel(job.id).state, JobState.CANCELLED, "the answer to cancelling it once more")


def check_cancelling_ended_jobs(bench: LedgerBench) -> None:
    """What has ended otherwise cannot be cancelled, and stays as it is; what there is not cannot be cancelled either."""
    for state in sorted(ENDED - {JobState.CANCELLED}):
        job = bench.ended(state)
        error = raises(
            JobStateError, lambda job=job: bench.ledger.cancel(job.id), f"cancelling a {state} job"
        )
        true(
            job.id in str(error) and state in str(error),
            f"the error says neither which job nor its state: {error}",
        )
        equal(bench.now(job), job, "the job after it was refused")
    raises(JobNotFoundError, lambda: bench.ledger.cancel("unknown"), "cancelling an unknown job")


def check_cancelled_jobs_may_still_end(bench: LedgerBench) -> None:
    """What is done, or failed for good, before the worker hears of the cancellation has ended so: the first end counts."""
    for outcome, state in ((done(), JobState.COMPLETED), (Failed(OOPS), JobState.FAILED)):
        job = bench.running()
        bench.ledger.cancel(job.id)
        true(
            bench.settle(job, outcome),
            f"{type(outcome).__name__} was refused for a job that is to be cancelled",
        )
        equal(bench.state(job), state, f"the state after {type(outcome).__name__}")
        raises(JobStateError, lambda job=job: bench.ledger.cancel(job.id), "cancelling what has ended")


def check_cancelled_jobs_are_not_tried_again(bench: LedgerBench) -> None:
    """An attempt of a job to be cancelled that fails, or is given back, is its last: the job is cancelled."""
    outcomes: tuple[Outcome, ...] = (
        Failed(OOPS, retry_ms=0),
        Failed(OOPS, 0, crashed=True),
        Released(),
        Released({"a": 1}),
    )
    for outcome in outcomes:
        job = bench.running()
        bench.ledger.cancel(job.id)
        true(
            bench.settle(job, outcome),
            f"{type(outcome).__name__} was refused for a job that is to be cancelled",
        )
        after = bench.now(job)
        equal((after.state, after.ended_at_ms), (JobState.CANCELLED, bench.clock.now_ms()), "the state then")
    equal(bench.claim(9), (), "what is given out of cancelled jobs")


def check_cancelling_against_claiming(bench: LedgerBench) -> None:
    """A cancellation and a claim at once: cancelled and not given out, or running and to be cancelled; nothing between."""
    other = bench.another()
    for _ in range(_RACE_ROUNDS):
        job = bench.submit()
        answers = at_once([lambda job=job: bench.ledger.cancel(job.id), lambda: _claimed(other)])
        after, given = bench.now(job), answers[1]
        if given is None:
            equal(after.state, JobState.CANCELLED, "the state of a job that was not given out")
            continue
        equal((after.state, after.cancel_requested), (JobState.RUNNING, True), "a job that was given out")
        equal(bench.beat(given).cancel, frozenset({job.id}), "what its worker is told")
        true(bench.settle(given, Cancelled()), "its worker's answer was refused")


def _claimed(ledger: JobLedger) -> Job | None:
    claimed = ledger.turn([], ClaimRequest("w", ("default",), 1, LEASE_MS)).claimed
    return claimed[0] if claimed else None


def check_cancelling_against_settling(bench: LedgerBench) -> None:
    """A cancellation and an outcome at once: the job ends once, as the outcome says, and the cancellation says so or waits."""
    other = bench.another()
    for number in range(_RACE_ROUNDS):
        job = bench.running()
        outcome, wanted = ((done(), JobState.COMPLETED), (Failed(OOPS), JobState.FAILED))[number % 2]
        answers = at_once(
            [
                lambda job=job, outcome=outcome: bench.settle(job, outcome),
                lambda job=job: _cancelled(other.cancel, job),
            ]
        )
        equal(answers[0], True, "whether the outcome of a running job was accepted")
        equal(bench.state(job), wanted, "the state after an outcome and a cancellation at once")


def _cancelled(cancel: Callable[[str], Job], job: Job) -> bool:
    try:
        answer = cancel(job.id)
    except JobStateError:
        return False
    equal((answer.state, answer.cancel_requested), (JobState.RUNNING, True), "the answer to cancelling")
    return True


def check_requeuing(bench: LedgerBench) -> None:
    """However a job ended, it can be put back: due now, all attempts before it, its end forgotten, its lease growing on."""
    for state in sorted(ENDED):
        job = bench.ended(state, attempts_max=1, deadline_s=600.0, time_to_live_s=1.0, delay_ms=0)
        lease = job.lease
        now_ms = bench.later(3_600_000)
        answer = bench.ledger.requeue(job.id, by="anna")
        equal(bench.now(job), answer, "the job after it was put back")
        equal(
            (answer.state, answer.attempt, answer.lease),
            (JobState.PENDING, 0, lease),
            "its state, attempts, lease",
        )
        equal((answer.due_at_ms, answer.ended_at_ms), (now_ms, None), "when it is due, and that it ended")
        equal(
            (answer.result, answer.failure, answer.cancel_requested),
            (None, None, False),
            "what is left of its end",
        )
        equal(
            (answer.expires_at_ms, answer.deadline_at_ms),
            (now_ms + 1_000, now_ms + 600_000),
            "its last times",
        )
        last = bench.ledger.history(job.id)[-1]
        equal(
            (last.event, last.by, last.at_ms),
            (HistoryEvent.REQUEUED, "anna", now_ms),
            "the end of its history",
        )
        again = bench.claim_one()
        equal((again.id, again.attempt, again.lease), (job.id, 1, lease + 1), "the attempt after that")
        if lease:
            equal(bench.settle(job, done()), False, "an outcome of before")
        true(bench.settle(again, done()), "the outcome of the attempt after it was put back was refused")


def check_requeued_time_to_live(bench: LedgerBench) -> None:
    """A job that is put back and not begun in its time to live expires, though it was begun before."""
    job = bench.ended(JobState.COMPLETED, time_to_live_s=5.0)
    bench.ledger.requeue(job.id)
    bench.later(5_001)
    equal(bench.claim(1), (), "what is given out after its new time to live")
    bench.upkeep()
    equal(bench.state(job), JobState.EXPIRED, "the state after its new time to live")


def check_requeuing_is_refused(bench: LedgerBench) -> None:
    """Only what has ended can be put back."""
    pending, running = bench.submit(queue="other"), bench.running()
    for job in (pending, running):
        before = bench.now(job)
        raises(
            JobStateError,
            lambda job=job: bench.ledger.requeue(job.id),
            f"requeuing a {before.state.value} job",
        )
        equal((bench.now(job), len(bench.events(job))), (before, 0), "the job after it was refused")
    raises(JobNotFoundError, lambda: bench.ledger.requeue("unknown"), "requeuing an unknown job")


def check_requeuing_race(bench: LedgerBench) -> None:
    """Of many who put a job back at once one does, and the others are told that it has not ended."""
    job = bench.ended(JobState.FAILED)
    other = bench.another()
    answers = at_once(
        (lambda n=n: _requeued((bench.ledger, other)[n % 2].requeue, job)) for n in range(THREADS)
    )
    equal(sum(answers), 1, "how often the job was put back")
    equal(bench.events(job).count(HistoryEvent.REQUEUED), 1, "how often its history says so")


def _requeued(requeue: Callable[[str], Job], job: Job) -> bool:
    try:
        requeue(job.id)
    except JobStateError:
        return False
    return True


def check_deleting(bench: LedgerBench) -> None:
    """A deleted job is gone, with its history; one that has not ended cannot be deleted; its neighbours stay."""
    stays = bench.submit(queue="other")
    for state in sorted(ENDED):
        job = bench.ended(state)
        equal(bench.ledger.delete(job.id), job, "the answer to deleting")
        raises(JobNotFoundError, lambda job=job: bench.ledger.get(job.id), "a deleted job")
        raises(JobNotFoundError, lambda job=job: bench.ledger.delete(job.id), "deleting again")
        equal(bench.ledger.get_many([job.id, stays.id]), {stays.id: stays}, "those that are left")
        equal(_history_left(bench, job), [], "the history of a deleted job")
    running = bench.running()
    for job in (stays, running):
        raises(
            JobStateError, lambda job=job: bench.ledger.delete(job.id), f"deleting a {bench.state(job)} job"
        )
        bench.now(job)
    true(bench.settle(running, done()), "a job that could not be deleted cannot be finished either")


def _history_left(bench: LedgerBench, job: Job) -> list[HistoryEvent]:
    try:
        return bench.events(job)
    except JobNotFoundError:
        return []


def check_a_deleted_id_starts_without_a_past(bench: LedgerBench) -> None:
    """A job under the id of a deleted one is a new one: nothing of the old one is told of it."""
    new = NewJob(id="01a3185c-5000-7849-aacf-f0401441a1cd")
    bench.ledger.submit([new])
    bench.settle(bench.claim_one(), Failed(OOPS))
    bench.ledger.delete(new.id)
    fresh = accepted(bench.ledger.submit([new])[0])
    equal((fresh.created, fresh.job.failure, len(bench.events(fresh.job))), (True, None, 0), "the new job")


def check_history(bench: LedgerBench) -> None:
    """The history tells what went wrong and what was done by hand, oldest first, each with its attempt, lease and worker."""
    job = bench.submit(attempts_max=2)
    equal(bench.ledger.history(job.id), [], "a new job's history")
    bench.settle(bench.claim_one(worker="w-1"), Failed(OOPS, retry_ms=0))
    bench.later(10)
    bench.settle(bench.claim_one(worker="w-2"), Released())
    bench.later(10)
    bench.lose(bench.claim_one(worker="w-3"))
    bench.ledger.requeue(job.id, by="anna")
    running = bench.claim_one(worker="w-4")
    bench.beat(running, progress=Progress(1))
    bench.ledger.cancel(job.id, by="ben")
    bench.settle(running, Cancelled())
    history = bench.ledger.history(job.id)
    by_workers = [(e.event, e.attempt, e.lease, e.worker) for e in history if not e.by]
    wanted = [
        (HistoryEvent.ATTEMPT_FAILED, 1, 1, "w-1"),
        (HistoryEvent.RELEASED, 2, 2, "w-2"),
        (HistoryEvent.LEASE_LOST, 2, 3, "w-3"),
    ]
    equal(by_workers, wanted, "what the history tells of attempts")
    by_hand = [(e.event, e.by) for e in history if e.by]
    equal(
        by_hand,
        [(HistoryEvent.REQUEUED, "anna"), (HistoryEvent.CANCEL_REQUESTED, "ben")],
        "what was done by hand",
    )
    equal([e.event for e in history[:3]], [event for event, *_ in wanted], "what the history begins with")
    equal(
        (history[0].cause, history[0].message), ("model", OOPS.message), "what the history tells of a failure"
    )
    times = [e.at_ms for e in history]
    equal(times, sorted(times), "the times of a history")


def check_retention(bench: LedgerBench) -> None:
    """Ended jobs are told by the time of their end, oldest first, and forgotten with all that belongs to them."""
    ended: list[Job] = []
    for state in (JobState.FAILED, JobState.COMPLETED, JobState.CANCELLED):
        ended.append(bench.ended(state))
        bench.later(1_000)
    pending, running = bench.submit(queue="other"), bench.running()
    find = bench.ledger.ended_before
    equal(ids(find(bench.clock.now_ms(), limit=10)), ids(ended), "the jobs that have ended before now")
    equal(ids(find(bench.clock.now_ms(), limit=2)), ids(ended[:2]), "the two oldest of them")
    last_ms = ended[2].ended_at_ms or 0
    equal(ids(find(last_ms, limit=10)), ids(ended[:2]), "the jobs that ended before the last one did")
    forgotten = bench.ledger.forget([ended[0].id, ended[1].id, "unknown", pending.id, running.id])
    equal(forgotten, 2, "how many were forgotten, of two ended, one unknown, one pending and one running job")
    equal(
        set(bench.ledger.get_many(ids([*ended, pending, running]))),
        {ended[2].id, pending.id, running.id},
        "the rest",
    )
    equal(_history_left(bench, ended[0]), [], "the history of a forgotten job")
    equal(bench.ledger.forget([]), 0, "how many of none were forgotten")
    true(bench.settle(running, done()), "a running job was harmed by forgetting")


def check_a_taken_back_job_can_be_cancelled(bench: LedgerBench) -> None:
    """A job that waits for its next attempt is pending: cancelling it ends it."""
    failed, lost = bench.running(), bench.running()
    bench.settle(failed, Failed(OOPS, retry_ms=99_000_000))
    bench.later(LEASE_MS + 1)
    bench.upkeep()
    for job in (failed, lost):
        equal(bench.ledger.cancel(job.id).state, JobState.CANCELLED, "the answer to cancelling")


DECIDING_CHECKS = (
    check_cancelling_pending_jobs,
    check_cancelling_running_jobs,
    check_cancelling_ended_jobs,
    check_cancelled_jobs_may_still_end,
    check_cancelled_jobs_are_not_tried_again,
    check_cancelling_against_claiming,
    check_cancelling_against_settling,
    check_requeuing,
    check_requeued_time_to_live,
    check_requeuing_is_refused,
    check_requeuing_race,
    check_deleting,
    check_a_deleted_id_starts_without_a_past,
    check_history,
    check_retention,
    check_a_taken_back_job_can_be_cancelled,
)
