"""The submitter: shared commits, immediate single commits, and no lost or doubled jobs."""

import threading

import pytest

from headrace.core.errors import IdempotencyError, JobLedgerUnavailableError, OverloadedError, StoppedError
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import JobFilter
from headrace.jobs.shared_calls import Submitter
from headrace.testing import ManualWallClock, MemoryJobLedger, check_service

WAIT_S = 20.0


class GatedLedger(MemoryJobLedger):
    """A ledger whose commits wait for a gate, and which records the jobs of each commit."""

    def __init__(self):
        super().__init__(ManualWallClock())
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Semaphore(0)
        self.commits = []
        self.poison = None

    def submit(self, jobs, *, all_or_nothing=False):
        self.commits.append(len(jobs))
        self.began.release()
        assert self.gate.wait(WAIT_S)
        if any(job.model == self.poison for job in jobs):
            raise ValueError("no database takes this")
        return super().submit(jobs, all_or_nothing=all_or_nothing)


@pytest.fixture
def ledger():
    made = GatedLedger()
    made.start()
    yield made
    made.gate.set()
    made.stop()


@pytest.fixture
def submitter(ledger):
    made = Submitter(ledger, commit_jobs_max=100, waiting_max=1000)
    made.start()
    yield made
    ledger.gate.set()
    made.stop()


def test_submitter_is_a_service(ledger):
    check_service(lambda: Submitter(ledger))


def test_only_due_jobs_are_announced(ledger):
    announced = []
    submitter = Submitter(ledger, announce=lambda queue, ids: announced.append((queue, ids)))
    submitter.start()
    first = submitter.submit(NewJob(model="m", queue="a")).result(WAIT_S).job
    submitter.submit(NewJob(model="m", queue="b", delay_ms=1)).result(WAIT_S)
    submitter.submit(NewJob(model="m", queue="c", after=(first.id,))).result(WAIT_S)
    submitter.stop()
    assert announced == [("a", [first.id])]


def test_single_submission_is_committed_at_once(ledger, submitter):
    made = submitter.submit(NewJob(model="m")).result(WAIT_S)
    assert made.created
    assert ledger.get(made.job.id) == made.job
    assert ledger.commits == [1]


def test_submissions_during_a_commit_share_the_next(ledger, submitter):
    ledger.gate.clear()
    first = submitter.submit(NewJob(model="first"))
    assert ledger.began.acquire(timeout=WAIT_S)
    rest = [submitter.submit(NewJob(model=f"m{n}")) for n in range(250)]
    assert submitter.statistics().pending == 250
    ledger.gate.set()
    assert first.result(WAIT_S).created
    assert [answer.result(WAIT_S).job.spec.model for answer in rest] == [f"m{n}" for n in range(250)]
    assert ledger.commits == [1, 100, 100, 50]
    assert (submitter.statistics().commits, submitter.statistics().jobs) == (4, 251)


def test_ten_thousand_submissions_of_one_key_are_one_job(ledger):
    submitter = Submitter(ledger, waiting_max=20_000)
    submitter.start()
    job = NewJob(model="m", idempotency_key="k", body_digest="d")
    answers = []
    lock = threading.Lock()
    begin = threading.Barrier(8)

    def submit():
        begin.wait(WAIT_S)
        own = [submitter.submit(job) for _ in range(1250)]
        with lock:
            answers.extend(own)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    found = [answer.result(WAIT_S) for answer in answers]
    submitter.stop()
    assert len(found) == 10_000
    assert len({made.job.id for made in found}) == 1
    assert sum(made.created for made in found) == 1
    assert len(ledger.find(JobFilter()).jobs) == 1


def test_each_submission_gets_its_own_reply(submitter):
    job = NewJob(model="m", idempotency_key="k", body_digest="d")
    other = NewJob(model="m", idempotency_key="k", body_digest="e")
    made = submitter.submit(job).result(WAIT_S)
    with pytest.raises(IdempotencyError):
        submitter.submit(other).result(WAIT_S)
    assert not submitter.submit(job).result(WAIT_S).created
    assert submitter.submit(job).result(WAIT_S).job.id == made.job.id


def test_refused_job_does_not_affect_others(ledger, submitter, caplog):
    ledger.gate.clear()
    ledger.poison = "bad"
    submitter.submit(NewJob(model="first"))
    assert ledger.began.acquire(timeout=WAIT_S)
    answers = [submitter.submit(NewJob(model=name)) for name in ("a", "bad", "b")]
    ledger.gate.set()
    assert answers[0].result(WAIT_S).created
    assert answers[2].result(WAIT_S).created
    with pytest.raises(ValueError, match="no database takes this"):
        answers[1].result(WAIT_S)
    assert "one by one" in caplog.text


def test_unavailable_ledger_fails_all_submissions(ledger, submitter):
    ledger.unavailable = True
    with pytest.raises(JobLedgerUnavailableError):
        submitter.submit(NewJob(model="m")).result(WAIT_S)
    ledger.unavailable = False
    assert submitter.submit(NewJob(model="m")).result(WAIT_S).created


def test_too_many_submissions_are_refused(ledger):
    submitter = Submitter(ledger, waiting_max=3)
    submitter.start()
    ledger.gate.clear()
    submitter.submit(NewJob(model="m"))
    assert ledger.began.acquire(timeout=WAIT_S)
    waiting = [submitter.submit(NewJob(model="m")) for _ in range(3)]
    with pytest.raises(OverloadedError) as refused:
        submitter.submit(NewJob(model="m"))
    assert refused.value.retry_after_s > 0
    ledger.gate.set()
    submitter.stop()
    assert all(answer.result(0).created for answer in waiting)


def test_stop_finishes_or_drops_waiting_submissions(ledger):
    submitter = Submitter(ledger)
    with pytest.raises(StoppedError):
        submitter.submit(NewJob(model="m"))
    submitter.start()
    ledger.gate.clear()
    begun = submitter.submit(NewJob(model="m"))
    assert ledger.began.acquire(timeout=WAIT_S)
    waiting = submitter.submit(NewJob(model="m"))
    stopping = threading.Thread(target=submitter.stop, kwargs={"drain": False})
    stopping.start()
    with pytest.raises(StoppedError):
        waiting.result(WAIT_S)
    ledger.gate.set()
    stopping.join(WAIT_S)
    assert begun.result(0).created


def test_cancelled_future_does_not_cancel_the_submission(ledger, submitter):
    """A client that disconnects must not cancel other submissions of the same commit."""
    ledger.gate.clear()
    submitter.submit(NewJob(model="first"))
    assert ledger.began.acquire(timeout=WAIT_S)
    given_up = submitter.submit(NewJob(model="gone"))
    other = submitter.submit(NewJob(model="other"))
    assert given_up.cancel()
    ledger.gate.set()
    assert other.result(WAIT_S).created
