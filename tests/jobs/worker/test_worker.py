"""A worker over a ledger in memory: claims, settlements, stops and regressions."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from headrace.core.errors import DataError, JobLedgerUnavailableError, ModelNotReadyError, StorageError
from headrace.jobs.job import JobProgress, NewJob
from headrace.jobs.kinds import StopReason
from headrace.jobs.ledger import ClaimRequest, JobLedger, QueueSettings
from headrace.jobs.state import Cause, JobState
from headrace.jobs.worker import WorkerSettings
from headrace.jobs.worker.worker import Worker
from headrace.jobs.worker_registry import WorkerState
from headrace.testing import ManualClock, ManualWallClock, MemoryJobLedger, check_service
from jobs.worker.faulty_ledger import FaultyLedger, Gate, Times, cut
from jobs.worker.scripted_kind import WAIT_S, ScriptedKind
from servers.polling import wait_until


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


def wait_for_job(ledger: JobLedger, job_id: str, wanted: Callable[..., bool]):
    """Return the job once `wanted` accepts the job."""
    watch = ledger.watch()
    try:
        for _ in range(round(WAIT_S / 0.05)):
            job = ledger.get(job_id)
            if wanted(job):
                return job
            watch.wait(0.05)
        raise AssertionError(f"the job did not reach the state: {job}")
    finally:
        watch.close()


def ended(job) -> bool:
    return job.state.ended


def test_submitted_job_is_run_and_recorded(ledger):
    kind = ScriptedKind(at_once=True)
    with working(ledger, kind):
        job = wait_for_job(ledger, submit(ledger), ended)
    assert job.state is JobState.COMPLETED
    assert job.result.uri == f"memory://store/{job.id}/1"
    assert (job.attempt, job.lease) == (1, 1)


def test_idle_worker_runs_a_job_of_another_region(ledger):
    """The worker does not wait for the next poll."""
    kind = ScriptedKind()
    own = submit(ledger, region="eu")
    with working(ledger, kind, region="eu", poll_s=WAIT_S * 10):
        first = kind.next()
        far = submit(ledger, region="us")
        assert first.id == own
        first.finish()
        second = kind.next()
        assert second.id == far
        second.finish()
        assert wait_for_job(ledger, far, ended).worker_region == "eu"


def test_concurrency_limits_running_jobs(ledger):
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
            assert wait_for_job(ledger, job_id, ended).state is JobState.COMPLETED


def test_transient_failure_is_retried_and_permanent_one_is_not(ledger, wall):
    kind = ScriptedKind()
    with working(ledger, kind):
        job_id = submit(ledger)
        kind.next().fail(StorageError("s3://in/a", "try again"))
        pending = wait_for_job(ledger, job_id, lambda job: job.state is JobState.PENDING and job.attempt == 1)
        assert pending.failure.message == "s3://in/a: try again"
        wall.advance(3_600_000)
        kind.next().fail(DataError("row 3 is no number"))
        failed = wait_for_job(ledger, job_id, ended)
    assert failed.state is JobState.FAILED
    assert failed.failure.cause is Cause.INPUT
    assert failed.failure.message == "row 3 is no number"
    assert failed.attempt == 2


def test_internal_error_is_reported_without_details(ledger):
    kind = ScriptedKind()
    with working(ledger, kind):
        job_id = submit(ledger, attempts_max=1)
        kind.next().fail(ZeroDivisionError("secret path"))
        failed = wait_for_job(ledger, job_id, ended)
    assert failed.state is JobState.FAILED
    assert "secret" not in failed.failure.message


def test_cancelled_running_job_stops_soon(ledger):
    kind = ScriptedKind()
    with working(ledger, kind):
        job_id = submit(ledger)
        running = kind.next()
        ledger.cancel(job_id)
        job = wait_for_job(ledger, job_id, ended)
    assert job.state is JobState.CANCELLED
    assert running.attempt.stopped is StopReason.CANCELLED


def test_attempt_over_its_time_limit_is_stopped_and_counts(ledger):
    kind = ScriptedKind()
    with working(ledger, kind):
        job_id = submit(ledger, time_limit_s=0.05, attempts_max=1)
        job = wait_for_job(ledger, job_id, ended)
    assert job.state is JobState.FAILED
    assert job.failure.cause is Cause.TIMEOUT
    assert "0.05 s" in job.failure.message


def test_attempt_with_a_lost_lease_stops_and_writes_nothing(ledger, wall):
    kind = ScriptedKind()
    with working(ledger, kind, lease_s=0.4, heartbeat_s=0.2):
        job_id = submit(ledger)
        running = kind.next()
        # The heartbeat comes too late: the ledger's clock jumps, and another worker claims the job.
        with_other = None
        while with_other is None:
            wall.advance(1_000)
            ledger.maintain(10)
            wall.advance(60_000)
            claimed = ledger.settle_and_claim([], ClaimRequest("w2", ("default",), 1, 60_000)).claimed
            with_other = claimed[0] if claimed else None
        assert kind.discarded.get(timeout=WAIT_S) == f"{job_id}/{running.attempt.job.lease}"
    assert running.attempt.stopped is StopReason.LOST
    job = ledger.get(job_id)
    assert (job.state, job.worker, job.lease) == (JobState.RUNNING, "w2", with_other.lease)


def test_drain_finishes_short_jobs_and_releases_long_ones(ledger):
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
    stopping.join(WAIT_S)
    assert ledger.get(short).state is JobState.COMPLETED
    back = ledger.get(long)
    assert (back.state, back.attempt, back.cursor) == (JobState.PENDING, 0, {"at": 7})
    assert kind.none_began()


def test_job_with_two_crashes_runs_alone(ledger, wall):
    kind = ScriptedKind()
    suspect = submit(ledger, attempts_max=5)
    for _ in range(2):
        claimed = ledger.settle_and_claim([], ClaimRequest("dead", ("default",), 1, 1_000)).claimed
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
        wait_for_job(ledger, other, ended)
    assert ledger.get(suspect).state is JobState.COMPLETED


def test_job_that_runs_alone_waits_for_running_jobs(ledger, wall):
    kind = ScriptedKind()
    suspect = submit(ledger, attempts_max=5)
    for wait_ms in (10_000, 0):
        ledger.settle_and_claim([], ClaimRequest("dead", ("default",), 1, 1_000))
        wall.advance(2_000)
        ledger.maintain(10)
        wall.advance(wait_ms)
    assert ledger.get(suspect).crashes == 2
    with working(ledger, kind, concurrency=4) as worker:
        first = submit(ledger, priority=0)
        running = kind.next()
        assert running.id == first
        wall.advance(3_600_000)
        wait_for_job(ledger, suspect, lambda job: job.state is JobState.RUNNING)
        assert kind.none_began()
        running.finish()
        assert kind.next().id == suspect
        assert worker.statistics().running == 1


def test_long_ledger_outage_stops_no_running_job(ledger):
    kind = ScriptedKind()
    with working(ledger, kind):
        job_id = submit(ledger)
        running = kind.next()
        ledger.unavailable = True
        running.finish()
        refused = threading.Event()
        settle_and_claim = ledger.settle_and_claim

        def counting(*given):
            refused.set()
            return settle_and_claim(*given)

        ledger.settle_and_claim = counting
        assert refused.wait(WAIT_S)
        ledger.unavailable = False
        job = wait_for_job(ledger, job_id, ended)
    assert job.state is JobState.COMPLETED


def test_settlement_with_a_lost_reply_is_not_refused(ledger):
    """The ledger committed the settlement, but its reply was lost: the result must stay."""
    kind = ScriptedKind()
    settle_and_claim = ledger.settle_and_claim
    lost = threading.Event()

    def answer_lost(settlements, claim=None):
        answer = settle_and_claim(settlements, claim)
        if settlements and not lost.is_set():
            lost.set()
            raise JobLedgerUnavailableError("the connection was cut")
        return answer

    ledger.settle_and_claim = answer_lost
    with working(ledger, kind):
        job_id = submit(ledger)
        kind.next().finish()
        wait_for_job(ledger, job_id, ended)
        # The worker resolves the lost reply, and then runs another job.
        other = submit(ledger)
        kind.next().finish()
        wait_for_job(ledger, other, ended)
    assert kind.discarded.empty()


def test_jobs_of_a_claim_with_a_lost_reply_are_run(ledger):
    kind = ScriptedKind(at_once=True)
    settle_and_claim = ledger.settle_and_claim
    lost = threading.Event()

    def answer_lost(settlements, claim=None):
        answer = settle_and_claim(settlements, claim)
        if answer.claimed and not lost.is_set():
            lost.set()
            raise JobLedgerUnavailableError("the connection was cut")
        return answer

    ledger.settle_and_claim = answer_lost
    with working(ledger, kind):
        job = wait_for_job(ledger, submit(ledger), ended)
    assert (job.state, job.attempt) == (JobState.COMPLETED, 1)


def test_worker_reports_progress(ledger):
    kind = ScriptedKind()
    with working(ledger, kind, lease_s=0.2, heartbeat_s=0.05):
        job_id = submit(ledger)
        running = kind.next()
        running.attempt.set_progress_source(lambda: JobProgress(3, 10, "records"))
        job = wait_for_job(ledger, job_id, lambda job: job.progress is not None)
        assert job.progress == JobProgress(3, 10, "records")


def test_stop_before_start_and_twice_does_nothing(ledger):
    worker = Worker(ledger, {}, WorkerSettings(name="w"), clock=ManualClock())
    worker.stop()
    worker = Worker(ledger, {}, WorkerSettings(name="w"))
    worker.start()
    worker.start()
    worker.stop()
    worker.stop()


# Regressions and races


@pytest.fixture
def faulty(wall) -> Iterator[FaultyLedger]:
    made = FaultyLedger(wall)
    made.start()
    yield made
    made.stop()


def in_thread(do: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=do)
    thread.start()
    return thread


@pytest.fixture(autouse=True)
def record_earlier_threads() -> Iterator[None]:
    """Remember the threads of other tests, some of which outlive their tests."""
    _EARLIER_THREADS[:] = threading.enumerate()
    yield
    _EARLIER_THREADS.clear()


_EARLIER_THREADS: list[threading.Thread] = []


def worker_threads() -> list[str]:
    mine = (t for t in threading.enumerate() if t not in _EARLIER_THREADS)
    return [t.name for t in mine if t.name.startswith("headrace-") and t.is_alive()]


def test_worker_is_a_service():
    def make():
        ledger = MemoryJobLedger(ManualWallClock())
        ledger.start()
        settings = WorkerSettings(name="w", concurrency=2, poll_s=0.05)
        return Worker(ledger, {}, settings)

    check_service(make)


def test_stop_releases_jobs_of_a_running_claim(faulty):
    """Regression: the worker stopped, because it had no running job yet.

    The jobs of the running claim later counted as crashed.
    """
    kind, gate = ScriptedKind(), Gate()
    job_id = submit(faulty)
    faulty.after = Times(1, lambda *_: gate.pass_())
    worker = Worker(faulty, {"infer": kind}, WorkerSettings(name="w1", drain_grace_s=0.0), seed=1)
    worker.start()
    gate.wait_reached()
    stopping = in_thread(worker.stop)
    # The worker has stopped its running jobs, of which it had none, and waits for the claim.
    wait_until(lambda: worker._releasing)
    gate.open()
    stopping.join(WAIT_S)
    job = faulty.get(job_id)
    assert (job.state, job.attempt, job.crashes) == (JobState.PENDING, 0, 0)


def test_drain_finishes_jobs_of_a_running_claim(faulty):
    kind, gate = ScriptedKind(at_once=True), Gate()
    job_id = submit(faulty)
    faulty.after = Times(1, lambda *_: gate.pass_())
    worker = Worker(faulty, {"infer": kind}, WorkerSettings(name="w1"), seed=1)
    worker.start()
    gate.wait_reached()
    stopping = in_thread(worker.stop)
    wait_until(lambda: worker._ledger_loop._closed)
    gate.open()
    stopping.join(WAIT_S)
    assert faulty.get(job_id).state is JobState.COMPLETED


def test_two_stops_return_at_the_workers_end(faulty):
    """Regression: a second stop made the first return at once.

    The owner then stopped the ledger while the worker needed it.
    """
    kind, gate = ScriptedKind(), Gate()
    job_id = submit(faulty)
    worker = Worker(faulty, {"infer": kind}, WorkerSettings(name="w1", drain_grace_s=3600.0), seed=1)
    worker.start()
    kind.next()
    faulty.before = Times(1, lambda *_: gate.pass_(), lambda settlements, _claim: bool(settlements))
    returned: list[list[str]] = []
    stops = [in_thread(lambda: (worker.stop(), returned.append(worker_threads())))]
    wait_until(lambda: worker._ledger_loop._closed)
    stops.append(in_thread(lambda: (worker.stop(drain=False), returned.append(worker_threads()))))
    gate.wait_reached()
    assert returned == []
    gate.open()
    for stop in stops:
        stop.join(WAIT_S)
    assert returned == [[], []]
    assert faulty.get(job_id).attempt == 0


def test_job_that_ignores_its_stop_is_released_and_occupies_its_slot(faulty, caplog):
    """Regression: such a job kept its lease without a limit, and the process could not end."""
    caplog.set_level(logging.CRITICAL)
    gate, clock, held = Gate(), ManualClock(), threading.Event()
    discarded: list[str] = []

    class UnstoppableKind:
        def run(self, attempt):
            gate.pass_()
            return ScriptedKind(at_once=True).run(attempt)

        def discard(self, attempt):
            discarded.append(attempt.job.id)
            held.set()

    settings = WorkerSettings(name="w1", concurrency=1, stop_s=30.0, lease_s=60.0, heartbeat_s=15.0)
    worker = Worker(faulty, {"infer": UnstoppableKind()}, settings, clock=clock, seed=1)
    worker.start()
    first = submit(faulty)
    gate.wait_reached()
    faulty.cancel(first)
    wait_until(lambda: attempt_is_stopped(worker))
    # The attempt is stopped now. `stop_s` limits the time until the job is released.
    wait_until(lambda: (clock.advance(1.0), faulty.get(first).state is JobState.CANCELLED)[1])
    assert 30.0 <= clock.now() <= 90.0
    assert worker.statistics().stuck == 1
    waits = submit(faulty)
    clock.advance(10.0)
    assert faulty.get(waits).state is JobState.PENDING, "there is no slot"
    gate.open()
    wait_until(lambda: (clock.advance(1.0), faulty.get(waits).state is JobState.COMPLETED)[1])
    assert held.wait(WAIT_S)
    assert discarded == [first]
    assert faulty.get(first).state is JobState.CANCELLED
    worker.stop(drain=False)


def attempt_is_stopped(worker: Worker) -> bool:
    worker._clock.advance(1.0)
    return any(attempt.stopped is not None for attempt in worker._running_jobs.attempts())


def test_drain_releases_a_job_that_ignores_its_stop(faulty, caplog):
    caplog.set_level(logging.CRITICAL)
    gate, clock = Gate(), ManualClock()

    class UnstoppableKind:
        def run(self, attempt):
            gate.pass_()
            raise DataError("the worker has given up this attempt")

        def discard(self, attempt):
            pass

    worker = Worker(faulty, {"infer": UnstoppableKind()}, WorkerSettings(name="w1"), clock=clock, seed=1)
    worker.start()
    job_id = submit(faulty)
    gate.wait_reached()
    stopping = in_thread(lambda: worker.stop(drain=False))
    wait_until(lambda: (clock.advance(1.0), not stopping.is_alive())[1])
    job = faulty.get(job_id)
    assert (job.state, job.attempt, job.crashes) == (JobState.PENDING, 0, 0)
    gate.open()


def test_failing_progress_does_not_affect_the_result(ledger, caplog):
    """Regression: the attempt's thread ended silently, and the job ran forever."""
    caplog.set_level(logging.CRITICAL)
    kind = ScriptedKind()
    with working(ledger, kind):
        job_id = submit(ledger)
        running = kind.next()
        running.attempt.set_progress_source(lambda: 1 // 0)
        running.finish()
        assert wait_for_job(ledger, job_id, ended).state is JobState.COMPLETED


def test_job_whose_model_is_missing_is_left_to_another_worker(ledger, wall):
    """Regression: it failed for good, or as a crash of the worker."""
    broken, sound = ScriptedKind(), ScriptedKind(at_once=True)
    with working(ledger, broken, name="broken"):
        job_id = submit(ledger)
        broken.next().fail(ModelNotReadyError("m", "no instance of it is left on this worker"))
        job = wait_for_job(ledger, job_id, lambda job: job.failure is not None)
        assert (job.state, job.attempt, job.failure.cause) == (JobState.PENDING, 0, Cause.NO_MODEL)
        wall.advance(5_000)
        other = ledger.submit([NewJob(model="n", input_uri="memory://in/a")])[0].job.id
        running = broken.next()
        running.finish()
        assert running.attempt.job.id == other
        with working(ledger, sound, name="sound"):
            job = wait_for_job(ledger, job_id, lambda job: job.state.ended)
        assert (job.state, job.worker, broken.none_began()) == (JobState.COMPLETED, "sound", True)


def test_failing_outcome_decision_is_a_defect(ledger, caplog):
    caplog.set_level(logging.CRITICAL)

    class OddError(DataError):
        def __str__(self):
            raise ValueError("no words")

    kind = ScriptedKind()
    with working(ledger, kind):
        job_id = submit(ledger)
        kind.next().fail(OddError("x"))
        job = wait_for_job(
            ledger, job_id, lambda job: job.state is JobState.PENDING and job.failure is not None
        )
    assert job.failure.cause is Cause.DEFECT


def test_job_claimed_again_by_the_same_worker_loses_its_earlier_attempt(faulty, wall):
    """Regression: the earlier attempt was never stopped, and its output never discarded."""
    kind = ScriptedKind()
    with working(faulty, kind) as worker:
        job_id = submit(faulty)
        early = kind.next()
        wall.advance(60_001)
        faulty.maintain(10)
        wall.advance(3_600_000)
        faulty.maintain(10)
        late = kind.next()
        assert (late.id, late.attempt.job.lease) == (job_id, 2)
        assert kind.discarded.get(timeout=WAIT_S) == f"{job_id}/1"
        assert (early.attempt.stopped, late.attempt.stopped) == (StopReason.LOST, None)
        late.finish()
        assert wait_for_job(faulty, job_id, ended).state is JobState.COMPLETED
        wait_until(lambda: worker.statistics().completed == 1)
        assert worker.statistics().lost == 1
    assert kind.discarded.empty()


SUSPECTS = "suspects"
BOTH = ("default", SUSPECTS)


def suspects(ledger, wall, count=1) -> list[str]:
    """Return jobs that must run alone, in a paused queue of their own."""
    ids = [submit(ledger, attempts_max=9, queue=SUSPECTS) for _ in range(count)]
    for _ in range(2):
        while ledger.settle_and_claim([], ClaimRequest("dead", (SUSPECTS,), 10, 1_000)).claimed:
            pass
        wall.advance(2_000)
        ledger.maintain(100)
        wall.advance(3_600_000)
        ledger.maintain(100)
    assert all(ledger.get(job_id).crashes == 2 for job_id in ids)
    ledger.set_queue(QueueSettings(SUSPECTS, paused=True))
    return ids


def resume_suspects(ledger, suspect: str) -> None:
    """Resume the queue, and wait until the worker has claimed the job."""
    ledger.set_queue(QueueSettings(SUSPECTS))
    wait_for_job(ledger, suspect, lambda job: job.state is JobState.RUNNING)


def test_waiting_alone_job_is_released_at_once_on_stop(faulty, wall):
    """Regression: the job was released only after the other jobs ended or its lease expired.

    The expired lease counted as one more crash.
    """
    gate, began = Gate(), threading.Event()

    class UnstoppableKind(ScriptedKind):
        def run(self, attempt):
            began.set()
            gate.pass_()
            return super().run(attempt)

    (suspect,) = suspects(faulty, wall)
    with working(faulty, UnstoppableKind(), queues=BOTH) as worker:
        submit(faulty)
        assert began.wait(WAIT_S)
        resume_suspects(faulty, suspect)
        stopping = in_thread(lambda: worker.stop(drain=False))
        job = wait_for_job(faulty, suspect, lambda job: job.state is JobState.PENDING)
        gate.open()
        stopping.join(WAIT_S)
    assert (job.crashes, job.attempt) == (2, 2)


def test_waiting_alone_job_can_be_cancelled(faulty, wall):
    kind = ScriptedKind()
    (suspect,) = suspects(faulty, wall)
    with working(faulty, kind, queues=BOTH):
        submit(faulty)
        running = kind.next()
        resume_suspects(faulty, suspect)
        faulty.cancel(suspect)
        assert wait_for_job(faulty, suspect, ended).state is JobState.CANCELLED
        running.finish()


def test_waiting_alone_job_begins_when_the_last_other_ends_concurrently(faulty, wall):
    """Regression: the job registered as waiting after the last other job had ended.

    The job then never began.
    """
    kind = ScriptedKind()
    (suspect,) = suspects(faulty, wall)
    with working(faulty, kind, queues=BOTH) as worker:
        submit(faulty)
        kind.next()
        (other,) = worker._running_jobs.attempts()

        class RacingRunningJobs(type(worker._running_jobs)):
            """A `RunningJobs` that stops the other attempt directly after counting the attempts."""

            def __len__(self):
                count = super().__len__()
                if count == 2 and other.stopped is None:
                    other.stop(StopReason.LOST)
                    # The attempt ends now, unless its removal waits for the thread that counts.
                    lost.wait(0.2)
                return count

        lost, lose = threading.Event(), worker._remove
        worker._remove = lambda attempt: (lose(attempt), lost.set())
        worker._running_jobs.__class__ = RacingRunningJobs
        faulty.set_queue(QueueSettings(SUSPECTS))
        assert kind.next().id == suspect


def test_jobs_that_run_alone_run_one_after_the_other(faulty, wall):
    kind = ScriptedKind()
    ids = suspects(faulty, wall, 3)
    faulty.set_queue(QueueSettings(SUSPECTS))
    with working(faulty, kind, queues=BOTH):
        seen = []
        for _ in ids:
            running = kind.next()
            assert kind.none_began()
            seen.append(running.id)
            running.finish()
            wait_for_job(faulty, running.id, ended)
    assert sorted(seen) == sorted(ids)


def test_failed_start_leaves_nothing_and_stop_is_safe(ledger, monkeypatch):
    """Regression: stop joined threads that had not started, which hid the first error."""
    start, begun = threading.Thread.start, []

    def refuse(thread):
        if len(begun) == 7:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    worker = Worker(ledger, {}, WorkerSettings(name="w1", concurrency=2), seed=1)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        worker.start()
    monkeypatch.setattr(threading.Thread, "start", start)
    assert not any(thread.is_alive() for thread in begun)
    worker.stop()
    worker.stop(drain=False)
    worker.start()
    assert worker_threads() == []


def test_start_without_the_ledger_raises_and_leaves_nothing(ledger, monkeypatch):
    monkeypatch.setattr(ledger, "wakeup", cut)
    worker = Worker(ledger, {}, WorkerSettings(name="w1"), seed=1)
    with pytest.raises(JobLedgerUnavailableError):
        worker.start()
    worker.stop()
    assert worker_threads() == []


def test_raising_wakeup_listener_is_retried(ledger, caplog):
    """Regression: the listening thread ended silently, and announcements had no effect."""
    caplog.set_level(logging.CRITICAL)

    class Flaky:
        def __init__(self):
            self.waits, self._failed = threading.Semaphore(0), False

        def wait(self, timeout_s):
            if not self._failed:
                self._failed = True
                raise OSError("the broker has gone")
            self.waits.release()
            return threading.Event().wait(min(timeout_s, 0.01))

        def wake(self):
            pass

        def close(self):
            pass

    flaky = Flaky()
    worker = Worker(ledger, {}, WorkerSettings(name="w1", poll_s=0.01), listen=lambda queues: flaky, seed=1)
    worker.start()
    assert flaky.waits.acquire(timeout=WAIT_S)
    worker.stop()


def test_raising_ended_callback_does_not_affect_jobs(ledger, caplog):
    caplog.set_level(logging.CRITICAL)
    called: list[str] = []

    def ended_badly(attempt, _settlement):
        called.append(attempt.job.id)
        raise ZeroDivisionError

    worker = Worker(
        ledger, {"infer": ScriptedKind(at_once=True)}, WorkerSettings(name="w1"), ended=ended_badly, seed=1
    )
    worker.start()
    ids = [submit(ledger) for _ in range(8)]
    for job_id in ids:
        assert wait_for_job(ledger, job_id, ended).state is JobState.COMPLETED
    worker.stop()
    assert sorted(called) == sorted(ids)


def test_unknown_kind_fails_with_the_reason(ledger):
    with working(ledger, ScriptedKind()):
        job = wait_for_job(ledger, submit(ledger, kind="stream"), ended)
    assert job.state is JobState.FAILED
    assert "no jobs of kind 'stream'" in job.failure.message


# The registry of workers


def test_draining_worker_finishes_its_jobs_and_claims_none(ledger):
    kind = ScriptedKind()
    running = submit(ledger)
    with working(ledger, kind, poll_s=WAIT_S * 10) as worker:
        first = kind.next()
        ledger.set_worker_draining("w1", draining=True)
        wait_until(lambda: not worker._heartbeats.may_claim(), "the drain")
        waiting = submit(ledger)
        first.finish()
        assert wait_for_job(ledger, running, ended).state is JobState.COMPLETED
        wait_until(lambda: ledger.worker("w1").state is WorkerState.DRAINED, "the confirmation")
        assert ledger.get(waiting).state is JobState.PENDING
        ledger.set_worker_draining("w1", draining=False)
        kind.next().finish()
        assert wait_for_job(ledger, waiting, ended).state is JobState.COMPLETED
        assert ledger.worker("w1").state is WorkerState.RUNNING
    assert ledger.worker("w1").state is WorkerState.STOPPED


def test_drain_ends_with_a_new_start(ledger):
    kind = ScriptedKind(at_once=True)
    with working(ledger, kind):
        ledger.set_worker_draining("w1", draining=True)
    waiting = submit(ledger)
    with working(ledger, kind):
        assert wait_for_job(ledger, waiting, ended).state is JobState.COMPLETED


def test_unavailable_ledger_at_the_start_does_not_stop_the_worker(ledger, monkeypatch, caplog):
    caplog.set_level(logging.CRITICAL)
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "register_worker", cut)
        worker = Worker(
            ledger, {"infer": ScriptedKind()}, WorkerSettings(name="w1", heartbeat_s=0.01), seed=1
        )
        worker.start()
    try:
        wait_until(ledger.workers, "the registration")
    finally:
        worker.stop(drain=False)
