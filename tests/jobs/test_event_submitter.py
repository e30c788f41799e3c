"""Object events become jobs: one job per event, its fields, and reasons for ignored events."""

from concurrent.futures import Future

import pytest

from headrace.core.errors import ConfigError, JobLedgerUnavailableError, QueueFullError
from headrace.jobs import trigger as module
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import QueueSettings
from headrace.jobs.paths import output_name
from headrace.jobs.shared_calls import Submitter
from headrace.jobs.trigger import EventSubmitter, Trigger, Triggers, job_from_event
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
def event_submitter(ledger):
    submitter = Submitter(ledger)
    submitter.start()
    yield EventSubmitter(Triggers([TRIGGER]), submitter.submit)
    submitter.stop()


def test_output_keeps_the_folders_below_the_prefix():
    job = job_from_event(event("in/2026/11/a.csv"), TRIGGER)
    assert (job.input_uri, job.output_uri, job.key) == (
        "s3://b/in/2026/11/a.csv",
        "s3://b/out/2026/11/",
        "a.csv",
    )
    assert (job.model, job.queue, dict(job.options)) == ("m", "q", {"header": "drop"})
    assert job_from_event(event("in/a.csv"), TRIGGER).output_uri == "s3://b/out/"
    transform = Trigger("t", "s3://b/in/", "s3://b/out/", kind="transform")
    assert job_from_event(event("in/day/a.csv"), transform).output_uri == "s3://b/out/day/a.csv/"


def test_repeated_unordered_event_makes_one_job(event_submitter, ledger):
    first = event_submitter.submit([event("in/a.csv"), event("in/b.csv")])
    again = event_submitter.submit([event("in/b.csv"), event("in/c.csv"), event("in/a.csv")])
    assert [outcome.created for outcome in (*first, *again)] == [True, True, False, True, False]
    assert [again[0].job_id, again[2].job_id] == [first[1].job_id, first[0].job_id]
    assert ledger.counts("q").due == 3
    assert event_submitter.submit([event("in/a.csv", etag="other")])[0].created


def test_changed_object_replaces_its_result_under_its_own_name(event_submitter, ledger):
    """Regression: `day 0.csv` was published as `day-0-csv~eecee….out`."""
    first, second = (event_submitter.submit([event("in/day 0.csv", etag=etag)])[0] for etag in "ab")
    jobs = [ledger.get(outcome.job_id) for outcome in (first, second)]
    assert [output_name(job.spec) for job in jobs] == ["day 0.csv"] * 2
    assert ledger.output_owner(jobs[0]).id == second.job_id


def test_name_of_another_tenant_is_the_reason_for_no_job(event_submitter, ledger):
    ledger.submit([NewJob(model="m", output_uri="s3://b/out/", key="a.csv", tenant="ann")])
    (outcome,) = event_submitter.submit([event("in/a.csv")])
    assert (outcome.job_id, outcome.created) == ("", False)
    assert "another tenant" in outcome.reason


def test_event_without_a_trigger_has_a_reason(event_submitter, ledger):
    outcomes = event_submitter.submit([event("out/a.csv"), event("in/a.txt"), event("in/../a.csv")])
    assert [bool(outcome.reason) for outcome in outcomes] == [True] * 3
    event_submitter.handle([event("out/a.csv")])
    assert ledger.queues() == []


def test_changed_trigger_does_not_repeat_its_job(ledger):
    submitter = Submitter(ledger)
    submitter.start()
    made = EventSubmitter(Triggers([TRIGGER]), submitter.submit).submit([event("in/a.csv")])
    other = EventSubmitter(Triggers([Trigger("u", "s3://b/in/", "s3://b/out/", model="n")]), submitter.submit)
    assert [(o.job_id, o.created) for o in other.submit([event("in/a.csv")])] == [(made[0].job_id, False)]
    submitter.stop()


def test_full_queue_fails_the_whole_notice(event_submitter, ledger):
    ledger.set_queue(QueueSettings("q", pending_max=1))
    with pytest.raises(QueueFullError):
        event_submitter.submit([event("in/a.csv"), event("in/b.csv")])
    ledger.set_queue(QueueSettings("q"))
    assert [o.created for o in event_submitter.submit([event("in/a.csv"), event("in/b.csv")])] == [
        False,
        True,
    ]


def test_slow_ledger_fails_the_notice(monkeypatch):
    monkeypatch.setattr(module, "WAIT_S", 0.01)
    with pytest.raises(JobLedgerUnavailableError, match="again"):
        EventSubmitter(Triggers([TRIGGER]), lambda _: Future()).submit([event("in/a.csv")])


def test_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="unknown kind 'guess'"):
        EventSubmitter(
            Triggers([Trigger("t", "s3://b/in/", "s3://b/out/", kind="guess")]), lambda _: Future()
        )
