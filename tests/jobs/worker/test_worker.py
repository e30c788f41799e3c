"""A worker over a ledger in memory: what it claims, how it settles, what it does when it is told to stop."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from headrace.core.errors import DataError, StorageError
from headrace.jobs.attempt import StopReason
from headrace.jobs.cause import Cause
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import ClaimRequest, JobLedger
from headrace.jobs.state import JobState
from headrace.jobs.worker.settings import WorkerSettings
from headrace.jobs.worker.worker import Worker
from headrace.testing import ManualClock, ManualWallClock, MemoryJobLedger
from jobs.worker.scripted import PATIENCE_S, ScriptedKind


@pytest.fixture
def wall() -> ManualWallClock:
    return ManualWallClock()


@pytest.fixture
def ledger(wall: ManualWallClock) -> Iterator[MemoryJobLedger]:
    made = MemoryJobLedger(wall)
    made.start()
    yield made
    made.stop()


@contextmanager
def working(ledger: JobLedger, kind: ScriptedKind, **settings) -> Iterator[Worker]:
    used = WorkerSettings(**{"name": "w1", "concurrency": 4, "poll_s": 0.05, **settings})
    worker = Worker(ledger, {"infer": kind}, used, seed=1)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(drain=False)


def submit(ledger: JobLedger, **fields) -> str:
    (submitted,) = ledger.submit([NewJob(model="m", input_uri="memory://in/a", **fields)])
    return submitted.job.id


def until(ledger: JobLedger, job_id: str, wanted: Callable[..., bool]):
    """The job once it is as wanted."""
    watch = ledger.watch()
    try:
        for _ in range(round(PATIENCE_S / 0.05)):
            job = ledger.get(job_id)
            if wanted(job):
                return job
            watch.wait(0.05)
        raise AssertionError(f"never came to be: {job}")
    finally:
        watch.close()


def ended(job) -> bool:
    return job.state.ended


def test_a_submitted_job_is_run_and_its_result_recorded(ledger):
    kind = ScriptedKind(at_once=True)
    with working(ledger, kind):
        job = until(ledger, submit(ledger), ended)
    assert job.state is JobState.COMPLETED
    assert job.result.uri == f"memory://store/{job.id}/1"
    assert (job.attempt, job.lease) == (1, 1)


def test_no_more_jobs_run_at_once_than_there_is_room_for(ledger):
    kind = ScriptedKind()
    ids = [submit(ledger) for _ in range(5)]
    with working(ledger, kind, concurrency=2) as worker:
        first, second = kind.next(), kind.next()
        assert worker.statistics().running == 2
        assert ledger.counts("default").due == 3
        first.finish()
        third = kind.next()
        assert {first.id, second.id, third.id} <= set(ids)
        for running in (second, third):
            running.finish()
        kind.next().finish()
        kind.next().finish()
        for job_id in ids:
            assert until(ledger, job_id, ended).state is JobState.COMPLETED


def test_what_fails_for_now_is_tried_again_and_what_fails_for_good_is_not(ledger, wall):
    kind = ScriptedKind()
    with working(ledger, kind):
        job_id = submit(ledger)
        kind.next().fail(StorageError("s3://in/a", "try again"))
        pending = until(ledger, job_id, lambda job: job.state is JobState.PENDING and job.attempt == 1)
        assert pending.failure.message == "s3://in/a: try again"
        wall.advance(3_600_000)
        kind.next().fail(DataError("row 3 is no number"))
        failed = until(ledger, job_id, ended)
    assert failed.state is JobState.FAILED
    assert failed.failure.cause is Cause.INPUT
    assert failed.failure.message == "row 3 is no number"
    assert failed.attempt == 2


def test_a_defect_of_ours_is_told_without_its_inside(ledger):
    kind = ScriptedKind()
    with working(ledger, kind):
        job_id = submit(ledger, attempts_max=1)
        kind.next().fail(ZeroDivisionError("secret path"))
        failed = until(ledger, job_id, ended)
    assert failed.state is JobState.FAILED
    assert "secret" not in failed.failure.message


def test_a_running_job_that_is_cancelled_stops_soon(ledger):
    kind = ScriptedKind()
    with working(ledger, kind):
        job_id = submit(ledger)
        running = kind.next()
        ledger.cancel(job_id)
        job = until(ledger, job_id, ended)
    assert job.state is JobState.CANCELLED
    assert running.attempt.stopped is StopReason.CANCELLED


def test_an_attempt_over_its_time_limit_is_stopped_and_counts(ledger):
    kind = ScriptedKind()
    with working(ledger, kind):
        job_id = submit(ledger, time_limit_s=0.05, attempts_max=1)
        job = until(ledger, job_id, ended)
    assert job.state is JobState.FAILED
    assert job.failure.cause is Cause.TIMEOUT
    assert "0.05 s" in job.failure.message


def test_a_worker_whose_lease_was_taken_stops_and_writes_nothing(ledger, wall):
    kind = ScriptedKind()
    with working(ledger, kind, lease_s=0.4, beat_s=0.2):
        job_id = submit(ledger)
        running = kind.next()
        # Its sign of life comes too late: the ledger's clock jumps, and the job is another's.
        with_other = None
        while with_other is None:
            wall.advance(1_000)
            ledger.maintain(10)
            wall.advance(60_000)
            claimed = ledger.turn([], ClaimRequest("w2", ("default",), 1, 60_000)).claimed
            with_other = claimed[0] if claimed else None
        assert kind.discarded.get(timeout=PATIENCE_S) == f"{job_id}/{running.attempt.job.lease}"
    assert running.attempt.stopped is StopReason.LOST
    job = ledger.get(job_id)
    assert (job.state, job.worker, job.lease) == (JobState.RUNNING, "w2", with_other.lease)


def test_draining_lets_short_jobs_end_and_gives_long_ones_back(ledger):
    kind = ScriptedKind()
    worker = Worker(
        ledger, {"infer": kind}, WorkerSettings(name="w1", concurrency=2, drain_grace_s=0.3), seed=1
    )
    worker.start()
    short, long = submit(ledger), submit(ledger)
    running = {r.id: r for r in (kind.next(), kind.next())}
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    running[long].attempt.cursor = {"at": 7}
    running[short].finish()
    stopping.join(PATIENCE_S)
    assert ledger.get(short).state is JobState.COMPLETED
    back = ledger.get(long)
    assert (back.state, back.attempt, back.cursor) == (JobState.PENDING, 0, {"at": 7})
    assert kind.none_began()


def test_a_job_that_cost_two_processes_runs_alone(ledger, wall):
    kind = ScriptedKind()
    suspect = submit(ledger, attempts_max=5)
    for _ in range(2):
        claimed = ledger.turn([], ClaimRequest("dead", ("default",), 1, 1_000)).claimed
        assert [job.id for job in claimed] == [suspect]
        wall.advance(2_000)
        ledger.maintain(10)
        wall.advance(3_600_000)
    assert ledger.get(suspect).crashes == 2
    with working(ledger, kind, concurrency=4):
        alone = kind.next()
        assert alone.id == suspect
        other = submit(ledger)
        assert ledger.get(other).state is JobState.PENDING
        alone.finish()
        beside = kind.next()
        assert beside.id == other
        beside.finish()
        until(ledger, other, ended)
    assert ledger.get(suspect).state is JobState.COMPLETED


def test_a_suspect_waits_until_what_runs_has_ended(ledger, wall):
    kind = ScriptedKind()
    suspect = submit(ledger, attempts_max=5)
    for wait_ms in (10_000, 0):
        ledger.turn([], ClaimRequest("dead", ("default",), 1, 1_000))
        wall.advance(2_000)
        ledger.maintain(10)
        wall.advance(wait_ms)
    assert ledger.get(suspect).crashes == 2
    with working(ledger, kind, concurrency=4) as worker:
        first = submit(ledger, priority=0)
        running = kind.next()
        assert running.id == first
        wall.advance(3_600_000)
        until(ledger, suspect, lambda job: job.state is JobState.RUNNING)
        assert kind.none_began()
        running.finish()
        assert kind.next().id == suspect
        assert worker.statistics().running == 1


def test_a_ledger_that_is_away_for_long_costs_nothing_that_runs(ledger):
    kind = ScriptedKind()
    with working(ledger, kind):
        job_id = submit(ledger)
        running = kind.next()
        ledger.away = True
        running.finish()
        refused = threading.Event()
        turn = ledger.turn

        def counting(*given):
            refused.set()
            return turn(*given)

        ledger.turn = counting
        assert refused.wait(PATIENCE_S)
        ledger.away = False
        job = until(ledger, job_id, ended)
    assert job.state is JobState.COMPLETED


def test_a_settlement_whose_answer_was_lost_is_not_taken_for_refused(ledger):
    """The commit counted, the answer did not come: the result must stay."""
    kind = ScriptedKind()
    turn = ledger.turn
    lost = threading.Event()

    def answer_lost(settlements, claim=None):
        answer = turn(settlements, claim)
        if settlements and not lost.is_set():
            lost.set()
            from headrace.core.errors import JobLedgerUnavailableError

            raise JobLedgerUnavailableError("the connection was cut")
        return answer

    ledger.turn = answer_lost
    with working(ledger, kind):
        job_id = submit(ledger)
        kind.next().finish()
        until(ledger, job_id, ended)
        # The worker goes on, and another job goes through it, after it has found out.
        other = submit(ledger)
        kind.next().finish()
        until(ledger, other, ended)
    assert kind.discarded.empty()


def test_jobs_of_a_claim_whose_answer_was_lost_are_worked_on(ledger):
    kind = ScriptedKind(at_once=True)
    turn = ledger.turn
    lost = threading.Event()

    def answer_lost(settlements, claim=None):
        answer = turn(settlements, claim)
        if answer.claimed and not lost.is_set():
            lost.set()
            from headrace.core.errors import JobLedgerUnavailableError

            raise JobLedgerUnavailableError("the connection was cut")
        return answer

    ledger.turn = answer_lost
    with working(ledger, kind):
        job = until(ledger, submit(ledger), ended)
    assert (job.state, job.attempt) == (JobState.COMPLETED, 1)


def test_the_worker_tells_how_far_an_attempt_is(ledger):
    from headrace.jobs.job import Progress

    kind = ScriptedKind()
    with working(ledger, kind, lease_s=0.2, beat_s=0.05):
        job_id = submit(ledger)
        running = kind.next()
        running.attempt.report(lambda: Progress(3, 10, "records"))
        job = until(ledger, job_id, lambda job: job.progress is not None)
        assert job.progress == Progress(3, 10, "records")


def test_stopping_before_starting_and_twice_does_nothing(ledger):
    worker = Worker(ledger, {}, WorkerSettings(name="w"), clock=ManualClock())
    worker.stop()
    worker = Worker(ledger, {}, WorkerSettings(name="w"))
    worker.start()
    worker.start()
    worker.stop()
    worker.stop()
