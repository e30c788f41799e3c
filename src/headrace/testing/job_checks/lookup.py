"""Checks of a worker's recovery: its running jobs, cancellations, unpublished results and progress."""

from collections.abc import Callable
from typing import Any

from headrace.jobs.job import Failed, Job, JobProgress, Settlement
from headrace.jobs.state import JobState
from headrace.testing.expect import equal, true
from headrace.testing.job_checks.bench import OOPS, LedgerBench, done, ids


def check_list_running(bench: LedgerBench) -> None:
    """Check that `list_running` returns exactly the jobs under the worker's leases."""
    own, ended, others = (_submit_and_claim(bench, worker) for worker in ("w", "w", "w-2"))
    bench.settle(ended, done("memory://box/1"))
    bench.submit()
    equal(ids(bench.ledger.list_running("w")), [own.id], "the jobs under the worker's leases")
    equal(ids(bench.ledger.list_running("w-2")), [others.id], "the jobs under another worker's leases")
    equal(bench.ledger.list_running("w-3"), [], "the jobs of a worker without leases")


def check_cancel_requests(bench: LedgerBench) -> None:
    """Check that `cancel_requests` returns the worker's running jobs that are to be cancelled."""
    first, second, other = (_submit_and_claim(bench, worker) for worker in ("w", "w", "w-2"))
    nobody = frozenset[str]()
    equal(bench.ledger.cancel_requests("w"), nobody, "cancellations before the first")
    for job in (second, other):
        bench.ledger.cancel(job.id)
    equal(bench.ledger.cancel_requests("w"), frozenset({second.id}), "the worker's own cancellations")
    bench.settle(bench.reload(second), done("memory://box/1"))
    equal(bench.ledger.cancel_requests("w"), nobody, "cancellations of ended jobs")
    equal(bench.reload(first).state, JobState.RUNNING, "a job without a cancellation")


def check_list_unpublished(bench: LedgerBench) -> None:
    """Check that unpublished ends are listed, oldest first, until they are published.

    A requeued job is listed again after its next end.
    """
    wanted: list[Job] = []
    for outcome in (done("memory://box/1"), Failed(OOPS), done("memory://box/3")):
        wanted.append(_submit_and_claim(bench, output_uri="memory://out/"))
        bench.settle(wanted[-1], outcome)
        bench.advance(1_000)
    bench.settle(_submit_and_claim(bench), done("memory://box/x"))
    bench.settle(
        _submit_and_claim(bench, output_uri="memory://out/", kind="transform"),
        done("memory://out/_report.json"),
    )
    bench.settle(_submit_and_claim(bench, output_uri="memory://out/", kind="stream"), Failed(OOPS))
    last = bench.submit(output_uri="memory://out/")
    bench.ledger.cancel(last.id)
    bench.advance(1_000)
    now_ms = bench.clock.now_ms()
    found = bench.ledger.list_unpublished(ended_before_ms=now_ms, limit=100)
    equal(ids(found[:3]), ids(wanted), "unpublished ends, oldest first")
    equal(len(found), 5, "the number of unpublished ends (with a failed stream and a cancelled job)")
    equal(
        ids(bench.ledger.list_unpublished(ended_before_ms=now_ms, limit=2)), ids(wanted[:2]), "the first two"
    )
    earlier = bench.reload(wanted[1]).ended_at_ms
    assert earlier is not None, "it has ended"
    equal(
        ids(bench.ledger.list_unpublished(ended_before_ms=earlier, limit=9)),
        [wanted[0].id],
        "the ends before the second",
    )
    for job in found:
        true(
            bench.ledger.mark_published(job.id, job.lease, "memory://out/x"), "an end could not be published"
        )
    equal(
        bench.ledger.list_unpublished(ended_before_ms=now_ms, limit=9),
        [],
        "unpublished ends after publishing",
    )
    bench.ledger.requeue(wanted[0].id)
    bench.settle(bench.claim_one(), done("memory://box/again"))
    bench.advance(1_000)
    again = bench.ledger.list_unpublished(ended_before_ms=bench.clock.now_ms(), limit=9)
    equal(ids(again), [wanted[0].id], "unpublished ends after a requeued job ended again")


def _submit_and_claim(bench: LedgerBench, worker: str = "w", **spec: Any) -> Job:
    """Submit a job and claim it for `worker`. No other job may be due."""
    bench.submit(**spec)
    return bench.claim_one(worker=worker)


def check_uncounted_retries(bench: LedgerBench) -> None:
    """Check that an uncounted failure is retried without limit and is never the last attempt."""
    job = bench.submit(attempts_max=2)
    for lease in range(1, 6):
        running = bench.claim_one()
        equal((running.attempt, running.lease), (1, lease), "attempt and lease")
        true(bench.settle(running, Failed(OOPS, 1_000, counted=False)), "a failure was refused")
        after = bench.reload(job)
        equal((after.state, after.attempt, after.failure), (JobState.PENDING, 0, OOPS), "the job afterwards")
        bench.advance_until_due(job)


def check_settlement_records_progress(bench: LedgerBench) -> None:
    """Check that a settlement with progress records it.

    Without progress the last heartbeat's stays.
    """
    with_progress, without_progress = bench.submit_running(), bench.submit_running(queue="other")
    reported = JobProgress(7, 7, "records", "2 records failed")
    bench.heartbeat(without_progress, progress=JobProgress(1, 7))
    result = done("memory://box/1")
    reply = bench.ledger.settle_and_claim(
        [
            Settlement(with_progress.id, with_progress.lease, result, reported),
            Settlement(without_progress.id, without_progress.lease, result),
        ]
    )
    equal(reply.accepted, (True, True), "the accepted settlements")
    equal(bench.reload(with_progress).progress, reported, "the progress of the settlement")
    equal(bench.reload(without_progress).progress, JobProgress(1, 7), "the progress of the last heartbeat")


LOOKUP_CHECKS: tuple[Callable[[LedgerBench], None], ...] = (
    check_list_running,
    check_cancel_requests,
    check_list_unpublished,
    check_uncounted_retries,
    check_settlement_records_progress,
)
