"""The metrics of jobs: those of a whole ledger, and those of one worker.

A ledger counts its jobs itself, so that every process that exposes them exposes the same numbers.
Readings of the ledger happen in a thread of their own, and scrapes share them for some seconds: a
scrape neither loads the database nor waits long for it.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.jobs.counters import (
    ARRIVALS,
    ENDS,
    CountedEvent,
    JobCount,
    JobGroup,
    histogram_of,
)
from headrace.jobs.ledger import JobLedger, QueueCounts, QueueSettings
from headrace.jobs.notify.delivery import DeliveryCounts, Outbox
from headrace.jobs.pools import WORKERS_WANTED, Pool
from headrace.jobs.worker.worker import Worker
from headrace.jobs.worker_registry import WorkerState
from headrace.server.jobs.shared_reading import SharedReading
from headrace.server.metrics import Family, MetricKind, MetricSource, MetricValue, MetricValues

QUEUES_MAX: Final = 200
"""The limit of queues whose jobs are counted for a scrape, the first by name."""
POOLS_MAX: Final = 200
"""The limit of pools of workers in a scrape, the first by name."""
DELIVERIES_MAX: Final = 10_000

_GROUP: Final = ("queue", "model", "tenant")
_log = logging.getLogger("headrace.jobs")


def _of_group(name: str, kind: MetricKind, description: str, *labels: str) -> Family:
    return Family(name, kind, (*_GROUP, *labels), description)


def _of_queue(name: str, description: str) -> Family:
    return Family(name, "gauge", ("queue",), description)


_ARRIVED: Final = _of_group(
    "headrace_jobs_arrived_total",
    "counter",
    "Jobs that were submitted, requeued or republished (their publication repeated), by event.",
    "event",
)
_WAIT: Final = _of_group(
    "headrace_job_wait_seconds",
    "histogram",
    "Seconds from the due time of a job to its claim by a worker, for each started attempt.",
)
_RUN: Final = _of_group(
    "headrace_job_run_seconds",
    "histogram",
    "Seconds from the claim of a job to the end of the attempt, for each ended attempt.",
)
_RETRIED: Final = _of_group(
    "headrace_jobs_retried_total",
    "counter",
    "Attempts after which the job returned to its queue, by the cause of the failure or released (by a "
    "worker that stops).",
    "cause",
)
_ENDED: Final = _of_group(
    "headrace_jobs_ended_total",
    "counter",
    "Ended jobs by state: completed, publish_failed, failed, cancelled or expired; the second and third "
    "have a cause.",
    "state",
    "cause",
)
_DUE: Final = _of_queue("headrace_jobs_due", "Pending jobs that are due.")
_LATER: Final = _of_queue("headrace_jobs_later", "Pending jobs that become due later.")
_BLOCKED: Final = _of_queue("headrace_jobs_blocked", "Jobs that wait until others have completed.")
_RUNNING: Final = _of_queue("headrace_jobs_running", "Running jobs.")
_OLDEST: Final = _of_queue(
    "headrace_jobs_oldest_due_seconds", "Waiting time of the oldest due job in seconds; 0 without one."
)
_PAUSED: Final = _of_queue("headrace_queue_paused", "1 if the queue gives out no jobs.")
_DRAINING: Final = _of_queue("headrace_queue_draining", "1 if the queue accepts no jobs.")
_WORKERS: Final = Family(
    "headrace_workers",
    "gauge",
    ("state",),
    "Registered workers by state; those that are stopped or lost for a day.",
)
_POOL_WANTED: Final = Family(
    WORKERS_WANTED,
    "gauge",
    ("pool",),
    "Workers that the pool is to have, by its last decision; absent while it has no controller.",
)
_POOL_CONTROLLED: Final = Family(
    "headrace_pool_controlled", "gauge", ("pool",), "1 while a controller holds the lease of the pool."
)
_DELIVERIES: Final = Family(
    "headrace_deliveries",
    "gauge",
    ("state",),
    "Deliveries of notifications that are open (waiting or being sent) or dead (given up), each counted up "
    "to 10,000.",
)
_UP: Final = Family(
    "headrace_ledger_up",
    "gauge",
    (),
    "1 if the job ledger responds to this process; if 0, the metrics of the whole ledger are absent.",
)
_POOL: Final = Family(
    "headrace_ledger_pool_size", "gauge", (), "Database connections that this process keeps open."
)
_IN_USE: Final = Family(
    "headrace_ledger_pool_in_use", "gauge", (), "Database connections of this process that are in use."
)
_ERRORS: Final = Family(
    "headrace_ledger_errors_total",
    "counter",
    (),
    "Transactions of this process that failed because the ledger was unavailable, also if repeated.",
)
_SLOTS: Final = Family("headrace_worker_slots", "gauge", ("worker",), "Jobs that the worker runs at once.")
_WORKING: Final = Family(
    "headrace_worker_running_attempts", "gauge", ("worker",), "Attempts of the worker that have not ended."
)
_BEGUN: Final = Family(
    "headrace_worker_attempts_started_total", "counter", ("worker",), "Attempts that the worker started."
)
_OUTCOMES: Final = Family(
    "headrace_worker_attempts_ended_total",
    "counter",
    ("worker", "outcome"),
    "Attempts of the worker that ended: completed, failed (retried or not), released (returned), or lost "
    "(the lease or a late outcome).",
)
_STUCK: Final = Family(
    "headrace_worker_attempts_stuck_total",
    "counter",
    ("worker",),
    "Attempts that ignored their stop; each occupies a slot until it returns.",
)

LEDGER_FAMILIES: Final = (
    _ARRIVED,
    _WAIT,
    _RUN,
    _RETRIED,
    _ENDED,
    _DUE,
    _LATER,
    _BLOCKED,
    _RUNNING,
    _OLDEST,
    _PAUSED,
    _DRAINING,
    _WORKERS,
    _POOL_WANTED,
    _POOL_CONTROLLED,
    _DELIVERIES,
)
"""The metrics of a whole ledger, the same in every process that exposes them."""
PROCESS_FAMILIES: Final = (_UP, _POOL, _IN_USE, _ERRORS)
WORKER_FAMILIES: Final = (_SLOTS, _WORKING, _BEGUN, _OUTCOMES, _STUCK)


@dataclass(frozen=True, slots=True)
class LedgerReading:
    """The numbers of a ledger at one time."""

    counts: Sequence[JobCount]
    queues: Sequence[tuple[QueueSettings, QueueCounts]]
    deliveries: DeliveryCounts
    workers: Mapping[WorkerState, int]
    pools: Sequence[Pool] = ()


def read_ledger(ledger: JobLedger, outbox: Outbox) -> LedgerReading:
    """Read the numbers of a ledger. Raise JobLedgerUnavailableError."""
    queues = ledger.queues()
    if len(queues) > QUEUES_MAX:
        _log.warning("metrics have the first %d of %d queues", QUEUES_MAX, len(queues))
    counted = [(settings, ledger.counts(settings.name)) for settings in queues[:QUEUES_MAX]]
    workers = Counter(record.state for record in ledger.workers())
    pools = ledger.pools()
    if len(pools) > POOLS_MAX:
        _log.warning("metrics have the first %d of %d pools", POOLS_MAX, len(pools))
    deliveries = outbox.counts(limit=DELIVERIES_MAX)
    return LedgerReading(ledger.counters(), counted, deliveries, workers, pools[:POOLS_MAX])


def ledger_metrics(reading: SharedReading[LedgerReading]) -> MetricSource:
    """Return the source of `LEDGER_FAMILIES`. Without a reading, no metric of it has a value."""

    def read() -> Iterator[tuple[Family, MetricValues]]:
        found = reading.latest()
        values: Mapping[Family, MetricValues] = {} if found is None else _ledger_values(found)
        for family in LEDGER_FAMILIES:
            yield family, values.get(family, ())

    return read


def process_metrics(ledger: JobLedger, reading: SharedReading[Any]) -> MetricSource:
    """Return the source of `PROCESS_FAMILIES`: the connection of this process to a ledger."""

    def read() -> Iterator[tuple[Family, MetricValues]]:
        yield _UP, [((), float(reading.latest() is not None))]
        statistics = ledger.statistics()
        for family, name in ((_POOL, "pool_size"), (_IN_USE, "pool_in_use"), (_ERRORS, "errors")):
            yield family, [((), statistics[name])]

    return read


def worker_metrics(worker: Worker) -> MetricSource:
    """Return the source of `WORKER_FAMILIES`."""

    def read() -> Iterator[tuple[Family, MetricValues]]:
        found, name = worker.statistics(), worker.settings.name
        yield _SLOTS, [((name,), worker.settings.concurrency)]
        yield _WORKING, [((name,), found.running)]
        yield _BEGUN, [((name,), found.begun)]
        outcomes = {
            "completed": found.completed,
            "failed": found.failed,
            "released": found.released,
            "lost": found.lost,
        }
        yield _OUTCOMES, [((name, outcome), count) for outcome, count in outcomes.items()]
        yield _STUCK, [((name,), found.stuck)]

    return read


def _ledger_values(reading: LedgerReading) -> Mapping[Family, MetricValues]:
    counts, queues = reading.counts, reading.queues
    values: dict[Family, MetricValues] = {
        _ARRIVED: _sums(counts, ARRIVALS, lambda count: (count.event.value,)),
        _WAIT: _histograms(counts, (CountedEvent.STARTED,)),
        _RUN: _histograms(counts, (CountedEvent.RETRIED, CountedEvent.FINISHED)),
        _RETRIED: _sums(counts, (CountedEvent.RETRIED,), lambda count: (count.cause,)),
        _ENDED: _sums(counts, ENDS, lambda count: (count.event.value, count.cause)),
        _WORKERS: [((state.value,), reading.workers.get(state, 0)) for state in WorkerState],
        _POOL_WANTED: [
            ((pool.name,), pool.decision.wanted)
            for pool in reading.pools
            if pool.controlled and pool.decision is not None
        ],
        _POOL_CONTROLLED: [((pool.name,), float(pool.controlled)) for pool in reading.pools],
        _DELIVERIES: [(("open",), reading.deliveries.open), (("dead",), reading.deliveries.dead)],
    }
    gauges: tuple[tuple[Family, Callable[[QueueSettings, QueueCounts], float]], ...] = (
        (_DUE, lambda _, jobs: jobs.due),
        (_LATER, lambda _, jobs: jobs.later),
        (_BLOCKED, lambda _, jobs: jobs.blocked),
        (_RUNNING, lambda _, jobs: jobs.running),
        (_OLDEST, lambda _, jobs: jobs.oldest_seconds),
        (_PAUSED, lambda queue, _: queue.paused),
        (_DRAINING, lambda queue, _: queue.draining),
    )
    for family, value in gauges:
        values[family] = [((queue.name,), float(value(queue, jobs))) for queue, jobs in queues]
    return values


def _sums(
    counts: Iterable[JobCount],
    events: Sequence[CountedEvent],
    more_labels: Callable[[JobCount], tuple[str, ...]],
) -> MetricValues:
    sums: defaultdict[tuple[str, ...], int] = defaultdict(int)
    for count in counts:
        if count.event in events:
            sums[*count.group, *more_labels(count)] += count.jobs
    return sorted(sums.items())


def _histograms(counts: Iterable[JobCount], events: Sequence[CountedEvent]) -> MetricValues:
    groups: defaultdict[JobGroup, list[JobCount]] = defaultdict(list)
    for count in counts:
        if count.event in events:
            groups[count.group].append(count)
    found: list[tuple[tuple[str, ...], MetricValue]] = [
        (tuple(group), histogram_of(groups[group])) for group in sorted(groups)
    ]
    return found
