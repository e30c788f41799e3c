"""Metrics of a ledger and of a worker: their values, and scrapes without a ledger."""

import pytest

from headrace.jobs.job import NewJob
from headrace.jobs.ledger import JobFilter, QueueSettings
from headrace.jobs.notify.delivery import DeliveryCounts
from headrace.jobs.pools import ScalingDecision
from headrace.jobs.state import Cause
from headrace.jobs.worker import WorkerSettings
from headrace.jobs.worker.worker import Worker, WorkerStatistics
from headrace.jobs.worker_registry import WorkerInfo, WorkerState
from headrace.server.jobs import metrics
from headrace.server.jobs.metrics import (
    LEDGER_FAMILIES,
    LedgerReading,
    ledger_metrics,
    process_metrics,
    read_ledger,
    worker_metrics,
)
from headrace.server.jobs.shared_reading import SHARED_S, SharedReading
from headrace.testing import ManualClock
from jobs.memory_outbox import MemoryOutbox
from server.jobs.scraped import failed, run_job, scrape, started_ledger
from server.support_observe import samples_of, value


@pytest.fixture
def ledger():
    return started_ledger()


def reading_of(ledger, **options):
    return SharedReading(lambda: read_ledger(ledger, MemoryOutbox()), **options)


def test_workers_are_counted_by_state(ledger):
    for name in ("a", "b"):
        ledger.register_worker(WorkerInfo(name))
    ledger.set_worker_draining("b", draining=True)
    found = scrape(ledger_metrics(reading_of(ledger)))
    states = {state: value(found, "headrace_workers", state=state) for state in WorkerState}
    assert states == dict.fromkeys(WorkerState, 0) | {"running": 1, "draining": 1}


def test_events_of_jobs_are_counted_by_queue_model_and_tenant(ledger):
    run_job(ledger, wait_ms=400, run_ms=2_000, queue="q", tenant="t")
    run_job(ledger, failed(Cause.OOM), queue="q", tenant="t")
    run_job(ledger, failed(retry_ms=60_000), wait_ms=400, run_ms=20_000, queue="q", tenant="t")
    run_job(ledger, model="other")
    found = scrape(ledger_metrics(reading_of(ledger)))
    group = {"queue": "q", "model": "m", "tenant": "t"}
    other = {"queue": "default", "model": "other", "tenant": ""}
    assert value(found, "headrace_jobs_arrived_total", event="submitted", **group) == 3
    assert value(found, "headrace_jobs_arrived_total", event="submitted", **other) == 1
    assert value(found, "headrace_jobs_ended_total", state="completed", cause="", **group) == 1
    assert value(found, "headrace_jobs_ended_total", state="failed", cause="oom", **group) == 1
    assert value(found, "headrace_jobs_retried_total", cause="model", **group) == 1
    waits = {bound: value(found, "headrace_job_wait_seconds_bucket", le=bound, **group) for bound in BOUNDS}
    assert waits == {"0.025": 1, "0.5": 3, "5.0": 3, "60.0": 3, "+Inf": 3}
    assert value(found, "headrace_job_wait_seconds_sum", **group) == 0.8
    runs = {bound: value(found, "headrace_job_run_seconds_bucket", le=bound, **group) for bound in BOUNDS}
    assert runs == {"0.025": 1, "0.5": 1, "5.0": 2, "60.0": 3, "+Inf": 3}
    assert value(found, "headrace_job_run_seconds_sum", **group) == 22


BOUNDS = ("0.025", "0.5", "5.0", "60.0", "+Inf")


def test_gauges_show_the_jobs_of_each_queue(ledger):
    run_job(ledger, failed(retry_ms=60_000))
    ledger.set_queue(QueueSettings("closed", paused=True, draining=True))
    run_job(ledger, failed(retry_ms=0))
    (job,) = ledger.find(JobFilter(), limit=1).jobs
    ledger.submit([NewJob("m", after=(job.id,))])
    ledger._clock.advance(7_000)
    found = scrape(ledger_metrics(reading_of(ledger)))
    gauges = {name: samples_of(found, f"headrace_{name}") for name in GAUGES}
    assert gauges == {
        "jobs_due": {("closed",): 0, ("default",): 1},
        "jobs_later": {("closed",): 0, ("default",): 1},
        "jobs_blocked": {("closed",): 0, ("default",): 1},
        "jobs_running": {("closed",): 0, ("default",): 0},
        "jobs_oldest_due_seconds": {("closed",): 0, ("default",): 7},
        "queue_paused": {("closed",): 1, ("default",): 0},
        "queue_draining": {("closed",): 1, ("default",): 0},
    }


GAUGES = (
    "jobs_due",
    "jobs_later",
    "jobs_blocked",
    "jobs_running",
    "jobs_oldest_due_seconds",
    "queue_paused",
    "queue_draining",
)


def test_deliveries_are_counted():
    reading = SharedReading(lambda: LedgerReading([], [], DeliveryCounts(3, 2), {}))
    found = scrape(ledger_metrics(reading))
    assert samples_of(found, "headrace_deliveries") == {("open",): 3, ("dead",): 2}


def test_number_of_queues_is_limited(ledger, monkeypatch, caplog):
    monkeypatch.setattr(metrics, "QUEUES_MAX", 2)
    for name in "abc":
        ledger.set_queue(QueueSettings(name))
    assert [settings.name for settings, _ in read_ledger(ledger, MemoryOutbox()).queues] == ["a", "b"]
    assert "first 2 of 3 queues" in caplog.text


def test_pools_show_their_wanted_workers_and_leases(ledger):
    for pool in ("released", "expired", "gpu", "new"):
        assert ledger.control_pool(pool, "c", 30_000 if pool == "expired" else 60_000)
    for pool, wanted in (("gpu", 9), ("expired", 4), ("gpu", 0), ("released", 2)):
        assert ledger.record_decision(ScalingDecision(pool, "c", 1, wanted, "why"))
    ledger.release_pool("released", "c")
    ledger._clock.advance(30_000)
    found = scrape(ledger_metrics(reading_of(ledger)))
    # An autoscaler must not follow the last number of a pool without a controller.
    assert samples_of(found, "headrace_pool_workers_wanted") == {("gpu",): 0}
    assert samples_of(found, "headrace_pool_controlled") == {
        ("expired",): 0,
        ("gpu",): 1,
        ("new",): 1,
        ("released",): 0,
    }


def test_number_of_pools_is_limited(ledger, monkeypatch, caplog):
    monkeypatch.setattr(metrics, "POOLS_MAX", 2)
    for name in "cab":
        ledger.control_pool(name, "c", 60_000)
    assert [pool.name for pool in read_ledger(ledger, MemoryOutbox()).pools] == ["a", "b"]
    assert "first 2 of 3 pools" in caplog.text


def test_unavailable_ledger_is_reported_without_its_metrics(ledger):
    run_job(ledger)
    clock = ManualClock()
    reading = reading_of(ledger, clock=clock)
    sources = (ledger_metrics(reading), process_metrics(ledger, reading))
    names = tuple(family.name.removesuffix("_total") for family in LEDGER_FAMILIES)
    up = scrape(*sources)
    assert value(up, "headrace_ledger_up") == 1
    assert value(up, "headrace_ledger_errors_total") == 0
    assert any(name.startswith(names) for name, _ in up)
    ledger.unavailable = True
    clock.advance(SHARED_S)
    down = scrape(*sources)
    assert value(down, "headrace_ledger_up") == 0
    assert value(down, "headrace_ledger_errors_total") == 1
    assert [name for name, _ in down if name.startswith(names)] == []


def test_defect_of_a_reading_is_logged_and_costs_no_other_metric(ledger, caplog):
    def read():
        raise ValueError("broken")

    reading = SharedReading(read)
    found = scrape(ledger_metrics(reading), process_metrics(ledger, reading))
    assert value(found, "headrace_ledger_up") == 0
    assert "the ledger could not be read" in caplog.text


def test_worker_shows_its_attempts(ledger, monkeypatch):
    worker = Worker(ledger, {}, WorkerSettings(name="w", concurrency=3))
    monkeypatch.setattr(worker, "statistics", lambda: WorkerStatistics(1, 9, 4, 3, 2, 1, 5))
    found = scrape(worker_metrics(worker))
    assert value(found, "headrace_worker_slots", worker="w") == 3
    assert value(found, "headrace_worker_running_attempts", worker="w") == 1
    assert value(found, "headrace_worker_attempts_started_total", worker="w") == 9
    assert samples_of(found, "headrace_worker_attempts_ended_total") == {
        ("completed", "w"): 4,
        ("failed", "w"): 3,
        ("released", "w"): 2,
        ("lost", "w"): 1,
    }
    assert value(found, "headrace_worker_attempts_stuck_total", worker="w") == 5
