"""Checks of the registry of workers: registration, reports, drain, and the models of queues."""

from dataclasses import replace
from typing import Final

from headrace.core.errors import ResourceNotFoundError
from headrace.jobs.job import Job, Released
from headrace.jobs.ledger import REPORTED_MODELS_KEPT_DAYS, HeartbeatReply
from headrace.jobs.state import JobState
from headrace.jobs.worker_registry import (
    JOB_IDS_MAX,
    WORKERS_KEPT_MS,
    GpuMemory,
    ModelCrash,
    WorkerInfo,
    WorkerOrders,
    WorkerReport,
    WorkerState,
)
from headrace.testing.expect import equal, raises, true
from headrace.testing.job_checks.bench import (
    LEASE_MS,
    LedgerBench,
    done,
    drain_wakeups,
    expect_wakeup,
    ids,
    run_concurrently,
)

_KEPT_MS: Final = REPORTED_MODELS_KEPT_DAYS * 86_400_000
_WORKERS: Final = 8
_INFO: Final = WorkerInfo(
    "w",
    "start-1",
    "host-1",
    4711,
    "1.2.3",
    queues=("default", "night"),
    models=("m", "m@1"),
    slots=4,
    region="eu",
    lease_ms=LEASE_MS,
)
_REPORT: Final = WorkerReport(
    ready=False,
    claims=True,
    memory_bytes=3 << 30,
    gpus=(GpuMemory(0, "A GPU", 1 << 30, 80 << 30), GpuMemory(1, "A GPU", 0, 80 << 30)),
    last_crash=ModelCrash("m", "oom", "its process was killed", 1_700_000_000_000),
)


def check_registered_worker(bench: LedgerBench) -> None:
    """Check that the registry returns all that workers state and report, by name."""
    equal(bench.ledger.workers(), [], "the workers of a new ledger")
    bench.ledger.register_worker(replace(_INFO, name="w-2"))
    began_ms = bench.advance(1_000)
    bench.start_ledger().register_worker(_INFO, _REPORT)
    read_ms = bench.advance(2_000)
    found, other = bench.ledger.workers()
    equal((found.info, found.report), (_INFO, _REPORT), "a worker and its report")
    equal((other.info.name, other.report), ("w-2", WorkerReport()), "a worker that reported nothing")
    times = (found.started_at_ms, found.seen_at_ms, found.stopped_at_ms, found.read_at_ms)
    equal(times, (began_ms, began_ms, None, read_ms), "the times of a worker")
    equal((found.draining, found.draining_by, found.running), (False, "", 0), "orders and jobs of a worker")
    equal(found.state, WorkerState.RUNNING, "the state of a worker")
    equal(bench.ledger.worker("w"), found, "a worker by its name")


def check_unknown_worker(bench: LedgerBench) -> None:
    """Check that operations on unknown workers raise ResourceNotFoundError, and its end does nothing."""
    bench.ledger.register_worker(_INFO)
    for name in ("other", ""):
        error = raises(
            ResourceNotFoundError, lambda name=name: bench.ledger.worker(name), "an unknown worker"
        )
        true(repr(name) in str(error), "the error does not name the worker")
        raises(
            ResourceNotFoundError,
            lambda name=name: bench.ledger.set_worker_draining(name, draining=True),
            "a drain of an unknown worker",
        )
        bench.ledger.end_worker(name)
    equal(bench.ledger.worker_orders("other"), WorkerOrders(), "the orders to an unknown worker")


def check_reported_heartbeat(bench: LedgerBench) -> None:
    """Check that a heartbeat replaces the report and its time, also without jobs."""
    bench.ledger.register_worker(_INFO)
    seen_ms = bench.advance(10_000)
    reply = bench.ledger.heartbeat("w", [], LEASE_MS, _REPORT)
    nobody = frozenset[str]()
    equal(reply, HeartbeatReply(nobody, nobody, nobody, registered=True), "the reply to an idle worker")
    found = bench.ledger.worker("w")
    equal((found.report, found.seen_at_ms), (_REPORT, seen_ms), "the report of a heartbeat, and its time")
    equal(found.info, _INFO, "the worker after a heartbeat")
    equal(_heartbeat(bench, "other").registered, False, "a heartbeat of an unknown worker")
    equal([each.info.name for each in bench.ledger.workers()], ["w"], "the workers after that heartbeat")


def check_lost_worker(bench: LedgerBench) -> None:
    """Check that a worker without heartbeats is lost after its lease, and living after a heartbeat."""
    bench.ledger.register_worker(_INFO)
    bench.advance(LEASE_MS)
    equal(_state(bench), WorkerState.RUNNING, "a worker at the end of its lease")
    bench.advance(1)
    equal(_state(bench), WorkerState.LOST, "a worker after its lease")
    equal(_heartbeat(bench).registered, True, "a heartbeat of a lost worker")
    equal(_state(bench), WorkerState.RUNNING, "a lost worker after a heartbeat")


def check_stopped_worker(bench: LedgerBench) -> None:
    """Check that an ended worker is stopped until it registers again."""
    bench.ledger.register_worker(_INFO, _REPORT)
    stopped_ms = bench.advance(1_000)
    bench.ledger.end_worker("w")
    bench.advance(1_000)
    bench.ledger.end_worker("w")
    equal(bench.ledger.worker("w").stopped_at_ms, stopped_ms, "the time of the end")
    equal(_heartbeat(bench).registered, False, "a heartbeat of a stopped worker")
    bench.advance(LEASE_MS + 1)
    equal(_state(bench), WorkerState.STOPPED, "an ended worker")
    bench.ledger.register_worker(_INFO)
    equal(_state(bench), WorkerState.RUNNING, "a worker that registered again")


def check_kept_workers(bench: LedgerBench) -> None:
    """Check that stopped and lost workers are listed for `WORKERS_KEPT_MS`, and living ones longer."""
    for name in ("lost", "stopped", "w"):
        bench.ledger.register_worker(replace(_INFO, name=name))
    bench.ledger.end_worker("stopped")
    bench.advance(WORKERS_KEPT_MS)
    _heartbeat(bench)
    equal(_names(bench), ["lost", "stopped", "w"], "the workers at the end of that time")
    bench.advance(1)
    equal(_names(bench), ["lost", "w"], "the workers a moment after a worker stopped that long ago")
    raises(ResourceNotFoundError, lambda: bench.ledger.worker("stopped"), "a worker that stopped long ago")
    bench.advance(LEASE_MS)
    equal(_names(bench), ["w"], "the workers a moment after a worker was lost that long ago")
    equal(_heartbeat(bench, "lost").registered, True, "a heartbeat before a registration deletes")
    bench.advance(WORKERS_KEPT_MS + LEASE_MS + 1)
    bench.ledger.register_worker(replace(_INFO, name="new"))
    for name in ("lost", "w"):
        equal(_heartbeat(bench, name).registered, False, f"a heartbeat of the deleted worker {name}")


def check_running_jobs_of_workers(bench: LedgerBench) -> None:
    """Check that the registry counts and names the jobs under a worker's leases."""
    bench.ledger.register_worker(_INFO)
    bench.ledger.register_worker(replace(_INFO, name="w-2"))
    bench.submit_many(JOB_IDS_MAX + 3)
    claimed = bench.claim(JOB_IDS_MAX + 2)
    (other,) = bench.claim(1, worker="w-2")
    equal([each.running for each in bench.ledger.workers()], [JOB_IDS_MAX + 2, 1], "running jobs by worker")
    equal(bench.ledger.worker("w").job_ids, tuple(sorted(ids(claimed))[:JOB_IDS_MAX]), "the listed ids")
    bench.settle(other, done())
    equal((bench.ledger.worker("w-2").running, bench.ledger.worker("w-2").job_ids), (0, ()), "no jobs")


def check_draining_worker(bench: LedgerBench) -> None:
    """Check that a drain reaches the worker, keeps its jobs, and is confirmed by a report."""
    bench.ledger.register_worker(_INFO)
    job = bench.submit_running()
    ordered = bench.ledger.set_worker_draining("w", draining=True, by="ops")
    equal(ordered, bench.ledger.worker("w"), "the worker that a drain returns")
    equal((ordered.draining, ordered.draining_by), (True, "ops"), "the order, and who gave it")
    equal(ordered.job_ids, (job.id,), "the jobs of a draining worker")
    equal(bench.ledger.worker_orders("w"), WorkerOrders(draining=True), "the orders to a worker")
    equal(bench.heartbeat(job).draining, True, "the order in the reply to a heartbeat")
    bench.ledger.heartbeat("w", [], LEASE_MS, WorkerReport(claims=False))
    equal(_state(bench), WorkerState.DRAINING, "a worker with a running job")
    bench.settle(job, done())
    equal(_state(bench), WorkerState.DRAINED, "a worker that confirmed, without jobs")
    equal(bench.state(job), JobState.COMPLETED, "the job of a draining worker")
    bench.ledger.heartbeat("w", [], LEASE_MS, WorkerReport(claims=True))
    equal(_state(bench), WorkerState.DRAINING, "a worker that has not confirmed")
    resumed = bench.ledger.set_worker_draining("w", draining=False, by="ops")
    equal((resumed.draining, resumed.draining_by), (False, ""), "the end of a drain")
    equal(resumed.state, WorkerState.RUNNING, "the state after the end of a drain")
    equal(bench.ledger.worker_orders("w"), WorkerOrders(), "the orders after the end of a drain")
    equal(_heartbeat(bench).draining, False, "the reply after the end of a drain")


def check_drain_until_new_start(bench: LedgerBench) -> None:
    """Check that a drain outlives repeated registrations, and ends with a new start of the worker."""
    began_ms = bench.clock.now_ms()
    bench.ledger.register_worker(_INFO)
    bench.ledger.set_worker_draining("w", draining=True, by="ops")
    bench.advance(1_000)
    bench.ledger.register_worker(replace(_INFO, models=("n",)), _REPORT)
    again = bench.ledger.worker("w")
    equal((again.draining, again.draining_by, again.started_at_ms), (True, "ops", began_ms), "the same start")
    equal((again.info.models, again.report), (("n",), _REPORT), "the repeated registration")
    started_ms = bench.advance(1_000)
    bench.ledger.register_worker(replace(_INFO, start_id="start-2"))
    new = bench.ledger.worker("w")
    equal((new.draining, new.draining_by, new.started_at_ms), (False, "", started_ms), "a new start")
    equal(new.report, WorkerReport(), "the report of a new start")


def check_wakeup_of_drains(bench: LedgerBench) -> None:
    """Check that the waiter of a worker reports a drain and its end, in each of its queues."""
    bench.ledger.register_worker(_INFO)
    other = bench.start_ledger()
    for queue in _INFO.queues:
        wakeup = bench.ledger.wakeup([queue])
        for draining in (True, False):
            drain_wakeups(wakeup)
            other.set_worker_draining("w", draining=draining)
            expect_wakeup(wakeup, f"a worker with draining={draining}")
        wakeup.close()


def check_orders_to_cancel(bench: LedgerBench) -> None:
    """Check that `worker_orders` returns the worker's running jobs that are to be cancelled."""
    first, second, other = (_submit_and_claim(bench, worker) for worker in ("w", "w", "w-2"))
    equal(bench.ledger.worker_orders("w"), WorkerOrders(), "orders before the first")
    for job in (second, other):
        bench.ledger.cancel(job.id)
    equal(bench.ledger.worker_orders("w"), WorkerOrders(frozenset({second.id})), "the own cancellations")
    bench.ledger.register_worker(_INFO)
    bench.ledger.set_worker_draining("w", draining=True)
    both = WorkerOrders(frozenset({second.id}), draining=True)
    equal(bench.ledger.worker_orders("w"), both, "a cancellation and a drain")
    bench.settle(second, Released())
    equal(bench.ledger.worker_orders("w"), WorkerOrders(draining=True), "orders about ended jobs")
    equal(bench.reload(first).state, JobState.RUNNING, "a job without a cancellation")


def check_registration_race(bench: LedgerBench) -> None:
    """Check that workers register and delete old workers concurrently, and none is lost."""
    for number in range(_WORKERS):
        bench.ledger.register_worker(replace(_INFO, name=f"old-{number}"))
    bench.advance(WORKERS_KEPT_MS + LEASE_MS + 1)
    ledgers = (bench.ledger, bench.start_ledger())
    run_concurrently(
        (lambda number=number: ledgers[number % 2].register_worker(replace(_INFO, name=f"new-{number}")))
        for number in range(_WORKERS)
    )
    equal(_names(bench), [f"new-{number}" for number in range(_WORKERS)], "the registered workers")


def check_registered_models_add_up(bench: LedgerBench) -> None:
    """Check that all ledgers see the union of the models of all workers, by queue."""
    equal(bench.ledger.reported_models(), {}, "the models of a ledger without workers")
    _register(bench, queues=("default", "night"), models=("a", "a@1"))
    other = WorkerInfo("w-2", queues=("default",), models=("b", "a", "b"))
    bench.start_ledger().register_worker(other)
    _register(bench, queues=("empty",), models=())
    expected = {"default": {"a", "a@1", "b"}, "night": {"a", "a@1"}}
    equal(bench.ledger.reported_models(), expected, "the registered models")


def check_registered_models_expire(bench: LedgerBench) -> None:
    """Check that models are kept for their time after they were registered, and a job changes nothing."""
    _register(bench, models=("old", "new"))
    bench.advance(_KEPT_MS)
    equal(bench.ledger.reported_models(), {"default": {"old", "new"}}, "the models at the end of that time")
    _register(bench, models=("new",))
    bench.submit(queue="other", model="unknown")
    bench.advance(1)
    equal(bench.ledger.reported_models(), {"default": {"new"}}, "the models after that time")
    bench.advance(_KEPT_MS)
    equal(bench.ledger.reported_models(), {}, "the models after the time of all workers")
    _register(bench, models=("old",))
    equal(bench.ledger.reported_models(), {"default": {"old"}}, "the models after a new registration")


def _register(bench: LedgerBench, models: tuple[str, ...], queues: tuple[str, ...] = ("default",)) -> None:
    bench.ledger.register_worker(WorkerInfo("w", queues=queues, models=models))


def _heartbeat(bench: LedgerBench, name: str = "w") -> HeartbeatReply:
    return bench.ledger.heartbeat(name, [], LEASE_MS)


def _state(bench: LedgerBench) -> WorkerState:
    return bench.ledger.worker("w").state


def _names(bench: LedgerBench) -> list[str]:
    return [each.info.name for each in bench.ledger.workers()]


def _submit_and_claim(bench: LedgerBench, worker: str) -> Job:
    """Submit a job and claim it for `worker`. No other job may be due."""
    bench.submit()
    return bench.claim_one(worker=worker)
