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
from headrace.jobs.attempt import Attempt, AttemptStoppedError
from headrace.jobs.job import Completed, NewJob, ResultRef, Settlement
from headrace.jobs.ledger import ClaimRequest, QueueSettings, SettleAndClaimReply
from headrace.jobs.state import JobState
from headrace.jobs.worker.settings import WorkerSettings
from headrace.jobs.worker.worker import Worker
from headrace.testing import ManualWallClock, MemoryJobLedger

JOBS = 40
ROUNDS_MAX = 4_000


class RandomlyAway(MemoryJobLedger):
    """A ledger whose methods fail at random, before or after their work.

    `accepted` records the settlements that counted.
    """

    def __init__(self, clock: ManualWallClock, dice: random.Random) -> None:
        super().__init__(clock)
        self.dice, self.calm = dice, False
        self.accepted: dict[str, list[Settlement]] = defaultdict(list)

    def _fails(self) -> bool:
        return not self.calm and self.dice.random() < 0.125

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

    def heartbeat(self, worker, heartbeats, lease_ms):
        self._cut()
        reply = super().heartbeat(worker, heartbeats, lease_ms)
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

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.there: set[str] = set()
        self.lock = threading.Lock()
        self.at_once: Counter[str] = Counter()
        self.alone_broken = 0

    def run(self, attempt: Attempt) -> ResultRef:
        job = attempt.job
        with self.lock:
            self.at_once[job.id] += 1
            if job.alone and sum(self.at_once.values()) > 1:
                self.alone_broken += 1
        try:
            return self._run(attempt)
        finally:
            with self.lock:
                self.at_once[job.id] -= 1

    def _run(self, attempt: Attempt) -> ResultRef:
        told, roll = threading.Event(), self.dice.random()
        attempt.add_stop_callback(told.set)
        told.wait(self.dice.random() * 0.004)
        uri = f"memory://store/{attempt.job.id}/{attempt.job.lease}"
        with self.lock:
            self.there.add(uri)
        if roll < 0.1:
            raise DataError("cannot be done")
        if roll < 0.3:
            raise StorageError("s3://b/k", "not now")
        if roll < 0.35:
            raise ZeroDivisionError
        if told.is_set():
            raise AttemptStoppedError(attempt.stopped)
        return ResultRef(uri, 1)

    def discard(self, attempt: Attempt) -> None:
        with self.lock:
            self.there.discard(f"memory://store/{attempt.job.id}/{attempt.job.lease}")


def worker_over(ledger: RandomlyAway, kind: RandomKind, number: int) -> Worker:
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
def test_random_faults_every_job_ends_once_with_its_result(seed, caplog):
    caplog.set_level(100)
    others = set(threading.enumerate())
    dice = random.Random(seed)
    wall = ManualWallClock()
    ledger = RandomlyAway(wall, dice)
    ledger.start()
    kind = RandomKind(dice)
    answers = ledger.submit([NewJob(attempts_max=3, time_limit_s=1.0)] * JOBS)
    ids = [answer.job.id for answer in answers]
    worker = worker_over(ledger, kind, 0)
    worker.start()
    workers = 0
    pause = threading.Event()
    for number in range(ROUNDS_MAX):
        pause.wait(0.001)
        if number > 300:
            ledger.calm = True
        roll = dice.random()
        if roll < 0.02 and not ledger.calm:
            worker.stop(drain=dice.random() < 0.5)
            workers += 1
            worker = worker_over(ledger, kind, workers)
            worker.start()
        elif roll < 0.05:
            _cancel(ledger, dice.choice(ids))
        # The ledger's time passes: leases expire, and retries become due.
        wall.advance(dice.choice([0, 1, 5, 20, 5_000] if ledger.calm else [0, 1, 5, 20]))
        ledger.maintain(10)
        if all(ledger.get(job_id).state.ended for job_id in ids):
            break
    ledger.calm = True
    worker.stop()
    jobs = [ledger.get(job_id) for job_id in ids]
    assert [job.id for job in jobs if not job.state.ended] == []
    assert worker.statistics().running == 0
    for job in jobs:
        completed = [s for s in ledger.accepted[job.id] if isinstance(s.outcome, Completed)]
        assert len(completed) == (job.state is JobState.COMPLETED), "it has ended once"
        leases = [s.lease for s in ledger.accepted[job.id]]
        assert len(set(leases)) == len(leases), "each lease has come to one thing"
        if job.state is JobState.COMPLETED:
            assert job.result.uri in kind.there, "nothing is discarded that counts"
    assert not any(t.name.startswith("headrace-job") for t in set(threading.enumerate()) - others)
    assert +kind.at_once == Counter()


def _cancel(ledger: RandomlyAway, job_id: str) -> None:
    with suppress(JobStateError):
        ledger.cancel(job_id)


def test_jobs_that_run_alone_stay_alone_despite_lost_replies(caplog):
    caplog.set_level(100)
    dice = random.Random(7)
    wall = ManualWallClock()
    ledger = RandomlyAway(wall, dice)
    ledger.start()
    ledger.calm = True
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
    ledger.calm = False
    kind = RandomKind(dice)
    settings = WorkerSettings(
        name="w", concurrency=4, poll_s=0.01, lease_s=600.0, heartbeat_s=0.05, queues=("plain", "default")
    )
    worker = Worker(ledger, {"infer": kind}, settings, seed=1)
    worker.start()
    pause = threading.Event()
    for _ in range(ROUNDS_MAX):
        pause.wait(0.001)
        wall.advance(1_000)
        ledger.calm = False
        if not ledger.counts("default").backlog and not ledger.counts("plain").backlog:
            break
    ledger.calm = True
    worker.stop()
    assert kind.alone_broken == 0
