"""Events to jobs: each once, however often it is told; what the job is; and what is told where there is none."""

from concurrent.futures import Future

import pytest

from headrace.core.errors import ConfigError, JobLedgerUnavailableError, QueueFullError
from headrace.jobs import triggering as module
from headrace.jobs.ledger import QueueSettings
from headrace.jobs.submitter import Submitter
from headrace.jobs.trigger import Trigger, Triggers
from headrace.jobs.triggering import Triggering, job_of
from headrace.protocols.object_events import ObjectEvent
from headrace.testing import ManualWallClock, MemoryJobLedger

TRIGGER = Trigger(
    "t", "s3://b/in/", "s3://b/out/", suffix=".csv", model="m", queue="q", options={"header": "drop"}
)


def event(key, etag="e"):
    return ObjectEvent("b", key, etag=etag)


@pytest.fixture
def ledger():
    made = MemoryJobLedger(ManualWallClock())
    made.start()
    yield made
    made.stop()


@pytest.fixture
def triggering(ledger):
    submitter = Submitter(ledger)
    submitter.start()
    yield Triggering(Triggers([TRIGGER]), submitter.submit)
    submitter.stop()


def test_the_folders_below_the_prefix_stand_below_the_output_too():
    job = job_of(event("in/2026/11/a.csv"), TRIGGER)
    assert (job.input_uri, job.output_uri, job.key) == (
        "s3://b/in/2026/11/a.csv",
        "s3://b/out/2026/11/",
        "a.csv",
    )
    assert (job.model, job.queue, dict(job.options)) == ("m", "q", {"header": "drop"})
    assert job_of(event("in/a.csv"), TRIGGER).output_uri == "s3://b/out/"
    transform = Trigger("t", "s3://b/in/", "s3://b/out/", kind="transform")
    assert job_of(event("in/day/a.csv"), transform).output_uri == "s3://b/out/day/a.csv/"


def test_an_event_told_again_and_in_disorder_makes_its_job_once(triggering, ledger):
    first = triggering.take([event("in/a.csv"), event("in/b.csv")])
    again = triggering.take([event("in/b.csv"), event("in/c.csv"), event("in/a.csv")])
    assert [outcome.created for outcome in (*first, *again)] == [True, True, False, True, False]
    assert [again[0].job_id, again[2].job_id] == [first[1].job_id, first[0].job_id]
    assert ledger.counts("q").due == 3
    assert triggering.take([event("in/a.csv", etag="other")])[0].created


def test_what_fires_nothing_is_told_why(triggering, ledger):
    outcomes = triggering.take([event("out/a.csv"), event("in/a.txt"), event("in/../a.csv")])
    assert [bool(outcome.reason) for outcome in outcomes] == [True] * 3
    triggering.handle([event("out/a.csv")])
    assert ledger.queues() == []


def test_a_trigger_that_has_changed_does_not_do_its_work_again(ledger):
    submitter = Submitter(ledger)
    submitter.start()
    made = Triggering(Triggers([TRIGGER]), submitter.submit).take([event("in/a.csv")])
    other = Triggering(Triggers([Trigger("u", "s3://b/in/", "s3://b/out/", model="n")]), submitter.submit)
    assert [(o.job_id, o.created) for o in other.take([event("in/a.csv")])] == [(made[0].job_id, False)]
    submitter.stop()


def test_a_full_queue_has_the_whole_notice_told_again(triggering, ledger):
    ledger.set_queue(QueueSettings("q", pending_max=1))
    with pytest.raises(QueueFullError):
        triggering.take([event("in/a.csv"), event("in/b.csv")])
    ledger.set_queue(QueueSettings("q"))
    assert [o.created for o in triggering.take([event("in/a.csv"), event("in/b.csv")])] == [False, True]


def test_a_ledger_that_does_not_answer_has_it_told_again(monkeypatch):
    monkeypatch.setattr(module, "WAIT_S", 0.01)
    with pytest.raises(JobLedgerUnavailableError, match="again"):
        Triggering(Triggers([TRIGGER]), lambda _: Future()).take([event("in/a.csv")])


def test_an_unknown_kind_is_told():
    with pytest.raises(ConfigError, match="no kind 'guess'"):
        Triggering(Triggers([Trigger("t", "s3://b/in/", "s3://b/out/", kind="guess")]), lambda _: Future())
