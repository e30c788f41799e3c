"""Loads of a job server's records, which a real ledger in memory writes."""

from dataclasses import replace

import pytest

from cases import for_each
from headrace.core.errors import ConfigError, DataError
from headrace.jobs.job import (
    Cancelled,
    Completed,
    Failed,
    Job,
    JobFailure,
    NewJob,
    Released,
    ResultRef,
    Settlement,
    job_document,
    read_job,
)
from headrace.jobs.ledger import ClaimRequest, JobFilter
from headrace.jobs.state import Cause, JobState
from headrace.scaling.planner import arrivals
from headrace.scaling.planner.arrivals import DAYS_MAX, LoadOptions, load_of_jobs
from headrace.testing import ManualWallClock, MemoryJobLedger

QUEUE = "default"
MIDNIGHT_MS = 1_769_817_600_000
NINE_S = 32_400.0
COMPLETED = Completed(ResultRef("memory://results/out", 1, "text/csv"))
RETRIED = Failed(JobFailure(Cause.MODEL, "it raised"), retry_ms=60_000)
FAILED = Failed(JobFailure(Cause.INPUT, "it is invalid"))


class Server:
    """A job server with one worker, at nine o'clock."""

    def __init__(self) -> None:
        self._clock = ManualWallClock(MIDNIGHT_MS + 32_400_000)
        self.ledger = MemoryJobLedger(self._clock)
        self.ledger.start()

    def submit(self, job_id="", **values):
        (reply,) = self.ledger.submit([NewJob("m", id=job_id, **values)])
        return reply.job.id

    def after(self, seconds):
        self._clock.advance(round(seconds * 1000))

    def claim(self):
        return self.ledger.settle_and_claim([], ClaimRequest("w", (QUEUE,), 1, 3_600_000)).claimed[0]

    def settle(self, job, outcome=COMPLETED):
        self.ledger.settle_and_claim([Settlement(job.id, job.lease, outcome)], None)

    def run(self, seconds, outcome=COMPLETED):
        """Run the next job."""
        job = self.claim()
        self.after(seconds)
        self.settle(job, outcome)

    def jobs(self):
        """Return the records as a client gets them, newest first."""
        ids = [job.id for state in JobState for job in self._of(state)]
        return [read_job(job_document(self.ledger.get(each))) for each in sorted(ids, reverse=True)]

    def _of(self, state):
        return self.ledger.find(JobFilter(states=frozenset({state}))).jobs

    def load(self, **options):
        return load_of_jobs(self.jobs(), LoadOptions(**options))


def found(load):
    return list(zip((load.arrived_s - NINE_S).tolist(), load.run_s.tolist(), strict=True))


def test_jobs_arrive_when_they_are_due_and_run_from_their_begin_to_their_end():
    server = Server()
    server.submit()
    server.submit(delay_ms=500_000)
    server.after(100)
    server.run(50.25)
    server.submit()
    server.run(10, FAILED)
    server.after(1000)
    server.run(20)
    load = server.load()
    assert found(load) == [(0, 50.25), (150.25, 10), (500, 20)]
    assert (load.began_at_ms, load.days, load.due_s) == (MIDNIGHT_MS, 1, None)


def test_last_attempt_counts_and_its_job_arrived_at_its_creation():
    server = Server()
    server.submit()
    server.after(10)
    server.run(30, RETRIED)
    server.after(60)
    server.run(40, Released())
    server.run(50)
    assert found(server.load()) == [(0, 50)]


def test_jobs_that_never_began_are_left_out():
    server = Server()
    server.submit("00000000-0000-7000-8000-000000000001")
    blocked = server.submit(after=("00000000-0000-7000-8000-000000000001",))
    server.ledger.cancel(server.submit(delay_ms=5))
    assert server.ledger.get(blocked).state is JobState.BLOCKED
    server.run(30)
    server.ledger.cancel(blocked)
    server.submit(blocked[:-1] + "f", after=(server.submit(delay_ms=1000),))
    for options, expected in (({}, [(0, 30)]), ({"run_s": 7.0}, [(0, 30), (31, 7)])):
        assert found(server.load(**options)) == expected


def test_given_run_time_replaces_unknown_ones():
    server = Server()
    for _ in range(4):
        server.submit()
        server.after(1)
    server.run(20)
    server.run(9, RETRIED)
    retried = server.jobs()[2].id
    server.after(5)
    server.ledger.cancel(retried)
    server.claim()
    assert found(server.load()) == [(0, 20)]
    # The second one was cancelled between two attempts, the third one runs, and the last one waits.
    assert found(server.load(run_s=7.0)) == [(0, 20), (1, 7), (2, 7), (3, 7)]


def test_job_that_waits_for_its_second_attempt_arrived_at_its_creation():
    server = Server()
    server.submit()
    server.run(9, RETRIED)
    assert found(server.load(run_s=7.0)) == [(0, 7)]


def test_cancelled_attempt_counts_with_its_time():
    server = Server()
    job_id = server.submit()
    job = server.claim()
    server.after(12)
    server.ledger.cancel(job_id)
    server.settle(job, Cancelled())
    assert found(server.load(run_s=7.0)) == [(0, 12)]


def test_job_whose_result_is_published_has_no_run_time_yet():
    server = Server()
    server.submit(output_uri="memory://out/")
    server.run(12)
    assert server.jobs()[0].state is JobState.PUBLISHING
    assert found(server.load(run_s=7.0)) == [(0, 7)]


def test_attempt_without_a_measurable_time_took_a_millisecond():
    server = Server()
    server.submit()
    server.run(0)
    assert found(server.load()) == [(0, 0.001)]


def test_requeued_job_counts_once():
    server = Server()
    job_id = server.submit()
    server.run(5, FAILED)
    server.ledger.requeue(job_id)
    server.after(100)
    server.run(6)
    assert found(server.load()) == [(0, 6)]


def test_load_has_the_whole_days_of_its_arrivals():
    server = Server()
    for _ in range(3):
        server.submit()
        server.run(60)
        server.after(86_400 - 60)
    load = server.load()
    assert (load.days, load.began_at_ms) == (3, MIDNIGHT_MS)
    assert found(load) == [(day * 86_400, 60) for day in range(3)]


def completed_job(due_at_ms):
    times = {"created_at_ms": due_at_ms, "due_at_ms": due_at_ms, "started_at_ms": due_at_ms}
    return Job("x", JobState.COMPLETED, NewJob("m"), 1, 1, ended_at_ms=due_at_ms + 5000, **times)


def test_end_before_the_begin_is_no_negative_time():
    """The clock of a ledger may have been set back."""
    job = replace(completed_job(MIDNIGHT_MS), ended_at_ms=MIDNIGHT_MS - 5)
    assert load_of_jobs([job], LoadOptions()).run_s.tolist() == [0.001]


@for_each(
    ("jobs", "options", "message"),
    [
        ([], {}, "^the job server has no such jobs: take those of more days or queues, or generate a load$"),
        ([], {"run_s": 7.0}, "^the job server has no such jobs"),
        (
            [Job(state, JobState(state), NewJob("m")) for state in ("pending", "running", "cancelled")],
            {},
            "^none of 3 jobs has a run time: take jobs that have ended, or set run_s$",
        ),
        ([Job("x", JobState.CANCELLED, NewJob("m"))], {"run_s": 7.0}, "^none of 1 jobs has a run time"),
    ],
)
def test_missing_jobs_are_refused(jobs, options, message):
    with pytest.raises(ConfigError, match=message):
        load_of_jobs(jobs, LoadOptions(**options))


def test_number_of_jobs_is_bounded(monkeypatch):
    monkeypatch.setattr(arrivals, "JOBS_MAX", 2)
    jobs = [completed_job(MIDNIGHT_MS)] * 2
    assert len(load_of_jobs(jobs, LoadOptions()).run_s) == 2
    with pytest.raises(ConfigError, match=r"^the jobs are more than 2: take those of fewer days$"):
        load_of_jobs(iter([*jobs, *jobs]), LoadOptions())


def test_days_of_jobs_are_bounded():
    jobs = [completed_job(MIDNIGHT_MS), completed_job(MIDNIGHT_MS + DAYS_MAX * 86_400_000)]
    with pytest.raises(DataError, match=r"^the jobs: the arrivals from 2026-01-31 to 2028-10-27 span more"):
        load_of_jobs(jobs, LoadOptions())
