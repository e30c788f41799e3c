"""A worker over a ledger with random faults, while jobs are cancelled and workers restart.

A seed determines the sequence of faults. At the end every job has ended once, the results that
count exist, and no attempt is running.
"""

import random
import threading
from collections import Counter, defaultdict
from contextlib import suppress

import pytest

from headrace.core.errors import DataError, JobLedgerUnavailableError, JobStateError, StorageError
from headrace.jobs.job import Completed, NewJob, ResultRef, Settlement
from headrace.jobs.kinds import Attempt, AttemptStoppedError
from headrace.jobs.ledger import ClaimRequest, QueueSettings, SettleAndClaimReply
from headrace.jobs.state import JobState
from headrace.jobs.worker import WorkerSettings
from headrace.jobs.worker.worker import Worker
from headrace.testing import ManualWallClock, MemoryJobLedger

JOBS = 40
ROUNDS_MAX = 4_000


class RandomlyFailingLedger(MemoryJobLedger):
    """A ledger whose methods fail at random, before or after their work.

    `accepted` records the settlements that counted.
    """

    def __init__(self, clock: ManualWallClock, rng: random.Random) -> None:
        super().__init__(clock)
        self.rng, self.healthy = rng, False
        self.accepted: dict[str, list[Settlement]] = defaultdict(list)

    def _fails(self) -> bool:
        return not self.healthy and self.rng.random() < 0.125

    def _cut(self) -> None:
        if self._fails():
            raise JobLedgerUnavailableError("the connection was cut")

    def settle_and_claim(self, settlements, claim: ClaimRequest | None = None) -> SettleAndClaimReply:
        self._cut()
        if settlements and self._fails():
            raise ValueError("the ledger stumbled over this")
        answer = super().settle_and_claim(settlements, claim)
        for settlement, counted in zip(settlements, answer.accepted, strict=True):
            if counted:
                self.accepted[settlement.job_id].append(settlement)
        self._cut()
        return answer

    def heartbeat(self, worker, heartbeats, lease_ms, report):
        self._cut()
        reply = super().heartbeat(worker, heartbeats, lease_ms, report)
        self._cut()
        return reply

    def list_running(self, worker):
        self._cut()
        return super().list_running(worker)

    def get_many(self, job_ids):
        self._cut()
        return super().get_many(job_ids)


class RandomKind:
    """A kind whose attempts complete, fail or crash at random.

    `outputs` are the URIs that were written and not discarded.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.outputs: set[str] = set()
        self.lock = threading.Lock()
        self.running: Counter[str] = Counter()
        self.alone_violations = 0

    def run(self, attempt: Attempt) -> ResultRef:
        job = attempt.job
        with self.lock:
            self.running[job.id] += 1
            if job.alone and sum(self.running.values()) > 1:
                self.alone_violations += 1
        try:
            return self._run(attempt)
        finally:
            with self.lock:
                self.running[job.id] -= 1

    def _run(self, attempt: Attempt) -> ResultRef:
        stopped, roll = threading.Event(), self.rng.random()
        attempt.add_stop_callback(stopped.set)
        stopped.wait(self.rng.random() * 0.004)
        uri = f"memory://store/{attempt.job.id}/{attempt.job.lease}"
        with self.lock:
            self.outputs.add(uri)
        if roll < 0.1:
            raise DataError("cannot be done")
        if roll < 0.3:
            raise StorageError("s3://b/k", "not now")
        if roll < 0.35:
            raise ZeroDivisionError
        if stopped.is_set():
            raise AttemptStoppedError(attempt.stopped)
        return ResultRef(uri, 1)

    def discard(self, attempt: Attempt) -> None:
        with self.lock:
            self.outputs.discard(f"memory://store/{attempt.job.id}/{attempt.job.lease}")


def worker_over(ledger: RandomlyFailingLedger, kind: RandomKind, number: int) -> Worker:
    settings = WorkerSettings(
        name=f"w{number}",
        concurrency=4,
        poll_s=0.01,
        lease_s=0.06,
        heartbeat_s=0.02,
        drain_grace_s=0.01,
        stop_s=1.0,
    )
    return Worker(ledger, {"infer": kind}, settings, seed=number)


@pytest.mark.parametrize("seed", range(8))
def test_every_job_ends_once_despite_random_faults(seed, caplog):
    caplog.set_level(100)
    others = set(threading.enumerate())
    rng = random.Random(seed)
    wall = ManualWallClock()
    ledger = RandomlyFailingLedger(wall, rng)
    ledger.start()
    kind = RandomKind(rng)
    answers = ledger.submit([NewJob(attempts_max=3, time_limit_s=1.0)] * JOBS)
    ids = [answer.job.id for answer in answers]
    worker = worker_over(ledger, kind, 0)
    worker.start()
    workers = 0
    pause = threading.Event()
    for number in range(ROUNDS_MAX):
        pause.wait(0.001)
        if number > 300:
            ledger.healthy = True
        roll = rng.random()
        if roll < 0.02 and not ledger.healthy:
            worker.stop(drain=rng.random() < 0.5)
            workers += 1
            worker = worker_over(ledger, kind, workers)
            worker.start()
        elif roll < 0.05:
            _cancel(ledger, rng.choice(ids))
        # The ledger's time passes: leases expire, and retries become due.
        wall.advance(rng.choice([0, 1, 5, 20, 5_000] if ledger.healthy else [0, 1, 5, 20]))
        ledger.maintain(10)
        if all(ledger.get(job_id).state.ended for job_id in ids):
            break
    ledger.healthy = True
    worker.stop()
    jobs = [ledger.get(job_id) for job_id in ids]
    assert [job.id for job in jobs if not job.state.ended] == []
    assert worker.statistics().running == 0
    for job in jobs:
        completed = [s for s in ledger.accepted[job.id] if isinstance(s.outcome, Completed)]
        assert len(completed) == (job.state is JobState.COMPLETED), "a job did not complete exactly once"
        leases = [s.lease for s in ledger.accepted[job.id]]
        assert len(set(leases)) == len(leases), "a lease was settled twice"
        if job.state is JobState.COMPLETED:
            assert job.result.uri in kind.outputs, "the result of a completed job was discarded"
    assert not any(t.name.startswith("headrace-job") for t in set(threading.enumerate()) - others)
    assert +kind.running == Counter()


def _cancel(ledger: RandomlyFailingLedger, job_id: str) -> None:
    with suppress(JobStateError):
        ledger.cancel(job_id)


def test_jobs_that_run_alone_stay_alone_despite_lost_replies(caplog):
    caplog.set_level(100)
    rng = random.Random(7)
    wall = ManualWallClock()
    ledger = RandomlyFailingLedger(wall, rng)
    ledger.start()
    ledger.healthy = True
    for _ in range(4):
        ledger.submit([NewJob(attempts_max=99)])
    for _ in range(2):
        while ledger.settle_and_claim([], ClaimRequest("dead", ("default",), 9, 10)).claimed:
            pass
        wall.advance(100)
        ledger.maintain(100)
        wall.advance(3_600_000)
        ledger.maintain(100)
    ledger.submit([NewJob(attempts_max=99, queue="plain")] * 20)
    ledger.set_queue(QueueSettings("default"))
    ledger.healthy = False
    kind = RandomKind(rng)
    settings = WorkerSettings(
        name="w", concurrency=4, poll_s=0.01, lease_s=600.0, heartbeat_s=0.05, queues=("plain", "default")
    )
    worker = Worker(ledger, {"infer": kind}, settings, seed=1)
    worker.start()
    pause = threading.Event()
    for _ in range(ROUNDS_MAX):
        pause.wait(0.001)
        wall.advance(1_000)
        ledger.healthy = False
        if not ledger.counts("default").backlog and not ledger.counts("plain").backlog:
            break
    ledger.healthy = True
    worker.stop()
    assert kind.alone_violations == 0
