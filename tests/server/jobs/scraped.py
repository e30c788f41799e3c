"""Metrics of jobs as Prometheus reads them."""

from prometheus_client import generate_latest

from headrace.engine.repository import ModelRepository
from headrace.jobs.job import Completed, Failed, JobFailure, NewJob, ResultRef, Settlement
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.pools import ScalingDecision
from headrace.jobs.state import Cause
from headrace.jobs.worker import WorkerSettings
from headrace.jobs.worker.worker import Worker
from headrace.server.dataplane import Dataplane
from headrace.server.jobs.metrics import (
    ledger_metrics,
    process_metrics,
    read_ledger,
    worker_metrics,
)
from headrace.server.jobs.shared_reading import SharedReading
from headrace.server.metrics import HeadraceCollector
from headrace.testing import ManualWallClock, MemoryJobLedger
from jobs.memory_outbox import MemoryOutbox
from server.support_observe import Samples, samples


def scrape(*sources) -> Samples:
    """Return the samples of sources, as a scrape of a server without models has them."""
    collector = HeadraceCollector(Dataplane(ModelRepository([])), sources=sources)
    return samples(generate_latest(collector).decode())


def started_ledger(clock=None) -> MemoryJobLedger:
    ledger = MemoryJobLedger(clock or ManualWallClock())
    ledger.start()
    return ledger


def run_job(ledger, outcome=None, *, wait_ms=0, run_ms=0, **spec) -> None:
    """Submit a job, let it wait, run it, and settle it."""
    ledger.submit([NewJob(**{"model": "m", **spec})])
    ledger._clock.advance(wait_ms)
    (job,) = ledger.settle_and_claim([], ClaimRequest("w", (spec.get("queue", "default"),), 1, 10**9)).claimed
    ledger._clock.advance(run_ms)
    settlement = Settlement(job.id, job.lease, outcome or Completed(ResultRef("memory://out")))
    ledger.settle_and_claim([settlement])


def failed(cause=Cause.MODEL, retry_ms=None) -> Failed:
    return Failed(JobFailure(cause, "it failed"), retry_ms)


def all_sources():
    """Return the sources of `headrace up`, over a ledger with a job of each kind and a pool."""
    ledger = started_ledger()
    run_job(ledger)
    run_job(ledger, failed())
    run_job(ledger, failed(retry_ms=60_000))
    ledger.control_pool("p", "c", 60_000)
    ledger.record_decision(ScalingDecision("p", "c", 1, 2, "why"))
    reading = SharedReading(lambda: read_ledger(ledger, MemoryOutbox()))
    worker = Worker(ledger, {}, WorkerSettings(name="w"))
    return [ledger_metrics(reading), process_metrics(ledger, reading), worker_metrics(worker)]
