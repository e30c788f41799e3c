"""Checks of wakeups and of the ledger's lifecycle: its clock, stopping and restarting."""

import threading
import time
from collections.abc import Callable

from headrace.core.errors import HeadraceError, JobLedgerUnavailableError, StoppedError
from headrace.jobs.access.endpoints import EndpointSettings
from headrace.jobs.actions import JobAction
from headrace.jobs.audit import AuditEntry
from headrace.jobs.job import Failed, Job, JobProgress, NewJob, Released, Settlement
from headrace.jobs.ledger import ClaimRequest, Heartbeat, JobFilter, JobLedger, QueueSettings
from headrace.jobs.pools import ScalingDecision
from headrace.jobs.schedules import JobSchedule, ScheduleSettings
from headrace.jobs.state import JobState
from headrace.jobs.worker_registry import WorkerInfo
from headrace.testing.expect import equal, true
from headrace.testing.job_checks.bench import (
    LEASE_MS,
    NO_WAIT_S,
    OOPS,
    WAKEUP_TIMEOUT_S,
    LedgerBench,
    done,
    drain_wakeups,
    expect_wakeup,
)
from headrace.testing.service import check_service

_LONG_WAIT_S = 120.0
_HOURLY = ScheduleSettings("0 * * * *", {"model": "m"})


def check_clock(bench: LedgerBench) -> None:
    """Check that all ledgers report the time of their clock, also if it is set back."""
    other = bench.start_ledger()
    for ms in (0, 1, 86_400_000, -3_600_000):
        now_ms = bench.advance(ms)
        equal((bench.ledger.now_ms(), other.now_ms()), (now_ms, now_ms), "the time of the ledgers")


def check_wakeup(bench: LedgerBench) -> None:
    """Check that a worker's waiter reports jobs that become due in its queues.

    These are new, retried, released, woken and requeued jobs.
    """
    wakeup = bench.ledger.wakeup(["a", "b"])
    bench.submit(queue="a")
    expect_wakeup(wakeup, "a new job")
    for queue in ("b", "a"):
        bench.submit(queue=queue)
        expect_wakeup(wakeup, f"a new job in {queue}")
    first, second, third = bench.claim(3, queues=["a", "b"])
    for job, outcome, what in (
        (first, Failed(OOPS, retry_ms=0), "a job retried at once"),
        (second, Released(), "a released job"),
    ):
        bench.settle(job, outcome)
        expect_wakeup(wakeup, what)
    bench.settle(third, done())
    drain_wakeups(wakeup)
    bench.ledger.requeue(third.id)
    expect_wakeup(wakeup, "a requeued job")
    bench.submit(queue="a", delay_ms=5_000)
    drain_wakeups(wakeup)
    bench.advance(5_000)
    equal(bench.ledger.maintain(100).woken, 1, "the woken jobs")
    expect_wakeup(wakeup, "a job that became due")
    wakeup.close()


def check_wakeup_across_ledgers(bench: LedgerBench) -> None:
    """Check that changes by another ledger over the same jobs wake every waiter."""
    wakeups = [bench.ledger.wakeup(["default"]), bench.start_ledger().wakeup(["default"])]
    other = bench.start_ledger()
    other.submit([NewJob(model="m")])
    for wakeup in wakeups:
        expect_wakeup(wakeup, "a job submitted to another ledger")
    for wakeup in wakeups:
        wakeup.close()


def check_wakeup_of_cancellations(bench: LedgerBench) -> None:
    """Check that a worker's waiter reports the requested cancellation of a running job."""
    job = bench.submit_running()
    wakeup = bench.ledger.wakeup(["default"])
    drain_wakeups(wakeup)
    bench.ledger.cancel(job.id)
    expect_wakeup(wakeup, "a running job to be cancelled")
    wakeup.close()


def check_wakeup_of_resumed_queues(bench: LedgerBench) -> None:
    """Check that a worker's waiter reports a resumed queue."""
    bench.submit()
    bench.ledger.set_queue(QueueSettings("default", paused=True))
    wakeup = bench.ledger.wakeup(["default"])
    drain_wakeups(wakeup)
    bench.ledger.set_queue(QueueSettings("default"))
    expect_wakeup(wakeup, "a resumed queue")
    wakeup.close()


def check_watch(bench: LedgerBench) -> None:
    """Check that `watch` reports every change of a job's state and progress."""
    job = bench.submit()
    watch = bench.ledger.watch()
    drain_wakeups(watch)
    claimed = bench.claim_one()
    expect_wakeup(watch, "a claimed job")
    bench.heartbeat(claimed, progress=JobProgress(1, 2))
    expect_wakeup(watch, "progress")
    bench.settle(claimed, Failed(OOPS, retry_ms=0))
    expect_wakeup(watch, "a retried job")
    bench.ledger.cancel(job.id)
    expect_wakeup(watch, "a cancelled job")
    bench.ledger.requeue(job.id)
    expect_wakeup(watch, "a requeued job")
    lost = bench.claim_one()
    drain_wakeups(watch)
    bench.expire_lease(lost)
    expect_wakeup(watch, "a lost job")
    bench.submit(queue="never-seen")
    expect_wakeup(watch, "a new job in a new queue")
    watch.close()


def check_wait_ends(bench: LedgerBench) -> None:
    """Check that a wait ends at its timeout without an error.

    `wake` ends the current wait, or the next one.
    """
    for make in (lambda: bench.ledger.wakeup(["default"]), bench.ledger.watch):
        wakeup = make()
        began_s = time.monotonic()
        wakeup.wait(NO_WAIT_S)
        true(time.monotonic() - began_s < WAKEUP_TIMEOUT_S, "a wait does not end at its timeout")
        wakeup.wake()
        _expect_end(lambda wakeup=wakeup: wakeup.wait(_LONG_WAIT_S), "a wait after `wake`")
        drain_wakeups(wakeup)
        waiter = threading.Thread(target=wakeup.wait, args=(_LONG_WAIT_S,), daemon=True)
        waiter.start()
        wakeup.wake()
        waiter.join(WAKEUP_TIMEOUT_S)
        true(not waiter.is_alive(), f"a concurrent wait continues {WAKEUP_TIMEOUT_S:g} s after `wake`")
        wakeup.close()
        wakeup.close()


def check_wakeups_are_independent(bench: LedgerBench) -> None:
    """Check that closing one waiter does not affect another."""
    closed, other = bench.ledger.wakeup(["default"]), bench.ledger.wakeup(["default"])
    closed.close()
    bench.submit()
    expect_wakeup(other, "a new job, after another wake-up was closed")
    other.close()


def check_statistics(bench: LedgerBench) -> None:
    """Check that the statistics contain non-negative integers for the gauges."""
    bench.submit()
    statistics = bench.ledger.statistics()
    for name in ("pool_size", "pool_in_use", "errors"):
        value = statistics.get(name)
        true(isinstance(value, int) and value >= 0, f"statistics' {name} is {value!r}")


def check_ledgers_share_jobs(bench: LedgerBench) -> None:
    """Check that a completed operation is visible at once in another ledger over the same jobs."""
    other = bench.start_ledger()
    job = bench.submit_running()
    equal(other.get_many([job.id]), {job.id: job}, "the job in another ledger")
    true(
        other.settle_and_claim([_done(job.id, job.lease)]).accepted == (True,),
        "another ledger refused the outcome",
    )
    equal(bench.state(job), JobState.COMPLETED, "the state in the first ledger")
    equal(other.history(job.id), bench.ledger.history(job.id), "the history in another ledger")


def check_restart(bench: LedgerBench) -> None:
    """Check that jobs, leases, keys, histories and queues survive a restart of the ledger."""
    new = NewJob(model="m", idempotency_key="key", body_digest="d")
    bench.ledger.submit([new])
    bench.settle(bench.claim_one(), Failed(OOPS))
    running = bench.submit_running(queue="q")
    bench.ledger.set_queue(QueueSettings("q", draining=True))
    before = bench.ledger.find(JobFilter()).jobs
    histories = [bench.ledger.history(job.id) for job in before]
    queues = bench.ledger.queues()
    bench.ledger.stop()
    again = bench.start_ledger()
    equal(again.find(JobFilter()).jobs, before, "the jobs after a restart")
    equal([again.history(job.id) for job in before], histories, "their histories")
    equal(again.queues(), queues, "the queues")
    (reply,) = again.submit([new])
    true(not getattr(reply, "created", True), "an idempotency key was lost by a restart")
    equal(
        again.settle_and_claim([_done(running.id, running.lease)]).accepted,
        (True,),
        "a lease from before the restart",
    )


def check_stopped_ledger_is_unavailable(bench: LedgerBench) -> None:
    """Check that every operation raises an error before `start` and after `stop`.

    Other ledgers are unaffected.
    """
    job = bench.submit()
    ledgers = {"before start": bench.new_ledger(), "after stop": bench.start_ledger()}
    ledgers["after stop"].stop()
    for when, ledger in ledgers.items():
        for name, act in _operations(ledger, job.id).items():
            _expect_unavailable(act, f"{name} {when}")
    equal(bench.reload(job), job, "the job in a running ledger")


def check_lifecycle(bench: LedgerBench) -> None:
    """Check that a ledger starts and stops in any order, as a service, and leaves no thread behind."""
    check_service(bench.new_ledger)


def _operations(ledger: JobLedger, job_id: str) -> dict[str, Callable[[], object]]:
    return {
        "submit": lambda: ledger.submit([NewJob(model="m")]),
        "settle_and_claim": lambda: ledger.settle_and_claim([], ClaimRequest("w", ("default",), 1, LEASE_MS)),
        "heartbeat": lambda: ledger.heartbeat("w", [Heartbeat(job_id, 1)], LEASE_MS),
        "mark_published": lambda: ledger.mark_published(job_id, 1, "memory://x"),
        "mark_publish_failed": lambda: ledger.mark_publish_failed(job_id, 1, OOPS, final=True),
        "claim_publications": lambda: ledger.claim_publications(1),
        "output_owner": lambda: ledger.output_owner(Job(job_id, JobState.PENDING, NewJob())),
        "republish": lambda: ledger.republish(job_id),
        "maintain": lambda: ledger.maintain(1),
        "get": lambda: ledger.get(job_id),
        "get_many": lambda: ledger.get_many([job_id]),
        "history": lambda: ledger.history(job_id),
        "failure_groups": ledger.failure_groups,
        "find": lambda: ledger.find(JobFilter()),
        "cancel": lambda: ledger.cancel(job_id),
        "requeue": lambda: ledger.requeue(job_id),
        "delete": lambda: ledger.delete(job_id),
        "apply_action": lambda: ledger.apply_action(JobAction.CANCEL, [job_id]),
        "record_audit": lambda: ledger.record_audit(AuditEntry("ops", "", "queue.delete", "q")),
        "audit": ledger.audit,
        "queues": ledger.queues,
        "queue": lambda: ledger.queue("default"),
        "set_queue": lambda: ledger.set_queue(QueueSettings("default")),
        "delete_queue": lambda: ledger.delete_queue("default"),
        "counts": lambda: ledger.counts("default"),
        "tenant_counts": lambda: ledger.tenant_counts(""),
        "count_pending": lambda: ledger.count_pending("", limit=1),
        "counters": ledger.counters,
        "set_limits": lambda: ledger.set_limits("model", []),
        "endpoints": ledger.endpoints,
        "endpoint_versions": lambda: ledger.endpoint_versions("e"),
        "set_endpoint": lambda: ledger.set_endpoint("e", EndpointSettings("m")),
        "delete_endpoint": lambda: ledger.delete_endpoint("e"),
        "schedules": ledger.schedules,
        "schedule": lambda: ledger.schedule("t", "s"),
        "set_schedule": lambda: ledger.set_schedule("t", "s", _HOURLY),
        "set_schedule_paused": lambda: ledger.set_schedule_paused("t", "s", paused=True),
        "delete_schedule": lambda: ledger.delete_schedule("t", "s"),
        "claim_schedules": lambda: ledger.claim_schedules(1, LEASE_MS),
        "record_run": lambda: ledger.record_run(JobSchedule("t", "s", _HOURLY, next_at_ms=1)),
        "use_bytes": lambda: ledger.use_bytes("web", 1, limit=1),
        "return_bytes": lambda: ledger.return_bytes("web", 1, day=1),
        "register_worker": lambda: ledger.register_worker(WorkerInfo("w")),
        "end_worker": lambda: ledger.end_worker("w"),
        "workers": ledger.workers,
        "worker": lambda: ledger.worker("w"),
        "worker_orders": lambda: ledger.worker_orders("w"),
        "set_worker_draining": lambda: ledger.set_worker_draining("w", draining=True),
        "reported_models": ledger.reported_models,
        "control_pool": lambda: ledger.control_pool("p", "c", LEASE_MS),
        "release_pool": lambda: ledger.release_pool("p", "c"),
        "record_decision": lambda: ledger.record_decision(ScalingDecision("p", "c", 1, 2, "due")),
        "pools": ledger.pools,
        "decisions": ledger.decisions,
        "ended_before": lambda: ledger.ended_before(0, limit=1),
        "forget": lambda: ledger.forget([job_id]),
    }


def _expect_unavailable(act: Callable[[], object], what: str) -> None:
    try:
        act()
    except (JobLedgerUnavailableError, StoppedError):
        return
    except HeadraceError as error:
        raise AssertionError(f"{what}: got {error!r}, wanted JobLedgerUnavailableError") from error
    raise AssertionError(f"{what} succeeds on a ledger that is not running")


def _done(job_id: str, lease: int) -> Settlement:
    return Settlement(job_id, lease, done())


def _expect_end(wait: Callable[[], object], what: str) -> None:
    began_s = time.monotonic()
    wait()
    true(time.monotonic() - began_s < WAKEUP_TIMEOUT_S, f"{what} does not end within {WAKEUP_TIMEOUT_S:g} s")
